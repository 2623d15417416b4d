"""How many nodes were refused, and for what: the short answer that an instance without a place carries.

A node counts once, under its first refusal. Those that lack the same parts of room are counted together, and
what is kept of them is the least that any lacks; of a port that is taken on several nodes, no holder is kept.
"""

from __future__ import annotations

from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.results import (
    FILTERS,
    InsufficientResources,
    PlacementFailure,
    Rejection,
    RejectionCount,
)


class RejectionTally:
    """Refusals of one ask, counted by kind."""

    def __init__(self, asked: Resources) -> None:
        self._asked = asked
        self._counts: dict[Rejection, int] = {}
        self._lacks: dict[tuple[bool, bool, bool], tuple[int, int, int, int]] = {}

    def refuse(self, refusal: Rejection, nodes: int = 1) -> None:
        """So many more nodes said just that."""
        self._counts[refusal] = self._counts.get(refusal, 0) + nodes

    def lack(self, cpu: int, memory: int, disk: int, nodes: int = 1) -> None:
        """So many more nodes lack the same parts of room, and have no more than that free."""
        asked = self._asked
        parts = (cpu < asked.cpu, memory < asked.memory, disk < asked.disk)
        before, *most = self._lacks.get(parts, (0, 0, 0, 0))
        self._lacks[parts] = (before + nodes, max(cpu, most[0]), max(memory, most[1]), max(disk, most[2]))

    def unplaced(self) -> PlacementFailure:
        """What was counted, the commonest reason first."""
        reasons = [RejectionCount(nodes, refusal) for refusal, nodes in self._counts.items()]
        for nodes, cpu, memory, disk in self._lacks.values():
            free = Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))
            reasons.append(RejectionCount(nodes, InsufficientResources(free.lack(self._asked), free)))
        reasons.sort(key=lambda reason: (-reason.nodes, FILTERS.index(type(reason.refusal)), repr(reason)))
        return PlacementFailure(sum(reason.nodes for reason in reasons), tuple(reasons))
