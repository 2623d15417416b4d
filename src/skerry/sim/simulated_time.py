"""Simulated time: an event loop that does not wait, and the clock that goes with it.

While anything can be done, time creeps; when nothing can, it jumps to the next timer. So hours pass in
moments, and what happens is the same for the same seed, whatever else the machine does. For programs without
threads and sockets, since nothing of what those bring could be waited for.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# A round of the loop takes this long, as nothing takes no time at all: who comes a rounding error too early
# to a deadline and looks again finds it reached.
_ROUND_S = 1e-6

START = 1_700_000_000.0  # wall time when simulated time begins


class SimulationDeadlock(RuntimeError):
    """Everybody waits, and for nothing that time could bring."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is the time that was jumped over."""

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
            raise SimulationDeadlock("everybody waits for somebody else, and no timer is set")
        self._jump(_ROUND_S if ready or timeout is None else max(_ROUND_S, timeout))
        return ready


class LoopClock:
    """A `skerry.kit.clock.Clock` that tells the time of a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return START + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()


def run(main: Coroutine[Any, Any, T], *, seed: int = 0) -> T:
    """`asyncio.run` in simulated time. Pauses before another try draw on `random`: it gets `seed`."""
    random.seed(seed)
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
