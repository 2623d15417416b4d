"""Writes reports of nodes: the observed state of instances.

`skerry.control.instances.report_rules` decides; `ReportProcessor` writes many reports in few transactions.
Usage is not durable: the server that the node reports to keeps it in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.report_rules import ReportDisposition, ReportOutcome, fold
from skerry.control.instances.writer import STEPS_PER_COMMIT, TransitionWriter
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import InstanceReport
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.model.statuses import InstanceStatus

log = structlog.get_logger(__name__)

_COUNTS = frozenset({ReportDisposition.APPLIED, ReportDisposition.REPEATED})


class ReportProcessor:
    """Takes reports, and keeps what instances use."""

    def __init__(self, writer: TransitionWriter, table: InstanceTable, clock: Clock) -> None:
        self._writer = writer
        self._table = table
        self._clock = clock
        self._usage: dict[InstanceId, Resources] = {}
        self._metrics: dict[InstanceId, float] = {}
        table.listen(self._forget)

    def usages(self) -> Iterable[tuple[InstanceId, Resources]]:
        """What each instance used that a node reported to this server."""
        return self._usage.items()

    def usage(self, id: InstanceId) -> Resources:
        """What the instance used when it was last reported to this server."""
        return self._usage.get(id, NO_RESOURCES)

    def load(self, id: InstanceId) -> tuple[Resources | None, float | None]:
        """What the instance used, and the metric that it showed, when it was last reported to this server."""
        return self._usage.get(id), self._metrics.get(id)

    async def take(
        self, node: NodeId | None, reports: Sequence[InstanceReport], *, actor: str = ""
    ) -> list[ReportOutcome]:
        """Write what counts; one outcome per report, in their order."""
        outcomes: list[ReportOutcome] = []
        for start in range(0, len(reports), STEPS_PER_COMMIT):
            outcomes += await self._write(node, reports[start : start + STEPS_PER_COMMIT], actor)
        return outcomes

    async def _write(
        self, node: NodeId | None, reports: Sequence[InstanceReport], actor: str
    ) -> list[ReportOutcome]:
        records = {report.instance: self._table.get(report.instance) for report in reports}
        while True:
            outcomes, steps = fold(records, node, reports, self._clock.now(), actor=actor)
            try:
                if steps:
                    await self._writer.commit(
                        (record, steps[id]) for id, record in records.items() if record and id in steps
                    )
            except errors.TooLarge:
                if len(reports) == 1:
                    raise
                half = len(reports) // 2
                return [
                    *await self._write(node, reports[:half], actor),
                    *await self._write(node, reports[half:], actor),
                ]
            except errors.Conflict:
                records = {id: await self._table.read(id) for id in records}
                continue
            for report, outcome in zip(reports, outcomes, strict=True):
                record = records[report.instance]
                is_by_others = bool(actor) and record is not None and record.value.node is not None
                if (
                    outcome.disposition in _COUNTS
                    and report.status is InstanceStatus.RUNNING
                    and not is_by_others
                ):
                    self._usage[report.instance] = report.usage
                    if report.metric is not None:
                        self._metrics[report.instance] = report.metric
                    else:
                        self._metrics.pop(report.instance, None)
                if outcome.disposition is ReportDisposition.REFUSED and not actor:
                    log.warning(
                        "report.refused",
                        node=node,
                        instance=report.instance,
                        reason=outcome.message,
                        request_id=record.value.request_id if record else "",
                    )
            return outcomes

    def _forget(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        if before is not None and (
            after is None or after.value.observed.status is not InstanceStatus.RUNNING
        ):
            self._usage.pop(before.value.id, None)
            self._metrics.pop(before.value.id, None)
