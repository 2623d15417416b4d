"""Clocks as arguments.

Every part that needs the time takes a `Clock`; nothing calls `time` directly, so that tests and the simulator
decide what time it is. Wall time is for people and certificates, monotonic time for deadlines.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> float:
        """Seconds since the epoch; may step when the machine's clock is set."""
        ...

    def monotonic(self) -> float:
        """Seconds since some start; never steps."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # Without a frame of Python around each: a call of a function reads them half a dozen times.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that advances only by `advance`: for tests and simulations."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._elapsed = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._elapsed += seconds


def iso(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, as every contract of ours writes times."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def moment(text: str) -> float:
    """The time of a text by `iso`, or of another time with a zone; ValueError if it is not valid."""
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("it names no zone")
    seconds = found.timestamp()
    iso(seconds)  # the last years and the first are other years in other zones
    return seconds
