"""Simulated time: an event loop that does not wait, and the clock that goes with it.

When no task can run, time jumps to the next timer. So hours pass in moments, and the same seed gives the same
events, whatever else the machine does. For programs without threads and sockets, which could not be waited
for.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Each iteration of the loop takes this long: a task that wakes a rounding error before its deadline and
# checks again finds it reached.
_ROUND_S = 1e-6

START = 1_700_000_000.0  # wall time when simulated time begins


class SimulationDeadlock(RuntimeError):
    """All tasks wait, and no timer is set."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is the simulated time."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        super().__init__(_Selector(self._jump))

    def time(self) -> float:
        return self._elapsed

    def _jump(self, seconds: float) -> None:
        self._elapsed += seconds


class _Selector(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise SimulationDeadlock("all tasks wait for each other, and no timer is set")
        self._jump(_ROUND_S if ready or timeout is None else max(_ROUND_S, timeout))
        return ready


class LoopClock:
    """A `skerry.kit.clock.Clock` with the time of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return START + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()


def run(main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """`asyncio.run` in simulated time. Back-off draws on `random`, which gets `seed`."""
    random.seed(seed)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
