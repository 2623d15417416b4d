"""Time that passes in a simulation: at once for us, and as long as it says for what is looked at."""

from __future__ import annotations

import asyncio

from skerry.sim.simulated_time import SimulatedLoop


async def passes(seconds: float) -> None:
    """Let so much simulated time pass. On any other loop it would be a sleep, so there it fails."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop), "only simulated time can be made to pass"
    await asyncio.sleep(seconds)
