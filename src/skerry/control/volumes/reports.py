"""Reports of nodes about their volumes: what they become in the store, and how full volumes are.

`decide_report` is pure; `VolumeReports` writes. A node that has a volume which a restored store does not
know shows the receipt of its last order, and the volume is written into the store again. A volume that nobody
knows is left alone: data are never removed because a server does not know them.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.named_table import key_of
from skerry.control.recovery.store_history import StoreHistory, StoreStamp
from skerry.control.volumes.table import VolumeRecord, VolumeTable
from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId, VolumeId
from skerry.model.volumes import Volume, VolumeOrder, VolumeReport, VolumeStatus, VolumeUsage
from skerry.store.tables.table import Write

log = structlog.get_logger(__name__)

KEY_USE = b"skerry volume receipts"
_CODE_BYTES = 32
_ADOPTED = "its node has it; the store was restored from a backup that did not know"


CREATING = "it is being created"  # as nodes write it


class VolumeReceipt(msgspec.Struct, frozen=True):
    """That `node` was ordered to have `volume`."""

    node: NodeId
    stamp: StoreStamp
    volume: Volume


class ReportedVolume(msgspec.Struct, frozen=True):
    """A volume after a report, and the event for it; with `is_removed` its record goes."""

    volume: Volume
    kind: str
    is_removed: bool = False


def decide_report(volume: Volume, node: NodeId, report: VolumeReport, now: float) -> ReportedVolume | None:
    """What a report of `node` makes of a volume; None if nothing."""
    if volume.node != node:
        return None
    if volume.is_deleting:
        if report.is_gone and report.generation >= volume.generation:
            return ReportedVolume(replace(volume, reason=""), "removed", is_removed=True)
        if report.reason and report.reason != volume.reason and report.generation >= volume.generation - 1:
            return ReportedVolume(replace(volume, reason=report.reason), "waiting")
        return None
    if report.is_gone:
        return None  # of an order that this store does not know
    if report.generation > volume.generation:
        # The store was restored from a backup: its next orders must not be older than what the node has.
        if not report.is_ready or volume.operation:
            return None
        after = replace(
            volume,
            status=VolumeStatus.READY,
            reason="",
            since=now,
            has_been_ready=True,
            generation=report.generation,
        )
        return ReportedVolume(after, "adopted")
    if report.is_ready:
        if volume.status is VolumeStatus.READY:
            return None
        after = replace(volume, status=VolumeStatus.READY, reason="", since=now, has_been_ready=True)
        return ReportedVolume(after, "ready")
    if not report.reason or report.generation < volume.generation:
        return None
    if volume.status is VolumeStatus.FAILED:
        same = volume.reason == report.reason
        return None if same else ReportedVolume(replace(volume, reason=report.reason), "failed")
    if report.reason == CREATING:
        return None
    after = replace(volume, status=VolumeStatus.FAILED, reason=report.reason, since=now)
    return ReportedVolume(after, "failed")


def decide_recovery(
    volume: Volume | None, node: NodeId, receipt: VolumeReceipt, report: VolumeReport, now: float
) -> Volume | None:
    """The volume as it is on `node`, if the store, which has `volume`, was restored from a backup from before
    the order of `receipt`; None if the record stays as it is."""
    ordered = receipt.volume
    if volume is not None and (volume.node == node or volume.generation > ordered.generation):
        return None
    if volume is not None and volume.node is not None and volume.generation == ordered.generation:
        return None
    return replace(
        ordered,
        name=ordered.name if volume is None else volume.name,
        namespace=ordered.namespace if volume is None else volume.namespace,
        node=node,
        status=VolumeStatus.READY,
        reason="",
        since=now,
        has_been_ready=True,
        generation=max(ordered.generation, report.generation),
        # Of the store, if any: an operation that it does not know would hold the volume for ever.
        operation="" if volume is None else volume.operation,
        is_held=volume is not None and volume.is_held,
    )


class VolumeReports:
    """Takes reports of nodes, and gives receipts."""

    def __init__(
        self,
        events: EventLog,
        clock: Clock,
        table: VolumeTable,
        *,
        history: StoreHistory | None = None,
        key: bytes = b"",
    ) -> None:
        """`key` is of receipts, and a secret of the servers of this cloud. Without a `history` nothing is
        adopted."""
        self._events = events
        self._clock = clock
        self._table = table
        self._history = history
        self._key = key
        self._usage: dict[VolumeId, VolumeUsage] = {}
        self._second_copies: set[tuple[NodeId, VolumeId]] = set()  # that were reported
        table.listen(self._changed)

    def usage(self, id: VolumeId) -> VolumeUsage | None:
        """How full it was when its node last reported to this server."""
        return self._usage.get(id)

    def with_receipt(self, node: NodeId, order: VolumeOrder) -> VolumeOrder:
        """`order` as it is sent to `node`."""
        record = self._table.by_id(order.id)
        if self._history is None or record is None or record.value.node != node:
            return order
        receipt = VolumeReceipt(node, self._history.stamp(record.revision), _settled(record.value))
        data = json_codec.encode(receipt)
        return replace(order, receipt=_code(self._key, data) + data)

    async def take(self, node: NodeId, reports: Sequence[VolumeReport]) -> None:
        """Write what the node reported; durable on return."""
        for report in reports:
            record = self._table.by_id(report.id)
            if record is None or record.value.node != node:
                await self._recover(node, report)
            else:
                await self._take(node, record, report)

    async def _take(self, node: NodeId, known: VolumeRecord, report: VolumeReport) -> None:
        if known.value.node == node and report.is_ready:
            self._usage[report.id] = VolumeUsage(report.used_bytes, report.capacity_bytes)

        def decide(record: VolumeRecord) -> Write[Volume] | None:
            if record.value.id != report.id:
                return None  # another has its name by now
            outcome = decide_report(record.value, node, report, self._clock.now())
            if outcome is None:
                return None
            event = self._table.event(
                self._events,
                outcome.kind,
                outcome.volume,
                actor=f"node/{node}",
                reason=outcome.volume.reason,
            )
            return Write(outcome.volume, [event], outcome.is_removed)

        try:
            await self._table.update(key_of(known.value), decide, missing=errors.NotFound("it is removed"))
        except errors.NotFound:
            self._usage.pop(report.id, None)

    async def _recover(self, node: NodeId, report: VolumeReport) -> None:
        """Write a volume that the store has forgotten, or forgotten to be on this node; others are left as
        they are."""
        if not report.is_ready or self._history is None:
            return
        await self._table.sync()
        record = self._table.by_id(report.id)
        receipt = self._read(report.receipt)
        forgotten: Callable[[StoreStamp], bool] = await self._history.forgotten()
        if (
            receipt is None
            or (receipt.node, receipt.volume.id) != (node, report.id)
            or not forgotten(receipt.stamp)
        ):
            log.warning(
                "volume.unknown",
                node=node,
                volume=report.id,
                hint="the node keeps its data; remove its folder there by hand if they are not needed",
            )
            return
        volume = decide_recovery(record and record.value, node, receipt, report, self._clock.now())
        if volume is None:
            await self._report_second_copy(node, report.id, record)
            return
        if record is None and self._table.by_name(volume.name, volume.namespace) is not None:
            log.warning("volume.name_taken", node=node, volume=report.id, name=volume.name)
            volume = replace(volume, name=f"recovered-{volume.id.lower()}", owner=None)
        key = key_of(volume)
        event = self._table.event(self._events, "adopted", volume, actor=f"node/{node}", reason=_ADOPTED)
        try:
            await self._table.commit([self._table.put(key, volume), event], [self._table.expect(key, record)])
        except errors.Conflict:
            return  # the next report decides
        await self._history.note_restored("a node has a volume that the store does not know")
        log.info("volume.adopted", node=node, volume=volume.id, name=volume.name)

    async def _report_second_copy(self, node: NodeId, id: VolumeId, record: VolumeRecord | None) -> None:
        """A node has data of a volume that a restored store has bound to another: only a user knows which
        are the right ones. Once for each start of this server."""
        if record is None or record.value.node is None or (node, id) in self._second_copies:
            return
        self._second_copies.add((node, id))
        volume = record.value
        log.warning("volume.second_copy", node=node, volume=id, bound_to=volume.node)
        await self._events.record(
            "volume.second_copy",
            self._table.subject(volume),
            actor=f"node/{node}",
            reason=f"node {node} also has data of this volume, from before the store was restored, in "
            f"volumes/{id} of its data folder",
            name=volume.name,
            namespace=volume.namespace,
        )

    def _read(self, text: bytes) -> VolumeReceipt | None:
        code, data = text[:_CODE_BYTES], text[_CODE_BYTES:]
        if not hmac.compare_digest(code, _code(self._key, data)):
            return None
        try:
            return json_codec.decode(data, VolumeReceipt)
        except (json_codec.InvalidJson, errors.Invalid):  # of a version that knows more than this one
            return None

    def _changed(self, before: VolumeRecord | None, after: VolumeRecord | None) -> None:
        if after is None and before is not None:
            self._usage.pop(before.value.id, None)


def _settled(volume: Volume) -> Volume:
    """The parts that matter for a receipt: what changes with every binding is left out."""
    return replace(volume, bound_at=0.0, since=0.0, reason="", request_id="", operation="", is_held=False)


def _code(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
