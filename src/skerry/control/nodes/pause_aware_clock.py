"""A clock that does not count pauses of this process.

A server that was stopped, swapped out or starved of cpu finds afterwards that no heartbeat came for a while,
because it did not read them. Liveness is therefore measured by this clock, for the server's own nodes
(`skerry.control.nodes.liveness`) and for all (`skerry.control.nodes.index`). A late process makes it run
slower, never faster: a loss is noticed later, and no node is lost by it.
"""

from __future__ import annotations

import asyncio

import structlog

from skerry.kit.clock import Clock

log = structlog.get_logger(__name__)

TICK_S = 0.5
MAX_STEP_S = 1.0  # that count of the time between two ticks


class PauseAwareClock:
    """A `skerry.kit.clock.Clock` whose monotonic time stands still while this process does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticked_at = clock.monotonic()
        self._until_tick = 0.0

    def now(self) -> float:
        return self._clock.now()

    def monotonic(self) -> float:
        # Bounded here and not only at a tick: another task may run first after a pause.
        return self._until_tick + min(self._clock.monotonic() - self._ticked_at, MAX_STEP_S)

    def tick(self) -> None:
        """This process runs."""
        missed_s = self._clock.monotonic() - self._ticked_at - MAX_STEP_S
        self._until_tick = self.monotonic()
        self._ticked_at = self._clock.monotonic()
        if missed_s > 0:
            log.warning("server.paused", seconds=round(missed_s + MAX_STEP_S, 1))

    async def run(self) -> None:
        """Tick, for ever."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()
