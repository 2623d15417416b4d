"""Back-off of repeated `Create` calls for an instance that has ended.

Kudo's controller creates an instance again as soon as the stream before has ended, unless the last status was
TERMINATED. A stream that comes too soon gets the status at once and is kept open for a back-off
(docs/adr/0037). Only times and counts are here; `grpc_services` keeps the streams open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from skerry.kit.clock import Clock
from skerry.model.settings import FleetSettings

# Of a connection's 256 calls: the rest is for instances that have not ended.
_MAX_HELD: Final = 128
_CROWDED_S: Final = 10.0
_MAX_KNOWN: Final = 10_000


class _Answered(NamedTuple):
    """The last final answer about an instance: when its stream ends, and how many were kept open before."""

    until: float
    holds: int


class RepeatBackoff:
    """How long each stream of an ended instance stays open, by the back-off of restarts."""

    def __init__(self, clock: Clock, settings: FleetSettings) -> None:
        self._clock = clock
        self._base_s = settings.restart_base_s
        self._cap_s = settings.restart_cap_s
        self._reset_s = settings.restart_reset_s
        self._answered: dict[str, _Answered] = {}  # the one that was asked for last is last
        self._held: Counter[object] = Counter()

    def next_hold_s(self, instance: str) -> float:
        """How long to keep open the stream that begins now: 0 if it does not come too soon."""
        now = self._clock.monotonic()
        before = self._answered.pop(instance, None)
        hold_s, holds = 0.0, 0
        if before is not None and now - before.until < self._reset_s:
            pause_s = min(self._cap_s, self._base_s * 2 ** min(before.holds, 32))
            hold_s = min(self._cap_s, max(0.0, before.until + pause_s - now))
            holds = before.holds + (hold_s > 0)
        self._answered[instance] = _Answered(now + hold_s, holds)
        if len(self._answered) > _MAX_KNOWN:
            del self._answered[next(iter(self._answered))]
        return hold_s

    @contextmanager
    def held(self, connection: object, hold_s: float) -> Iterator[float]:
        """While a stream is kept open: for how long, which is less if the connection has very many of
        them."""
        is_crowded = self._held[connection] >= _MAX_HELD
        self._held[connection] += 1
        try:
            yield min(hold_s, _CROWDED_S) if is_crowded else hold_s
        finally:
            self._held[connection] -= 1
            if not self._held[connection]:
                del self._held[connection]
