"""When which check runs: one schedule and one timer for all instances of a node, or of a guest on it.

`skerry.node.agent.instances` watches an instance while it runs. At rest there is no task for a check, only
its place in the schedule; while checks run there are at most so many at once, and others wait for their turn.
Results are recorded by `decisions`; what to do about them is not decided here.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

import msgspec
import structlog
from prometheus_client import Counter

from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.model.health_checks import CheckMethod, CheckRole, HealthCheck
from skerry.model.workloads import MetricSource
from skerry.node.health.decisions import CheckResult, HealthState

log = structlog.get_logger(__name__)

RUNS = metrics.counter("skerry_checks_total", "Runs of health checks", ["role", "method"])
FAILED = metrics.counter(
    "skerry_checks_failed_total", "Runs of health checks that did not pass", ["role", "method"]
)
METRIC_S: Final = 10.0
_FIRST_S: Final = 0.1  # within which a run that begins is checked for the first time
_LEAST_PAUSE_S: Final = 0.02
# What is due within a part of its interval, or at most so soon, runs with what is due now: one alone finds
# the loop asleep and its memory cold, which costs more than the check itself. Only so many run together, so
# that other work of the loop does not wait for them.
_SLACK_PART: Final = 0.5
_MOST_SLACK_S: Final = 0.5
_MOST_EARLY: Final = 50
_MESSAGE_S: Final = 5.0  # between two words on why it has not passed yet


@functools.cache
def _runs_of(role: CheckRole, method: CheckMethod) -> Counter:
    return RUNS.labels(role.value, method.value)


class Probes(Protocol):
    """Probes instances, by the names of their containers. Does not raise, and does not call `done` before it
    has returned."""

    def begin(self, name: str, check: HealthCheck, done: CheckDone) -> RunningProbe: ...

    def begin_metric(self, name: str, source: MetricSource, done: MetricDone) -> RunningProbe: ...

    async def close(self) -> None:
        """Wait until nothing is left of probes that were cancelled."""
        ...


class RunningProbe(Protocol):
    """A probe that has begun."""

    def cancel(self) -> object:
        """Give it up: what it was to call is not called any more."""
        ...


# Called with what a check has found; with None if it could not be run, which says nothing of the instance.
CheckDone = Callable[[CheckResult | None], None]
MetricDone = Callable[[float | None], None]


class CheckLimits(msgspec.Struct, frozen=True):
    """What all checks together may cost; those that come too soon or are too many wait.

    An instance whose checks hang takes at most its own share, so that it does not hold up those of others: a
    node has fewer addresses for instances than `probes_at_once` allows for.
    """

    probes_at_once: int = 1024  # over the network
    execs_at_once: int = 64  # each costs the start of a process in a container
    probes_per_instance: int = 4
    execs_per_instance: int = 1
    per_second: float = math.inf


@dataclass(slots=True, eq=False)
class _Entry:
    """A check, or the metric, of a watched instance."""

    watch: HealthWatch
    index: int | None  # of the check; None: the metric
    interval_s: float
    slack_s: float  # how much sooner than it is due it may run
    is_exec: bool = False
    is_scheduled: bool = False
    has_turn: bool = False  # the rate of all checks lets it run when it is due
    probe: RunningProbe | None = None  # while it runs


def _slack_s(interval_s: float) -> float:
    return min(interval_s * _SLACK_PART, _MOST_SLACK_S)


class HealthWatch:
    """The checks of one run of an instance; `HealthMonitor.watch` makes it, `close` ends it."""

    def __init__(
        self, monitor: HealthMonitor, subject: CheckSubject, changed: Callable[[], None], age_s: float
    ) -> None:
        self._monitor = monitor
        self.subject = subject
        self.state = subject.state
        self.metric: float | None = None  # the last value of it that is known
        self.is_open = True
        self.changed = changed
        self.born_at = monitor.now() - age_s  # the instance, by the clock of the loop
        self.reported = self.state  # what `changed` was called for last
        self.reported_at = monitor.now()
        self.entries: list[_Entry] = []
        # By whether they are commands: checks that run or wait for others of the node, and those that wait
        # for others of this instance.
        self.begun = {False: 0, True: 0}
        self.waiting: dict[bool, deque[_Entry]] = {False: deque(), True: deque()}

    def close(self) -> None:
        """No more checks: those that run are given up."""
        if self.is_open:
            self._monitor.forget(self)


class CheckSubject(msgspec.Struct, frozen=True):
    """What is to be checked: an instance, by the name of its container."""

    name: str
    state: HealthState  # from which it goes on
    metric: MetricSource | None = None
    started_at: float = 0.0  # when the run began


@dataclass(slots=True)
class _Lane:
    """Checks of one kind, of which so many may run at once."""

    at_once: int
    per_instance: int
    running: int = 0
    waiting: deque[_Entry] = field(default_factory=deque)  # at most `per_instance` of an instance


class HealthMonitor:
    """Runs the checks of all instances that are watched."""

    def __init__(
        self,
        probes: Probes,
        clock: Clock,
        limits: CheckLimits = CheckLimits(),  # noqa: B008 - a constant
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._probes = probes
        self._clock = clock
        self._chance = chance
        self._probe_lane = _Lane(limits.probes_at_once, limits.probes_per_instance)
        self._exec_lane = _Lane(limits.execs_at_once, limits.execs_per_instance)
        self._gap_s = 1 / limits.per_second
        self._free_at = 0.0  # when the next check may begin
        self._schedule: list[tuple[float, int, _Entry]] = []
        self._numbers = itertools.count()
        self._stale = 0  # entries of the schedule whose instance is not watched any more
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._watches: set[HealthWatch] = set()

    @staticmethod
    def now() -> float:
        """By the clock of the loop, which is that of the schedule."""
        return asyncio.get_running_loop().time()

    def watch(self, subject: CheckSubject, changed: Callable[[], None]) -> HealthWatch:
        """Check it from now on. `changed` is called whenever its state has, and again while there is another
        reason why it has not passed; its metric changes without a word."""
        age_s = max(0.0, self._clock.now() - subject.started_at)
        watch = HealthWatch(self, subject, changed, age_s)
        self._watches.add(watch)
        for index, check in enumerate(subject.state.checks):
            is_exec = check.method is CheckMethod.EXEC
            watch.entries.append(_Entry(watch, index, check.interval_s, _slack_s(check.interval_s), is_exec))
        if subject.metric is not None:
            watch.entries.append(_Entry(watch, None, METRIC_S, _slack_s(METRIC_S)))
        # Many that were running when this agent began are not all asked at once, nor ever after.
        is_new = age_s < 1.0
        for entry in watch.entries:
            if entry.index is None or subject.state.is_active(entry.index):
                within_s = min(entry.interval_s, _FIRST_S) if is_new else entry.interval_s
                self._put(entry, self.now() + within_s * self._chance())
        return watch

    def forget(self, watch: HealthWatch) -> None:
        """End a watch; `HealthWatch.close` calls this."""
        watch.is_open = False
        self._watches.discard(watch)
        for waiting in watch.waiting.values():
            waiting.clear()
        for entry in watch.entries:
            self._stale += entry.is_scheduled
            if entry.probe is not None:
                entry.probe.cancel()
                self._leave_lane(entry)
        if self._stale > 64 and self._stale > len(self._schedule) // 2:
            self._schedule = [item for item in self._schedule if item[2].watch.is_open]
            heapq.heapify(self._schedule)
            self._stale = 0

    async def close(self) -> None:
        """End everything."""
        for lane in (self._probe_lane, self._exec_lane):
            lane.waiting.clear()
        for watch in list(self._watches):
            self.forget(watch)
        self._schedule.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._probes.close()

    def _put(self, entry: _Entry, due: float) -> None:
        entry.is_scheduled = True
        heapq.heappush(self._schedule, (due, next(self._numbers), entry))
        self._set_timer()

    def _set_timer(self) -> None:
        if not self._schedule:
            return
        due = self._schedule[0][0]
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(due, self._run_due)
        self._timer_at = due

    def _run_due(self) -> None:
        self._timer = None
        now = self.now()
        early = 0
        while self._schedule:
            due, _, entry = self._schedule[0]
            if due > now:
                early += 1
                if early > _MOST_EARLY or due > now + entry.slack_s:
                    break
            heapq.heappop(self._schedule)
            entry.is_scheduled = False
            if not entry.watch.is_open:
                self._stale -= 1
            elif self._is_turn(entry, now):
                self._begin(entry)
        self._set_timer()

    def _is_turn(self, entry: _Entry, now: float) -> bool:
        """True if `entry` may begin now; else it has its turn later."""
        if not self._gap_s or entry.has_turn:
            entry.has_turn = False
            return True
        turn = max(now, self._free_at)
        self._free_at = turn + self._gap_s
        if turn <= now:
            return True
        entry.has_turn = True
        self._put(entry, turn)
        return False

    def _begin(self, entry: _Entry) -> None:
        """Run it when others of its instance, and of the node, leave it room."""
        lane, watch = self._lane_of(entry), entry.watch
        if watch.begun[entry.is_exec] >= lane.per_instance:
            watch.waiting[entry.is_exec].append(entry)
            return
        watch.begun[entry.is_exec] += 1
        if lane.running >= lane.at_once:
            lane.waiting.append(entry)
        else:
            self._run(entry, lane)

    def _run(self, entry: _Entry, lane: _Lane) -> None:
        lane.running += 1
        watch = entry.watch
        name, began = watch.subject.name, self.now()
        if entry.index is None:
            assert watch.subject.metric is not None
            entry.probe = self._probes.begin_metric(
                name, watch.subject.metric, partial(self._take_metric, entry, began)
            )
        else:
            check = watch.state.checks[entry.index]
            entry.probe = self._probes.begin(name, check, partial(self._take_result, entry, began))

    def _lane_of(self, entry: _Entry) -> _Lane:
        return self._exec_lane if entry.is_exec else self._probe_lane

    def _leave_lane(self, entry: _Entry) -> None:
        """The probe of `entry` has ended, or was cancelled: others may begin."""
        entry.probe = None
        lane, watch = self._lane_of(entry), entry.watch
        lane.running -= 1
        if waiting := watch.waiting[entry.is_exec]:
            lane.waiting.append(waiting.popleft())  # behind those of other instances, in the place of `entry`
        else:
            watch.begun[entry.is_exec] -= 1
        while lane.waiting and lane.running < lane.at_once:
            following = lane.waiting.popleft()
            if following.watch.is_open:
                self._run(following, lane)

    def _take_metric(self, entry: _Entry, began: float, value: float | None) -> None:
        entry.watch.metric = value
        self._leave_lane(entry)
        self._put_again(entry, began + METRIC_S)

    def _take_result(self, entry: _Entry, began: float, result: CheckResult | None) -> None:
        watch, index = entry.watch, entry.index
        assert index is not None
        self._leave_lane(entry)
        if result is None:  # a fault of ours, which must not end the checks
            self._put_again(entry, began + entry.interval_s)
            return
        check = watch.state.checks[index]
        _runs_of(check.role, check.method).inc()
        if not result.has_passed:
            FAILED.labels(check.role.value, check.method.value).inc()
        now = self.now()
        age_s = now - watch.born_at
        before = watch.state
        watch.state = state = before.record(index, result, age_s)
        if state is before:  # it has passed again, and goes on as it did
            self._put_again(entry, began + entry.interval_s)
            return
        if state.is_active(index):
            self._put_again(entry, began + state.pause_s(index, age_s))
        if state.has_started and not before.has_started:  # now it is the others' turn
            for other in watch.entries:
                is_idle = not (other.is_scheduled or other.probe)
                if is_idle and other.index is not None and state.is_active(other.index):
                    self._put(other, now)
        self._report(watch, now)

    def _put_again(self, entry: _Entry, due: float) -> None:
        if entry.watch.is_open:
            self._put(entry, max(due, self.now() + _LEAST_PAUSE_S))

    def _report(self, watch: HealthWatch, now: float) -> None:
        """Call `changed`, if there is something new; at once, unless only the words are."""
        state, before = watch.state, watch.reported
        if state is before or state == before:
            return
        verdict = (state.has_passed, state.has_started, bool(state.restart_reason))
        if verdict == (before.has_passed, before.has_started, bool(before.restart_reason)) and (
            state.message == before.message or now - watch.reported_at < _MESSAGE_S
        ):
            return
        watch.reported, watch.reported_at = state, now
        watch.changed()
