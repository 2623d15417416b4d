"""Orders to nodes about their volumes, and their reports: the part of volumes that node sessions use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skerry.control.volumes.reports import VolumeReports
from skerry.control.volumes.table import VolumeRecord, VolumeTable
from skerry.kit.callbacks import CallbackList
from skerry.model.ids import NodeId
from skerry.model.volumes import VolumeOrder, VolumeReport


class VolumeOrders:
    """What nodes are to do about volumes."""

    def __init__(self, table: VolumeTable, reports: VolumeReports) -> None:
        self._table = table
        self._reports = reports
        self._listeners: CallbackList[[NodeId, VolumeOrder]] = CallbackList()
        table.listen(self._changed)

    def orders(self, node: NodeId) -> Sequence[VolumeOrder]:
        """All volumes that a node is to have, or to delete."""
        return self._table.orders(node)

    def as_sent(self, node: NodeId, order: VolumeOrder) -> VolumeOrder:
        """With its receipt."""
        return self._reports.with_receipt(node, order)

    async def sync(self) -> None:
        await self._table.sync()

    def listen(self, changed: Callable[[NodeId, VolumeOrder], None]) -> None:
        """Call `changed` whenever the order for a volume of a node changes."""
        self._listeners.add(changed)

    async def reported(self, node: NodeId, reports: Sequence[VolumeReport]) -> None:
        """Write what a node reported; durable on return."""
        await self._reports.take(node, reports)

    def _changed(self, before: VolumeRecord | None, after: VolumeRecord | None) -> None:
        """A volume whose record is gone has no order: its node keeps what it has of it."""
        if after is None or after.value.node is None:
            return
        order = VolumeOrder.of(after.value)
        is_new = before is None or before.value.node != after.value.node
        if is_new or before is None or VolumeOrder.of(before.value) != order:
            self._listeners.notify(after.value.node, order)
