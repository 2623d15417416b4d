"""The times of a call as a bar: waiting for a worker, starting it, running, and the way there and back. Pure.

Bars of a list have one scale, the longest call, so that their lengths can be compared. Each part has its
number in words, because a colour has no meaning alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from skerry.console import formats
from skerry.functions.invocation.call_history import FinishedCall

_LEAST = 0.004  # of the width: a part below it is not drawn


class Phase(msgspec.Struct, frozen=True):
    """A part of a bar, in percent of its width."""

    name: str
    key: str  # its class
    text: str
    start: str
    width: str
    is_drawn: bool


class PhaseBar(msgspec.Struct, frozen=True):
    """A call."""

    total: str
    phases: tuple[Phase, ...]

    @property
    def label(self) -> str:
        return ", ".join(f"{one.name} {one.text}" for one in self.phases)


def phase_bars(calls: Sequence[FinishedCall]) -> tuple[PhaseBar, ...]:
    """The bars of these calls, on one scale."""
    longest = max((one.total_s for one in calls), default=0.0) or 1.0
    return tuple(_bar(one, longest) for one in calls)


def _bar(call: FinishedCall, longest: float) -> PhaseBar:
    reached, phases = 0.0, []
    for name, key, seconds in (
        ("queue", "queue", call.queue_s),
        ("start", "start", call.start_s),
        ("run", "run", call.run_s),
        ("network", "network", call.network_s),
    ):
        share = seconds / longest
        phases.append(
            Phase(
                name,
                key,
                formats.latency(seconds),
                f"{reached * 100:.2f}%",
                f"{share * 100:.2f}%",
                share >= _LEAST,
            )
        )
        reached += share
    return PhaseBar(formats.latency(call.total_s), tuple(phases))
