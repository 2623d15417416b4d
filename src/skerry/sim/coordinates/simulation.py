"""Coordinates of many nodes: do they come to tell round trips, stay put, and withstand those who lie?

Each node has the `Vivaldi` that a real one has, a few peers of its own area and a few of all, and measures
some of them each round, over a network of `skerry.sim.coordinates.latency_model`. Nodes are replaced by new
ones that know nothing, and some may lie. What is judged are predictions for pairs of honest nodes, most of
which have never measured each other, against the usual round trip between them. The same plan gives the same
rounds again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from skerry.functions.coordinates import Coordinate, Vivaldi, distance_s
from skerry.model.ids import NodeId
from skerry.sim.coordinates.latency_model import FloatArray, LatencyModel

NEAR: Final = 8  # peers of the own area, if it has so many
ANYWHERE: Final = 8
PROBES: Final = 3  # peers measured each round
_PAIRS: Final = 5_000  # that are judged
_FALSE_RTT_S: Final = 1.0  # how far out liars say they are


class CoordinateScenario(Struct, frozen=True):
    """What is to be simulated. Two nodes at least must be honest, and there must be more than `ANYWHERE`."""

    nodes: int = 1000
    areas: int = 12
    violated: float = 0.2  # share of triangles
    jitter: float = 0.2  # sigma of the lognormal by which measurements differ
    churn: float = 0.0  # share of nodes replaced each round
    liars: float = 0.0  # share of nodes
    seed: int = 1


class CoordinateRound(Struct, frozen=True):
    """How things are after a round. Errors are shares of the usual round trip."""

    number: int
    median: float
    p90: float
    near: float | None  # the median within areas, if any has two nodes
    moved_s: float  # how far a node went in this round, the median
    moved_p90_s: float


class _CoordinateNode:
    """A node as others see it, and where it says that it is."""

    def __init__(
        self, number: int, peers: list[int], chance: random.Random, false_rtt: Coordinate | None
    ) -> None:
        self.peers = peers
        self._number = number
        self._chance = chance
        self._lives = 0
        self._false_rtt = false_rtt
        self.start_anew()

    def start_anew(self) -> None:
        """Another node takes its place in the network."""
        self._lives += 1
        self.id = NodeId(f"n{self._number}-{self._lives}")
        self.vivaldi = Vivaldi(self._chance)

    @property
    def claim(self) -> Coordinate:
        return self._false_rtt or self.vivaldi.coordinate


class CoordinateSimulation:
    """A network, its nodes, and one round after the other."""

    def __init__(self, plan: CoordinateScenario) -> None:
        self._plan = plan
        self._chance = random.Random(plan.seed)  # noqa: S311 - a simulation
        self._draws = np.random.default_rng(plan.seed)
        self.latencies = LatencyModel(plan.nodes, plan.areas, plan.violated, self._draws)
        liars = round(plan.liars * plan.nodes)
        self._nodes = [
            _CoordinateNode(number, peers, self._chance, self._false_rtt() if number < liars else None)
            for number, peers in enumerate(self._draw_peers())
        ]
        self._honest = self._nodes[liars:]
        self._pairs = [self._chance.sample(range(liars, plan.nodes), 2) for _ in range(_PAIRS)]
        ones, others = np.array(self._pairs).T
        self._usual_s: FloatArray = self.latencies.usual_s[ones, others]
        self._are_near = self.latencies.areas[ones] == self.latencies.areas[others]

    @property
    def usual_rtt_s(self) -> float:
        """The median of the pairs that are judged."""
        return float(np.median(self._usual_s))

    def rounds(self, count: int) -> Iterator[CoordinateRound]:
        for number in range(1, count + 1):
            self._replace()
            before = [node.vivaldi.coordinate for node in self._honest]
            self._measure()
            yield self._measure_errors(number, before)

    def _draw_peers(self) -> list[list[int]]:
        areas = self.latencies.areas.tolist()
        members: dict[int, list[int]] = {}
        for number, area in enumerate(areas):
            members.setdefault(area, []).append(number)
        drawn = []
        for number, area in enumerate(areas):
            neighbours = [other for other in members[area] if other != number]
            near = self._chance.sample(neighbours, min(NEAR, len(neighbours)))
            anywhere = self._chance.sample(range(len(areas)), ANYWHERE)
            drawn.append([peer for peer in dict.fromkeys([*near, *anywhere]) if peer != number])
        return drawn

    def _false_rtt(self) -> Coordinate:
        """Somewhere far out, and quite sure of it."""
        x, y, z = (self._chance.gauss(0.0, 1.0) for _ in range(3))
        scale = _FALSE_RTT_S / math.hypot(x, y, z)
        return Coordinate((x * scale, y * scale, z * scale), error=0.0)

    def _replace(self) -> None:
        for node in self._chance.sample(self._nodes, round(self._plan.churn * len(self._nodes))):
            node.start_anew()

    def _measure(self) -> None:
        """Each node measures some of its peers and moves at once; the next one sees where it is now."""
        probes = np.array([self._chance.sample(node.peers, PROBES) for node in self._nodes])
        ones = np.repeat(np.arange(len(self._nodes))[:, None], PROBES, axis=1)
        measured = self.latencies.measure(ones, probes, self._plan.jitter, self._draws)
        for node, peers, rtts in zip(self._nodes, probes.tolist(), measured.tolist(), strict=True):
            for number, rtt_s in zip(peers, rtts, strict=True):
                peer = self._nodes[number]
                node.vivaldi.observe(peer.id, peer.claim, rtt_s)

    def _measure_errors(self, number: int, before: list[Coordinate]) -> CoordinateRound:
        places = [node.vivaldi.coordinate for node in self._nodes]
        predicted_s = np.array([distance_s(places[one], places[other]) for one, other in self._pairs])
        wrong: FloatArray = np.abs(predicted_s - self._usual_s) / self._usual_s
        near = wrong[self._are_near]
        moved_s = [
            math.dist(was.vector, node.vivaldi.coordinate.vector)
            + abs(was.height - node.vivaldi.coordinate.height)
            for was, node in zip(before, self._honest, strict=True)
        ]
        return CoordinateRound(
            number,
            median=float(np.median(wrong)),
            p90=float(np.quantile(wrong, 0.9)),
            near=float(np.median(near)) if near.size else None,
            moved_s=float(np.median(moved_s)),
            moved_p90_s=float(np.quantile(moved_s, 0.9)),
        )
