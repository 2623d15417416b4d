"""How well instances are packed, against a packing that is simple and known to be good: best fit.

Best fit puts each into the node that has the least left after it, by the share of cpu and memory, in the
order in which they come. Pure, and slow: it looks at every node for every instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from skerry.model.resources import NO_RESOURCES, Resources


class PackingResult(NamedTuple):
    """What came of it."""

    nodes: int  # that have something
    given: float  # the share of all cpu and memory that was given away


def best_fit(capacities: Sequence[Resources], requests: Iterable[Resources]) -> PackingResult:
    """Where best fit puts `asks`; those that fit nowhere are left out."""
    free = list(capacities)
    for request in requests:
        fitting = [number for number, resources in enumerate(free) if resources.fits(request)]
        if fitting:
            best = min(fitting, key=lambda number: _left(free[number], request, capacities[number]))
            free[best] -= request
    return measure(capacities, [resources - rest for resources, rest in zip(capacities, free, strict=True)])


def measure(capacities: Sequence[Resources], used: Sequence[Resources]) -> PackingResult:
    """What it comes to if of each of `rooms` so much is used."""
    cpu = sum(resources.cpu for resources in used) / max(1, sum(resources.cpu for resources in capacities))
    memory = sum(resources.memory for resources in used) / max(
        1, sum(resources.memory for resources in capacities)
    )
    return PackingResult(sum(resources != NO_RESOURCES for resources in used), (cpu + memory) / 2)


def _left(free: Resources, request: Resources, resources: Resources) -> float:
    return (free.cpu - request.cpu) / max(1, resources.cpu) + (free.memory - request.memory) / max(
        1, resources.memory
    )
