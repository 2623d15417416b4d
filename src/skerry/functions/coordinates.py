"""Where a node is among others: points whose distances are the round trips between nodes. Pure.

Vivaldi: each node has a coordinate, measures the round trip to a peer now and then, and moves a little away
from the peer or towards it until what the two coordinates predict is what was measured. So a node that
measures a few others can tell how far it is to all. A point in three dimensions stands for the way through
the core of the network; a height above it for the access link that every packet of the node has to pass.

A peer is not believed blindly: what cannot be is refused, and what is far from usual counts little, so that
those who lie, or are measured badly, drag nobody far while most do neither. Nothing here measures, sends or
knows the time: `Vivaldi.observe` takes what was measured. `skerry.sim.coordinates.simulation` runs the same
code.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from typing import Final

from msgspec import Struct

from skerry.model.ids import NodeId

MIN_HEIGHT_S: Final = 1e-5
MAX_ERROR: Final = 1.5
MAX_RTT_S: Final = 10.0  # what takes longer is a fault and no distance
EXTENT_S: Final = 10.0  # nobody is farther out than this in any dimension, nor higher

_SMOOTHING: Final = 0.25  # CE: how much the newest observation counts in the error
_MENDING: Final = 0.25  # CC: how much of a miss one step may mend
_GRAVITY_S: Final = 150.0  # rho: whoever is d from the origin is drawn there by (d / rho)² a step
_LEAST_ERROR: Final = 0.01  # who were surer would never move again
_SURER: Final = 2.0  # no peer counts as more times as sure as this node itself, whatever it says
_INSTANT_S: Final = 1e-6  # anything shorter is as good as nothing

_RTTS: Final = 5  # remembered of a peer
_PEERS: Final = 256  # whose round trips are remembered
_MISSES: Final = 31  # remembered of all peers together
_OUTLIER: Final = 3.0  # times the usual miss
_MAX_STEP_S: Final = 0.05


class Coordinate(Struct, frozen=True):
    """A place, in seconds, and `error`: by which share predictions from there were wrong of late."""

    vector: tuple[float, float, float] = (0.0, 0.0, 0.0)
    height: float = MIN_HEIGHT_S
    error: float = MAX_ERROR


START: Final = Coordinate()


def distance_s(one: Coordinate, other: Coordinate) -> float:
    """The round trip that is to be expected between two nodes."""
    return math.dist(one.vector, other.vector) + (one.height + other.height)


def is_sound(coordinate: Coordinate) -> bool:
    """True if a node can be there; what is not a number is nowhere."""
    x, y, z = coordinate.vector
    return (
        -EXTENT_S <= x <= EXTENT_S
        and -EXTENT_S <= y <= EXTENT_S
        and -EXTENT_S <= z <= EXTENT_S
        and MIN_HEIGHT_S <= coordinate.height <= EXTENT_S
        and 0.0 <= coordinate.error <= MAX_ERROR
    )


class Vivaldi:
    """The coordinate of this node, and how it follows what is measured.

    A node that was here before may set `coordinate` to where it was, instead of starting at the origin.
    """

    __slots__ = ("_chance", "_misses", "_ranked", "_rtts", "coordinate")

    def __init__(self, chance: random.Random) -> None:
        self.coordinate = START
        self._chance = chance
        self._rtts: OrderedDict[NodeId, deque[float]] = OrderedDict()  # whoever was measured last comes last
        self._misses: deque[float] = deque()
        self._ranked: list[float] = []  # the same by size

    def observe(self, peer: NodeId, coordinate: Coordinate, rtt_s: float) -> bool:
        """Follow one measurement: a round trip to `peer` took so long, and it says that it is there.

        False if that cannot be: then nothing has changed.
        """
        if not 0.0 <= rtt_s <= MAX_RTT_S or not is_sound(coordinate):
            return False
        here = self.coordinate
        rtt_s = max(self._usual_rtt_s(peer, rtt_s), _INSTANT_S)
        miss_s = rtt_s - distance_s(here, coordinate)
        # The less we are sure of our own place, compared with the peer of its, the more we give in.
        unsure = max(here.error, _LEAST_ERROR)
        share = unsure / (unsure + max(coordinate.error, unsure / _SURER))
        wrong = min(abs(miss_s) / rtt_s, MAX_ERROR)
        error = here.error + _SMOOTHING * share * (wrong - here.error)
        step_s = _MENDING * share * miss_s * self._belief(abs(miss_s))
        self.coordinate = self._moved(coordinate, max(-_MAX_STEP_S, min(step_s, _MAX_STEP_S)), error)
        return True

    def _usual_rtt_s(self, peer: NodeId, rtt_s: float) -> float:
        """The median of the last few round trips to a peer: one that was held up on its way says nothing."""
        rtts = self._rtts.get(peer)
        if rtts is None:
            if len(self._rtts) == _PEERS:
                self._rtts.popitem(last=False)
            rtts = self._rtts[peer] = deque(maxlen=_RTTS)
        else:
            self._rtts.move_to_end(peer)
        rtts.append(rtt_s)
        return sorted(rtts)[(len(rtts) - 1) // 2]

    def _belief(self, miss_s: float) -> float:
        """How much of a miss of this size counts, from 0 to 1, by what was usual of late.

        Up to a bound all of it does, and beyond the less the larger it is, so that no lie pays more than one
        that passes for usual. When this node itself is in the wrong place, large misses are the usual ones.
        """
        misses, ranked = self._misses, self._ranked
        if len(misses) == _MISSES:
            del ranked[bisect_left(ranked, misses.popleft())]
        misses.append(miss_s)
        insort(ranked, miss_s)
        bound_s = _OUTLIER * ranked[len(ranked) // 2]
        return 1.0 if miss_s <= bound_s else (bound_s / miss_s) ** 2

    def _moved(self, peer: Coordinate, step_s: float, error: float) -> Coordinate:
        """This node farther from `peer` by `step_s`, up and aside in the shares that heights and way have."""
        here = self.coordinate
        aside = [mine - its for mine, its in zip(here.vector, peer.vector, strict=True)]
        way_s, heights_s = math.hypot(*aside), here.height + peer.height
        if way_s < _INSTANT_S:
            # At the same point there is no direction from one to the other: any will do.
            aside = [self._chance.gauss(0.0, 1.0) for _ in aside]
            way_s, heights_s = math.hypot(*aside) or 1.0, 0.0
        scale = step_s / (way_s + heights_s)
        height = here.height + scale * heights_s
        x, y, z = (mine + scale * part for mine, part in zip(here.vector, aside, strict=True))
        # Distances alone hold the nodes together but nowhere: gravity keeps all of them from drifting off.
        gravity = 1.0 - math.hypot(x, y, z) / _GRAVITY_S**2
        return Coordinate(
            (_within(x * gravity), _within(y * gravity), _within(z * gravity)),
            max(MIN_HEIGHT_S, min(height, EXTENT_S)),
            error,
        )


def _within(place_s: float) -> float:
    return max(-EXTENT_S, min(place_s, EXTENT_S))
