"""Network coordinates: points whose distances are the round-trip times between nodes. Pure.

Vivaldi: each node has a coordinate, measures the round trip to a peer now and then, and moves a little away
from the peer or towards it until what the two coordinates predict is what was measured. So a node that
measures a few others can predict the distance to all. A point in three dimensions is for the path through the
core of the network; a height above it for the access link that every packet of the node has to pass. A peer
is not trusted blindly: impossible values are refused, and outliers count little, so that wrong ones move no
node far while most are right. Nothing here measures, sends or knows the time: `Vivaldi.observe` takes what
was measured. `skerry.sim.coordinates.simulation` runs the same code.
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
MAX_DISTANCE_S: Final = 10.0  # the maximum in any dimension, and of the height

_SMOOTHING: Final = 0.25  # CE: how much the newest observation counts in the error
_GAIN: Final = 0.25  # CC: how much of a miss one step may mend
_GRAVITY_S: Final = 150.0  # rho: a node at distance d from the origin is drawn there by (d / rho)² a step
_LEAST_ERROR: Final = 0.01  # a node with less error would never move again
_MAX_CONFIDENCE_RATIO: Final = 2.0  # a peer counts at most so many times as sure as this node
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
        -MAX_DISTANCE_S <= x <= MAX_DISTANCE_S
        and -MAX_DISTANCE_S <= y <= MAX_DISTANCE_S
        and -MAX_DISTANCE_S <= z <= MAX_DISTANCE_S
        and MIN_HEIGHT_S <= coordinate.height <= MAX_DISTANCE_S
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
        self._rtts: OrderedDict[NodeId, deque[float]] = OrderedDict()  # the last measured comes last
        self._misses: deque[float] = deque()
        self._ranked: list[float] = []  # the same by size

    def observe(self, peer: NodeId, coordinate: Coordinate, rtt_s: float) -> bool:
        """Apply one measurement: the round-trip time to `peer`, and its coordinate.

        False if it is impossible: then nothing has changed.
        """
        if not 0.0 <= rtt_s <= MAX_RTT_S or not is_sound(coordinate):
            return False
        here = self.coordinate
        rtt_s = max(self._usual_rtt_s(peer, rtt_s), _INSTANT_S)
        miss_s = rtt_s - distance_s(here, coordinate)
        # The less we are sure of our own place, compared with the peer of its, the more we give in.
        uncertainty = max(here.error, _LEAST_ERROR)
        share = uncertainty / (uncertainty + max(coordinate.error, uncertainty / _MAX_CONFIDENCE_RATIO))
        wrong = min(abs(miss_s) / rtt_s, MAX_ERROR)
        error = here.error + _SMOOTHING * share * (wrong - here.error)
        step_s = _GAIN * share * miss_s * self._confidence(abs(miss_s))
        self.coordinate = self._moved(coordinate, max(-_MAX_STEP_S, min(step_s, _MAX_STEP_S)), error)
        return True

    def _usual_rtt_s(self, peer: NodeId, rtt_s: float) -> float:
        """The median of the last few round trips to a peer: a delayed one says nothing."""
        rtts = self._rtts.get(peer)
        if rtts is None:
            if len(self._rtts) == _PEERS:
                self._rtts.popitem(last=False)
            rtts = self._rtts[peer] = deque(maxlen=_RTTS)
        else:
            self._rtts.move_to_end(peer)
        rtts.append(rtt_s)
        return sorted(rtts)[(len(rtts) - 1) // 2]

    def _confidence(self, miss_s: float) -> float:
        """How much of a miss of this size counts, from 0 to 1, by what was usual of late.

        Up to a bound all of it does, and beyond the less the larger it is, so that a wrong value gains
        nothing. When this node itself is in the wrong position, large misses are the usual ones.
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
        direction = [mine - its for mine, its in zip(here.vector, peer.vector, strict=True)]
        way_s, heights_s = math.hypot(*direction), here.height + peer.height
        if way_s < _INSTANT_S:
            # At the same point there is no direction from one to the other: any will do.
            direction = [self._chance.gauss(0.0, 1.0) for _ in direction]
            way_s, heights_s = math.hypot(*direction) or 1.0, 0.0
        scale = step_s / (way_s + heights_s)
        height = here.height + scale * heights_s
        x, y, z = (mine + scale * part for mine, part in zip(here.vector, direction, strict=True))
        # Distances alone hold the nodes together but nowhere: gravity keeps all of them from drifting off.
        gravity = 1.0 - math.hypot(x, y, z) / _GRAVITY_S**2
        return Coordinate(
            (_within(x * gravity), _within(y * gravity), _within(z * gravity)),
            max(MIN_HEIGHT_S, min(height, MAX_DISTANCE_S)),
            error,
        )


def _within(place_s: float) -> float:
    return max(-MAX_DISTANCE_S, min(place_s, MAX_DISTANCE_S))
