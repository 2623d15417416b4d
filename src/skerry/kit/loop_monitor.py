"""Watches the event loop: how late it is, and by what.

A heartbeat is due on the loop every few milliseconds while the loop works, and rarely while it rests. A
thread wakes when one is late and samples what the loop's thread executes, so that a stall has a culprit in
the log: the innermost function of the program in most of the samples, or the garbage collector. Of the time
of a stall, what the thread waited for a processor that other programs used is left out.

While the loop rests, a stall that is shorter than `REST_S` may pass between two heartbeats unseen.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Final, NamedTuple

import structlog

from skerry.kit import metrics, thread_times
from skerry.kit.collector import CollectorTuning
from skerry.kit.thread_times import ThreadClock, ThreadTimes

log = structlog.get_logger(__name__)

STALL_S: Final = 0.05  # what the loop does in one go from here on is a stall
WORK_S: Final = 0.01  # between heartbeats
REST_S: Final = 0.25  # the same while the loop has little to do
REST_SHARE: Final = 0.05  # of a processor, averaged: less is rest
_AVERAGE_S: Final = 1.0
_LONG_REST_S: Final = 30.0  # from here on nobody is taken to mind a long garbage collection
_LATE_S: Final = 0.035  # from here on the thread is sampled
_SAMPLE_EVERY_S: Final = 0.01
_MAX_SAMPLES: Final = 500
_SNAPSHOT_EVERY_S: Final = 1.0  # of the times of all threads
_MAX_FRAMES: Final = 12
_OLDEST: Final = 2  # generation of the collector
_LAG_EVERY_S: Final = 1.0
_LOG_EVERY_S: Final = 1.0
_LOOP_MODULES: Final = ("asyncio.runners", "asyncio.base_events", "asyncio.events")
_PROGRAM: Final = __name__.partition(".")[0] + "."
NO_CALLBACK: Final = "event loop"
NO_SAMPLE: Final = "unknown"

LAG = metrics.histogram(
    "skerry_event_loop_lag_seconds",
    "How late a callback of the event loop ran that was due, measured every second",
    buckets=[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5],
)
STALLS = metrics.histogram(
    "skerry_loop_stall_seconds",
    "Stalls of the event loop of 50 ms and more, without the time that its thread waited for a processor; "
    "the log has the culprits as loop.stalled",
    buckets=[0.06, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5],
)
COLLECTIONS = metrics.histogram(
    "skerry_gc_pause_seconds",
    "Processor time of a garbage collection of the oldest generation, which stops the process meanwhile",
    buckets=[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0],
)


class AverageShare:
    """The share of a processor that a thread used, averaged over about the last second.

    A loop whose turns are few and short rests between them: judged by a turn alone, it would never.
    """

    def __init__(self) -> None:
        self._share = 1.0  # what begins is at work

    def add(self, seconds: float, ran_s: float) -> float:
        """The share after `seconds` more, of which the thread ran for `ran_s`."""
        if seconds > 0:
            self._share += (ran_s / seconds - self._share) * min(1.0, seconds / _AVERAGE_S)
        return self._share


class Sample(NamedTuple):
    """What the loop's thread executed at a moment."""

    culprit: str
    stack: str  # innermost first


class Stall(NamedTuple):
    """One heartbeat that was late."""

    seconds: float  # without `waited_s`
    ran_s: float  # processor time of the loop's thread
    waited_s: float  # for a processor
    collected_s: float  # by the garbage collector, in any thread
    culprit: str
    stack: str


def describe(frame: FrameType | None) -> Sample:
    """The function that a thread is in: the innermost of the program, and in brackets what it has called."""
    names: list[str] = []
    culprit = ""
    while frame is not None and frame.f_globals.get("__name__") not in _LOOP_MODULES:
        module = str(frame.f_globals.get("__name__", "?"))
        name = f"{module}.{frame.f_code.co_qualname}"
        if not culprit and module.startswith(_PROGRAM):
            culprit = name
        if len(names) < _MAX_FRAMES:
            names.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back
    if not names:
        return Sample(NO_CALLBACK, "")
    innermost = names[0].rpartition(":")[0]
    if not culprit:
        culprit = innermost
    elif culprit != innermost:
        culprit = f"{culprit} ({innermost})"
    return Sample(culprit, " < ".join(names))


def own_seconds(late_s: float, loop: ThreadTimes, since_sample_s: float, threads: ThreadDelays) -> float:
    """How much of a delay this process made itself.

    Left out is the time for which the loop's thread waited for a processor. If it neither ran nor waited, it
    was blocked, maybe by a thread that held the interpreter's lock; as long as that may have waited for a
    processor itself is left out too.
    """
    blocked = max(0.0, since_sample_s - threads.loop.ran_s - threads.loop.waited_s)
    return max(0.0, late_s - loop.waited_s - min(blocked, threads.longest_wait_s))


class ThreadDelays(NamedTuple):
    """What the threads of the process did since the first sample of a stall."""

    loop: ThreadTimes = ThreadTimes()
    longest_wait_s: float = 0.0  # of another thread, for a processor

    @classmethod
    def between(
        cls, loop: int, before: Mapping[int, ThreadTimes], after: Mapping[int, ThreadTimes]
    ) -> ThreadDelays:
        spent = {thread: times.since(before[thread]) for thread, times in after.items() if thread in before}
        others = [times.waited_s for thread, times in spent.items() if thread != loop]
        return cls(spent.get(loop, ThreadTimes()), max(others, default=0.0))


class LoopWatchdog:
    """The heartbeat of one loop and the thread that waits for it; used in the loop's thread as a context
    manager. With `tuning` it also keeps the pauses of the garbage collector short."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Stall], None] | None = None,
        tuning: CollectorTuning | None = None,
    ) -> None:
        self._loop = loop
        self._report = report or StallLog()
        self._tuning = tuning
        self._ident, self._native = threading.get_ident(), threading.get_native_id()
        self._clock = ThreadClock(self._native)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)
        self._pauses = CollectionPauses()
        self._share = AverageShare()
        self._period_s = WORK_S
        self._samples: list[Sample] = []
        self._sampled_due = self._sampled_at = 0.0
        self._threads: Mapping[int, ThreadTimes] = {}

    def __enter__(self) -> LoopWatchdog:
        now = time.monotonic()
        self._busy_at = self._lag_at = now
        self._last, self._times = now, self._clock.read()
        self._due = now + self._period_s
        if self._tuning is not None:
            self._tuning.start()
        gc.callbacks.append(self._pauses)
        self._timer = self._loop.call_later(self._period_s, self._beat)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._ended.set()
        self._thread.join()
        gc.callbacks.remove(self._pauses)
        self._clock.close()

    # In the loop's thread

    def _beat(self) -> None:
        now, times = time.monotonic(), self._clock.read()
        late_s, spent = now - self._due, times.since(self._times)
        pauses = self._pauses.take()
        if now - self._lag_at >= _LAG_EVERY_S:
            self._lag_at = now
            LAG.observe(max(0.0, late_s))
        if late_s >= STALL_S:
            self._judge(now, late_s, spent, pauses.all_s)
            now, times = time.monotonic(), self._clock.read()
        if self._share.add(now - self._last, spent.ran_s) < REST_SHARE:
            self._period_s = REST_S
        else:
            self._busy_at, self._period_s = now, WORK_S
        if self._tuning is not None and self._tune(self._tuning, pauses, times):
            now, times = time.monotonic(), self._clock.read()
        self._last, self._times = now, times
        self._due = now + self._period_s
        self._timer = self._loop.call_later(self._period_s, self._beat)

    def _tune(self, tuning: CollectorTuning, pauses: Pauses, began: ThreadTimes) -> bool:
        """True if that was a collection of everything, which is a stall if it takes long."""
        if pauses.oldest:
            tuning.collected()
        is_at_rest = self._last - self._busy_at >= _LONG_REST_S
        if not tuning.collect_frozen(is_at_rest=is_at_rest):
            return False
        spent, pauses = self._clock.read().since(began), self._pauses.take()
        if pauses.all_s >= STALL_S:
            culprit = "garbage collection of everything"
            self._report(Stall(pauses.all_s, spent.ran_s, spent.waited_s, pauses.all_s, culprit, ""))
        return True

    def _judge(self, now: float, late_s: float, spent: ThreadTimes, collected_s: float) -> None:
        samples = self._samples if self._sampled_due == self._due else []
        # Without a sample the watchdog's thread had no processor or no lock either, and the last snapshot of
        # the threads is some time old.
        threads = ThreadDelays.between(self._native, self._threads, thread_times.read_all())
        seconds = own_seconds(late_s, spent, now - self._sampled_at, threads)
        if seconds < STALL_S:
            return
        sample = _most_common(samples)
        culprit = sample.culprit
        if collected_s * 2 >= seconds:
            culprit = f"garbage collection in {culprit}"
        self._report(Stall(seconds, spent.ran_s, spent.waited_s, collected_s, culprit, sample.stack))

    # In the watchdog's thread

    def _watch(self) -> None:
        while not self._ended.wait(self._sample_if_late()):
            pass

    def _sample_if_late(self) -> float:
        """How long to wait before the next look."""
        due, now = self._due, time.monotonic()
        if now < due + _LATE_S:
            if self._period_s == WORK_S and now - self._sampled_at > _SNAPSHOT_EVERY_S:
                self._threads, self._sampled_at = thread_times.read_all(), now
            return due + _LATE_S - now
        if due != self._sampled_due:
            self._threads = thread_times.read_all()
            self._samples = []
            self._sampled_due, self._sampled_at = due, now
        if len(self._samples) < _MAX_SAMPLES:
            frame = sys._current_frames().get(self._ident)
            self._samples.append(describe(frame))
        return _SAMPLE_EVERY_S


def _most_common(samples: list[Sample]) -> Sample:
    """Of the most frequent culprit, the last sample."""
    if not samples:
        return Sample(NO_SAMPLE, "")
    ((culprit, _),) = Counter(sample.culprit for sample in samples).most_common(1)
    return next(sample for sample in reversed(samples) if sample.culprit == culprit)


class Pauses(NamedTuple):
    """Garbage collections, together."""

    all_s: float
    oldest: int  # how many were of the oldest generation


class CollectionPauses:
    """Adds up the times of garbage collections; a member of `gc.callbacks`."""

    def __init__(self) -> None:
        self._began = 0.0
        self._total_s = 0.0
        self._oldest: list[float] = []

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.thread_time()
            return
        seconds = time.thread_time() - self._began
        self._total_s += seconds
        if info["generation"] == _OLDEST:
            self._oldest.append(seconds)

    def take(self) -> Pauses:
        """Those since the last call. Counts them: a collection may have stopped a thread that held the lock
        of a metric, so that cannot be done during one."""
        oldest, self._oldest = self._oldest, []
        for seconds in oldest:
            COLLECTIONS.observe(seconds)
        total, self._total_s = self._total_s, 0.0
        return Pauses(total, len(oldest))


class StallLog:
    """Counts stalls for `/metrics`, and logs one a second at most."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._logged_at = float("-inf")
        self._unlogged = 0

    def __call__(self, stall: Stall) -> None:
        STALLS.observe(stall.seconds)
        now = self._monotonic()
        if now - self._logged_at < _LOG_EVERY_S:
            self._unlogged += 1
            return
        log.warning(
            "loop.stalled",
            seconds=round(stall.seconds, 3),
            culprit=stall.culprit,
            ran_s=round(stall.ran_s, 3),
            waited_s=round(stall.waited_s, 3),
            collected_s=round(stall.collected_s, 3),
            stack=stall.stack,
            unlogged=self._unlogged,
        )
        self._logged_at, self._unlogged = now, 0
