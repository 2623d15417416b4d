"""Isolated namespaces, for all nodes of this cloud. A source of `skerry.control.network.feed`."""

from __future__ import annotations

from collections.abc import Iterable

from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.network.feed import ObjectChange
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import Namespace, NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.network_policies import IsolatedNamespace


class IsolatedNamespaces:
    """The isolated ones among all namespaces."""

    def __init__(self, policies: RecordedPolicies) -> None:
        self._policies = policies
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        policies.listen(self._changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        return [IsolatedNamespace(name, policy.allow_from) for name, policy in self._policies.isolated()]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def sync(self) -> None:
        await self._policies.sync()

    def _changed(self, namespace: Namespace) -> None:
        policy = self._policies.of(namespace)
        value = IsolatedNamespace(namespace, policy.allow_from) if policy.is_isolated else None
        self._listeners.notify(None, NetworkKey(IsolatedNamespace.kind, namespace), value)
