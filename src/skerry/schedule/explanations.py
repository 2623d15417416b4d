"""Answers of the scheduler in words: why a node cannot take an instance, and why none can.

Used by the control plane for the reason of an instance that waits, and by whoever shows an explanation. Holds
words only; the numbers are in the answers.
"""

from __future__ import annotations

from skerry.model.resources import NO_RESOURCES, Resources
from skerry.schedule.results import (
    AddressesExhausted,
    ArchitectureMismatch,
    ConstraintMismatch,
    InsufficientResources,
    NodeFeasibility,
    OwnNodeRequired,
    PlacementFailure,
    PortConflict,
    Rejection,
    RejectionCount,
    Unschedulable,
)


def describe_rejection(refusal: Rejection) -> str:
    """What follows a node's name: `is cordoned`, `lacks 500 milli-cores of cpu (free: ...)`."""
    match refusal:
        case ArchitectureMismatch(has, wanted):
            return f"architecture is {has or 'unknown'}, {wanted} is wanted"
        case ConstraintMismatch(label, has, wanted, is_equal):
            there = f'label {label} is "{has}"' if has else f"label {label} is not set"
            if not is_equal:
                return f"{there}, which is not wanted"
            return f'{there}, "{wanted}" is wanted' if wanted else f"{there}, none is wanted"
        case OwnNodeRequired():
            return "is borrowed, and takes nothing that publishes ports or is lent on"
        case Unschedulable(why):
            return why or "takes nothing new"
        case AddressesExhausted(addresses):
            return f"has no address left (all {addresses} are taken)"
        case InsufficientResources(lack, free):
            return f"lacks {describe_resources(lack)} (free: {describe_resources(free)})"
        case PortConflict(port, protocol, by):
            return f"port {port}/{protocol} is taken" + (f" by instance {by}" if by else "")


def describe_feasibility(verdict: NodeFeasibility) -> str:
    """All that a node says, in one line."""
    if verdict.fits:
        return f"can take it (free: {describe_resources(verdict.free)})"
    return "; ".join(describe_rejection(refusal) for refusal in verdict.refusals)


def describe_failure(unplaced: PlacementFailure) -> str:
    """Why there is no place, such as `3 nodes: lacks 500 milli-cores of cpu; 1 node: is cordoned`."""
    if not unplaced.reasons:
        return "there are no nodes"
    return "; ".join(_counted(reason) for reason in unplaced.reasons)


def describe_resources(room: Resources) -> str:
    """The parts of a room that are there, such as `500 milli-cores of cpu, 64 MB of memory`."""
    if room == NO_RESOURCES:
        return "nothing"
    return ", ".join(f"{amount} {unit} of {name}" for name, unit, amount in room.parts() if amount)


def _counted(reason: RejectionCount) -> str:
    refusal = reason.refusal
    if isinstance(refusal, InsufficientResources):
        degree = "at least " if reason.nodes > 1 else ""
        text = f"lacks {degree}{describe_resources(refusal.lack)}"
    else:
        text = describe_rejection(refusal)
    return f"{reason.nodes} {'node' if reason.nodes == 1 else 'nodes'}: {text}"
