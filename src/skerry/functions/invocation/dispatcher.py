"""Who gets which worker, and when one is started, kept or given up for another function.

Between the calls (`skerry.functions.invocation.invoker`), the queue and the pool. A call goes to a warm
worker if there is one; else it waits, and `estimates` say whether a worker is started for it. Room goes to
whoever's turn it is; workers keep serving their own function's calls unless another function has waited for
too long without any (`estimates.is_overdue`). Never looks at functions that nobody waits for.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from skerry.functions.invocation import estimates
from skerry.functions.invocation.estimates import MovingAverage
from skerry.functions.invocation.queue import CallQueue, QueuedCall
from skerry.functions.invocation.worker_pool import FunctionWorkers, WorkerPool, WorkerSlot
from skerry.functions.ports import WorkerHost
from skerry.functions.qos import parse_classes
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CodeLoadError
from skerry.model.functions import Function
from skerry.model.settings import FunctionSettings

log = structlog.get_logger(__name__)

_REST_S = 0.5  # between a start that failed and the next try for calls that still wait
_REVIEW_S = 0.02  # between two looks at calls that wait, since time passes without an event
_EARLY_S = 0.002  # a timer of the loop may come this much too early
_GLANCE_S = (
    0.001  # calls that come within this are looked at together: each for itself costs more than it gains
)


class CallAborted(Exception):
    """A call was ended before it got a worker; if it `is_late`, `error` is what it waited for."""

    def __init__(self, failure: CallFailure, error: str, output: str = "", *, is_late: bool = False) -> None:
        super().__init__(error)
        self.failure = failure
        self.error = error
        self.output = output
        self.is_late = is_late


class Dispatcher:
    """The queue and the pool of a node, and what moves calls from one to the other."""

    def __init__(
        self, host: WorkerHost, settings: FunctionSettings, clock: Clock, *, memory_mb: int, cpus: float
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.queue = CallQueue([one.weight for one in parse_classes(settings.classes)])
        self.pool = WorkerPool(
            host,
            clock,
            memory_mb=memory_mb,
            cpus=cpus,
            on_ready=self._ready,
            on_failed=self._failed,
            on_room=self._dispatch,
        )
        self.is_closed = False
        self._inits: dict[str, MovingAverage] = {}  # by runtime
        self._overdue: FunctionWorkers | None = None  # others make way for it
        self._reserved_memory = 0  # memory that comes free for those whose turn was before
        self._reservations: dict[FunctionWorkers, int] = {}  # how many workers of each that is for
        self._review: asyncio.TimerHandle | None = None
        self._sees_stalls = False
        self._glance: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None  # one for all who wait
        self._deadline_at = math.inf
        self._crowded: set[FunctionWorkers] = set()  # those to be glanced at

    # Calls

    async def wait(self, line: FunctionWorkers, qos_class: int, arrived: float, limit: float) -> WorkerSlot:
        """A worker for a call that is counted in it, as soon as it is the call's turn.

        Raises `CallAborted` if there is none by `limit`, `Overloaded` if too many wait already.
        """
        if not line.waiting and self._overdue is None and (slot := self.pool.take(line)) is not None:
            return slot
        self._check_can_wait(line)
        waiter = QueuedCall(line, qos_class, arrived, limit, asyncio.get_running_loop().create_future())
        if not line.waiting:
            line.moved_at = line.crowded_since = arrived
        self.queue.add(waiter)
        self._staff(line)
        if limit < self._deadline_at:
            self._set_deadline(limit)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            granted = waiter.granted
            if not granted.cancelled() and granted.exception() is None:  # it was its turn at that very moment
                self.left(granted.result(), self._clock.monotonic())
            raise
        finally:
            self.queue.remove(waiter)

    def left(self, slot: WorkerSlot, now: float) -> None:
        """A call in this worker is over: the next one, or idle."""
        if self.queue.count:
            if slot.is_open and self._may_go_on(slot.line):
                waiter = self._first(slot.line)
                if waiter is not None:
                    self._grant(waiter, slot, now)
                    return
            self.pool.leave(slot, now)
            self._dispatch()
        else:
            self.pool.leave(slot, now)

    def _check_can_wait(self, line: FunctionWorkers) -> None:
        if self.is_closed:
            raise errors.Unavailable("this node is stopping; call another one, or this one when it is back")
        function, pool = line.function, self.pool
        if not pool.could_ever_fit(function):
            raise CallAborted(CallFailure.NO_ROOM, self._too_large(function))
        waiting = self.queue.count
        if waiting - pool.starting < self._settings.queue_length:
            return
        if line.waiting < (line.starting + self._reservations.get(line, 0)) * function.max_concurrency:
            return  # a place for it is on its way
        if self._overdue is None and pool.fits(function, beside=self._reserved_memory):
            pool.start(line, is_fresh=True)
        elif self._overdue is None and self._can_make_room(function):
            self._reserve(line)
        else:
            now = self._clock.monotonic()
            wait_s = estimates.retry_after_s(
                waiting=waiting, pace_s=self.queue.pace_s(now), at_most_s=self._settings.queue_wait_s
            )
            raise errors.Overloaded(
                f"{waiting} calls wait for a worker already; call again in {wait_s:.3g} s",
                retry_after_s=wait_s,
            )

    def _reserve(self, line: FunctionWorkers) -> None:
        self._reserved_memory += line.function.memory
        self._reservations[line] = self._reservations.get(line, 0) + 1

    def _can_make_room(self, function: Function) -> bool:
        return self.pool.has_cpu(function) and self.pool.make_room(self._reserved_memory + function.memory)

    def _set_deadline(self, at: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        delay_s = max(0.0, at - self._clock.monotonic())
        self._deadline = asyncio.get_running_loop().call_later(delay_s, self._end_late)
        self._deadline_at = at

    def _end_late(self) -> None:
        """End the wait of those whose time is over. Comes once for many calls, of which most are gone."""
        self._deadline, self._deadline_at = None, math.inf
        now = self._clock.monotonic() + _EARLY_S
        next_at = math.inf
        for waiter in self.queue.everyone():
            if waiter.limit > now:
                next_at = min(next_at, waiter.limit)
            else:
                why = self._why_none(waiter.line)
                self._end_waiter(waiter, CallAborted(CallFailure.NO_ROOM, why, is_late=True))
        if next_at < math.inf:
            self._set_deadline(next_at)

    def _first(self, line: FunctionWorkers) -> QueuedCall | None:
        while (waiter := self.queue.first(line)) is not None and waiter.granted.done():
            self.queue.remove(waiter)  # its caller has gone, and has not come to say so yet
        return waiter

    def _grant(self, waiter: QueuedCall, slot: WorkerSlot, now: float) -> None:
        self.queue.serve(waiter, now)
        waiter.line.moved_at = now
        waiter.granted.set_result(slot)

    # Workers

    def _may_go_on(self, line: FunctionWorkers) -> bool:
        return self._overdue is None or self._overdue is line

    def _serve(self, line: FunctionWorkers, now: float) -> None:
        """Hand its free workers to those who wait for it."""
        while (waiter := self._first(line)) is not None and (slot := self.pool.take(line)) is not None:
            self._grant(waiter, slot, now)

    def _staff(self, line: FunctionWorkers) -> None:
        """See to this one function, after a call of it came that has to wait."""
        if line.workers:
            self._crowded.add(line)
            if self._glance is None:
                self._glance = asyncio.get_running_loop().call_later(_GLANCE_S, self._look_at_crowded)
        else:
            self._look_at(line)

    def _look_at_crowded(self) -> None:
        self._glance = None
        lines, self._crowded = self._crowded, set()
        for line in lines:
            self._look_at(line)

    def _look_at(self, line: FunctionWorkers) -> None:
        if self._may_go_on(line):
            self._hire(line, self._clock.monotonic())
        self._keep_looking()

    def _dispatch(self) -> None:
        """Serve whoever waits, in the order of turns, after room or a worker came free."""
        self._overdue = None
        self._reserved_memory = 0
        self._reservations.clear()
        if not self.queue.count:
            return
        now = self._clock.monotonic()
        for line in self.queue.lines():
            self._serve(line, now)
            if not self._hire(line, now):
                break
        self._keep_looking()

    def _hire(self, line: FunctionWorkers, now: float) -> bool:
        """Start the workers that the function lacks; False if others must make way for it."""
        pool, function = self.pool, line.function
        for _ in range(self._shortage(line, now) - self._reservations.get(line, 0)):
            if pool.fits(function, beside=self._reserved_memory):
                pool.start(line, is_fresh=True)
            elif self._can_make_room(function):
                self._reserve(line)
            else:
                break
        if not self._is_overdue(line, now):
            return True
        self._overdue = line
        return False

    def _shortage(self, line: FunctionWorkers, now: float) -> int:
        if not line.waiting or now < line.rests_until:
            return 0
        wanted = estimates.workers_wanted(
            waiting=line.waiting,
            seats=line.function.max_concurrency,
            workers=line.workers,
            starting=line.starting,
            run_s=line.run.value,
            init_s=self._init_s(line),
            stalled_s=now - line.moved_at if self._sees_stalls else 0.0,
            crowded_s=now - line.crowded_since,
        )
        return wanted - line.workers

    def _is_overdue(self, line: FunctionWorkers, now: float) -> bool:
        has_busy = line.workers > len(line.idle)
        if has_busy or line in self._reservations or now < line.rests_until:
            return False
        waiter = self._first(line)
        if waiter is None:
            return False
        return estimates.is_overdue(
            waited_s=now - waiter.arrived,
            may_wait_s=waiter.limit - waiter.arrived,
            init_s=self._init_s(line),
        )

    def _init_s(self, line: FunctionWorkers) -> float:
        return estimates.expected_init_s(line.init, self._inits.get(line.function.runtime))

    def _keep_looking(self) -> None:
        if self.queue.count and self._review is None:
            due = self._clock.monotonic() + _REVIEW_S
            self._review = asyncio.get_running_loop().call_later(_REVIEW_S, self._look_again, due)

    def _look_again(self, due: float) -> None:
        self._review = None
        # If this comes late, so did we all: what workers have answered meanwhile is still to be read.
        self._sees_stalls = self._clock.monotonic() < due + _REVIEW_S / 4
        self._dispatch()
        self._sees_stalls = False

    def _ready(self, slot: WorkerSlot) -> None:
        line = slot.line
        self._inits.setdefault(line.function.runtime, MovingAverage()).add(slot.worker.init_s)
        line.trouble = ""
        if self.queue.count:
            if self._may_go_on(line):
                self._serve(line, self._clock.monotonic())
            self._dispatch()
        if slot in line.idle:
            slot.is_fresh = False  # whoever comes to it later has not waited for its start

    def _failed(self, slot: WorkerSlot, error: Exception) -> None:
        line = slot.line
        line.trouble = str(error)
        line.rests_until = self._clock.monotonic() + _REST_S
        log.warning("worker.start_failed", function=line.name, error=str(error), kind=type(error).__name__)
        if not line.workers and not isinstance(error, errors.ResourcesExhausted):
            line.rests_until = 0.0  # nobody is left to try it again for
            self._end_all(line, _cause(error))
        self._dispatch()

    # Functions that change

    def renew(self, line: FunctionWorkers, function: Function, timeout_s: float) -> None:
        """Calls that wait get workers of the new version; the old ones end when they have finished."""
        line.function = function
        line.timeout_s = timeout_s
        line.init, line.run = MovingAverage(), MovingAverage()
        line.rests_until = 0.0
        for slot in list(line.slots):
            self.pool.retire(slot)
        if not self.pool.could_ever_fit(function):
            self._end_all(line, CallAborted(CallFailure.NO_ROOM, self._too_large(function)))
        self._dispatch()

    def drop(self, line: FunctionWorkers) -> None:
        """The function is gone: no more workers of it, and nobody waits for one."""
        for slot in list(line.slots):
            self.pool.retire(slot)
        self._end_all(
            line, CallAborted(CallFailure.GONE, "the function was deleted while the call waited for a worker")
        )
        self._dispatch()

    async def close(self) -> None:
        self.is_closed = True
        for timer in (self._review, self._glance, self._deadline):
            if timer is not None:
                timer.cancel()
        for waiter in self.queue.everyone():
            self._end_waiter(
                waiter, CallAborted(CallFailure.INTERRUPTED, "the node stopped while the call waited")
            )
        await self.pool.close()

    def _end_all(self, line: FunctionWorkers, why: CallAborted) -> None:
        for waiter in self.queue.of(line):
            self._end_waiter(waiter, CallAborted(why.failure, why.error, why.output))

    def _end_waiter(self, waiter: QueuedCall, why: CallAborted) -> None:
        self.queue.remove(waiter)
        if not waiter.granted.done():
            waiter.granted.set_exception(why)

    # Words

    def _too_large(self, function: Function) -> str:
        pool = self.pool
        return (
            f"a worker of {function.name} needs {function.memory} MB and {(function.cpu or 0) / 1000:g} "
            f"cores; all workers of this node together may have {pool.memory_total} MB and "
            f"{pool.cpu_total / 1000:g} cores: lower what it asks for, or raise functions.memory_mb "
            "and functions.cpus"
        )

    def _why_none(self, line: FunctionWorkers) -> str:
        if line.trouble:
            return f"no worker could be started: {line.trouble}"
        if line.starting:
            return "its worker was still starting"
        if line.workers:
            return f"its {line.workers} workers were busy, and {line.waiting} more calls of it wait"
        free = self.pool.memory_total - self.pool.memory_used
        return f"no room for a worker of {line.function.memory} MB: {free} MB of the workers' memory is free"


def _cause(error: Exception) -> CallAborted:
    if isinstance(error, CodeLoadError):
        return CallAborted(CallFailure.LOAD, error.message, error.output)
    if isinstance(error, errors.SkerryError):
        return CallAborted(CallFailure.INTERNAL, f"its worker could not be started: {error.message}")
    return CallAborted(CallFailure.INTERNAL, "its worker could not be started; the node's log says why")
