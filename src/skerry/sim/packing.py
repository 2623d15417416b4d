"""How well instances are packed, compared with best fit, which is simple and known to be good.

Best fit puts each instance on the node that has the least share of cpu and memory left after it, in the order
of their creation. Pure, and slow: it checks every node for every instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skerry.model.resources import NO_RESOURCES, Resources


class PackingResult(NamedTuple):
    """The result of a packing."""

    nodes: int  # with an instance
    allocated: float  # the share of all cpu and memory that is allocated


def best_fit(capacities: Sequence[Resources], requests: Iterable[Resources]) -> PackingResult:
    """The result of best fit for `requests`; those that fit on no node are left out."""
    free = list(capacities)
    for request in requests:
        fitting = [number for number, resources in enumerate(free) if resources.fits(request)]
        if fitting:
            best = min(fitting, key=lambda number: _left(free[number], request, capacities[number]))
            free[best] -= request
    return measure(capacities, [resources - rest for resources, rest in zip(capacities, free, strict=True)])


def measure(capacities: Sequence[Resources], used: Sequence[Resources]) -> PackingResult:
    """The result if so much of each of `capacities` is used."""
    cpu = sum(resources.cpu for resources in used) / max(1, sum(resources.cpu for resources in capacities))
    memory = sum(resources.memory for resources in used) / max(
        1, sum(resources.memory for resources in capacities)
    )
    return PackingResult(sum(resources != NO_RESOURCES for resources in used), (cpu + memory) / 2)


def _left(free: Resources, request: Resources, resources: Resources) -> float:
    return (free.cpu - request.cpu) / max(1, resources.cpu) + (free.memory - request.memory) / max(
        1, resources.memory
    )
