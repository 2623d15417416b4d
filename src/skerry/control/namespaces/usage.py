"""What counts towards a quota, and how much of it each namespace uses. Pure; in memory.

An instance counts from the moment it is in the store until it is to be destroyed or has ended: what a node
sets aside for it, also while it waits for a node or is stopped, so that a start is never refused. One that
was stopped for good counts only its disk. A function counts as one, a volume as one and with its size.
`skerry.control.namespaces.admission` keeps a `NamespaceUsage` up to date from the tables, so it is exact for
whatever the tables include.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from skerry.kit.callbacks import CallbackList
from skerry.model.function_names import namespace_of
from skerry.model.functions import Function
from skerry.model.ids import Namespace
from skerry.model.namespaces import NOTHING, QuotaAmounts
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.volumes import Volume
from skerry.model.workloads import Instance, InstanceSpec
from skerry.store.tables.table import Record

T = TypeVar("T")

# The namespace of a record, and what it uses there.
CountedUse = tuple[Namespace, QuotaAmounts]
_GIGABYTE = 1024**3
_ONE_FUNCTION = QuotaAmounts(functions=1)


def instance_use(instance: Instance) -> CountedUse:
    """What an instance uses of the quota of its namespace."""
    if instance.desired is DesiredStatus.DESTROYED or instance.observed.status in TERMINAL:
        return instance.namespace, NOTHING
    if instance.is_released:
        return instance.namespace, QuotaAmounts(disk=instance.spec.resources.disk)
    return instance.namespace, spec_use(instance.spec)


def has_same_use(before: Instance, after: Instance) -> bool:
    """True if it is plain that both use the same: of most changes of an instance, which are very many."""
    status, other = before.observed.status, after.observed.status
    return (
        before.spec is after.spec
        and before.desired is after.desired
        and before.is_released is after.is_released
        and (status is other or (status not in TERMINAL and other not in TERMINAL))
    )


def spec_use(spec: InstanceSpec) -> QuotaAmounts:
    """What one instance of this spec uses."""
    resources = spec.resources
    return QuotaAmounts(resources.cpu, resources.memory, resources.disk, 1)


def function_use(function: Function) -> CountedUse:
    """What a function uses, in its namespace."""
    return namespace_of(function.name), _ONE_FUNCTION


def volume_use(volume: Volume) -> CountedUse:
    """What a volume uses, until its data are removed."""
    return volume.namespace, QuotaAmounts(disk=volume.size, volumes=1)


def snapshot_use(snapshot: Snapshot) -> CountedUse:
    """What a snapshot uses: disk, until its data are removed, unless they are in a store outside the cloud.
    The size of its volume counts until it is known how much was written."""
    if snapshot.location is SnapshotLocation.S3:
        return snapshot.namespace, NOTHING
    is_known = snapshot.status is not SnapshotStatus.CREATING and snapshot.data_bytes
    written = Gigabytes(-(-snapshot.data_bytes // _GIGABYTE)) if is_known else snapshot.size
    return snapshot.namespace, QuotaAmounts(disk=min(snapshot.size, written))


class NamespaceUsage:
    """What each namespace uses, summed over changes of tables."""

    def __init__(self) -> None:
        self._used: dict[Namespace, QuotaAmounts] = {}
        self._listeners: CallbackList[[Namespace]] = CallbackList()

    def of(self, namespace: Namespace) -> QuotaAmounts:
        return self._used.get(namespace, NOTHING)

    def namespaces(self) -> list[Namespace]:
        """Those that use something."""
        return sorted(self._used)

    def listen(self, shrank: Callable[[Namespace], None]) -> Callable[[], None]:
        """Call `shrank` with a namespace that uses less of something than before; the result ends that."""
        return self._listeners.add(shrank)

    def listener(
        self, use: Callable[[T], CountedUse], has_same: Callable[[T, T], bool] = lambda before, after: False
    ) -> Callable[[Record[T] | None, Record[T] | None], None]:
        """What a table of records with this `use` calls with every change; `has_same` is True if it is plain
        that two records use the same."""

        def changed(before: Record[T] | None, after: Record[T] | None) -> None:
            if before is not None and after is not None and has_same(before.value, after.value):
                return
            self._replace(
                None if before is None else use(before.value), None if after is None else use(after.value)
            )

        return changed

    def _replace(self, before: CountedUse | None, after: CountedUse | None) -> None:
        if before == after:
            return
        for counted, sign in ((before, -1), (after, 1)):
            if counted is None or counted[1] is NOTHING:
                continue
            namespace, amounts = counted
            used = self.of(namespace)
            used = used + amounts if sign > 0 else used - amounts
            if used == NOTHING:
                self._used.pop(namespace, None)
            else:
                self._used[namespace] = used
        if before is not None and (after is None or (before[1] - after[1]).grows):
            self._listeners.notify(before[0])
