"""Round trips between nodes that do not exist: drawn by a seed, in the shapes that real networks have.

Areas lie about the globe and nodes around the middle of their area, so that the way between two nodes is an
arc, which no flat space holds without error. Each node has an access link, a few of which are very slow. Some
ways are detours, so that it would be quicker to go by way of a third node: as many as it takes for the given
share of triangles to be violated. A measurement differs from what is usual by chance, mostly a little.

Imports numpy, and so is imported only where something is simulated.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_EARTH_KM: Final = 6371.0
_S_PER_KM: Final = 1.4e-5  # there and back through fibre that does not run straight
_AREA_RADIANS: Final = 0.02  # how far nodes are from the middle of their area, as usual: some 130 km
_ACCESS_S: Final = 0.0005  # the quickest access link
_SLOWEST_ACCESS_S: Final = 0.1
_ACCESS_TAIL: Final = 1.2  # of a Pareto distribution: the smaller, the more links are slow
_DETOUR: Final = 1.0  # by how many times a detour is longer than the way itself, on average

_TRIANGLES: Final = 20_000  # that are looked at for how many are violated
_HALVINGS: Final = 20


class LatencyModel:
    """A network: `usual_s[i, j]` is the usual round trip from node i to node j, `areas[i]` the area of i."""

    def __init__(self, nodes: int, areas: int, violated: float, chance: np.random.Generator) -> None:
        """Draw one in which this share of the triangles is violated, as nearly as can be."""
        self.areas: NDArray[np.int64] = chance.integers(0, areas, nodes)
        access_s = np.minimum(_ACCESS_S * (1.0 + chance.pareto(_ACCESS_TAIL, nodes)), _SLOWEST_ACCESS_S)
        access_s = access_s[:, None] + access_s[None, :]
        ways_s = _S_PER_KM * _arcs_km(_points(self.areas, areas, chance))
        rank = _symmetric(chance.random((nodes, nodes)))
        longer = _symmetric(1.0 + chance.exponential(_DETOUR, (nodes, nodes)))
        one, other, third = (chance.integers(0, nodes, _TRIANGLES) for _ in range(3))
        sides = (np.stack([one, other, third]), np.stack([other, third, one]))
        detours = _share_of_detours(access_s[sides], ways_s[sides], rank[sides], longer[sides], violated)
        self.usual_s: FloatArray = _with_detours(access_s, ways_s, rank, longer, detours)
        np.fill_diagonal(self.usual_s, 0.0)
        self.violated = _violated(self.usual_s[sides])

    def measure(
        self, ones: NDArray[np.int64], others: NDArray[np.int64], jitter: float, chance: np.random.Generator
    ) -> FloatArray:
        """A round trip each from `ones` to `others`: lognormal around what is usual."""
        return self.usual_s[ones, others] * chance.lognormal(0.0, jitter, ones.shape)


def _points(area_of: NDArray[np.int64], areas: int, chance: np.random.Generator) -> FloatArray:
    """Where on the globe nodes are."""
    middles = _on_globe(chance.normal(size=(areas, 3)))
    return _on_globe(middles[area_of] + chance.normal(scale=_AREA_RADIANS, size=(len(area_of), 3)))


def _on_globe(points: FloatArray) -> FloatArray:
    lengths: FloatArray = np.linalg.norm(points, axis=1, keepdims=True)
    return points / lengths


def _arcs_km(points: FloatArray) -> FloatArray:
    return _EARTH_KM * np.arccos(np.clip(points @ points.T, -1.0, 1.0))


def _symmetric(drawn: FloatArray) -> FloatArray:
    """The same there and back."""
    upper = np.triu(drawn, 1)
    return upper + upper.T


def _with_detours(
    access_s: FloatArray, ways_s: FloatArray, rank: FloatArray, longer: FloatArray, detours: float
) -> FloatArray:
    return access_s + ways_s * np.where(rank < detours, longer, 1.0)


def _share_of_detours(
    access_s: FloatArray, ways_s: FloatArray, rank: FloatArray, longer: FloatArray, violated: float
) -> float:
    """How many of the ways must be detours for this share of triangles, of which the sides are given."""
    few, many = 0.0, 1.0
    for _ in range(_HALVINGS):
        detours = (few + many) / 2
        if _violated(_with_detours(access_s, ways_s, rank, longer, detours)) < violated:
            few = detours
        else:
            many = detours
    return few


def _violated(sides_s: FloatArray) -> float:
    """The share of triangles whose longest side is longer than the two others together."""
    short, middle, long = np.sort(sides_s, axis=0)
    return float(np.mean(long > short + middle))
