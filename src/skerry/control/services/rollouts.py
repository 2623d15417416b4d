"""The progress of an update of a service: promotion of canaries, completion, failure and revert.

Pure. `advance` takes the copies and returns the new record of the service. It replaces no copy:
`skerry.control.services.decisions` chooses the next one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from skerry.control.services.copies import ServiceCopies, owner_of
from skerry.model.services import (
    RevisionOutcome,
    Service,
    ServiceRevision,
    ServiceRollout,
    UpdateFailureAction,
)
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance


class ServiceEvent(NamedTuple):
    """An event to be written: `kind` without its noun."""

    kind: str
    reason: str
    data: dict[str, str]


@dataclass(slots=True)
class RolloutAdvance:
    """The new record, and its events."""

    service: Service
    outcomes: dict[int, RevisionOutcome] = field(default_factory=dict)
    events: list[ServiceEvent] = field(default_factory=list)
    wake_at: float | None = None


def advance(service: Service, copies: ServiceCopies, now: float) -> RolloutAdvance:
    """The service with the progress of its update."""
    result = RolloutAdvance(service)
    rollout = service.rollout
    if rollout is None or service.is_paused:
        return result
    good = copies.good_of_target()
    if not rollout.is_canary and _is_complete(service, copies, good):
        _complete(result, rollout)
        return result
    if rollout.is_halted:
        return result
    if good > rollout.good:
        rollout = replace(rollout, good=good, progress_at=now)
    if rollout.is_canary:
        rollout = _try_canaries(result, rollout, good, now)
    if rollout != service.rollout:
        result.service = replace(service, rollout=rollout)
    if rollout.is_revert:
        return result  # there is no revision to revert to: it continues until it is done
    waits_for_operator = rollout.is_canary and rollout.canaries_good_at is not None
    reason = _crashes(service, copies, rollout)
    if not reason and not waits_for_operator:
        fails_at = max(rollout.progress_at, copies.watched_since) + service.update.deadline_s
        if now >= fails_at:
            reason = _overdue(service, copies, good)
        else:
            _wake(result, fails_at)
    if reason:
        _fail(result, rollout, reason, now)
    return result


def begin(now: float, *, is_canary: bool = False) -> ServiceRollout:
    """An update that begins now."""
    return ServiceRollout(started_at=now, progress_at=now, is_canary=is_canary)


def _is_complete(service: Service, copies: ServiceCopies, good: int) -> bool:
    return good >= service.replicas and all(copies.is_of_target(copy) for copy in copies.each_serving())


def _complete(result: RolloutAdvance, rollout: ServiceRollout) -> None:
    service = result.service
    target = replace(service.target, outcome=RevisionOutcome.GOOD)
    result.service = replace(service, target=target, stable=target, rollout=None)
    result.outcomes[target.number] = RevisionOutcome.GOOD
    kind = "reverted" if rollout.is_revert else "updated"
    result.events.append(ServiceEvent(kind, rollout.reason, {"revision": str(target.number)}))


def _try_canaries(result: RolloutAdvance, rollout: ServiceRollout, good: int, now: float) -> ServiceRollout:
    update = result.service.update
    if good < min(update.canary, result.service.replicas):
        if rollout.canaries_good_at is None:
            return rollout
        # They have their whole deadline to get well: while they were good, nothing was waited for.
        return replace(rollout, canaries_good_at=None, progress_at=now)
    if rollout.canaries_good_at is None:
        rollout = replace(rollout, canaries_good_at=now)
    if update.promote_after_s is None or rollout.canaries_good_at is None:
        return rollout
    promote_at = rollout.canaries_good_at + update.promote_after_s
    if now < promote_at:
        _wake(result, promote_at)
        return rollout
    number = str(result.service.target.number)
    result.events.append(
        ServiceEvent("promoted", "its canaries were good for long enough", {"revision": number})
    )
    return promote(rollout, now)


def promote(rollout: ServiceRollout, now: float) -> ServiceRollout:
    """All copies follow from now on."""
    return replace(rollout, is_canary=False, canaries_good_at=None, progress_at=now)


def _crashes(service: Service, copies: ServiceCopies, rollout: ServiceRollout) -> str:
    """Why the update has failed, if copies that it made crash too often."""
    most = service.update.max_failures
    for copy in copies.all:
        if copy.created_at < rollout.started_at or not copies.is_of_target(copy):
            continue
        has_ended = copy.observed.status in TERMINAL
        failures = copy.restarts + (owner_of(copy).attempt + 1 if has_ended else 0)
        if failures >= most:
            return f"copy {copy.spec.name} failed {failures} times: {_last_error(copy)}"
    return ""


def _overdue(service: Service, copies: ServiceCopies, good: int) -> str:
    within = f"{service.update.deadline_s:g} s"
    reason = f"{good} of {service.replicas} copies were good, and no other became so within {within}"
    if service.quota_message:
        return f"{reason}; {service.quota_message}"
    for copy in copies.each_serving():
        if copies.is_of_target(copy) and not copies.is_settled(copy):
            return f"{reason}; {copy.spec.name}: {_last_error(copy)}"
    return reason


def _last_error(copy: Instance) -> str:
    seen = copy.observed
    return seen.check_message or seen.reason or f"it is {seen.status}"


def _fail(result: RolloutAdvance, rollout: ServiceRollout, reason: str, now: float) -> None:
    service = result.service
    failed = service.target.number
    result.outcomes[failed] = RevisionOutcome.FAILED
    result.events.append(ServiceEvent("failed", reason, {"revision": str(failed)}))
    stable = service.stable
    if stable is None or service.update.on_failure is UpdateFailureAction.PAUSE:
        result.service = replace(service, rollout=replace(rollout, is_halted=True, reason=reason))
        return
    why = f"revision {failed} failed: {reason}"
    result.service = revert(service, stable, why, now)
    data = {"revision": str(stable.number), "from": str(failed)}
    result.events.append(ServiceEvent("reverting", why, data))
    result.wake_at = now


def revert(service: Service, to: ServiceRevision, reason: str, now: float) -> Service:
    """The service on its way back to a revision that was good."""
    back = ServiceRollout(started_at=now, progress_at=now, is_revert=True, reason=reason)
    return replace(service, target=to, rollout=back)


def _wake(result: RolloutAdvance, at: float) -> None:
    if result.wake_at is None or at < result.wake_at:
        result.wake_at = at
