"""How long to wait before trying again: exponential, capped, with jitter, reset by a long success.

Pure: the attempt number and the random source come in; nothing here sleeps.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec


class Backoff(msgspec.Struct, frozen=True):
    """A schedule of delays. `delay(0)` is the wait after the first failure."""

    first_s: float = 0.1
    factor: float = 2.0
    cap_s: float = 30.0
    jitter: float = 0.2  # a share of the delay, either way, so that many do not retry in step

    def delay(self, failures: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after `failures` failures in a row before this one."""
        # The exponent is bounded so that a loop that fails for a year does not overflow a float.
        plain = min(self.cap_s, self.first_s * self.factor ** min(failures, 64))
        return plain * (1 + self.jitter * (2 * chance() - 1))
