"""The dispatcher: assigns workers to calls, and starts, keeps and evicts workers.

Between the calls (`skerry.functions.invocation.invoker`), the queue and the pool. A call goes to a warm
worker if there is one; else it waits, and `estimates` decide whether a worker is started for it. Capacity
goes to the next call in the queue; workers keep serving their own function's calls unless another function
has waited for too long without any (`estimates.is_overdue`). Only functions with waiting calls are examined,
and only those whose calls do not all have a place in a worker that starts.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from skerry.functions.invocation import estimates
from skerry.functions.invocation.estimates import MovingAverage
from skerry.functions.invocation.queue import AwaitedCall, CallQueue, QueuedCall
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
_REVIEW_S = 0.02  # between two checks of waiting calls, because time passes without an event
_EARLY_S = 0.002  # a timer of the loop may come this much too early
_CHECK_S = 0.001  # calls that come within this are handled together, which is cheaper


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
            on_capacity=self._dispatch,
        )
        self.is_closed = False
        self._inits: dict[str, MovingAverage] = {}  # by runtime
        self._overdue: FunctionWorkers | None = None  # others make way for it
        self._reserved_memory = 0  # memory that becomes free for earlier calls
        self._reservations: dict[FunctionWorkers, int] = {}  # how many workers of each that is for
        self._review: asyncio.TimerHandle | None = None
        self._sees_stalls = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None  # one for all waiting calls
        self._deadline_at = math.inf
        self._crowded: set[FunctionWorkers] = set()  # those to be glanced at

    # Calls

    def take(self, group: FunctionWorkers) -> WorkerSlot | None:
        """A worker for a call, which is counted in it, at once; None if it has to wait for one."""
        if self.queue.count and (group.waiting or self._overdue is not None):
            return None  # others come first
        return self.pool.take(group)

    async def wait(self, group: FunctionWorkers, qos_class: int, arrived: float, limit: float) -> WorkerSlot:
        """A worker for a call, which is counted in it, as soon as one is assigned.

        Raises `CallAborted` if there is none by `limit`, `Overloaded` if too many wait already.
        """
        if (slot := self.take(group)) is not None:
            return slot
        waiter = AwaitedCall(group, qos_class, arrived, limit, asyncio.get_running_loop().create_future())
        self.enqueue(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            granted = waiter.granted
            if not granted.cancelled() and granted.exception() is None:  # it was assigned at that very moment
                self.left(granted.result(), self._clock.monotonic())
            raise
        finally:
            self.queue.remove(waiter)

    def enqueue(self, waiter: QueuedCall) -> None:
        """Have a call wait for which no worker is free. Raises what `wait` raises, and it is not queued."""
        group = waiter.group
        self._check_can_wait(group)
        if not group.waiting:
            group.moved_at = group.crowded_since = waiter.arrived
        self.queue.add(waiter)
        self._ensure_workers(group)
        if waiter.limit < self._deadline_at:
            self._set_deadline(waiter.limit)

    def left(self, slot: WorkerSlot, now: float) -> None:
        """A call in this worker is over: the next one, or idle."""
        if self.queue.count:
            if slot.is_open and self._may_continue(slot.group):
                waiter = self._first(slot.group)
                if waiter is not None:
                    self._grant(waiter, slot, now)
                    return
            self.pool.leave(slot, now)
            self._dispatch()
        else:
            self.pool.leave(slot, now)

    def _check_can_wait(self, group: FunctionWorkers) -> None:
        if self.is_closed:
            raise errors.Unavailable("this node is stopping; call another one, or this one when it is back")
        function, pool = group.function, self.pool
        if not pool.could_ever_fit(function):
            raise CallAborted(CallFailure.NO_ROOM, self._too_large(function))
        waiting = self.queue.count
        if waiting - pool.starting < self._settings.queue_length:
            return
        if group.waiting < (group.starting + self._reservations.get(group, 0)) * function.max_concurrency:
            return  # a place for it is on its way
        if self._overdue is None and pool.fits(function, beside=self._reserved_memory):
            pool.start(group, is_fresh=True)
        elif self._overdue is None and self._can_free_capacity(function):
            self._reserve(group)
        else:
            now = self._clock.monotonic()
            wait_s = estimates.retry_after_s(
                waiting=waiting, pace_s=self.queue.pace_s(now), at_most_s=self._settings.queue_wait_s
            )
            raise errors.Overloaded(
                f"{waiting} calls wait for a worker already; call again in {wait_s:.3g} s",
                retry_after_s=wait_s,
            )

    def _reserve(self, group: FunctionWorkers) -> None:
        self._reserved_memory += group.function.memory
        self._reservations[group] = self._reservations.get(group, 0) + 1

    def _can_free_capacity(self, function: Function) -> bool:
        return self.pool.has_cpu(function) and self.pool.free_capacity(
            self._reserved_memory + function.memory
        )

    def _set_deadline(self, at: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        delay_s = max(0.0, at - self._clock.monotonic())
        self._deadline = asyncio.get_running_loop().call_later(delay_s, self._end_late)
        self._deadline_at = at

    def _end_late(self) -> None:
        """End the wait of calls whose time is over. One timer for many calls, of which most have ended."""
        self._deadline, self._deadline_at = None, math.inf
        now = self._clock.monotonic() + _EARLY_S
        next_at = math.inf
        for waiter in self.queue.all_waiting():
            if waiter.limit > now:
                next_at = min(next_at, waiter.limit)
            else:
                reason = self._no_worker_reason(waiter.group)
                self._end_waiter(waiter, CallAborted(CallFailure.NO_ROOM, reason, is_late=True))
        if next_at < math.inf:
            self._set_deadline(next_at)

    def _first(self, group: FunctionWorkers) -> QueuedCall | None:
        while (waiter := self.queue.first(group)) is not None and waiter.has_left:
            self.queue.remove(waiter)  # its caller has left, and was not removed yet
        return waiter

    def _grant(self, waiter: QueuedCall, slot: WorkerSlot, now: float) -> None:
        self.queue.serve(waiter, now)
        waiter.group.moved_at = now
        waiter.grant(slot)

    # Workers

    def _may_continue(self, group: FunctionWorkers) -> bool:
        return self._overdue is None or self._overdue is group

    def _serve(self, group: FunctionWorkers, now: float) -> None:
        """Assign its free workers to waiting calls."""
        while (waiter := self._first(group)) is not None and (slot := self.pool.take(group)) is not None:
            self._grant(waiter, slot, now)

    def _ensure_workers(self, group: FunctionWorkers) -> None:
        """See to this one function, after a call of it came that has to wait."""
        if group.workers:
            self._crowded.add(group)
            if self._check_timer is None:
                self._check_timer = asyncio.get_running_loop().call_later(_CHECK_S, self._check_crowded)
        else:
            self._check(group)

    def _check_crowded(self) -> None:
        self._check_timer = None
        groups, self._crowded = self._crowded, set()
        for group in groups:
            self._check(group)

    def _check(self, group: FunctionWorkers) -> None:
        if self._may_continue(group):
            self._start_for(group, self._clock.monotonic())
        self._keep_checking()

    def _dispatch(self) -> None:
        """Serve waiting calls in the order of the queue, after capacity or a worker became free."""
        self._overdue = None
        self._reserved_memory = 0
        self._reservations.clear()
        if not self.queue.count:
            return
        now = self._clock.monotonic()
        # In a burst of first calls, all but a few of the functions that wait are decided.
        for group in self.queue.groups(undecided=True):
            self._serve(group, now)
            if not self._start_for(group, now):
                break
        self._keep_checking()

    def _start_for(self, group: FunctionWorkers, now: float) -> bool:
        """Start the workers that the function lacks; False if others must make way for it."""
        pool, function = self.pool, group.function
        for _ in range(self._shortage(group, now) - self._reservations.get(group, 0)):
            if pool.fits(function, beside=self._reserved_memory):
                pool.start(group, is_fresh=True)
            elif self._can_free_capacity(function):
                self._reserve(group)
            else:
                break
        if not self._is_overdue(group, now):
            return True
        self._overdue = group
        return False

    def _shortage(self, group: FunctionWorkers, now: float) -> int:
        if not group.waiting or now < group.paused_until:
            return 0
        processors = self.pool.processors
        run_s, crowded_s, most = group.run.value, now - group.crowded_since, group.waiting
        if not estimates.waits_for_workers(
            workers=max(group.workers, processors),
            processors=processors,
            run_s=run_s,
            handler_s=group.handler.value,
        ):
            if group.workers < processors:
                most = processors - group.workers
            else:
                run_s, crowded_s = group.handler.value, 0.0
        wanted = estimates.workers_needed(
            waiting=group.waiting,
            seats=group.function.max_concurrency,
            workers=group.workers,
            starting=group.starting,
            run_s=run_s,
            init_s=self._init_s(group),
            stalled_s=now - group.moved_at if self._sees_stalls else 0.0,
            crowded_s=crowded_s,
        )
        return min(wanted - group.workers, most)

    def _is_overdue(self, group: FunctionWorkers, now: float) -> bool:
        has_busy = group.workers > len(group.idle)
        if has_busy or group in self._reservations or now < group.paused_until:
            return False
        waiter = self._first(group)
        if waiter is None:
            return False
        return estimates.is_overdue(
            waited_s=now - waiter.arrived,
            may_wait_s=waiter.limit - waiter.arrived,
            init_s=self._init_s(group),
        )

    def _init_s(self, group: FunctionWorkers) -> float:
        return estimates.expected_init_s(group.init, self._inits.get(group.function.runtime))

    def _keep_checking(self) -> None:
        if self.queue.count and self._review is None:
            due = self._clock.monotonic() + _REVIEW_S
            self._review = asyncio.get_running_loop().call_later(_REVIEW_S, self._check_again, due)

    def _check_again(self, due: float) -> None:
        self._review = None
        # If this comes late, so did we all: what workers have answered meanwhile is still to be read.
        self._sees_stalls = self._clock.monotonic() < due + _REVIEW_S / 4
        self._dispatch()
        self._sees_stalls = False

    def _ready(self, slot: WorkerSlot) -> None:
        group = slot.group
        self._inits.setdefault(group.function.runtime, MovingAverage()).add(slot.worker.init_s)
        group.last_error = ""
        if self.queue.count:
            if self._may_continue(group):
                self._serve(group, self._clock.monotonic())
            self._dispatch()
        if slot in group.idle:
            slot.is_fresh = False  # later calls have not waited for its start

    def _failed(self, slot: WorkerSlot, error: Exception) -> None:
        group = slot.group
        group.last_error = str(error)
        group.paused_until = self._clock.monotonic() + _REST_S
        log.warning("worker.start_failed", function=group.name, error=str(error), kind=type(error).__name__)
        if not group.workers and not isinstance(error, errors.ResourcesExhausted):
            group.paused_until = 0.0  # no call is left to try it again for
            self._end_all(group, _cause(error))
        self._dispatch()

    # Functions that change

    def renew(self, group: FunctionWorkers, function: Function, timeout_s: float) -> None:
        """Calls that wait get workers of the new version; the old ones end when they have finished."""
        group.function = function
        group.timeout_s = timeout_s
        group.init, group.run, group.handler = MovingAverage(), MovingAverage(), MovingAverage()
        group.paused_until = 0.0
        group.has_direct_workers = False
        for slot in list(group.slots):
            self.pool.retire(slot)
        if not self.pool.could_ever_fit(function):
            self._end_all(group, CallAborted(CallFailure.NO_ROOM, self._too_large(function)))
        self._dispatch()

    def drop(self, group: FunctionWorkers) -> None:
        """The function is deleted: end its workers and its waiting calls."""
        for slot in list(group.slots):
            self.pool.retire(slot)
        self._end_all(
            group,
            CallAborted(CallFailure.GONE, "the function was deleted while the call waited for a worker"),
        )
        self._dispatch()

    async def close(self) -> None:
        self.is_closed = True
        for timer in (self._review, self._check_timer, self._deadline):
            if timer is not None:
                timer.cancel()
        for waiter in self.queue.all_waiting():
            self._end_waiter(
                waiter, CallAborted(CallFailure.INTERRUPTED, "the node stopped while the call waited")
            )
        await self.pool.close()

    def _end_all(self, group: FunctionWorkers, reason: CallAborted) -> None:
        for waiter in self.queue.of(group):
            self._end_waiter(waiter, CallAborted(reason.failure, reason.error, reason.output))

    def _end_waiter(self, waiter: QueuedCall, reason: CallAborted) -> None:
        self.queue.remove(waiter)
        waiter.abort(reason)

    # Words

    def _too_large(self, function: Function) -> str:
        pool = self.pool
        return (
            f"a worker of {function.name} needs {function.memory} MB and {(function.cpu or 0) / 1000:g} "
            f"cores; all workers of this node together may have {pool.memory_total} MB and "
            f"{pool.cpu_total / 1000:g} cores: lower its resources, or raise functions.memory_mb and "
            "functions.cpus"
        )

    def _no_worker_reason(self, group: FunctionWorkers) -> str:
        if group.last_error:
            return f"no worker could be started: {group.last_error}"
        if group.starting:
            return "its worker was still starting"
        if group.workers:
            return f"its {group.workers} workers were busy, and {group.waiting} more calls of it wait"
        free = self.pool.memory_total - self.pool.memory_used
        needed = group.function.memory
        return f"no capacity for a worker of {needed} MB: {free} MB of the workers' memory is free"


def _cause(error: Exception) -> CallAborted:
    if isinstance(error, CodeLoadError):
        return CallAborted(CallFailure.LOAD, error.message, error.output)
    if isinstance(error, errors.SkerryError):
        return CallAborted(CallFailure.INTERNAL, f"its worker could not be started: {error.message}")
    return CallAborted(CallFailure.INTERNAL, "its worker could not be started; the node's log says why")
