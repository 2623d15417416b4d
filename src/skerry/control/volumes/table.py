"""The records of volumes.

Requests of people (`registry`), the leader (`skerry.control.placement` binds them, and services make those of
their templates) and reports of nodes (`reports`) write them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from skerry.control.events.log import EventLog
from skerry.control.named_table import NamedTable
from skerry.model.ids import NodeId
from skerry.model.volumes import Volume, VolumeOrder
from skerry.store.protocol import Put, Store
from skerry.store.tables.table import Record, RecordChange

VolumeRecord = Record[Volume]


class VolumeTable(NamedTable[Volume]):
    """The volumes of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "volume", Volume)
        self._on_node: dict[NodeId, set[str]] = {}  # keys
        self.subscribe(self._index_nodes)

    def on_node(self, node: NodeId) -> Iterator[VolumeRecord]:
        """Those that are bound to a node."""
        for key in sorted(self._on_node.get(node, ())):
            if (record := self.get(key)) is not None:
                yield record

    def orders(self, node: NodeId) -> Sequence[VolumeOrder]:
        """All volumes that a node is to have, or to delete."""
        return [VolumeOrder.of(record.value) for record in self.on_node(node)]

    def event(self, events: EventLog, kind: str, volume: Volume, *, actor: str, reason: str = "") -> Put:
        """The event `volume.KIND`."""
        return events.put(
            f"volume.{kind}",
            self.subject(volume),
            actor=actor,
            reason=reason,
            request_id=volume.request_id,
            name=volume.name,
            namespace=volume.namespace,
            status=volume.status,
            node=volume.node or "",
        )

    def _index_nodes(self, changes: Sequence[RecordChange[Volume]]) -> None:
        for key, before, after in changes:
            if before is not None and before.value.node is not None:
                self._on_node.get(before.value.node, set()).discard(key)
            if after is not None and after.value.node is not None:
                self._on_node.setdefault(after.value.node, set()).add(key)
