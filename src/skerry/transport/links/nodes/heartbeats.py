"""When a server sends heartbeats to its nodes.

A node sends a message at least every `report_s`, and a server answers a heartbeat with one: with a thousand
nodes that needs no timer for each. Whoever was sent something else in the meantime gets none. A node whose
messages are not read, because an earlier one takes long, or do not come, gets one from an `OverdueTimer` soon
after it would have been due. `skerry.transport.links.nodes.session_handler` sends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary, ref

_TICKS: Final = 8  # of the timer, in an interval
_SHORTEST_TICK_S: Final = 0.01
_LONGEST_TICK_S: Final = 0.25
_NOTABLY: Final = 1.1  # longer is another interval, that a node is told


class HeartbeatPace:
    """What one node is due. Pure: times are of one monotonic clock, and come in as arguments."""

    __slots__ = ("_late_s", "_sent_at", "_silence_s", "interval_s")

    def __init__(self, interval_s: float, silence_s: float, now: float) -> None:
        """It was sent something `now`, and gives up after `silence_s` without a message; 0: never."""
        self._silence_s = silence_s
        self._sent_at = now
        self._set_interval(interval_s)

    def sent(self, now: float) -> None:
        """The node was sent something."""
        self._sent_at = now

    def is_due_in_answer(self, now: float) -> bool:
        """Whether a heartbeat of the node is answered: not if it was sent something a moment ago."""
        return now - self._sent_at >= self.interval_s / 2

    def is_overdue(self, now: float) -> bool:
        """Whether it is sent one although none of its own has come."""
        return now - self._sent_at >= self.interval_s + self._late_s

    def take_new_interval(self, interval_s: float) -> float:
        """What the next heartbeat tells: `interval_s` if that is notably longer than the interval of before,
        else 0. A node of before this field keeps its own, which is shorter."""
        if interval_s <= self.interval_s * _NOTABLY:
            return 0.0
        self._set_interval(interval_s)
        return interval_s

    def _set_interval(self, interval_s: float) -> None:
        self.interval_s = interval_s
        # A quarter of what the node allows beyond an interval; the timer may be another eighth late.
        allowed_s = max(0.0, self._silence_s - interval_s) if self._silence_s else interval_s
        self._late_s = min(interval_s, allowed_s) / 4


class OverdueTimer:
    """One timer for the sessions of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)
        self._sessions: dict[HeartbeatPace, Callable[[], None]] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._tick_s = _LONGEST_TICK_S

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> OverdueTimer:
        """The one of `loop`."""
        timer = _timers.get(loop)
        if timer is None:
            timer = _timers[loop] = cls(loop)
        return timer

    def add(self, pace: HeartbeatPace, act: Callable[[], None]) -> None:
        """Call `act` in every tick in which a heartbeat is overdue."""
        self._sessions[pace] = act
        tick_s = max(_SHORTEST_TICK_S, min(_LONGEST_TICK_S, pace.interval_s / _TICKS))
        if self._handle is None or tick_s < self._tick_s:
            if self._handle is not None:
                self._handle.cancel()
            self._tick_s = tick_s
            self._schedule()

    def remove(self, pace: HeartbeatPace) -> None:
        del self._sessions[pace]
        if not self._sessions and self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._tick_s = _LONGEST_TICK_S

    def _tick(self) -> None:
        loop = self._loop()
        assert loop is not None, "it is running"
        now = loop.time()
        for pace, act in self._sessions.items():
            if pace.is_overdue(now):
                act()
        self._schedule()

    def _schedule(self) -> None:
        loop = self._loop()
        assert loop is not None, "it is running"
        self._handle = loop.call_later(self._tick_s, self._tick)


_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, OverdueTimer] = WeakKeyDictionary()
