"""Transitions of an instance: desired status, placement, loss of a node, change of its spec. Pure.

Every function takes an instance and returns the transition: the instance to write, and its events. The state
machine is `skerry.model.statuses`; nothing here bypasses it. The caller commits a transition, on the revision
that it read. A copy leaves its node in one of two ways. Regularly: `evict` makes the node remove it, and
`unbind` follows when the node reports that it has, so that there are never two copies at once. By force, if
the node is lost or not registered any more: `unbind` at once. Either way the next copy has a higher
generation.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from skerry.model import errors, statuses
from skerry.model.ids import NodeId, VolumeId, WorkloadId
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec

# The only way between two statuses that do not follow each other directly.
_BETWEEN = {
    InstanceStatus.STOPPED: InstanceStatus.STOPPING,
    InstanceStatus.SCHEDULING: InstanceStatus.STOPPED,
    InstanceStatus.TERMINATED: InstanceStatus.DESTROYING,
}


class TransitionEvent(NamedTuple):
    """An event to be: `kind` without its noun."""

    kind: str
    reason: str
    data: dict[str, str]


class InstanceTransition(NamedTuple):
    """An instance to write, and its events, caused by `actor`."""

    after: Instance
    actor: str
    events: tuple[TransitionEvent, ...] = ()
    is_purged: bool = False  # it has ended and is to be destroyed: its record is deleted

    def because_of(self, request_id: str) -> InstanceTransition:
        """This, as the request of that id wants it; the events that follow carry the id, too."""
        return self._replace(after=replace(self.after, request_id=request_id))


def create(instance: Instance, *, actor: str) -> InstanceTransition:
    """A new instance, which waits for a node."""
    return InstanceTransition(instance, actor, (_status(instance),))


def bind(
    instance: Instance,
    node: NodeId,
    *,
    at: float,
    devices: tuple[str, ...] = (),
    volumes: tuple[VolumeId, ...] = (),
) -> InstanceTransition:
    """Put on `node`, which has not begun, with these of its devices, and with `volumes` as those of its
    mounts."""
    after = replace(instance, node=node, devices=devices, volumes=volumes).become(
        InstanceStatus.SCHEDULED, at=at, reason=f"placed on node {node}", actor="skerry"
    )
    data = {"node": node, "devices": " ".join(devices)} if devices else {"node": node}
    return InstanceTransition(after, "skerry", (_status(after, **data),))


def set_pending_reason(instance: Instance, reason: str) -> InstanceTransition | None:
    """Set the reason why it is not placed; without an event, because its status is the same."""
    observed = instance.observed
    if observed.reason == reason:
        return None
    after = instance.become(observed.status, at=observed.since, reason=reason, actor="skerry")
    return InstanceTransition(after, "skerry")


def set_desired(
    instance: Instance, desired: DesiredStatus, *, at: float, actor: str
) -> InstanceTransition | None:
    """Wanted otherwise; None if it is already, `FailedPrecondition` if that is too late."""
    status = instance.observed.status
    if status in TERMINAL and desired is not DesiredStatus.DESTROYED:
        raise errors.FailedPrecondition(f"it is {status}, which is final; create a new instance")
    after = instance.with_desired(desired)
    if after.desired is instance.desired:
        return None
    requested = TransitionEvent("wished", "", {"desired": desired.value})
    if after.node is None:
        return _finish(after, at=at, reason=f"{desired.lower()} on request", actor=actor, events=(requested,))
    if desired is DesiredStatus.DESTROYED and status not in TERMINAL:
        after = after.become(InstanceStatus.DESTROYING, at=at, reason="destroyed on request", actor=actor)
        return InstanceTransition(after, actor, (requested, _status(after)))
    return InstanceTransition(after, actor, (requested,))


def combine(first: InstanceTransition | None, second: InstanceTransition | None) -> InstanceTransition | None:
    """Both, one after the other, as one."""
    if first is None or second is None:
        return first or second
    return second._replace(events=(*first.events, *second.events))


def change_spec(
    instance: Instance, spec: InstanceSpec, *, workload: WorkloadId | None, version: int, actor: str
) -> InstanceTransition | None:
    """Another spec: the present copy leaves, and the next has it. None if it is the same."""
    after = replace(instance, spec=spec, workload=workload, version=version)
    if after == instance:
        return None
    if instance.desired is DesiredStatus.DESTROYED:
        raise errors.FailedPrecondition(
            "it is being destroyed, which cannot be undone; create a new instance"
        )
    if instance.observed.status in TERMINAL:
        raise errors.FailedPrecondition(
            f"it is {instance.observed.status}, which is final; create a new instance"
        )
    if spec.kind is not instance.spec.kind:
        raise errors.Invalid("the type of an instance cannot change; create a new instance", field="type")
    if spec != instance.spec:
        is_somewhere = instance.node is not None
        leaving = instance.leaving or (instance.spec if is_somewhere else None)
        after = replace(after, generation=instance.generation + 1, leaving=leaving)
    return InstanceTransition(
        after, actor, (TransitionEvent("changed", "", {"generation": str(after.generation)}),)
    )


def retire(instance: Instance, *, at: float) -> InstanceTransition:
    """Out of service from now on, to be destroyed soon; its node does not notice."""
    after = replace(instance, retiring_at=at)
    return InstanceTransition(after, "skerry", (TransitionEvent("retiring", "", {}),))


def release(instance: Instance) -> InstanceTransition:
    """It has stopped for good: others may have its processors and memory. No event, as nothing happens."""
    return InstanceTransition(replace(instance, is_released=True), "skerry")


def evict(instance: Instance, *, reason: str) -> InstanceTransition | None:
    """Its node must remove this copy, and then it is placed again; None if it is leaving already."""
    if instance.leaving is not None:
        return None
    after = replace(instance, leaving=instance.spec, generation=instance.generation + 1)
    observed = after.observed
    after = after.become(
        observed.status, at=observed.since, reason=reason, actor="skerry", exit_code=observed.exit_code
    )
    return InstanceTransition(
        after, "skerry", (TransitionEvent("leaving", reason, {"node": instance.node or ""}),)
    )


def unbind(instance: Instance, *, at: float, reason: str, actor: str) -> InstanceTransition:
    """No longer on its node: what its node still has of it is stale."""
    after = replace(
        instance, node=None, ip="", ip6="", leaving=None, devices=(), generation=instance.generation + 1
    )
    return _finish(after, at=at, reason=reason, actor=actor)


def _finish(
    instance: Instance, *, at: float, reason: str, actor: str, events: tuple[TransitionEvent, ...] = ()
) -> InstanceTransition:
    """What an instance without a node becomes, given its desired status."""
    is_purged = instance.desired is DesiredStatus.DESTROYED
    if instance.observed.status in TERMINAL:
        return InstanceTransition(instance, actor, events, is_purged)
    goal = {
        DesiredStatus.RUNNING: InstanceStatus.SCHEDULING,
        DesiredStatus.STOPPED: InstanceStatus.STOPPED,
        DesiredStatus.DESTROYED: InstanceStatus.TERMINATED,
    }[instance.desired]
    now = instance.observed.status
    if now is goal:
        return InstanceTransition(instance.become(goal, at=at, reason=reason, actor=actor), actor, events)
    for status in (goal,) if statuses.may_become(now, goal) else (_BETWEEN[goal], goal):
        instance = instance.become(status, at=at, reason=reason, actor=actor)
        events = (*events, _status(instance))
    return InstanceTransition(instance, actor, events, is_purged)


def _status(instance: Instance, **data: str) -> TransitionEvent:
    return TransitionEvent(instance.observed.status.lower(), instance.observed.reason, data)
