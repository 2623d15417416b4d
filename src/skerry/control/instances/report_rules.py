"""The rules of reports: what a report of a node changes about an instance.

No I/O, and the time is an argument. A report counts if it is of the present copy, if no later report of its
node was applied, and if the state machine allows the transition. Only the session of its node reports about
an instance on a node; other callers (`setInstanceStatus`) may repeat the present status, which changes
nothing. If the state machine allows a status of our own node only through others in between, these are taken
as passed: a node that was set up anew does not report them. The results of health checks are the node's while
the instance runs, and the latest counts. `skerry.control.instances.reports` writes the transitions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord
from skerry.control.instances import transitions
from skerry.control.instances.transitions import InstanceTransition, TransitionEvent
from skerry.model import errors, statuses
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import InstanceReport
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance

# Statuses that only the control plane sets.
_NOT_OF_NODES = frozenset({InstanceStatus.SCHEDULING, InstanceStatus.SCHEDULED})
_NOT_REPORTED = "its node did not say when"


class ReportDisposition(enum.StrEnum):
    """What a report came to."""

    APPLIED = "applied"
    REPEATED = "repeated"  # known already
    OUTDATED = "outdated"  # of an earlier copy, or overtaken by a request: outdated
    STALE = "stale"  # not this node's: it is to stop what it has of it
    REFUSED = "refused"  # the state machine forbids it


class ReportOutcome(msgspec.Struct, frozen=True):
    """The outcome of one report."""

    instance: InstanceId
    disposition: ReportDisposition
    message: str = ""


class ReportDecision(NamedTuple):
    outcome: ReportOutcome
    step: InstanceTransition | None = None


def evaluate_report(
    instance: Instance | None, node: NodeId | None, report: InstanceReport, now: float, *, actor: str = ""
) -> ReportDecision:
    """What `report` by `node` means for `instance`; with `actor`, it is not by the node's own session."""
    id = report.instance
    if instance is None:
        return ReportDecision(ReportOutcome(id, ReportDisposition.STALE, "there is no such instance"))
    if node is not None and instance.node != node:
        return ReportDecision(ReportOutcome(id, ReportDisposition.STALE, f"it is not on node {node}"))
    if report.generation not in (0, instance.generation):
        message = f"generation {report.generation} is over; it is at {instance.generation}"
        return ReportDecision(ReportOutcome(id, ReportDisposition.OUTDATED, message))
    is_by_own_node = node is not None and not actor
    if instance.node is not None and not is_by_own_node:
        return ReportDecision(_reported_by_others(instance, report))
    actor = f"node/{node}" if node else actor or "skerry"
    is_leaving = instance.desired is DesiredStatus.DESTROYED or instance.leaving is not None
    if is_leaving:
        if report.status is not InstanceStatus.TERMINATED:
            return ReportDecision(ReportOutcome(id, ReportDisposition.OUTDATED, "it is to be removed"))
        reason = report.reason or "removed"
        return ReportDecision(
            ReportOutcome(id, ReportDisposition.APPLIED),
            transitions.unbind(instance, at=now, reason=reason, actor=actor),
        )
    if instance.observed.actor == actor and report.at < instance.observed.since:
        # From an old connection, or another server: the node has reported more since.
        return ReportDecision(
            ReportOutcome(id, ReportDisposition.OUTDATED, "it was overtaken by a later report")
        )
    try:
        if report.status in _NOT_OF_NODES:
            raise errors.FailedPrecondition(f"{report.status} is for the control plane to say")
        path = (
            statuses.shortest_path(instance.observed.status, report.status)
            if is_by_own_node
            else (report.status,)
        )
        after = _observe(instance, report, path, actor)
    except errors.FailedPrecondition as error:
        return ReportDecision(ReportOutcome(id, ReportDisposition.REFUSED, error.message))
    if after == instance:
        return ReportDecision(ReportOutcome(id, ReportDisposition.REPEATED))
    events: tuple[TransitionEvent, ...] = ()
    readiness = tuple(_readiness_events(instance, after))
    if after.observed.status is not instance.observed.status:
        events = (
            *_missed(path[:-1]),
            TransitionEvent(report.status.lower(), report.reason, _event_data(report)),
        )
    elif report.retry_at not in (None, instance.observed.retry_at):  # another try to start it has failed
        events = (TransitionEvent("backoff", report.reason, _event_data(report)),)
    return ReportDecision(
        ReportOutcome(id, ReportDisposition.APPLIED), InstanceTransition(after, actor, (*events, *readiness))
    )


def fold(
    records: Mapping[InstanceId, InstanceRecord | None],
    node: NodeId | None,
    reports: Sequence[InstanceReport],
    now: float,
    *,
    actor: str = "",
) -> tuple[list[ReportOutcome], dict[InstanceId, InstanceTransition]]:
    """Apply `reports` one after the other: their outcomes, and one transition per instance."""
    outcomes: list[ReportOutcome] = []
    steps: dict[InstanceId, InstanceTransition] = {}
    for report in reports:
        record, earlier = records[report.instance], steps.get(report.instance)
        instance = record.value if record else None
        if earlier is not None:
            instance = None if earlier.is_purged else earlier.after
        outcome, step = evaluate_report(instance, node, report, now, actor=actor)
        outcomes.append(outcome)
        if step is not None:
            steps[report.instance] = (
                step._replace(events=(*earlier.events, *step.events)) if earlier else step
            )
    return outcomes, steps


def _reported_by_others(instance: Instance, report: InstanceReport) -> ReportOutcome:
    """The outcome of a report by another caller about an instance on a node of ours."""
    if report.status is instance.observed.status:
        return ReportOutcome(instance.id, ReportDisposition.REPEATED)
    return ReportOutcome(
        instance.id,
        ReportDisposition.REFUSED,
        f"it is {instance.observed.status} on node {instance.node}, which reports it by its own session, and "
        "what that node sees counts; stop or destroy it instead",
    )


def _observe(
    instance: Instance, report: InstanceReport, path: Sequence[InstanceStatus], actor: str
) -> Instance:
    for status in path[:-1]:
        instance = instance.become(status, at=report.at, reason=_NOT_REPORTED, actor=actor)
    after = instance.become(
        report.status,
        at=report.at,
        reason=report.reason,
        actor=actor,
        exit_code=report.exit_code,
        retry_at=report.retry_at,
    )
    after = _apply_checks(after, report)
    observed = replace(after.observed, previous_exit_code=report.previous_exit_code)
    return replace(after, observed=observed, restarts=report.restarts, ip=report.ip, ip6=report.ip6)


def _apply_checks(instance: Instance, report: InstanceReport) -> Instance:
    """`instance` with the reported results of its checks, unless a later report was applied."""
    observed = instance.observed
    if observed.status is not InstanceStatus.RUNNING or report.checked_at < observed.checked_at:
        return instance
    checked = replace(
        observed,
        has_passed=report.has_passed,
        checked_at=report.checked_at,
        check_message=report.check_message,
    )
    return replace(instance, observed=checked)


def _readiness_events(before: Instance, after: Instance) -> Iterator[TransitionEvent]:
    """The events `ready` and `unready` of a running instance. Without readiness checks there are none,
    because `running` implies ready."""
    running = InstanceStatus.RUNNING
    has_passed = after.observed.status is running and after.observed.has_passed
    had_passed = before.observed.status is running and before.observed.has_passed
    if has_passed and not had_passed and (after.spec.decides_readiness or before.observed.status is running):
        yield TransitionEvent("ready", "", {})
    elif had_passed and not has_passed and after.observed.status is running:
        yield TransitionEvent("unready", after.observed.check_message, {})


def _event_data(report: InstanceReport) -> dict[str, str]:
    numbers = {"exit_code": report.exit_code, "restarts": report.restarts or None}
    data = {name: str(number) for name, number in numbers.items() if number is not None}
    if report.retry_at is not None:
        data["retry_at"] = f"{report.retry_at:.3f}"
    return data


def _missed(path: Sequence[InstanceStatus]) -> Iterator[TransitionEvent]:
    return (TransitionEvent(status.lower(), _NOT_REPORTED, {}) for status in path)
