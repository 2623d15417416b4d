"""Which share of the new connections of this node each ready copy of a service gets: near ones first. Pure.

- A copy on this node gets `OWN_NODE` times as much as another of the area: the packets stay here, and yet no
  copy is drowned by the clients beside it.
- Connections stay in the area of this node while its copies can bear them. The demand of an area is taken as
  its part of all nodes; if that would give each of its copies more than `HEADROOM` times the mean of all
  copies, the rest spills over to other areas. Without ready copies in the area everything does.
- Of what spills over, the areas with the shortest round trip get as much as they can bear in the same way.

Copies on nodes to which no packet gets have none, unless there are no others: the server may not know, or be
away. Otherwise every ready copy of this node's area has a share; those of other areas have one where they are
needed, and each has one on the nodes of its own area. Without ready copies nobody has one.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skerry.model.ids import NodeId
from skerry.model.network_objects import EndpointState, NodeLocation, ServiceEndpoint

OWN_NODE: Final = 4
HEADROOM: Final = 2.0
_PRECISION: Final = 1000  # of a share, for each copy

RoundTrip = Callable[[NodeId], float | None]  # in seconds; None: not known


def unknown_round_trip(node: NodeId) -> float | None:
    """For a node that measures none."""
    return None


@dataclass(frozen=True)
class NodeSurroundings:
    """Where this node is among the others. `distances`: classes of round trips, of nodes of other areas.
    `unreachable`: nodes to which no packet gets."""

    node: NodeId
    areas: Mapping[NodeId, str] = field(default_factory=dict)
    distances: Mapping[NodeId, int] = field(default_factory=dict)
    unreachable: frozenset[NodeId] = frozenset()

    @classmethod
    def of(
        cls,
        node: NodeId,
        locations: Iterable[NodeLocation],
        round_trip: RoundTrip = unknown_round_trip,
        unreachable: frozenset[NodeId] = frozenset(),
    ) -> NodeSurroundings:
        areas = {each.node: each.area for each in locations}
        own = areas.get(node)
        distances = {
            other: _distance_class(trip_s)
            for other, area in areas.items()
            if area != own and (trip_s := round_trip(other)) is not None
        }
        return cls(node, areas, distances, unreachable)

    @functools.cached_property
    def own_area(self) -> str | None:
        return self.areas.get(self.node)

    @functools.cached_property
    def own_part(self) -> float:
        """The part of all nodes that is in the area of this one."""
        counts = Counter(self.areas.values())
        return counts[self.own_area or ""] / counts.total() if self.own_area is not None else 1.0


def weights(endpoints: Sequence[ServiceEndpoint], here: NodeSurroundings) -> dict[str, int]:
    """The weight of each copy that gets new connections, by address; the sum is the denominator."""
    ready = {each.address: each for each in endpoints if each.state is EndpointState.READY}
    if not ready:
        return {}
    reachable = {address: each for address, each in ready.items() if each.node not in here.unreachable}
    ready = reachable or ready
    tiers = _tiers(list(ready.values()), here)
    parts: dict[str, float] = {}
    left, others = 1.0, len(ready)
    for position, tier in enumerate(tiers):
        is_last = position == len(tiers) - 1
        # What leaves the area is wanted from all others together.
        demand = here.own_part if _is_near(tier[0], here) else 1.0
        bearable = 1.0 if is_last else min(1.0, HEADROOM * len(tier) / others / demand)
        taken = left * bearable
        if taken > 0:
            total = sum(_nearness(each, here) for each in tier)
            parts |= {each.address: taken * _nearness(each, here) / total for each in tier}
        left, others = left - taken, others - len(tier)
    return _whole_numbers(parts)


def _tiers(ready: Sequence[ServiceEndpoint], here: NodeSurroundings) -> list[list[ServiceEndpoint]]:
    """The copies of this node's area first, then others by round trip; unknown ones last."""
    tiers: dict[float, list[ServiceEndpoint]] = {}
    for each in ready:
        tier = -math.inf if _is_near(each, here) else here.distances.get(each.node, math.inf)
        tiers.setdefault(tier, []).append(each)
    return [tiers[tier] for tier in sorted(tiers)]


def _is_near(endpoint: ServiceEndpoint, here: NodeSurroundings) -> bool:
    if endpoint.node == here.node:
        return True
    return here.own_area is not None and here.areas.get(endpoint.node) == here.own_area


def _nearness(endpoint: ServiceEndpoint, here: NodeSurroundings) -> int:
    return OWN_NODE if endpoint.node == here.node else 1


def _distance_class(round_trip_s: float) -> int:
    """Round trips of one class differ by at most a factor of two: rules do not change with every measure."""
    return max(0, math.ceil(math.log2(max(round_trip_s, 1e-6) * 1000)))


def _whole_numbers(parts: Mapping[str, float]) -> dict[str, int]:
    """Parts of 1 as small whole numbers, each at least 1."""
    scale = _PRECISION * len(parts)
    numbers = {address: max(1, round(part * scale)) for address, part in parts.items()}
    divisor = math.gcd(*numbers.values())
    return {address: number // divisor for address, number in numbers.items()}
