"""Placing alone: how many asks per second find their node, and how well nodes are filled.

No store and no control plane here: `place` and `bind` on a fleet in memory. Speed is measured in processor
time at 10 % and at 90 % full, in turns, with rounds that give back what they took, so that the level holds.
Packing is compared with the simple best fit that everybody writes first: of the nodes that have room, the one
with the least left over.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from bench.figures import Figure
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.requests import NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement
from skerry.schedule.scheduler import Scheduler

SEED = 5
SIZES = (100, 1_000, 5_000, 10_000)
ROUNDS = 15

Parts = tuple[int, int, int]

MACHINE: Parts = (16_000, 32_768, 400)
MIXED: Sequence[Parts] = (
    (100, 128, 1),
    (250, 256, 1),
    (500, 512, 2),
    (500, 2048, 2),
    (2000, 512, 1),
    (1000, 1024, 5),
    (2000, 4096, 10),
    (4000, 2048, 4),
    (1000, 6000, 4),
)

# Fleets and lists of asks for packing; what is asked for need not go well with what there is.
FLEETS: dict[str, Sequence[Parts]] = {
    "of one kind": ((8000, 16_384, 200),),
    "of five kinds": (
        (4000, 8192, 100),
        (8000, 16_384, 200),
        (16_000, 32_768, 400),
        (8000, 32_768, 100),
        (16_000, 16_384, 200),
    ),
    "from edge to cloud": (
        (1000, 1024, 16),
        (2000, 2048, 32),
        (4000, 4096, 32),
        (4000, 8192, 64),
        (32_000, 65_536, 1000),
    ),
}
LISTS: dict[str, Sequence[Parts]] = {
    "mixed": MIXED,
    "lopsided": ((1500, 256, 1), (200, 3000, 1), (700, 700, 2), (3000, 1000, 1), (500, 5000, 1)),
    "with large disks": ((100, 64, 0), (500, 500, 0), (1500, 900, 1), (800, 1500, 40), (1900, 1900, 80)),
}
NODES = 150
SEEDS = 3


def measure() -> Iterator[Figure]:
    for nodes in SIZES:
        for policy in PlacementPolicy if nodes == 5_000 else (PlacementPolicy.BINPACK,):
            low, high = rates(nodes, policy)
            name = f"{nodes:,} nodes, {policy}"
            yield Figure(f"{name}, 10 % full", low, "placements/s", note=f"{1e6 / low:.0f} us each")
            yield Figure(f"{name}, 90 % full", high, "placements/s", note=f"{1e6 / high:.0f} us each")
            yield Figure(
                f"{name}, 90 % full against 10 %",
                high / low,
                "x",
                at_least=0.5,
                peer=low,
                peer_unit="placements/s",
                peer_name="10 % full",
            )
    yield from packing()


def rates(nodes: int, policy: PlacementPolicy) -> tuple[float, float]:
    """Placements per second on a fleet that is 10 % full and on one that is 90 %, in turns."""
    fleets = [filled(nodes, policy, level) for level in (0.1, 0.9)]
    # A small fleet at 90 % has room for few more; a round must not fill it up.
    requests = min(300, nodes // 4)
    low, high = zip(
        *([_round(fleet, policy, requests) for fleet in fleets] for _ in range(ROUNDS)), strict=True
    )
    return statistics.median(low), statistics.median(high)


def filled(nodes: int, policy: PlacementPolicy, level: float) -> Scheduler:
    """A fleet of which that share of the scarcest part is taken."""
    chance = random.Random(SEED)
    fleet = Scheduler()
    for number in range(nodes):
        fleet.set_node(NodeView(NodeId(f"node-{number:05}"), _room(MACHINE)))
    taken = np.zeros(3)
    whole = nodes * np.array(MACHINE)
    for number in itertools.count():
        parts = chance.choice(MIXED)
        if _put(fleet, PlacementRequest(InstanceId(f"i{number}"), _room(parts)), policy):
            taken += parts
        if (taken / whole).max() >= level:
            break
    return fleet


def _round(fleet: Scheduler, policy: PlacementPolicy, count: int) -> float:
    """The rate of one round, which is given back after."""
    requests = [
        PlacementRequest(InstanceId(f"round{number}"), _room(MIXED[number % len(MIXED)]))
        for number in range(count)
    ]
    started = time.process_time()
    placed = sum(_put(fleet, request, policy) for request in requests)
    elapsed = time.process_time() - started
    for request in requests:
        fleet.unbind(request.instance)
    return placed / elapsed


def _put(fleet: Scheduler, request: PlacementRequest, policy: PlacementPolicy) -> bool:
    placement = fleet.place(request, policy)
    if isinstance(placement, Placement):
        fleet.bind(placement.node, request)
        return True
    return False


def packing() -> Iterator[Figure]:
    """How full the nodes in use are, and how much of a full fleet is stranded, ours and by best fit."""
    filled, stranded, fills, uses = [], [], [], []
    for fleet_name, machines in FLEETS.items():
        for list_name, sizes in LISTS.items():
            half = [pack(machines, sizes, seed, load=0.5) for seed in range(SEEDS)]
            full = [pack(machines, sizes, seed, load=1.1) for seed in range(SEEDS)]
            ours, theirs = (statistics.mean(run[who].fill_in_use for run in half) for who in (0, 1))
            nodes = [round(statistics.mean(run[who].nodes for run in half)) for who in (0, 1)]
            left = [100 * (1 - statistics.mean(run[who].fill for run in full)) for who in (0, 1)]
            filled.append(ours / theirs)
            fills.append(theirs * 100)
            uses.append(100 - left[1])
            stranded.append((1 - left[0] / 100) / (1 - left[1] / 100))
            yield Figure(
                f"a fleet {fleet_name}, asks {list_name}",
                ours / theirs,
                "x as full as by best fit",
                note=f"half asked: {nodes[0]} nodes, best fit {nodes[1]}; "
                f"all asked: {left[0]:.1f} % stranded, best fit {left[1]:.1f} %",
            )
    for name, ratios, shares in (
        ("packing at half load", filled, fills),
        ("capacity used when all is requested", stranded, uses),
    ):
        yield Figure(
            name,
            statistics.mean(ratios),
            "x best fit",
            at_least=1.0,
            peer=statistics.mean(shares),
            peer_unit="% full",
            peer_name="best fit",
        )


class Packed:
    """Nodes with what was put on them, and how much of the scarcest part is used."""

    def __init__(self, resources: np.ndarray, free: np.ndarray) -> None:
        used = resources - free
        is_used = used.any(axis=1)
        self.nodes = int(is_used.sum())
        self.fill = float((used.sum(axis=0) / resources.sum(axis=0)).max())
        self.fill_in_use = float((used.sum(axis=0) / resources[is_used].sum(axis=0)).max())


def pack(
    machines: Sequence[Parts], sizes: Sequence[Parts], seed: int, *, load: float
) -> tuple[Packed, Packed]:
    """The same asks, up to `load` of the fleet's scarcest part, on the same fleet: by us and by best fit."""
    chance = random.Random(seed)
    resources = np.array([chance.choice(machines) for _ in range(NODES)])
    requested, requests = np.zeros(3), []
    while (requested / resources.sum(axis=0)).max() < load:
        requests.append(chance.choice(sizes))
        requested += requests[-1]
    return Packed(resources, _by_us(resources, requests)), Packed(
        resources, _by_best_fit(resources, requests)
    )


def _by_us(resources: np.ndarray, requests: Sequence[Parts]) -> np.ndarray:
    fleet = Scheduler()
    names = [NodeId(f"node-{number:05}") for number in range(len(resources))]
    for name, parts in zip(names, resources.tolist(), strict=True):
        fleet.set_node(NodeView(name, _room(parts)))
    for number, parts in enumerate(requests):
        _put(fleet, PlacementRequest(InstanceId(f"i{number}"), _room(parts)), PlacementPolicy.BINPACK)
    return np.array([[amount for _, _, amount in fleet.free(name).parts()] for name in names])


def _by_best_fit(resources: np.ndarray, requests: Sequence[Parts]) -> np.ndarray:
    free = resources.copy()
    for parts in requests:
        left = free - np.array(parts)
        fits = (left >= 0).all(axis=1)
        if fits.any():
            row = np.where(fits, (left / resources).sum(axis=1), np.inf).argmin()
            free[row] = left[row]
    return free


def _room(parts: Sequence[int]) -> Resources:
    cpu, memory, disk = parts
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))
