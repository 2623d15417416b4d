"""Isolated namespaces, for all nodes of this cloud. A source of `skerry.control.network.feed`.

Nodes admit containers of other nodes by their addresses. Those of services and of single instances are
objects of others; of jobs, which have no names in the network, they are here, while a policy depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from skerry.control.instance_index import InstanceRecord
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import InstanceId, Namespace, NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.network_policies import IsolatedNamespace, JobAddress
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, OwnerKind

_AT_ITS_ADDRESS: Final = frozenset((InstanceStatus.STARTING, InstanceStatus.RUNNING, InstanceStatus.STOPPING))


class IsolatedNamespaces:
    """The isolated ones among all namespaces, and the jobs that may connect to them."""

    def __init__(self, policies: RecordedPolicies) -> None:
        self._policies = policies
        self._jobs: dict[InstanceId, JobAddress] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        policies.listen(self._policy_changed)
        policies.instances.listen(self._instance_changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        isolated = [IsolatedNamespace(name, policy.allow_from) for name, policy in self._policies.isolated()]
        return [*isolated, *self._jobs.values()]

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._policies.ready()

    def _policy_changed(self, namespace: Namespace) -> None:
        policy = self._policies.of(namespace)
        value = IsolatedNamespace(namespace, policy.allow_from) if policy.is_isolated else None
        self._listeners.notify(None, NetworkKey(IsolatedNamespace.kind, namespace), value)
        for record in list(self._policies.instances.index):
            self._instance_changed(None, record)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if after is not None:
            self._put(after.value.id, self._address_of(after.value))
        elif before is not None:
            self._put(before.value.id, None)

    def _address_of(self, instance: Instance) -> JobAddress | None:
        """None: it is of no job, has no address now, or no policy depends on it."""
        if instance.owner is None or instance.owner.kind is not OwnerKind.JOB:
            return None
        if instance.node is None or not instance.ip or instance.observed.status not in _AT_ITS_ADDRESS:
            return None
        if not self._policies.matters(instance.namespace):
            return None
        return JobAddress(instance.id, instance.namespace, instance.node, instance.ip)

    def _put(self, id: InstanceId, value: JobAddress | None) -> None:
        if self._jobs.get(id) == value:
            return
        if value is None:
            del self._jobs[id]
        else:
            self._jobs[id] = value
        self._listeners.notify(None, NetworkKey(JobAddress.kind, id), value)
