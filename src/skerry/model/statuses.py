"""What an instance is seen to be doing, what is wished of it, and which change may follow which.

The observed status is the union of both Kudo documents. `ALLOWED` is the whole state machine; every change of
an instance's status goes through `check`, wherever it comes from. What is wished (`Desired`) is kept apart:
it is the user's word and changes at once, while the status follows as the world does. Numbers and other
spellings of a contract belong to `skerry.wire`.
"""

from __future__ import annotations

import enum
import functools

from skerry.model import errors


class Status(enum.StrEnum):
    """What an instance was last seen to be doing."""

    SCHEDULING = "SCHEDULING"  # waits for a node; stays here, with a reason, while none has room
    SCHEDULED = "SCHEDULED"  # has a node, which has not begun
    STARTING = "STARTING"  # its node fetches the image and makes the cell
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"  # may be started again
    CRASHED = "CRASHED"  # ended badly after it ran; a restart, a move or the end follows
    DESTROYING = "DESTROYING"
    TERMINATED = "TERMINATED"  # over: done with its work, or destroyed
    FAILED = "FAILED"  # over: it never ran, or its restarts are used up


class Desired(enum.StrEnum):
    """What the user wants of an instance."""

    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    DESTROYED = "DESTROYED"


FINAL = frozenset({Status.TERMINATED, Status.FAILED})

ALLOWED: dict[Status, frozenset[Status]] = {
    Status.SCHEDULING: frozenset(
        {
            Status.SCHEDULED,
            Status.STOPPED,  # stopped before it had a node: there is nothing to wait for
            Status.DESTROYING,
        }
    ),
    Status.SCHEDULED: frozenset(
        {
            Status.STARTING,
            Status.SCHEDULING,  # its node was lost, or refused it
            Status.STOPPED,  # stopped before its node began
            Status.DESTROYING,
        }
    ),
    Status.STARTING: frozenset(
        {
            Status.RUNNING,
            Status.FAILED,  # no image, or it cannot be started
            Status.SCHEDULING,  # its node was lost before it ran
            Status.STOPPING,
            Status.DESTROYING,
        }
    ),
    Status.RUNNING: frozenset(
        {
            Status.STOPPING,
            Status.CRASHED,
            Status.STARTING,  # ended well, and is to run again
            Status.SCHEDULING,  # its node was lost, or gives it up
            Status.TERMINATED,  # ended well, and no restart is due
            Status.DESTROYING,
        }
    ),
    Status.STOPPING: frozenset({Status.STOPPED, Status.DESTROYING}),
    Status.STOPPED: frozenset(
        {
            Status.SCHEDULING,
            Status.STARTING,  # its cell is still on its node
            Status.DESTROYING,
        }
    ),
    Status.CRASHED: frozenset(
        {
            Status.STARTING,  # restarted where it is
            Status.SCHEDULING,  # moved
            Status.FAILED,  # its restarts are used up
            Status.STOPPED,  # stopped while it waited for its restart
            Status.DESTROYING,
        }
    ),
    Status.DESTROYING: frozenset({Status.TERMINATED}),
    Status.TERMINATED: frozenset(),
    Status.FAILED: frozenset(),
}


def may_become(now: Status, then: Status) -> bool:
    """True if `then` may follow `now`; a repeat of the same status always may."""
    return now is then or then in ALLOWED[now]


def check(now: Status, then: Status) -> None:
    """Raise `Refused` unless `then` may follow `now`."""
    if may_become(now, then):
        return
    if now in FINAL:
        raise errors.Refused(f"it is {now}, which is final; create a new instance")
    possible = ", ".join(sorted(ALLOWED[now]))
    raise errors.Refused(f"it is {now} and cannot become {then}; from there it can become {possible}")


# What only a node can know, and so may have failed to tell; the likelier first.
_ON_NODES = (Status.STARTING, Status.RUNNING, Status.STOPPING, Status.STOPPED, Status.CRASHED)


@functools.cache
def way(now: Status, then: Status) -> tuple[Status, ...]:
    """The shortest way from `now` to `then`, without `now`, by what may happen on a node and was not told.

    Raises `Refused` if there is none.
    """
    ways: dict[Status, tuple[Status, ...]] = {now: ()}
    reached = [now]
    for status in reached:
        if may_become(status, then):
            return (*ways[status], then)
        for following in _ON_NODES:
            if following in ALLOWED[status] and following not in ways:
                ways[following] = (*ways[status], following)
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


# Reports speak of nodes in the words for instances; these are the ones that mean something there.
_OF_NODES: dict[Status, NodeStatus] = {
    Status.STARTING: NodeStatus.REGISTERING,
    Status.RUNNING: NodeStatus.READY,
    Status.STOPPING: NodeStatus.DRAINING,
    Status.STOPPED: NodeStatus.DRAINED,
    Status.TERMINATED: NodeStatus.LEFT,
    Status.FAILED: NodeStatus.LOST,
    Status.CRASHED: NodeStatus.LOST,
}


def of_node(status: Status) -> NodeStatus:
    """What `status` says of a node; `Invalid` if it says nothing of one."""
    try:
        return _OF_NODES[status]
    except KeyError:
        possible = ", ".join(sorted(_OF_NODES))
        raise errors.Invalid(f"a node cannot be {status}; it can be {possible}", field="status") from None
