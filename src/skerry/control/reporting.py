"""What nodes report of instances, judged and written: the observed half of an instance.

Pure in `judge`: a report counts if it is of the copy that the instance has now, if its node has not said
something later, and if the state machine lets the status follow. A node of ours knows what is on it, so where
the machine lets it follow only by a way around, that way was gone and not told: a node that was set up anew
forgets what it had to tell. `Reporter` writes many reports in few transactions. What an instance uses is not
durable: it is kept in memory by the server that the node reports to.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from skerry.control import transitions
from skerry.control.census import Known, Mirror
from skerry.control.transitions import Step, Telling
from skerry.control.writing import STEPS_PER_COMMIT, Writer
from skerry.kit.clock import Clock
from skerry.model import errors, statuses
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import Report
from skerry.model.room import NOTHING, Room
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Instance

# What only the control plane says of an instance.
_NOT_OF_NODES = frozenset({Status.SCHEDULING, Status.SCHEDULED})
_UNTOLD = "its node did not say when"


class Weight(enum.StrEnum):
    """What a report came to."""

    APPLIED = "applied"
    REPEATED = "repeated"  # known already
    OUTDATED = "outdated"  # of an earlier copy, or overtaken by a wish: true once, and of no more use
    STALE = "stale"  # not this node's: it is to stop what it has of it
    REFUSED = "refused"  # the state machine forbids it


_COUNTS = frozenset({Weight.APPLIED, Weight.REPEATED})


class Outcome(msgspec.Struct, frozen=True):
    """What became of one report."""

    instance: InstanceId
    weight: Weight
    message: str = ""


class Judged(NamedTuple):
    outcome: Outcome
    step: Step | None = None


def judge(
    instance: Instance | None, node: NodeId | None, report: Report, now: float, *, actor: str = ""
) -> Judged:
    """What `report` by `node` means for `instance`; with `actor`, it is not by the node's own session."""
    id = report.instance
    if instance is None:
        return Judged(Outcome(id, Weight.STALE, "there is no such instance"))
    if node is not None and instance.node != node:
        return Judged(Outcome(id, Weight.STALE, f"it is not on node {node}"))
    if report.generation not in (0, instance.generation):
        message = f"generation {report.generation} is over; it is at {instance.generation}"
        return Judged(Outcome(id, Weight.OUTDATED, message))
    is_own_word = node is not None and not actor
    actor = f"node/{node}" if node else actor or "skerry"
    is_to_go = instance.desired is Desired.DESTROYED or instance.leaving is not None
    if is_to_go:
        if report.status is not Status.TERMINATED:
            return Judged(Outcome(id, Weight.OUTDATED, "it is to be removed"))
        reason = report.reason or "removed"
        return Judged(
            Outcome(id, Weight.APPLIED), transitions.unbind(instance, at=now, reason=reason, actor=actor)
        )
    if instance.observed.actor == actor and report.at < instance.observed.since:
        # By way of a connection that was over, or of another server: the node has said more since.
        return Judged(Outcome(id, Weight.OUTDATED, "it was overtaken by a later report"))
    try:
        if report.status in _NOT_OF_NODES:
            raise errors.Refused(f"{report.status} is for the control plane to say")
        way = statuses.way(instance.observed.status, report.status) if is_own_word else (report.status,)
        after = _observe(instance, report, way, actor)
    except errors.Refused as error:
        return Judged(Outcome(id, Weight.REFUSED, error.message))
    if after == instance:
        return Judged(Outcome(id, Weight.REPEATED))
    told: tuple[Telling, ...] = ()
    if after.observed.status is not instance.observed.status:
        data = {} if report.exit_code is None else {"exit_code": str(report.exit_code)}
        told = (*_missed(way[:-1]), Telling(report.status.lower(), report.reason, data))
    return Judged(Outcome(id, Weight.APPLIED), Step(after, actor, told))


class Reporter:
    """Takes reports, and keeps what instances use."""

    def __init__(self, writer: Writer, mirror: Mirror, clock: Clock) -> None:
        self._writer = writer
        self._census = mirror.census
        self._clock = clock
        self._usage: dict[InstanceId, Room] = {}
        mirror.listen(self._forget)

    def usage(self, id: InstanceId) -> Room:
        """What the instance used when it was last reported to this server."""
        return self._usage.get(id, NOTHING)

    async def take(self, node: NodeId | None, reports: Sequence[Report], *, actor: str = "") -> list[Outcome]:
        """Write what counts; one outcome per report, in their order."""
        outcomes: list[Outcome] = []
        for start in range(0, len(reports), STEPS_PER_COMMIT):
            outcomes += await self._write(node, reports[start : start + STEPS_PER_COMMIT], actor)
        return outcomes

    async def _write(self, node: NodeId | None, reports: Sequence[Report], actor: str) -> list[Outcome]:
        known = {report.instance: self._census.get(report.instance) for report in reports}
        while True:
            outcomes, steps = fold(known, node, reports, self._clock.now(), actor=actor)
            try:
                if steps:
                    await self._writer.commit(
                        (held, steps[id]) for id, held in known.items() if held and id in steps
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
                known = {id: await self._writer.read(id) for id in known}
                continue
            for report, outcome in zip(reports, outcomes, strict=True):
                if outcome.weight in _COUNTS and report.status is Status.RUNNING:
                    self._usage[report.instance] = report.usage
            return outcomes

    def _forget(self, before: Known | None, after: Known | None) -> None:
        if before is not None and (after is None or after.value.observed.status is not Status.RUNNING):
            self._usage.pop(before.value.id, None)


def fold(
    known: Mapping[InstanceId, Known | None],
    node: NodeId | None,
    reports: Sequence[Report],
    now: float,
    *,
    actor: str = "",
) -> tuple[list[Outcome], dict[InstanceId, Step]]:
    """What all of `reports`, one after the other, come to: their outcomes, and one step per instance."""
    outcomes: list[Outcome] = []
    steps: dict[InstanceId, Step] = {}
    for report in reports:
        held, earlier = known[report.instance], steps.get(report.instance)
        instance = held.value if held else None
        if earlier is not None:
            instance = None if earlier.is_purged else earlier.after
        outcome, step = judge(instance, node, report, now, actor=actor)
        outcomes.append(outcome)
        if step is not None:
            steps[report.instance] = step._replace(told=(*earlier.told, *step.told)) if earlier else step
    return outcomes, steps


def _observe(instance: Instance, report: Report, way: Sequence[Status], actor: str) -> Instance:
    for status in way[:-1]:
        instance = instance.become(status, at=report.at, reason=_UNTOLD, actor=actor)
    after = instance.become(
        report.status, at=report.at, reason=report.reason, actor=actor, exit_code=report.exit_code
    )
    return replace(after, restarts=report.restarts, ip=report.ip)


def _missed(way: Sequence[Status]) -> Iterator[Telling]:
    return (Telling(status.lower(), _UNTOLD, {}) for status in way)
