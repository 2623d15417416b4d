"""How many nodes rejected a request, by reason: the summary that a pending instance carries.

A node counts once, under its first rejection. Nodes that lack the same resources are counted together, with
the least that any of them lacks; a port that is taken on several nodes is counted without its holders, and of
devices the most that any node has.
"""

from __future__ import annotations

from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.results import (
    FILTERS,
    DevicesUnavailable,
    InsufficientResources,
    PlacementFailure,
    Rejection,
    RejectionCount,
)


class RejectionTally:
    """Rejections of one request, counted by reason."""

    def __init__(self, requested: Resources) -> None:
        self._requested = requested
        self._counts: dict[Rejection, int] = {}
        self._lacks: dict[tuple[bool, bool, bool], tuple[int, int, int, int]] = {}
        self._devices: dict[tuple[str, int], tuple[int, int, int]] = {}

    def add(self, rejection: Rejection, nodes: int = 1) -> None:
        """Count `nodes` more with this rejection."""
        if isinstance(rejection, DevicesUnavailable):
            before, free, present = self._devices.get((rejection.device, rejection.wanted), (0, 0, 0))
            most = (before + nodes, max(free, rejection.free), max(present, rejection.present))
            self._devices[rejection.device, rejection.wanted] = most
            return
        self._counts[rejection] = self._counts.get(rejection, 0) + nodes

    def add_lack(self, cpu: int, memory: int, disk: int, nodes: int = 1) -> None:
        """Count `nodes` more that lack the same resources, and have at most these amounts free."""
        requested = self._requested
        parts = (cpu < requested.cpu, memory < requested.memory, disk < requested.disk)
        before, *most = self._lacks.get(parts, (0, 0, 0, 0))
        self._lacks[parts] = (before + nodes, max(cpu, most[0]), max(memory, most[1]), max(disk, most[2]))

    def failure(self) -> PlacementFailure:
        """The counts, the commonest reason first."""
        reasons = [RejectionCount(nodes, rejection) for rejection, nodes in self._counts.items()]
        for nodes, cpu, memory, disk in self._lacks.values():
            free = Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))
            reasons.append(RejectionCount(nodes, InsufficientResources(free.lack(self._requested), free)))
        for (device, wanted), (nodes, most_free, present) in self._devices.items():
            reasons.append(RejectionCount(nodes, DevicesUnavailable(device, wanted, most_free, present)))
        reasons.sort(key=lambda reason: (-reason.nodes, FILTERS.index(type(reason.rejection)), repr(reason)))
        return PlacementFailure(sum(reason.nodes for reason in reasons), tuple(reasons))
