"""Workers and the resources they use: taken, put back, started, evicted and ended, with exact accounting.

A worker's memory counts from before it is started until nothing of it is left; its cpu while it starts, has
calls in it, or ends with calls in it. What is wanted is decided elsewhere
(`skerry.functions.invocation.dispatcher`); here it is only made sure that it is possible, and never more than
the limits at any moment. Every change of the accounting happens without an await between check and change.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import structlog

from skerry.functions.invocation.call_history import FunctionHistory
from skerry.functions.invocation.estimates import MovingAverage
from skerry.functions.ports import DirectWorker, FunctionWorker, WorkerHost
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.functions import Function

log = structlog.get_logger(__name__)


class FunctionWorkers:
    """One function as the pool knows it: its workers, and how its calls went."""

    __slots__ = (
        "code",
        "cold",
        "crowded_since",
        "failed",
        "function",
        "handler",
        "has_direct_workers",
        "history",
        "idle",
        "init",
        "last_error",
        "moved_at",
        "name",
        "open",
        "paused_until",
        "run",
        "run_total_s",
        "slots",
        "starting",
        "succeeded",
        "timeout_s",
        "waiting",
        "workers",
    )

    def __init__(
        self,
        function: Function,
        code: Callable[[Function], Path | None],
        timeout_s: float,
        history: FunctionHistory | None = None,
    ) -> None:
        self.name = function.name
        self.history = history or FunctionHistory()
        self.function = function
        self.code = code
        self.timeout_s = timeout_s
        self.has_direct_workers = False  # of this version, as far as one has started
        self.slots: set[WorkerSlot] = set()  # all that have not ended, of any version
        self.idle: dict[WorkerSlot, None] = {}  # the last one is the latest used
        self.open: dict[WorkerSlot, None] = {}  # with calls in them, and a place for one more
        self.workers = 0  # that take calls, or will as soon as they have started
        self.starting = 0
        self.waiting = 0
        self.init = MovingAverage()
        self.run = MovingAverage()
        self.handler = MovingAverage()  # the part of it in the worker's handler
        self.moved_at = 0.0  # when a call last began, or a worker came
        self.crowded_since = 0.0  # when calls began to wait, or a worker came
        self.paused_until = 0.0  # after a start that failed
        self.last_error = ""  # why the last start failed
        self.succeeded = 0
        self.failed: dict[str, int] = {}
        self.cold = 0
        self.run_total_s = 0.0

    @property
    def has_places(self) -> bool:
        """True if workers that start have a place for every waiting call, and no other could take one."""
        return (
            self.starting * self.function.max_concurrency >= self.waiting
            and self.workers > 0
            and not self.idle
            and not self.open
        )


class WorkerSlot:
    """One worker with its resources, from before it starts until it has ended."""

    __slots__ = (
        "busy",
        "cpu",
        "direct",
        "error",
        "function",
        "group",
        "idle_since",
        "is_ending",
        "is_fresh",
        "is_open",
        "is_started",
        "memory",
        "seats",
        "task",
        "worker",
    )

    worker: FunctionWorker  # once it has started
    direct: DirectWorker | None  # the same, if it takes calls without a task
    task: asyncio.Task[FunctionWorker] | asyncio.Task[None]  # that starts it, then that ends it

    def __init__(self, group: FunctionWorkers, *, is_fresh: bool) -> None:
        function = group.function
        self.group = group
        self.function = function
        self.memory = int(function.memory)
        self.cpu = int(function.cpu or 0)
        self.seats = function.max_concurrency
        self.busy = 1  # calls in it; its start counts as one
        self.is_open = True  # False: no further call is handed to it
        self.is_started = False
        self.is_ending = False
        self.is_fresh = is_fresh  # started for a call, which has not got it yet
        self.idle_since = 0.0
        self.error: Exception | None = None  # why it could not be started


class WorkerPool:
    """All workers of a node. The three callables are called with what has changed, after the accounting is
    right."""

    def __init__(
        self,
        host: WorkerHost,
        clock: Clock,
        *,
        memory_mb: int,
        cpus: float,
        on_ready: Callable[[WorkerSlot], None],
        on_failed: Callable[[WorkerSlot, Exception], None],
        on_capacity: Callable[[], None],
    ) -> None:
        self._host = host
        self._clock = clock
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_capacity = on_capacity
        self.memory_total = memory_mb
        self.cpu_total = round(cpus * 1000)
        self.memory_used = 0
        self.memory_idle = 0  # of what is used, what could be had back
        self.memory_ending = 0  # of what is used, what is on its way back
        self.cpu_used = 0
        self.starting = 0
        self.slots: set[WorkerSlot] = set()
        self.idle: OrderedDict[WorkerSlot, None] = OrderedDict()  # the first one is the least recently used
        self._changes: list[asyncio.Future[None]] = []
        self._direct_kinds: dict[type[FunctionWorker], bool] = {}

    # A call and its worker

    def take(self, group: FunctionWorkers) -> WorkerSlot | None:
        """A worker for one more call, which is counted in it; None if no worker can take one now."""
        while group.open:
            slot = next(reversed(group.open))
            if not slot.worker.is_alive:  # it ended this very moment
                self.retire(slot)
                continue
            slot.busy += 1
            if slot.busy == slot.seats:
                del group.open[slot]
            return slot
        while group.idle:
            slot = next(reversed(group.idle))
            if not slot.worker.is_alive:
                self.retire(slot)
                continue
            if self.cpu_used + slot.cpu > self.cpu_total:
                return None
            del group.idle[slot]
            del self.idle[slot]
            self.memory_idle -= slot.memory
            self.cpu_used += slot.cpu
            slot.busy = 1
            if slot.seats > 1:
                group.open[slot] = None
            return slot
        return None

    def can_take(self, group: FunctionWorkers) -> bool:
        """True if `take` would have a worker; nothing is changed."""
        if group.open:
            return next(reversed(group.open)).worker.is_alive
        if group.idle:
            slot = next(reversed(group.idle))
            return slot.worker.is_alive and self.cpu_used + slot.cpu <= self.cpu_total
        return False

    def leave(self, slot: WorkerSlot, now: float) -> None:
        """A call in this worker is over."""
        slot.busy -= 1
        group = slot.group
        if slot.is_open:
            if not slot.busy:
                if slot.seats > 1:
                    group.open.pop(slot, None)
                self.cpu_used -= slot.cpu
                self.memory_idle += slot.memory
                slot.idle_since = now
                group.idle[slot] = None
                self.idle[slot] = None
            elif slot.busy == slot.seats - 1:
                group.open[slot] = None
        elif not slot.busy:
            self._end(slot)

    # Beginning

    @property
    def processors(self) -> int:
        """That workers may use together."""
        return max(1, self.cpu_total // 1000)

    def could_ever_fit(self, function: Function) -> bool:
        return function.memory <= self.memory_total and (function.cpu or 0) <= self.cpu_total

    def has_cpu(self, function: Function) -> bool:
        return self.cpu_used + (function.cpu or 0) <= self.cpu_total

    def fits(self, function: Function, *, beside: int = 0) -> bool:
        """True if a worker of it may be started at once, with `beside` MB left for others."""
        return self.memory_used + beside + function.memory <= self.memory_total and self.has_cpu(function)

    def start(self, group: FunctionWorkers, *, is_fresh: bool) -> WorkerSlot:
        """Start a worker; there must be capacity for it."""
        assert self.fits(group.function), "the caller has checked that the worker fits"
        begin = self._host.spawn(group.function, group.code(group.function))
        slot = WorkerSlot(group, is_fresh=is_fresh)
        self.memory_used += slot.memory
        self.cpu_used += slot.cpu
        self.starting += 1
        group.starting += 1
        group.workers += 1
        group.slots.add(slot)
        self.slots.add(slot)
        slot.task = asyncio.get_running_loop().create_task(begin)
        slot.task.add_done_callback(partial(self._started, slot))
        return slot

    def _started(self, slot: WorkerSlot, start: asyncio.Task[FunctionWorker]) -> None:
        group = slot.group
        self.starting -= 1
        group.starting -= 1
        error = asyncio.CancelledError() if start.cancelled() else start.exception()
        if error is None:
            self._welcome(slot, start.result())
        else:
            if slot.is_open:  # else it was cancelled, and the reason does not matter
                slot.error = (
                    error if isinstance(error, Exception) else errors.Unavailable("it was interrupted")
                )
            self._forget(slot)
        if slot.error is not None:
            self._on_failed(slot, slot.error)
        elif slot.is_open:
            self._on_ready(slot)
        else:
            self._on_capacity()
        self._notify()

    def _welcome(self, slot: WorkerSlot, worker: FunctionWorker) -> None:
        slot.worker = worker
        slot.direct = self._as_direct(worker)
        slot.is_started = True
        now = self._clock.monotonic()
        slot.group.moved_at = slot.group.crowded_since = now
        if slot.is_open:
            slot.group.has_direct_workers = slot.direct is not None
            slot.group.init.add(worker.init_s)
            worker.on_end(partial(self.retire, slot))
            if not worker.is_alive:
                slot.error = CodeLoadError("the worker ended as soon as it had loaded the function")
                self.retire(slot)
        self.leave(slot, now)

    def _as_direct(self, worker: FunctionWorker) -> DirectWorker | None:
        """The check looks at every member, and is made once for a class."""
        if type(worker) not in self._direct_kinds:
            self._direct_kinds[type(worker)] = isinstance(worker, DirectWorker)
        return cast(DirectWorker, worker) if self._direct_kinds[type(worker)] else None

    # Ending

    def free_capacity(self, memory: int, *, spare: FunctionWorkers | None = None) -> bool:
        """End idle workers, the least recently used first, until `memory` is free or on its way to be.

        False, and nothing is ended, if all of them together would not do. Those of `spare` are kept.
        """
        short = memory - (self.memory_total - self.memory_used) - self.memory_ending
        spare_memory = sum(slot.memory for slot in spare.idle) if spare is not None else 0
        if short > self.memory_idle - spare_memory:
            return False
        if short <= 0:
            return True
        victims = []
        for slot in self.idle:
            if slot.group is not spare:
                victims.append(slot)
                short -= slot.memory
                if short <= 0:
                    break
        for slot in victims:
            self.retire(slot)
        return True

    def expire(self, before: float) -> None:
        """End the workers that have been idle since `before` or longer."""
        while self.idle:
            slot = next(iter(self.idle))
            if slot.idle_since > before:
                return
            self.retire(slot)

    def retire(self, slot: WorkerSlot) -> None:
        """Hand it no further call, and end it when the calls in it have ended."""
        if not slot.is_open:
            return
        slot.is_open = False
        group = slot.group
        group.workers -= 1
        group.open.pop(slot, None)
        if slot in self.idle:
            del self.idle[slot]
            del group.idle[slot]
            self.memory_idle -= slot.memory
            slot.cpu = 0  # an idle worker has given it back already
            self._end(slot)
        elif not slot.is_started:
            slot.task.cancel()

    def _end(self, slot: WorkerSlot) -> None:
        if slot.is_ending:
            return
        slot.is_ending = True
        self.memory_ending += slot.memory
        slot.task = asyncio.get_running_loop().create_task(slot.worker.close())
        slot.task.add_done_callback(partial(self._ended, slot))

    def _ended(self, slot: WorkerSlot, end: asyncio.Task[None]) -> None:
        if not end.cancelled() and (error := end.exception()) is not None:
            # What is left of it is bounded by the kernel; accounting that is never balanced would be worse.
            log.error("worker.close_failed", worker=slot.worker.id, error=repr(error), exc_info=error)
        self.memory_ending -= slot.memory
        self._forget(slot)
        self._on_capacity()
        self._notify()

    def _forget(self, slot: WorkerSlot) -> None:
        """It has ended: its resources are free."""
        if slot.is_open:
            slot.is_open = False
            slot.group.workers -= 1
        self.memory_used -= slot.memory
        self.cpu_used -= slot.cpu
        slot.group.slots.discard(slot)
        self.slots.discard(slot)

    def _notify(self) -> None:
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)

    async def change(self) -> None:
        """Wait until a worker has started, failed to, or ended."""
        future = asyncio.get_running_loop().create_future()
        self._changes.append(future)
        await future

    async def close(self) -> None:
        """End all workers with the calls in them; returns when nothing of them is left."""
        for slot in list(self.slots):
            self.retire(slot)
            if slot.is_started:
                self._end(slot)
        while self.slots:
            await self.change()
