"""Async calls: accepted durably, run once, and their results stored for polling.

A call is on disk before its id is returned, and marked as running before it is run: after a crash waiting
calls are run, and running ones are reported as interrupted, because it is not known how far they came.
`skerry.store.sqlite.calls` stores calls, `skerry.functions.asynchronous.results` encodes them. Memory holds
only the id of a call: its request is read when it is run, its result when it is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.round_robin import RoundRobinQueue
from skerry.kit import disk_reserve, metrics, tasks, traces
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallState
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace
from skerry.model.settings import FunctionSettings
from skerry.store.sqlite.call_rows import ROW_BYTES
from skerry.store.sqlite.calls import CallStore

log = structlog.get_logger(__name__)

FILE_NAME: Final = "calls.db"
_SWEEP_EVERY_S: Final = 5.0
_RETRY_AFTER_S: Final = 1.0
# The share of the queue for workers that async calls may use: synchronous callers come first.
_SHARE: Final = 4
_TENANT_SHARE: Final = 4  # a namespace beside the default one has at most one in so many of all calls

PENDING = metrics.gauge("skerry_async_calls_pending", "Async calls that wait or run")


class CallRunner(Protocol):
    """What runs a call, such as `skerry.functions.invocation.invoker.Invoker`."""

    async def invoke(self, request: CallRequest, *, begins: Callable[[], Awaitable[None]]) -> CallReport: ...


@dataclass(slots=True)
class _Share:
    """What the calls of one namespace hold."""

    calls: int = 0
    bytes: int = 0


@dataclass(slots=True)
class _Call:
    """A call that has not ended."""

    id: str
    line: str
    accepted_at: float
    size: int
    state: CallState = CallState.QUEUED
    ended: asyncio.Event | None = None  # for pollers that wait for its end


class _NotStarted(errors.Unavailable):
    """The request of a call could not be read, or its start not be written: it is not run."""


class AsyncCallRunner:
    """`open` it, then `run` it for ever; `close` last."""

    store: CallStore  # open, and also for the copies of results on other members

    def __init__(
        self,
        folder: Path,
        invoker: CallRunner,
        clock: Clock,
        settings: FunctionSettings,
        new_id: Callable[[CallRequest, float], str] = results.new_id,
    ) -> None:
        """Calls are stored in `folder`; `new_id` gives the id of a call that is accepted at a time."""
        self._path = folder / FILE_NAME
        self._invoker = invoker
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self._most_running = max(1, settings.queue_length // _SHARE)
        # Waiting calls cannot be dropped for results, so each may use half of the space.
        self._most_bytes = settings.result_bytes // 2
        self._pending: dict[str, _Call] = {}  # all that has not ended, also what is just being accepted
        self._bytes = 0  # of those
        self._shares: dict[Namespace, _Share] = {}  # of those, by namespace
        self._queue = RoundRobinQueue[_Call]()
        self._running: set[asyncio.Task[None]] = set()
        self._invoking: dict[asyncio.Task[None], _Call] = {}  # those that only the invoker can end
        self._changed = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._backoff = Backoff(cap_s=5.0)
        self._is_closing = False
        self._listeners: list[Callable[[], None]] = []

    async def open(self) -> AsyncCallRunner:
        """Read the calls that an earlier process left: waiting ones wait, running ones have failed."""
        self.store, unfinished = await CallStore.open(self._path, self._settings.result_bytes)
        try:
            await self._interrupt([call.id for call in unfinished if call.state is CallState.RUNNING])
        except BaseException:
            await self.store.close()
            raise
        waiting = [call for call in unfinished if call.state is CallState.QUEUED]
        for row in waiting:
            call = _Call(row.id, row.line, row.accepted_at, row.size)
            self._admit(call)
            self._queue.add(call.line, call)
        if unfinished:
            log.info("calls.found", waiting=len(waiting), interrupted=len(unfinished) - len(waiting))
        return self

    async def _interrupt(self, ids: Sequence[str]) -> None:
        report = results.pack_report(results.failed(CallFailure.INTERRUPTED, results.INTERRUPTED))
        now = self._clock.now()
        await asyncio.gather(*(self.store.finish(id, CallState.FAILED, now, report) for id in ids))

    async def accept(self, request: CallRequest, *, id: str | None = None) -> str:
        """The id of the call, which is durable and can be polled. Raises `Overloaded`.

        With an `id` of the caller nothing happens if there is a call of that id that is still stored; the
        same id must not be used twice at the same time. Whether the function exists is not checked here: the
        call fails when it is run.
        """
        if self._is_closing:
            raise errors.Unavailable("this node is stopping; call again in a moment")
        now = self._clock.now()
        body = results.pack_request(request)
        if id is None:
            id = self._new_id(request, now)
        elif id in self._pending or await self.store.read(id) is not None:
            return id
        call = _Call(id, results.queue_name(request), now, ROW_BYTES + len(body))
        self._check_space(call)
        self._admit(call)
        # To the end, also if the caller leaves: what is on disk has to be run.
        await tasks.run_to_completion(self._write_down(call, body))
        return id

    async def poll(self, id: str, *, wait_s: float = 0.0) -> AsyncCallResult | None:
        """How far it is, when it has ended or after `wait_s`; None if it is not known, or no longer."""
        call = self._pending.get(id)
        if call is not None and wait_s > 0:
            await _wait_for_end(call, wait_s)
            call = self._pending.get(id)
        if call is not None:
            return AsyncCallResult(call.state)
        row = await self.store.read(id)
        return None if row is None else results.unpack(row.state, row.body)

    async def result(self, id: str) -> AsyncCallResult | None:
        """Its result, when it has ended; None if it is not known, or no longer."""
        call = self._pending.get(id)
        if call is not None:
            await _wait_for_end(call, None)
        return await self.poll(id)

    def listen(self, ended: Callable[[], None]) -> None:
        """Call `ended` whenever a call has ended and its result is durable."""
        self._listeners.append(ended)

    async def keep_copy(
        self, id: str, state: CallState, ended_at: float, body: bytes, *, holder: str
    ) -> None:
        """Store a copy of the result of a call that another member accepted, for pollers; durable on return.

        `holder` has it too. Raises `Invalid` and `TooLarge`.
        """
        if state not in (CallState.DONE, CallState.FAILED):
            raise errors.Invalid(f"a call that is {state.value} has no result yet", field="state")
        if ROW_BYTES + len(body) > self._most_bytes:
            raise errors.TooLarge(f"a result takes at most {self._most_bytes} bytes here")
        try:
            results.unpack(state, body)
        except msgspec.MsgspecError:
            raise errors.Invalid("this is no report of a call", field="body") from None
        at = min(ended_at, self._clock.now())
        await tasks.run_to_completion(self.store.keep_copy(id, state, at, body, holder))

    async def run(self) -> None:
        """Run what waits and drop what is too old, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep_for_ever())
            while True:
                self._start_waiting()
                await self._changed.wait()
                self._changed.clear()

    async def sweep(self) -> None:
        """Drop results that are too old; `run` does it from time to time."""
        await self.store.sweep(self._clock.now(), self._settings.result_ttl_s)

    async def close(self, *, within_s: float) -> None:
        """Start nothing more; what runs may end within this time, and is interrupted then."""
        self._is_closing = True
        for task, call in self._invoking.items():
            if call.state is CallState.QUEUED:
                task.cancel()  # it waits for a worker, and waits on in the next process
        if self._pause is not None:
            self._pause.cancel()
        if self._running:
            await asyncio.wait(self._running, timeout=within_s)
        for task in self._invoking:
            task.cancel()
        while self._running:  # they write their results, which must not be interrupted
            await asyncio.wait(self._running)
        await self.store.close()
        for call in list(self._pending.values()):
            self._dismiss(call)

    def _check_space(self, call: _Call) -> None:
        if shortage := disk_reserve.shortage():
            raise errors.Unavailable(f"no async calls are taken: {shortage}")
        if len(self._pending) >= self._settings.max_pending:
            raise errors.Overloaded(
                f"{len(self._pending)} async calls wait or run, and no more are taken "
                "(functions.max_pending); call again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        if call.size > self._most_bytes:
            raise errors.TooLarge(
                f"an async call takes at most {self._most_bytes} bytes (half of functions.result_bytes); "
                "send less"
            )
        if self._bytes + call.size > self._most_bytes:
            raise errors.Overloaded(
                f"the async calls that wait hold {self._bytes} bytes, and no more are taken "
                "(functions.result_bytes); call again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._check_share(call)

    def _check_share(self, call: _Call) -> None:
        """One namespace does not keep the others out; the default one may have all."""
        namespace = namespace_of(call.id)
        share = self._shares.get(namespace)
        if namespace == DEFAULT_NAMESPACE or share is None:
            return
        if share.calls >= max(1, self._settings.max_pending // _TENANT_SHARE):
            raise errors.Overloaded(
                f"{share.calls} async calls of the namespace {namespace} wait or run, its share of "
                "functions.max_pending; call again later",
                retry_after_s=_RETRY_AFTER_S,
            )
        if share.bytes + call.size > self._most_bytes // _TENANT_SHARE:
            raise errors.Overloaded(
                f"the async calls of the namespace {namespace} that wait hold {share.bytes} bytes, its share "
                "of functions.result_bytes; call again later",
                retry_after_s=_RETRY_AFTER_S,
            )

    async def _write_down(self, call: _Call, body: bytes) -> None:
        try:
            await self.store.accept(call.id, call.line, call.accepted_at, body)
        except BaseException:
            self._dismiss(call)
            raise
        self._queue.add(call.line, call)
        self._changed.set()

    def _admit(self, call: _Call) -> None:
        self._pending[call.id] = call
        self._bytes += call.size
        share = self._shares.setdefault(namespace_of(call.id), _Share())
        share.calls += 1
        share.bytes += call.size
        PENDING.inc()

    def _dismiss(self, call: _Call) -> None:
        del self._pending[call.id]
        self._bytes -= call.size
        share = self._shares[namespace_of(call.id)]
        share.calls -= 1
        share.bytes -= call.size
        if not share.calls:
            del self._shares[namespace_of(call.id)]
        PENDING.dec()
        if call.ended is not None:
            call.ended.set()

    def _start_waiting(self) -> None:
        while self._queue and len(self._running) < self._most_running:
            if self._is_closing or self._pause is not None:
                return
            task = asyncio.create_task(self._perform(self._queue.take()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call.lost", error=repr(error), exc_info=error)

    async def _perform(self, call: _Call) -> None:
        """Run it and write its result, or queue it again if it could not be run."""
        waited_s = self._since(call)
        try:
            body = await self._read(call)
            report = None if self._is_closing else await self._invoke(call, body, waited_s)
        except _NotStarted as error:
            log.warning("call.not_started", id=call.id, error=error.message)
            self._queue.add(call.line, call, is_first=True)
            self._wait(_RETRY_AFTER_S)
            return
        if report is None:
            await self._put_back(call)
            return
        report = results.count_from_acceptance(report, waited_s=waited_s, total_s=self._since(call))
        await self._finish(call, *results.fit(report, self._most_bytes - ROW_BYTES))

    async def _invoke(self, call: _Call, body: bytes, waited_s: float) -> CallReport | None:
        """Its report; None if there was no worker for it, and it can wait."""
        task = asyncio.current_task()
        assert task is not None, "calls are run by tasks"
        self._invoking[task] = call
        try:
            request = results.unpack_request(body)
            shortened = results.with_remaining_time(request, waited_s)
            if shortened is None:
                return results.failed(CallFailure.TIMEOUT, results.TOO_LATE)
            report = await self._invoke_traced(call, shortened)
        except asyncio.CancelledError:
            if call.state is CallState.QUEUED:
                return None  # it only waited for a worker
            return results.failed(CallFailure.INTERRUPTED, results.INTERRUPTED)
        except _NotStarted:
            raise
        except errors.Overloaded as error:
            self._wait(error.retry_after_s)
            return None
        except errors.NotFound:
            return results.failed(CallFailure.GONE, results.GONE)
        except errors.Unavailable as error:
            if self._since(call) < self._settings.result_ttl_s:
                self._wait(_RETRY_AFTER_S)  # no node can be reached that would run it
                return None
            return results.failed(CallFailure.NO_ROOM, error.message)
        except errors.SkerryError as error:
            return results.failed(CallFailure.INTERNAL, error.message)
        except Exception as error:
            log.error("call.broke", id=call.id, error=repr(error), exc_info=error)
            return results.failed(CallFailure.INTERNAL, results.BROKEN)
        finally:
            del self._invoking[task]
        if (
            report.answer.failure is CallFailure.NO_ROOM
            and request.max_response_s is None
            and self._since(call) < self._settings.result_ttl_s
        ):
            self._wait(_RETRY_AFTER_S)
            return None
        return report

    async def _invoke_traced(self, call: _Call, request: CallRequest) -> CallReport:
        """If the request that was accepted is traced, this is another trace with a link to that: it may be
        much later."""
        accepted, recorder = traces.parse_traceparent(request.traceparent), traces.recorder
        if accepted is None or recorder is None:
            return await self._invoker.invoke(request, begins=lambda: self._begin(call))
        span, began = recorder.begin(None)._replace(is_sampled=True), self._clock.monotonic()
        request = replace(request, traceparent=span.traceparent)
        report = await self._invoker.invoke(request, begins=lambda: self._begin(call))
        failure = report.answer.failure
        if failure is not CallFailure.NO_ROOM:  # else it is tried again
            recorder.end(
                span,
                None,
                f"process {request.function}",
                self._clock.monotonic() - began,
                kind=traces.CONSUMER,
                attributes={"faas.name": plain_name(request.function), "faas.invocation_id": call.id},
                error=failure,
                links=(accepted,),
            )
        return report

    async def _begin(self, call: _Call) -> None:
        """It has a worker. Durable before the worker gets it, so that nothing is run twice."""
        try:
            await tasks.run_to_completion(self.store.start(call.id))
        except errors.SkerryError as error:
            raise _NotStarted(error.message) from error
        call.state = CallState.RUNNING

    async def _read(self, call: _Call) -> bytes:
        """Its request."""
        try:
            row = await self.store.read(call.id)
        except errors.SkerryError as error:
            raise _NotStarted(error.message) from error
        assert row is not None, f"call {call.id} waits, and is not on disk"
        return row.body

    async def _put_back(self, call: _Call) -> None:
        try:
            await self.store.put_back(call.id)
        except errors.SkerryError as error:
            # It waits all the same; only if this process dies before it is run, it counts as interrupted.
            log.warning("call.not_put_back", id=call.id, error=error.message)
        call.state = CallState.QUEUED
        self._queue.add(call.line, call)

    async def _finish(self, call: _Call, state: CallState, body: bytes) -> None:
        failures = 0
        while True:
            try:
                await self.store.finish(call.id, state, self._clock.now(), body)
                break
            except errors.SkerryError as error:
                log.warning("call.not_finished", id=call.id, error=error.message)
                if self._is_closing:
                    return
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1
        self._dismiss(call)
        for ended in self._listeners:
            ended()

    def _wait(self, seconds: float) -> None:
        """Start nothing for a while; a pause that is on its way is long enough."""
        if self._pause is None and not self._is_closing:
            self._pause = asyncio.get_running_loop().call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._changed.set()

    async def _sweep_for_ever(self) -> None:
        while True:
            try:
                await self.sweep()
            except errors.Unavailable as error:
                log.warning("calls.not_swept", error=error.message)
            await asyncio.sleep(_SWEEP_EVERY_S)

    def _since(self, call: _Call) -> float:
        """Since its acceptance, by the wall clock: it may have been in another process."""
        return max(0.0, self._clock.now() - call.accepted_at)


async def _wait_for_end(call: _Call, within_s: float | None) -> None:
    call.ended = call.ended or asyncio.Event()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await call.ended.wait()
