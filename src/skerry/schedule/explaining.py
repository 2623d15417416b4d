"""Answers of the scheduler in words: why a node cannot take an instance, and why none can.

Used by the control plane for the reason of an instance that waits, and by whoever shows an explanation. Holds
words only; the numbers are in the answers.
"""

from __future__ import annotations

from skerry.model.room import NOTHING, Room
from skerry.schedule.answers import (
    LacksRoom,
    NoAddress,
    NotOwn,
    PortTaken,
    Reason,
    Refusal,
    TakesNothing,
    Unplaced,
    Verdict,
    WrongArchitecture,
    WrongLabel,
)


def words(refusal: Refusal) -> str:
    """What follows a node's name: `is cordoned`, `lacks 500 milli-cores of cpu (free: ...)`."""
    match refusal:
        case WrongArchitecture(has, wanted):
            return f"architecture is {has or 'unknown'}, {wanted} is wanted"
        case WrongLabel(label, has, wanted, is_equal):
            there = f'label {label} is "{has}"' if has else f"label {label} is not set"
            if not is_equal:
                return f"{there}, which is not wanted"
            return f'{there}, "{wanted}" is wanted' if wanted else f"{there}, none is wanted"
        case NotOwn():
            return "is borrowed, and takes nothing that publishes ports or is lent on"
        case TakesNothing(why):
            return why or "takes nothing new"
        case NoAddress(addresses):
            return f"has no address left (all {addresses} are taken)"
        case LacksRoom(lack, free):
            return f"lacks {amounts(lack)} (free: {amounts(free)})"
        case PortTaken(port, protocol, by):
            return f"port {port}/{protocol} is taken" + (f" by instance {by}" if by else "")


def describe(verdict: Verdict) -> str:
    """All that a node says, in one line."""
    if verdict.fits:
        return f"can take it (free: {amounts(verdict.free)})"
    return "; ".join(words(refusal) for refusal in verdict.refusals)


def summary(unplaced: Unplaced) -> str:
    """Why there is no place, such as `3 nodes: lacks 500 milli-cores of cpu; 1 node: is cordoned`."""
    if not unplaced.reasons:
        return "there are no nodes"
    return "; ".join(_counted(reason) for reason in unplaced.reasons)


def amounts(room: Room) -> str:
    """The parts of a room that are there, such as `500 milli-cores of cpu, 64 MB of memory`."""
    if room == NOTHING:
        return "nothing"
    return ", ".join(f"{amount} {unit} of {name}" for name, unit, amount in room.parts() if amount)


def _counted(reason: Reason) -> str:
    refusal = reason.refusal
    if isinstance(refusal, LacksRoom):
        degree = "at least " if reason.nodes > 1 else ""
        text = f"lacks {degree}{amounts(refusal.lack)}"
    else:
        text = words(refusal)
    return f"{reason.nodes} {'node' if reason.nodes == 1 else 'nodes'}: {text}"
