"""Specs of simulated instances and resources of simulated nodes, drawn from a seed, in common sizes."""

from __future__ import annotations

import random

from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.workloads import InstanceSpec, RestartPolicy

# Milli-cores and MB of an instance, and how common that is.
_REQUESTS = {
    (100, 128): 25,
    (250, 256): 20,
    (250, 512): 20,
    (500, 512): 15,
    (500, 2048): 8,
    (1000, 1024): 8,
    (2000, 4096): 4,
}
_NODES = (4, 8, 16)  # cores; with 2 GB of memory each


def draw_specs(count: int, chance: random.Random) -> list[InstanceSpec]:
    """`count` specs."""
    specs = [_spec(*request) for request in _REQUESTS]
    return chance.choices(specs, list(_REQUESTS.values()), k=count)


def draw_node_resources(count: int, chance: random.Random) -> list[Resources]:
    """The resources of `count` nodes."""
    return [node_of(chance.choice(_NODES)) for _ in range(count)]


def node_of(cores: float) -> Resources:
    """The resources of a machine with so many cores."""
    return Resources(Millicores(round(cores * 1000)), Megabytes(round(cores * 2048)), Gigabytes(1000))


def _spec(cpu: int, memory: int) -> InstanceSpec:
    return InstanceSpec(
        name="simulated",
        uri="example.org/simulated:1",
        resources=Resources(Millicores(cpu), Megabytes(memory), Gigabytes(1)),
        restart=RestartPolicy(budget=3),
    )
