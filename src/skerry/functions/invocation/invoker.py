"""The invoker of functions: takes calls, prewarms, validates, and follows updates and deletions.

A call that finds a warm worker goes straight to it: no lock, no log, nothing durable, and nothing that grows
with the number of functions; by `begin` also without a task. All others wait in
`skerry.functions.invocation.dispatcher`. Knows functions by `ports.FunctionLookup` and workers by
`ports.WorkerHost`; what it knows of them is lost with the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from skerry.functions.coordinates import Coordinate
from skerry.functions.invocation.call_history import CallHistory
from skerry.functions.invocation.call_outcomes import CallOutcomes, InvokedCall
from skerry.functions.invocation.call_trace import CallTrace
from skerry.functions.invocation.direct_calls import CallDone, DirectCall, DirectCalls
from skerry.functions.invocation.dispatcher import CallAborted, Dispatcher
from skerry.functions.invocation.metrics import InvocationMetrics
from skerry.functions.invocation.worker_pool import FunctionWorkers, WorkerSlot
from skerry.functions.ports import FunctionLookup, WorkerHost
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, CodeLoadError
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.settings import FunctionSettings
from skerry.model.web_calls import WebCallRequest

_PREWARMS_AT_ONCE = 8

BeforeStart = Callable[[], Awaitable[None]]


class PoolStatus(msgspec.Struct, frozen=True):
    """What the pool has and holds at this moment."""

    warm: dict[FunctionName, int]  # idle workers by function; only functions that have some
    total_memory_mb: int
    available_memory_mb: int  # total, without that of workers that are busy, starting or ending
    free_memory_mb: int  # also without that of idle workers
    total_cpus: float
    used_cpus: float  # of workers that are busy or starting
    workers: int  # in any state
    queue_length: int  # calls that wait for a worker
    coordinate: Coordinate = Coordinate()  # of the node among others, if there are any


class LocalCapacity(msgspec.Struct, frozen=True, gc=False):
    """What a call of one function would find at this moment."""

    memory_free: int  # MB that no worker has, or that idle ones would free, less what waiting calls may take
    cpus_free: float
    waiting: int  # calls of any function
    warm: int  # idle workers of this one
    seats: int  # its busy workers that take another call


class Invoker:
    """All workers of a node, and the calls to them."""

    def __init__(
        self,
        host: WorkerHost,
        registry: FunctionLookup,
        settings: FunctionSettings,
        clock: Clock,
        *,
        node: str,
        memory_mb: int,
        cpus: float,
    ) -> None:
        """`memory_mb` and `cpus` are what all workers together may take, with no zero left to be resolved."""
        self._host = host
        self._settings = settings
        self._get = registry.get
        self._code_folder = registry.code_folder
        self._monotonic = clock.monotonic
        self._groups: dict[FunctionName, FunctionWorkers] = {}
        self.history = CallHistory()
        self._dispatcher = Dispatcher(host, settings, clock, memory_mb=memory_mb, cpus=cpus)
        self._pool = self._dispatcher.pool
        self._queue = self._dispatcher.queue
        self.metrics = InvocationMetrics(self._groups.values, self._gauges)
        self._outcomes = CallOutcomes(self._dispatcher, self.metrics, settings, clock, node)
        self._direct = DirectCalls(
            self._dispatcher,
            self._outcomes,
            clock,
            queue_wait_s=settings.queue_wait_s,
            continue_call=lambda call, slot: self._wait_and_run(call, slot=slot),
        )

    # Calls

    async def invoke(self, request: CallRequest, *, begins: BeforeStart | None = None) -> CallReport:
        """Run one call to its end. `begins` is awaited once it has a worker, before it is handed over.

        Raises `NotFound` if there is no such function, `Overloaded` if too many calls wait already and
        `Unavailable` while the node stops, and what `begins` raises, which keeps the call from being run.
        Whatever else goes wrong is in the report's answer. If the caller is cancelled, so is the call.
        """
        arrived = self._monotonic()
        function = self._get(request.function)
        if function is None:
            raise errors.NotFound(f"there is no function {request.function!r}")
        call = InvokedCall(request, self._group_of(function), arrived, self._settings.queue_wait_s)
        trace = CallTrace.of(request) if request.traceparent else None
        slot = None if begins is not None else self._dispatcher.take(call.group)
        if slot is not None:
            call.slot = slot
            return await self._run(call, trace)
        return await self._wait_and_run(call, begins, trace)

    def begin(self, request: CallRequest, done: CallDone) -> DirectCall | None:
        """Begin a call without a task (`direct_calls`); None, with nothing done, if it takes `invoke`.

        `done` gets the report later, from the event loop, or an error as `invoke` raises it. Raises
        `Overloaded` and `Unavailable`.
        """
        function = self._get(request.function)
        if function is None or request.is_web or request.traceparent:
            return None
        return self._direct.begin(request, self._group_of(function), done)

    async def _wait_and_run(
        self,
        call: InvokedCall,
        begins: BeforeStart | None = None,
        trace: CallTrace | None = None,
        slot: WorkerSlot | None = None,
    ) -> CallReport:
        """With a `slot` it has got that one, which may not be fit for it any more."""
        try:
            slot = await self._wait(call, begins, slot)
        except CallAborted as ended:
            report = self._outcomes.unserved(call, ended)
            if trace is not None:
                waited_s = report.response_s
                trace.end(
                    report.answer,
                    total_s=waited_s,
                    queueing_s=waited_s,
                    init_s=0.0,
                    is_warm=True,
                    worker="",
                )
            return report
        call.assign(slot, self._monotonic())
        self._outcomes.note_wait(call)
        return await self._run(call, trace)

    async def _wait(
        self, call: InvokedCall, begins: BeforeStart | None, slot: WorkerSlot | None
    ) -> WorkerSlot:
        group, limit = call.group, call.limit
        while True:
            if slot is None:
                try:
                    slot = await self._dispatcher.wait(group, call.request.qos_class, call.arrived, limit)
                except errors.Overloaded:
                    self._outcomes.note_refused(group)
                    raise
            if begins is not None and slot.is_open:
                try:
                    await begins()
                except BaseException:
                    self._dispatcher.left(slot, self._monotonic())
                    raise
                begins = None
            now = self._monotonic()
            if not slot.worker.is_alive:
                self._pool.retire(slot)
            is_late = now >= limit
            if slot.is_open and not is_late:
                return slot
            self._dispatcher.left(slot, now)
            if is_late:
                raise CallAborted(CallFailure.NO_ROOM, "its worker came too late", is_late=True)
            # Since its assignment the worker died, or became one of an older version: again.
            if self._groups.get(group.name) is not group:
                raise CallAborted(
                    CallFailure.GONE, "the function was deleted while the call waited for a worker"
                )
            slot = None

    async def _run(self, call: InvokedCall, trace: CallTrace | None) -> CallReport:
        request, worker = call.request, call.slot.worker
        try:
            if request.is_web:
                answer = await _call_web(call)
            else:
                answer = await worker.call(
                    request.params,
                    wants_output=request.wants_output,
                    within_s=call.within_s,
                    traceparent="" if trace is None else trace.run.traceparent,
                )
        except BaseException as error:  # noqa: BLE001 - distinguished there, and a cancellation goes on
            answer = self._outcomes.broken(call, error)
        report = self._outcomes.finish(call, answer)
        if trace is not None:
            trace.end(
                report.answer,
                total_s=report.response_s,
                queueing_s=call.queueing_s,
                init_s=call.init_s,
                is_warm=call.is_warm,
                worker=worker.id,
                phases=worker.start_phases,
            )
        return report

    # Workers ahead of calls

    async def prewarm(self, name: str, instances: int, *, force: bool = False) -> int:
        """Start up to `instances` more workers, as far as there is capacity; returns how many were started.

        They are kept as long as any idle worker. 0 only fetches the code or the image. Raises `NotFound`;
        `Unavailable` where workers have no memory at all; if none could be started for another reason than
        capacity, that reason.
        """
        function = self._get(name)
        if function is None:
            raise errors.NotFound(f"there is no function {name!r}")
        if not self._pool.memory_total:
            raise errors.Unavailable(
                "functions run on nodes of this cloud and not here; 'skerry fn prewarm' works on a node with "
                "node.http set"
            )
        if force or instances <= 0:
            await self._host.prepare(function, force=force)
        group = self._group(function)
        slots = await self._start_ahead(group, instances)
        made = sum(1 for slot in slots if slot.is_started and slot.error is None)
        failed = next((slot.error for slot in slots if slot.error is not None), None)
        if made or failed is None or isinstance(failed, errors.ResourcesExhausted):
            return made
        if isinstance(failed, errors.SkerryError):
            raise failed
        raise errors.Unavailable("no worker could be started; the node's log says why", detail=repr(failed))

    async def _start_ahead(self, group: FunctionWorkers, instances: int) -> list[WorkerSlot]:
        """Those that were begun, and are no longer starting. Never ends a worker of the same function."""
        pool, slots = self._pool, list[WorkerSlot]()
        until = self._monotonic() + self._settings.queue_wait_s
        while True:
            starting = [slot for slot in slots if slot in pool.slots and not slot.is_started]
            is_wanted = (
                len(slots) < instances
                and self._groups.get(group.name) is group
                and not self._dispatcher.is_closed
                and not any(slot.error for slot in slots)
                and self._monotonic() < until
            )
            if is_wanted and len(starting) < _PREWARMS_AT_ONCE:
                function = group.function
                if pool.fits(function):
                    slots.append(pool.start(group, is_fresh=False))
                    continue
                # Calls that wait have the first claim on what idle workers hold.
                is_wanted = (
                    not self._queue.count
                    and pool.has_cpu(function)
                    and pool.free_capacity(function.memory, spare=group)
                )
            if not starting and not is_wanted:
                return slots
            await pool.change()

    async def validate(self, function: Function, code: Path | None) -> str:
        """Load `function` once in a worker that is then ended; returns its actual runtime.

        Raises `CodeLoadError` if its code cannot be loaded, `ResourcesExhausted` if there was no capacity for
        the attempt.
        """
        group = FunctionWorkers(function, lambda _: code, self._timeout_s(function))
        now = self._monotonic()
        try:
            slot = await self._dispatcher.wait(group, 0, now, now + self._settings.queue_wait_s)
        except CallAborted as ended:
            if ended.failure is CallFailure.LOAD:
                raise CodeLoadError(ended.error, output=ended.output) from None
            kind = errors.ResourcesExhausted if ended.failure is CallFailure.NO_ROOM else errors.Unavailable
            raise kind(f"the function could not be tried out: {ended.error}") from None
        else:
            runtime = slot.worker.runtime
            self._pool.retire(slot)
            self._dispatcher.left(slot, self._monotonic())
            return runtime
        finally:
            self._dispatcher.drop(group)

    # Functions that change

    async def updated(self, function: Function) -> None:
        """From now on no call starts in a worker of an older version; those end when they have finished."""
        self._follow(function.name)

    async def removed(self, name: str) -> None:
        """End the function's workers when they have finished; calls that wait for one fail with `GONE`."""
        self._follow(FunctionName(name))

    def _follow(self, name: FunctionName) -> None:
        """Take the function as it is registered now, which may be another one since."""
        function = self._get(name)
        if function is None:
            self.history.forget(name)
        if name not in self._groups:
            return
        if function is None:
            self._dispatcher.drop(self._groups.pop(name))
        else:
            self._group(function)

    def _group_of(self, function: Function) -> FunctionWorkers:
        group = self._groups.get(function.name)
        return group if group is not None and group.function is function else self._group(function)

    def _group(self, function: Function) -> FunctionWorkers:
        group = self._groups.get(function.name)
        if group is None:
            group = self._groups[function.name] = FunctionWorkers(
                function, self._code_folder, self._timeout_s(function), self.history.of(function.name)
            )
        elif function != group.function:
            self._dispatcher.renew(group, function, self._timeout_s(function))
        group.function = function  # the next call compares no more than identity
        return group

    def _timeout_s(self, function: Function) -> float:
        return function.timeout_s if function.timeout_s is not None else self._settings.call_timeout_s

    # The pool as a whole

    def status(self) -> PoolStatus:
        pool = self._pool
        warm: dict[FunctionName, int] = {}
        for slot in pool.idle:
            warm[slot.group.name] = warm.get(slot.group.name, 0) + 1
        free = pool.memory_total - pool.memory_used
        return PoolStatus(
            warm=warm,
            total_memory_mb=pool.memory_total,
            available_memory_mb=free + pool.memory_idle,
            free_memory_mb=free,
            total_cpus=pool.cpu_total / 1000,
            used_cpus=pool.cpu_used / 1000,
            workers=len(pool.slots),
            queue_length=self._queue.count,
        )

    def has_warm(self, function: Function) -> bool:
        """True if a call that is made now, before anything else happens, is handed to a worker at once."""
        group = self._groups.get(function.name)
        return (
            group is not None
            and group.function is function
            and not self._queue.count
            and self._pool.can_take(group)
        )

    def capacity(self, function: Function) -> LocalCapacity:
        pool, waiting = self._pool, self._queue.count
        memory = pool.memory_total - pool.memory_used + pool.memory_idle
        cpu = pool.cpu_total - pool.cpu_used
        group = self._groups.get(function.name)
        warm = len(group.idle) if group is not None else 0
        if waiting > pool.starting and not warm:
            # Waiting calls without a starting worker may yet take capacity, estimated like this one.
            memory -= (waiting - pool.starting) * function.memory
            cpu -= (waiting - pool.starting) * (function.cpu or 0)
        seats = len(group.open) if group is not None else 0
        return LocalCapacity(max(0, memory), max(0, cpu) / 1000, waiting, warm, seats)

    def code_in_use(self) -> set[Digest]:
        """The code of every worker, from before it starts until it has ended."""
        return {slot.function.code for slot in self._pool.slots if slot.function.code is not None}

    def _gauges(self) -> dict[str, float]:
        pool = self._pool
        return {
            "queue_length": self._queue.count,
            "workers": len(pool.slots),
            "idle_workers": len(pool.idle),
            "memory_used_megabytes": pool.memory_used,
            "cpus_used": pool.cpu_used / 1000,
        }

    async def run(self) -> None:
        """End workers that were idle for too long, for ever."""
        keep_s = self._settings.keep_alive_s
        while True:
            now = self._monotonic()
            self._pool.expire(now - keep_s)
            # Whatever becomes idle while this sleeps expires later than the first that is idle now.
            first = next(iter(self._pool.idle), None)
            await asyncio.sleep(keep_s if first is None else first.idle_since + keep_s - now)

    async def close(self) -> None:
        """Take no more calls and end all workers; may be repeated."""
        if not self._dispatcher.is_closed:
            self.metrics.close()
        await self._dispatcher.close()
        await self._direct.close()


async def _call_web(call: InvokedCall) -> CallResult:
    request = call.request
    assert isinstance(request, WebCallRequest), "a call of a web function has a place for its response"
    response = request.response
    answer = await call.slot.worker.call_web(request.params, response, within_s=call.within_s)
    if response.is_abandoned and answer.failure in (None, CallFailure.HANDLER):
        return msgspec.structs.replace(answer, failure=CallFailure.ABANDONED, error="its caller has left")
    return answer
