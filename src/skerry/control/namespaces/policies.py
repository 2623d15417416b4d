"""Network policies of namespaces, as this server knows them: from their records, beside the setting
`fleet.egress` for those without an egress of their own.

Orders to nodes have the egress and the isolation of their instance (`skerry.control.instances.registry`);
which namespaces an isolated one allows is a network object (`skerry.control.network.isolated_namespaces`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from skerry.control.instance_index import InstanceTable
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import Namespace
from skerry.model.namespaces import NamespaceRecord
from skerry.model.network import UNRESTRICTED, Egress, NamespaceEgress
from skerry.model.network_policies import OPEN_NAMESPACE, EgressChoice, NamespacePolicy
from skerry.store.tables.table import Record, Table

PolicyListener = Callable[[Namespace], None]


class InstancePolicies(Protocol):
    """What orders need to know."""

    def of(self, namespace: Namespace) -> NamespacePolicy: ...

    def egress(self, namespace: Namespace, choice: EgressChoice | None) -> Egress: ...

    def listen(self, changed: PolicyListener) -> None: ...

    async def sync(self) -> None: ...


class SettingPolicies:
    """Policies of the settings alone."""

    def __init__(self, default: NamespaceEgress) -> None:
        self._default = default

    def of(self, namespace: Namespace) -> NamespacePolicy:
        return OPEN_NAMESPACE

    def limit(self, namespace: Namespace) -> Egress:
        """The egress of workloads that choose none, and the widest that they may choose."""
        given = self.of(namespace).egress
        return self._default.of(namespace) if given is None else given

    def egress(self, namespace: Namespace, choice: EgressChoice | None) -> Egress:
        """Of a workload of the namespace that has this choice."""
        limit = self.limit(namespace)
        return limit if choice is None else choice.within(limit)

    def listen(self, changed: PolicyListener) -> None:
        """They never change."""

    async def sync(self) -> None:
        """Catch up with the store."""


OPEN_POLICIES = SettingPolicies(UNRESTRICTED)


class RecordedPolicies(SettingPolicies):
    """Policies of the records in `table`, for the instances in another."""

    def __init__(
        self, table: Table[NamespaceRecord], default: NamespaceEgress, instances: InstanceTable
    ) -> None:
        super().__init__(default)
        self.instances = instances
        self._table = table
        self._listeners: CallbackList[[Namespace]] = CallbackList()
        table.listen(self._record_changed)

    def of(self, namespace: Namespace) -> NamespacePolicy:
        record = self._table.value(namespace)
        return OPEN_NAMESPACE if record is None else record.policy

    def isolated(self) -> Iterator[tuple[Namespace, NamespacePolicy]]:
        for record in self._table.values():
            if record.policy.is_isolated:
                yield record.name, record.policy

    def matters(self, namespace: Namespace) -> bool:
        """True if nodes need to know its containers: it is isolated, or an isolated one allows it."""
        return any(namespace == name or namespace in policy.allow_from for name, policy in self.isolated())

    def listen(self, changed: PolicyListener) -> None:
        """Call `changed` with a namespace whose policy is another now."""
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._table.ready()

    async def sync(self) -> None:
        await self._table.sync()

    def _record_changed(
        self, before: Record[NamespaceRecord] | None, after: Record[NamespaceRecord] | None
    ) -> None:
        was, now = before and before.value, after and after.value
        known = now or was
        if known is None:
            return
        if (was.policy if was else OPEN_NAMESPACE) != (now.policy if now else OPEN_NAMESPACE):
            self._listeners.notify(known.name)
