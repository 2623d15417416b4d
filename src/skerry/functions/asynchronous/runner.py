"""Async calls: accepted durably, run once, and their results kept for whoever polls.

A call is on disk before its id is given out, and marked as running before it is run: after a crash those that
waited are run, and those that ran are reported as interrupted, because nobody knows how far they came. Here
is what happens when; `skerry.store.sqlite.calls` has the disk, `skerry.functions.asynchronous.results` the
words. Memory holds no more of a call than its name: what it asks is read when its turn comes, what came of it
when it is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec
import structlog

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.round_robin import RoundRobinQueue
from skerry.kit import disk_reserve, metrics, tasks
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallState
from skerry.model.settings import FunctionSettings
from skerry.store.sqlite.call_rows import ROW_BYTES
from skerry.store.sqlite.calls import CallStore

log = structlog.get_logger(__name__)

FILE_NAME: Final = "calls.db"
_SWEEP_EVERY_S: Final = 5.0
_RETRY_AFTER_S: Final = 1.0
# Of the places in the queue for workers, async calls take one in so many: callers who wait come first.
_SHARE: Final = 4

PENDING = metrics.gauge("skerry_async_calls_pending", "Async calls that wait or run")


class CallRunner(Protocol):
    """What runs a call, such as `skerry.functions.invocation.invoker.Invoker`."""

    async def invoke(self, request: CallRequest, *, begins: Callable[[], Awaitable[None]]) -> CallReport: ...


@dataclass(slots=True)
class _Call:
    """A call that has not ended."""

    id: str
    line: str
    accepted_at: float
    size: int
    state: CallState = CallState.QUEUED
    ended: asyncio.Event | None = None  # for whoever waits for its end, if anybody does


class _NotBegun(errors.Unavailable):
    """It could not be read what a call asks, or written down that it runs: so it does not."""


class AsyncCallRunner:
    """`await AsyncCallRunner.open(...)`, then `run` for ever; `close` last."""

    def __init__(
        self,
        store: CallStore,
        invoker: CallRunner,
        clock: Clock,
        settings: FunctionSettings,
        new_id: Callable[[CallRequest, float], str] = results.new_id,
    ) -> None:
        self.store = store  # also for who copies results to other members
        self._invoker = invoker
        self._clock = clock
        self._settings = settings
        self._new_id = new_id
        self._most_running = max(1, settings.queue_length // _SHARE)
        # What waits cannot be dropped for what has ended, so each may have half of the room.
        self._most_bytes = settings.result_bytes // 2
        self._pending: dict[str, _Call] = {}  # all that has not ended, also what is just being accepted
        self._bytes = 0  # of those
        self._turns = RoundRobinQueue[_Call]()
        self._running: set[asyncio.Task[None]] = set()
        self._invoking: dict[asyncio.Task[None], _Call] = {}  # those that only the invoker can end
        self._changed = asyncio.Event()
        self._pause: asyncio.TimerHandle | None = None
        self._backoff = Backoff(cap_s=5.0)
        self._is_closing = False
        self._listeners: list[Callable[[], None]] = []

    @classmethod
    async def open(
        cls,
        folder: Path,
        invoker: CallRunner,
        clock: Clock,
        settings: FunctionSettings,
        new_id: Callable[[CallRequest, float], str] = results.new_id,
    ) -> AsyncCallRunner:
        """With what an earlier process left in `folder`: waiting calls wait, running ones have failed.

        `new_id` makes the id of a call that is accepted at a time.
        """
        store, left = await CallStore.open(folder / FILE_NAME, settings.result_bytes)
        try:
            interrupted = results.failed(CallFailure.INTERRUPTED, results.INTERRUPTED)
            running = [call for call in left if call.state is CallState.RUNNING]
            await asyncio.gather(
                *(
                    store.finish(call.id, CallState.FAILED, clock.now(), results.pack_report(interrupted))
                    for call in running
                )
            )
            if left:
                log.info("calls.found", waiting=len(left) - len(running), interrupted=len(running))
        except BaseException:
            await store.close()
            raise
        calls = cls(store, invoker, clock, settings, new_id)
        for call in left:
            if call.state is CallState.QUEUED:
                calls._admit(waiting := _Call(call.id, call.line, call.accepted_at, call.size))
                calls._turns.add(waiting.line, waiting)
        return calls

    async def accept(self, request: CallRequest, *, id: str | None = None) -> str:
        """The id of the call, which is durable and can be polled. Raises `Overloaded`.

        With an `id` of the caller's own nothing happens if there is a call of that id, for as long as that is
        remembered; two may not ask for the same one at once. Whether there is such a function is for the
        caller to look: here it fails when it is run.
        """
        if self._is_closing:
            raise errors.Unavailable("this node is stopping; call again in a moment")
        now = self._clock.now()
        body = results.pack_request(request)
        if id is None:
            id = self._new_id(request, now)
        elif id in self._pending or await self.store.read(id) is not None:
            return id
        call = _Call(id, results.line_of(request), now, ROW_BYTES + len(body))
        self._check_room(call)
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

    def listen(self, ended: Callable[[], None]) -> None:
        """Call `ended` whenever a call has ended, once it is durable what came of it."""
        self._listeners.append(ended)

    async def keep_copy(
        self, id: str, state: CallState, ended_at: float, body: bytes, *, holder: str
    ) -> None:
        """Of what came of a call that was accepted elsewhere, for whoever polls here; durable on return.
        `holder` has it too.

        Raises `Invalid` for what is none, and `TooLarge`.
        """
        if state not in (CallState.DONE, CallState.FAILED):
            raise errors.Invalid(f"a call that is {state.value} has come to nothing yet", field="state")
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
                self._start_what_may()
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
        while self._running:  # they write down how they ended, which nobody is to break off
            await asyncio.wait(self._running)
        await self.store.close()
        for call in list(self._pending.values()):
            self._dismiss(call)

    def _check_room(self, call: _Call) -> None:
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

    async def _write_down(self, call: _Call, body: bytes) -> None:
        try:
            await self.store.accept(call.id, call.line, call.accepted_at, body)
        except BaseException:
            self._dismiss(call)
            raise
        self._turns.add(call.line, call)
        self._changed.set()

    def _admit(self, call: _Call) -> None:
        self._pending[call.id] = call
        self._bytes += call.size
        PENDING.inc()

    def _dismiss(self, call: _Call) -> None:
        del self._pending[call.id]
        self._bytes -= call.size
        PENDING.dec()
        if call.ended is not None:
            call.ended.set()

    def _start_what_may(self) -> None:
        while self._turns and len(self._running) < self._most_running:
            if self._is_closing or self._pause is not None:
                return
            task = asyncio.create_task(self._perform(self._turns.take()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("call.lost", error=repr(error), exc_info=error)

    async def _perform(self, call: _Call) -> None:
        """Run it and write down what came of it, or put it back if it could not be run."""
        waited_s = self._since(call)
        try:
            body = await self._read(call)
            report = None if self._is_closing else await self._invoke(call, body, waited_s)
        except _NotBegun as error:
            log.warning("call.not_started", id=call.id, error=error.message)
            self._turns.add(call.line, call, is_first=True)
            self._wait(_RETRY_AFTER_S)
            return
        if report is None:
            await self._put_back(call)
            return
        report = results.count_from_acceptance(report, waited_s=waited_s, total_s=self._since(call))
        await self._finish(call, *results.fit(report, self._most_bytes - ROW_BYTES))

    async def _invoke(self, call: _Call, body: bytes, waited_s: float) -> CallReport | None:
        """How it went; None if there was no room for it, and it can wait."""
        task = asyncio.current_task()
        assert task is not None, "calls are run by tasks"
        self._invoking[task] = call
        try:
            request = results.unpack_request(body)
            hastened = results.hasten(request, waited_s)
            if hastened is None:
                return results.failed(CallFailure.TIMEOUT, results.TOO_LATE)
            report = await self._invoker.invoke(hastened, begins=lambda: self._begin(call))
        except asyncio.CancelledError:
            if call.state is CallState.QUEUED:
                return None  # it only waited for a worker
            return results.failed(CallFailure.INTERRUPTED, results.INTERRUPTED)
        except _NotBegun:
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

    async def _begin(self, call: _Call) -> None:
        """It has a worker. Durable before the worker hears of it, so that nothing is run twice."""
        try:
            await tasks.run_to_completion(self.store.start(call.id))
        except errors.SkerryError as error:
            raise _NotBegun(error.message) from error
        call.state = CallState.RUNNING

    async def _read(self, call: _Call) -> bytes:
        """What it asks."""
        try:
            row = await self.store.read(call.id)
        except errors.SkerryError as error:
            raise _NotBegun(error.message) from error
        assert row is not None, f"call {call.id} waits, and is not on disk"
        return row.body

    async def _put_back(self, call: _Call) -> None:
        try:
            await self.store.put_back(call.id)
        except errors.SkerryError as error:
            # It waits all the same; only if we die before its turn, it counts as interrupted.
            log.warning("call.not_put_back", id=call.id, error=error.message)
        call.state = CallState.QUEUED
        self._turns.add(call.line, call)

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
            self._pause = asyncio.get_running_loop().call_later(seconds, self._go_on)

    def _go_on(self) -> None:
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


async def _wait_for_end(call: _Call, within_s: float) -> None:
    call.ended = call.ended or asyncio.Event()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await call.ended.wait()
