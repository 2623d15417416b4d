"""Histograms of durations: plain numbers, which are added to in the path of a call."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

DURATION_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
)


class DurationHistogram:
    """How often which time was measured."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.total_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(DURATION_BOUNDS_S, seconds)] += 1
        self.total_s += seconds
