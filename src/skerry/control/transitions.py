"""What becomes of an instance by a wish, a placement, a loss or a change of its spec: pure, one step each.

Every function takes an instance and returns the step: the instance as it is to be written, and what is to be
told of it. The state machine is `skerry.model.statuses`; nothing here goes around it. Who commits a step, and
against which revision, is the caller's matter.

A copy that is on a node is given up in one of two ways. In good order: `leave` makes the node remove it, and
`unbind` follows when the node says that it has, so that there are never two copies at once. By force, as the
node is lost or not registered any more: `unbind` at once. Either way the next copy has a higher generation.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from skerry.model import errors, statuses
from skerry.model.ids import NodeId, WorkloadId
from skerry.model.statuses import FINAL, Desired, Status
from skerry.model.workloads import Instance, Spec

# The only way between two statuses that do not follow each other directly.
_BETWEEN = {
    Status.STOPPED: Status.STOPPING,
    Status.SCHEDULING: Status.STOPPED,
    Status.TERMINATED: Status.DESTROYING,
}


class Telling(NamedTuple):
    """An event to be: `kind` without its noun."""

    kind: str
    reason: str
    data: dict[str, str]


class Step(NamedTuple):
    """One instance as it is to be written, and the events that tell of it, because of `actor`."""

    after: Instance
    actor: str
    told: tuple[Telling, ...] = ()
    is_purged: bool = False  # it is over and wanted by nobody: its record goes


def made(instance: Instance, *, actor: str) -> Step:
    """A new instance, which waits for a node."""
    return Step(instance, actor, (_status(instance),))


def bind(instance: Instance, node: NodeId, *, at: float) -> Step:
    """Put on `node`, which has not begun."""
    after = replace(instance, node=node).become(
        Status.SCHEDULED, at=at, reason=f"placed on node {node}", actor="skerry"
    )
    return Step(after, "skerry", (_status(after, node=node),))


def wait(instance: Instance, reason: str) -> Step | None:
    """Told why there is no place for it; no event, as nothing has changed but what is known."""
    seen = instance.observed
    if seen.reason == reason:
        return None
    after = instance.become(seen.status, at=seen.since, reason=reason, actor="skerry")
    return Step(after, "skerry")


def wish(instance: Instance, desired: Desired, *, at: float, actor: str) -> Step | None:
    """Wanted otherwise; None if it is already, `Refused` if that is too late."""
    status = instance.observed.status
    if status in FINAL and desired is not Desired.DESTROYED:
        raise errors.Refused(f"it is {status}, which is final; create a new instance")
    after = instance.wish(desired)
    if after.desired is instance.desired:
        return None
    wished = Telling("wished", "", {"desired": desired.value})
    if after.node is None:
        return _settle(after, at=at, reason=f"{desired.lower()} by wish", actor=actor, told=(wished,))
    if desired is Desired.DESTROYED and status not in FINAL:
        after = after.become(Status.DESTROYING, at=at, reason="destroyed by wish", actor=actor)
        return Step(after, actor, (wished, _status(after)))
    return Step(after, actor, (wished,))


def then(first: Step | None, second: Step | None) -> Step | None:
    """Both, one after the other, as one."""
    if first is None or second is None:
        return first or second
    return second._replace(told=(*first.told, *second.told))


def respecify(
    instance: Instance, spec: Spec, *, workload: WorkloadId | None, version: int, actor: str
) -> Step | None:
    """Given another spec: the copy there is leaves, and the next has it. None if it has that spec."""
    if instance.desired is Desired.DESTROYED:
        raise errors.Refused("it is being destroyed, which cannot be undone; create a new instance")
    if instance.observed.status in FINAL:
        raise errors.Refused(f"it is {instance.observed.status}, which is final; create a new instance")
    if spec.kind is not instance.spec.kind:
        raise errors.Invalid("the type of an instance cannot change; create a new instance", field="type")
    after = replace(instance, spec=spec, workload=workload, version=version)
    if after == instance:
        return None
    if spec != instance.spec:
        is_somewhere = instance.node is not None
        leaving = instance.leaving or (instance.spec if is_somewhere else None)
        after = replace(after, generation=instance.generation + 1, leaving=leaving)
    return Step(after, actor, (Telling("changed", "", {"generation": str(after.generation)}),))


def leave(instance: Instance, *, reason: str) -> Step | None:
    """Its node is to give this copy up, after which it is placed anew; None if it is leaving already."""
    if instance.leaving is not None:
        return None
    after = replace(instance, leaving=instance.spec, generation=instance.generation + 1)
    seen = after.observed
    after = after.become(seen.status, at=seen.since, reason=reason, actor="skerry", exit_code=seen.exit_code)
    return Step(after, "skerry", (Telling("leaving", reason, {"node": instance.node or ""}),))


def unbind(instance: Instance, *, at: float, reason: str, actor: str) -> Step:
    """No longer on its node: what its node still has of it is stale."""
    after = replace(instance, node=None, ip="", leaving=None, generation=instance.generation + 1)
    return _settle(after, at=at, reason=reason, actor=actor)


def _settle(
    instance: Instance, *, at: float, reason: str, actor: str, told: tuple[Telling, ...] = ()
) -> Step:
    """What an instance without a node becomes by the wish alone."""
    is_purged = instance.desired is Desired.DESTROYED
    if instance.observed.status in FINAL:
        return Step(instance, actor, told, is_purged)
    goal = {
        Desired.RUNNING: Status.SCHEDULING,
        Desired.STOPPED: Status.STOPPED,
        Desired.DESTROYED: Status.TERMINATED,
    }[instance.desired]
    now = instance.observed.status
    if now is goal:
        return Step(instance.become(goal, at=at, reason=reason, actor=actor), actor, told)
    for status in (goal,) if statuses.may_become(now, goal) else (_BETWEEN[goal], goal):
        instance = instance.become(status, at=at, reason=reason, actor=actor)
        told = (*told, _status(instance))
    return Step(instance, actor, told, is_purged)


def _status(instance: Instance, **data: str) -> Telling:
    return Telling(instance.observed.status.lower(), instance.observed.reason, data)
