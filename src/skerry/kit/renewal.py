"""When a certificate is renewed, and the loop that does it in time.

Used by the server for its own certificates and by a node for its one; neither the certificate nor the way to
a new one is known here. A renewal that fails is logged and tried again with back-off, for ever: a peer that
is away must not end the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock

log = structlog.get_logger(__name__)

# The wall clock may be set and the machine may be suspended, so the remaining time is checked this often.
LOOK_AGAIN_S = 600.0
_RETRY = Backoff(first_s=1.0, cap_s=60.0)

Sleep = Callable[[float], Awaitable[None]]


def due_at(issued_at: float, not_after: float, chance: float = 0.0) -> float:
    """When to renew: past half of the life and before two thirds of it.

    `chance` in [0, 1) spreads holders whose certificates were issued together.
    """
    return issued_at + (not_after - issued_at) * (0.55 + 0.1 * chance)


async def renew_when_due(
    due: Callable[[], float],
    renew: Callable[[], Awaitable[None]],
    *,
    clock: Clock,
    sleep: Sleep = asyncio.sleep,
    what: str,
    check_every_s: float = LOOK_AGAIN_S,
) -> None:
    """Call `renew` whenever the wall clock has reached `due()`; never returns."""
    failures = 0
    while True:
        left = due() - clock.now()
        if left > 0:
            await sleep(min(left, check_every_s))
            continue
        try:
            await renew()
            if due() <= clock.now():  # an authority near its own end, or a clock that is off
                raise RuntimeError("the new certificate would have to be renewed at once")
            failures = 0
        except Exception as error:  # noqa: BLE001 - whatever it was, the certificate still needs renewing
            wait = _RETRY.delay(failures)
            failures += 1
            log.warning("certificate.not_renewed", what=what, error=str(error), retry_in_s=round(wait, 1))
            await sleep(wait)
