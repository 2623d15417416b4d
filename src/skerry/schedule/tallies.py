"""How many nodes were refused, and for what: the short answer that an instance without a place carries.

A node counts once, under its first refusal. Refusals that differ only by degree are put together: those that
lack the same parts of room, and those where the same port is taken.
"""

from __future__ import annotations

from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.schedule.answers import FILTERS, LacksRoom, PortTaken, Reason, Refusal, Unplaced


class Tally:
    """Refusals, counted by kind."""

    def __init__(self) -> None:
        self._counts: dict[object, tuple[int, Refusal]] = {}

    def add(self, refusal: Refusal, nodes: int = 1) -> None:
        """`nodes` more were refused for that; a refusal of several is the mildest of theirs, part by part."""
        match refusal:
            case LacksRoom():
                key: object = (LacksRoom, refusal.parts)
            case PortTaken():
                key = refusal = PortTaken(refusal.port, refusal.protocol, None)
            case _:
                key = refusal
        if key in self._counts:
            before, other = self._counts[key]
            nodes += before
            if isinstance(refusal, LacksRoom) and isinstance(other, LacksRoom):
                refusal = _milder(refusal, other)
        self._counts[key] = (nodes, refusal)

    def unplaced(self) -> Unplaced:
        """What was counted, the commonest reason first."""
        reasons = [Reason(nodes, refusal) for nodes, refusal in self._counts.values()]
        reasons.sort(key=lambda reason: (-reason.nodes, FILTERS.index(type(reason.refusal)), repr(reason)))
        return Unplaced(sum(reason.nodes for reason in reasons), tuple(reasons))


def _milder(one: LacksRoom, other: LacksRoom) -> LacksRoom:
    return LacksRoom(
        Room(
            Millicores(min(one.lack.cpu, other.lack.cpu)),
            Megabytes(min(one.lack.memory, other.lack.memory)),
            Gigabytes(min(one.lack.disk, other.lack.disk)),
        ),
        Room(
            Millicores(max(one.free.cpu, other.free.cpu)),
            Megabytes(max(one.free.memory, other.free.memory)),
            Gigabytes(max(one.free.disk, other.free.disk)),
        ),
    )
