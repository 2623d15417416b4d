"""The latest calls of each function with the times of their phases, for people who look: in memory, bounded,
and lost with the process.

A call that has ended adds one tuple to the ring of its function, and one to a histogram; everything else is
done when somebody reads. Calls that this process sent to another member are here too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from skerry.functions.invocation.durations import DURATION_BOUNDS_S
from skerry.model.ids import FunctionName

KEPT_CALLS: Final = 50  # of each function

# The fields of a `FinishedCall`, but for the time of the response instead of that of the network.
CallRow = tuple[float, float, float, float, float, str | None, str]


class FinishedCall(NamedTuple):
    """A call that has ended. Its phases follow each other; their sum is the time of the response."""

    ended: float  # by the monotonic clock
    queue_s: float
    start_s: float  # of the worker that was started for it
    run_s: float  # in the handler
    network_s: float  # to the worker and back, on this machine or another
    failure: str | None
    node: str  # that it was sent to; empty: it ran here

    @property
    def total_s(self) -> float:
        return self.queue_s + self.start_s + self.run_s + self.network_s


class FunctionHistory:
    """The calls of one function."""

    __slots__ = ("_rows", "buckets", "cold", "failed", "refused")

    def __init__(self) -> None:
        self._rows: deque[CallRow] = deque(maxlen=KEPT_CALLS)
        self.buckets = [0] * (len(DURATION_BOUNDS_S) + 1)  # of times from arrival to answer
        self.failed = 0
        self.cold = 0  # that waited for their worker to start
        self.refused = 0  # that were not queued

    def add(self, row: CallRow) -> None:
        """In the path of every call."""
        self._rows.append(row)
        self.buckets[bisect_left(DURATION_BOUNDS_S, row[4])] += 1

    def latest(self) -> list[FinishedCall]:
        """The newest first."""
        return [
            FinishedCall(
                ended, queue_s, start_s, run_s, max(0.0, total_s - queue_s - start_s - run_s), failure, node
            )
            for ended, queue_s, start_s, run_s, total_s, failure, node in reversed(self._rows)
        ]


class CallHistory:
    """The histories of all functions that were called."""

    def __init__(self) -> None:
        self._functions: dict[FunctionName, FunctionHistory] = {}

    @property
    def functions(self) -> Mapping[FunctionName, FunctionHistory]:
        return self._functions

    def of(self, name: FunctionName) -> FunctionHistory:
        """That of a function, which begins here if it has none."""
        history = self._functions.get(name)
        if history is None:
            history = self._functions[name] = FunctionHistory()
        return history

    def forget(self, name: FunctionName) -> None:
        """The function was deleted."""
        self._functions.pop(name, None)
