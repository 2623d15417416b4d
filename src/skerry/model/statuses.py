"""Observed and desired status of an instance, and which status may follow which.

The observed status is the union of both Kudo documents. `TRANSITIONS` is the whole state machine; every
change of an instance's status goes through `check`, wherever it comes from. `DesiredStatus` is separate: it
is the user's request and changes at once, while the status follows. Numbers and other spellings of a contract
belong to `skerry.wire`.
"""

from __future__ import annotations

import enum
import functools

from skerry.model import errors


class InstanceStatus(enum.StrEnum):
    """What an instance was last seen to be doing."""

    SCHEDULING = "SCHEDULING"  # waits for a node; stays here, with a reason, while none has resources
    SCHEDULED = "SCHEDULED"  # has a node, which has not begun
    STARTING = "STARTING"  # its node fetches the image and makes the cell
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"  # may be started again
    CRASHED = "CRASHED"  # ended badly after it ran; a restart, a move or the end follows
    DESTROYING = "DESTROYING"
    TERMINATED = "TERMINATED"  # over: done with its work, or destroyed
    FAILED = "FAILED"  # over: it never ran, or its restarts are used up


class DesiredStatus(enum.StrEnum):
    """What the user wants of an instance."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    DESTROYED = "DESTROYED"


TERMINAL = frozenset({InstanceStatus.TERMINATED, InstanceStatus.FAILED})

TRANSITIONS: dict[InstanceStatus, frozenset[InstanceStatus]] = {
    InstanceStatus.SCHEDULING: frozenset(
        {
            InstanceStatus.SCHEDULED,
            InstanceStatus.STOPPED,  # stopped before it had a node
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.SCHEDULED: frozenset(
        {
            InstanceStatus.STARTING,
            InstanceStatus.SCHEDULING,  # its node was lost, or refused it
            InstanceStatus.STOPPED,  # stopped before its node began
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.STARTING: frozenset(
        {
            InstanceStatus.RUNNING,
            InstanceStatus.FAILED,  # no image, or it cannot be started
            InstanceStatus.SCHEDULING,  # its node was lost before it ran
            InstanceStatus.STOPPING,
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.RUNNING: frozenset(
        {
            InstanceStatus.STOPPING,
            InstanceStatus.CRASHED,
            InstanceStatus.STARTING,  # ended well, and is to run again
            InstanceStatus.SCHEDULING,  # its node was lost, or gives it up
            InstanceStatus.TERMINATED,  # ended well, and no restart is due
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.STOPPING: frozenset({InstanceStatus.STOPPED, InstanceStatus.DESTROYING}),
    InstanceStatus.STOPPED: frozenset(
        {
            InstanceStatus.SCHEDULING,
            InstanceStatus.STARTING,  # its cell is still on its node
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.CRASHED: frozenset(
        {
            InstanceStatus.STARTING,  # restarted where it is
            InstanceStatus.SCHEDULING,  # moved
            InstanceStatus.FAILED,  # its restarts are used up
            InstanceStatus.STOPPED,  # stopped while it waited for its restart
            InstanceStatus.DESTROYING,
        }
    ),
    InstanceStatus.DESTROYING: frozenset({InstanceStatus.TERMINATED}),
    InstanceStatus.TERMINATED: frozenset(),
    InstanceStatus.FAILED: frozenset(),
}


def may_become(now: InstanceStatus, then: InstanceStatus) -> bool:
    """True if `then` may follow `now`; a repeat of the same status always may."""
    return now is then or then in TRANSITIONS[now]


def check(now: InstanceStatus, then: InstanceStatus) -> None:
    """Raise `FailedPrecondition` unless `then` may follow `now`."""
    if may_become(now, then):
        return
    if now in TERMINAL:
        raise errors.FailedPrecondition(f"it is {now}, which is final; create a new instance")
    possible = ", ".join(sorted(TRANSITIONS[now]))
    raise errors.FailedPrecondition(
        f"it is {now} and cannot become {then}; from there it can become {possible}"
    )


# Statuses that only a node knows, and may not have reported; the more likely first.
_ON_NODES = (
    InstanceStatus.STARTING,
    InstanceStatus.RUNNING,
    InstanceStatus.STOPPING,
    InstanceStatus.STOPPED,
    InstanceStatus.CRASHED,
)


@functools.cache
def shortest_path(now: InstanceStatus, then: InstanceStatus) -> tuple[InstanceStatus, ...]:
    """The shortest path from `now` to `then`, without `now`, by statuses that a node may not have reported.

    Raises `FailedPrecondition` if there is none.
    """
    paths: dict[InstanceStatus, tuple[InstanceStatus, ...]] = {now: ()}
    reached = [now]
    for status in reached:
        if may_become(status, then):
            return (*paths[status], then)
        for following in _ON_NODES:
            if following in TRANSITIONS[status] and following not in paths:
                paths[following] = (*paths[status], following)
                reached.append(following)
    check(now, then)
    raise AssertionError("what may follow has been found")


class NodeStatus(enum.StrEnum):
    """What a node is doing."""

    REGISTERING = "registering"
    READY = "ready"
    DRAINING = "draining"  # takes nothing new and gives up what it has
    DRAINED = "drained"  # takes nothing new
    LEFT = "left"
    LOST = "lost"  # silent for too long


# Reports about nodes use the statuses of instances; these are the ones that apply to nodes.
_OF_NODES: dict[InstanceStatus, NodeStatus] = {
    InstanceStatus.STARTING: NodeStatus.REGISTERING,
    InstanceStatus.RUNNING: NodeStatus.READY,
    InstanceStatus.STOPPING: NodeStatus.DRAINING,
    InstanceStatus.STOPPED: NodeStatus.DRAINED,
    InstanceStatus.TERMINATED: NodeStatus.LEFT,
    InstanceStatus.FAILED: NodeStatus.LOST,
    InstanceStatus.CRASHED: NodeStatus.LOST,
}


def of_node(status: InstanceStatus) -> NodeStatus:
    """The node status for `status`; `Invalid` if it is none of a node."""
    try:
        return _OF_NODES[status]
    except KeyError:
        possible = ", ".join(sorted(_OF_NODES))
        raise errors.Invalid(f"a node cannot be {status}; it can be {possible}", field="status") from None
