"""The agent's end of the socket to a worker: calls go out, answers come back in any order.

This is the warm path: one system call each way, no task, no timer and no JSON of its own for a call. What is
at the other end is the function's to ruin, so whatever is not exactly an answer that somebody waits for ends
the conversation, and only this one. Why a worker ended is found out by whoever started it (`explain`);
nothing here starts or kills a process.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from skerry.kit.clock import Clock
from skerry.model.calls import CallFailure, CallResult, CodeLoadError, WorkerExited
from skerry.node.workers import worker_frames

_FEW: Final = 64 * 1024  # nearly every answer; asking for more costs more, even if it is not there
_MANY: Final = 1024 * 1024
_LOADING: Final = 0  # the number of no call
HUNG_UP: Final = "its worker ended in the middle of it"
_LEFT_BEHIND: Final = "its worker was ended because of a call before it that did not end in its time"
_EARLY_S: Final = 0.001  # the loop's timers know no less
_HEAD: Final = worker_frames.HEADER.size
_BEFORE_OUTPUT: Final = _HEAD + worker_frames.OUTCOME.size
_RESULT_HEAD: Final = struct.Struct(
    worker_frames.HEADER.format + worker_frames.OUTCOME.format.removeprefix("<")
)
_FAILURES: Final = {
    worker_frames.OK: None,
    worker_frames.RAISED: CallFailure.HANDLER,
    worker_frames.UNREPRESENTABLE: CallFailure.RESULT,
    worker_frames.TOO_LARGE: CallFailure.RESULT,
}

ExplainExit = Callable[[WorkerExited], Awaitable[WorkerExited]]
PrintedSince = Callable[[float], str]


class _Loaded(msgspec.Struct):
    runtime: str


class _Failed(msgspec.Struct):
    error: str
    output: str = ""


class _Garbled(ValueError):
    """What came is nothing that a worker says."""


class LoadRequest(msgspec.Struct, frozen=True):
    """What a worker is told to load, once, before its first call."""

    handler: str
    folder: str  # as the worker sees it
    environment: dict[str, str]  # all of it: nothing is inherited
    context: dict[str, Any]  # what every call's handler gets a copy of
    max_result_bytes: int
    max_output_bytes: int
    max_concurrency: int = 1
    is_program: bool = False  # the code holds an executable, and `handler` says nothing


class WorkerChannel:
    """Calls to one worker; owns the socket and needs a running loop."""

    def __init__(
        self,
        end: socket.socket,
        clock: Clock,
        *,
        on_end: Callable[[], None],
        explain: ExplainExit,
        printed: PrintedSince,
    ) -> None:
        """`on_end` is called once, from the loop, when no call will be answered any more, unless `close` came
        first. `explain` makes of what is known here, that the socket closed, what really happened; `printed`
        is what a call that began at a time has printed, for one that cannot say it itself."""
        end.setblocking(False)
        self._end = end
        self._on_end = on_end
        self._explain = explain
        self._printed = printed
        self._now = clock.now
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(_LOADING + 1)
        # By number: the answer, and when it must be there.
        self._calls: dict[int, tuple[asyncio.Future[CallResult], float]] = {}
        self._abandoned: set[int] = set()  # nobody waits any more, but the answer may still come
        self._loading: asyncio.Future[str] | None = None
        self._most = (
            worker_frames.MAX_ERROR_BYTES
        )  # a worker has nothing to say that is longer, until it has loaded
        self._received = bytearray()  # the beginning of a frame
        self._unsent = bytearray()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._why = ""  # not empty: it is over
        self.is_alive = True  # it would answer one more call
        self.runtime = ""  # what really runs, once it is loaded
        self._loop.add_reader(end, self._hear)

    @property
    def in_flight(self) -> int:
        """Calls that somebody waits for."""
        return len(self._calls)

    async def load(self, what: LoadRequest, *, within_s: float) -> str:
        """Have the worker load its function: what really runs then. Raises CodeLoadError."""
        self._most = worker_frames.bound(what.max_result_bytes, what.max_output_bytes)
        self._loading = self._loop.create_future()
        if self._why:
            self._loading.set_exception(WorkerExited(CallFailure.DIED, self._why))
        self._send(worker_frames.pack(worker_frames.LOAD, _LOADING, msgspec.json.encode(what)))
        try:
            async with asyncio.timeout(within_s):
                self.runtime = await self._loading
        except TimeoutError:
            raise CodeLoadError(
                f"{what.handler!r} was not loaded within {within_s:g} s; do less when the module is imported"
            ) from None
        except WorkerExited as gone:
            gone = await self._explain(gone)
            raise CodeLoadError(f"loading {what.handler!r}: {gone.error}", output=gone.output) from None
        return self.runtime

    async def call(self, params: bytes, *, wants_output: bool, within_s: float) -> CallResult:
        """What the handler says to `params`, or that it did not within `within_s`. Raises WorkerExited.

        A call that is not waited for, because its time was over or the caller was cancelled, goes on in the
        worker: no other is taken after that, and the conversation is over once the ones beside it have ended.
        """
        if not self.is_alive:
            raise await self._explain(
                WorkerExited(CallFailure.DIED, self._why or "its worker takes no more calls")
            )
        number, began = next(self._numbers), self._now()
        answer: asyncio.Future[CallResult] = self._loop.create_future()
        until = self._loop.time() + within_s
        self._calls[number] = answer, until
        if until < self._alarm_at:
            self._set_alarm(until)
        self._send(
            worker_frames.HEADER.pack(len(params) + 1, worker_frames.CALL, number)
            + (b"\1" if wants_output else b"\0")
            + params
        )
        try:
            return await answer
        except TimeoutError:
            error = f"the call did not end within {within_s:g} s"
            return CallResult(within_s, b"", self._printed(began), CallFailure.TIMEOUT, error)
        except WorkerExited as gone:
            why = await self._explain(gone)
            raise WorkerExited(why.failure, why.error, self._printed(began)) from None
        except asyncio.CancelledError:
            self._abandon(number)
            raise

    def close(self) -> None:
        """Let go of the worker, which ends by that if it can; calls in it raise WorkerExited."""
        self._finish("its worker was ended in the middle of it", tells=False)

    # What is said

    def _send(self, frame: bytes) -> None:
        if self._why:
            return
        if not self._unsent:
            try:
                sent = self._end.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._loop.call_soon(self._hear)  # the other end is gone; what it said before comes first
                return
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._loop.add_writer(self._end, self._send_rest)
        self._unsent += frame

    def _send_rest(self) -> None:
        try:
            sent = self._end.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._end)

    # What is heard

    def _hear(self) -> None:
        # While there are more calls, until there is no more to hear: that a worker died with calls unread is
        # an error of the socket, after which libuv looks at it no more, whatever is still to be read.
        while self._hear_some() and self._calls:
            pass

    def _hear_some(self) -> bool:
        """False if there was nothing, or it is over."""
        try:
            data = self._end.recv(_MANY if self._received else _FEW)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._finish(HUNG_UP)
            return False
        try:
            if self._received or not self._is_whole_result(data):
                self._received += data
                self._take_frames()
        except (_Garbled, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._finish(f"its worker said what is no answer ({error}); leave the platform's socket alone")
        else:
            if not self.is_alive and not self._calls:
                self._finish(_LEFT_BEHIND)
        return not self._why

    def _is_whole_result(self, data: bytes) -> bool:
        """Take `data` as the one answer that it nearly always is."""
        if len(data) < _BEFORE_OUTPUT:
            return False
        length, kind, number, outcome, duration, printed = _RESULT_HEAD.unpack_from(data)
        if kind != worker_frames.RESULT or length != len(data) - _HEAD or length > self._most:
            return False
        self._answer(number, outcome, duration, printed, data[_BEFORE_OUTPUT:])
        return True

    def _take_frames(self) -> None:
        while len(self._received) >= _HEAD:
            length, kind, number = worker_frames.HEADER.unpack_from(self._received)
            if length > self._most:
                raise _Garbled(f"a frame of {length} bytes, where {self._most} are the most")
            if len(self._received) < _HEAD + length:
                return
            payload = bytes(memoryview(self._received)[_HEAD : _HEAD + length])
            del self._received[: _HEAD + length]
            self._take(kind, number, payload)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == worker_frames.RESULT and len(payload) >= worker_frames.OUTCOME.size:
            outcome, duration, printed = worker_frames.OUTCOME.unpack_from(payload)
            self._answer(number, outcome, duration, printed, payload[worker_frames.OUTCOME.size :])
            return
        loading = self._loading
        if loading is None or loading.done() or kind not in (worker_frames.LOADED, worker_frames.FAILED):
            raise _Garbled(f"kind {kind}, {len(payload)} bytes")
        if kind == worker_frames.LOADED:
            loading.set_result(msgspec.json.decode(payload, type=_Loaded).runtime)
        else:
            failed = msgspec.json.decode(payload, type=_Failed)
            loading.set_exception(CodeLoadError(failed.error, output=failed.output))

    def _answer(self, number: int, outcome: int, duration: float, printed: int, rest: bytes) -> None:
        waiting = self._calls.pop(number, None)
        if waiting is None:
            if number not in self._abandoned:
                raise _Garbled(f"an answer to call {number}, which was not asked")
            self._abandoned.discard(number)
            return
        answer = waiting[0]
        if answer.done():
            return  # its caller was cancelled in this moment
        if outcome not in _FAILURES or printed > len(rest) or not 0.0 <= duration < math.inf:
            self._calls[number] = waiting
            raise _Garbled(f"outcome {outcome}, {duration} s, {printed} of {len(rest)} bytes printed")
        if outcome == worker_frames.OK and not printed:
            answer.set_result(CallResult(duration, rest))
            return
        output, text = rest[:printed].decode("utf-8", "replace"), rest[printed:]
        if outcome == worker_frames.OK:
            answer.set_result(CallResult(duration, text, output))
        else:
            error = text.decode("utf-8", "replace")
            answer.set_result(CallResult(duration, b"", output, _FAILURES[outcome], error))

    # What ends

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._ring)
        self._alarm_at = at

    def _ring(self) -> None:
        """End what has had its time. Rings once for many calls, of which most have long been answered."""
        now = self._loop.time() + _EARLY_S
        self._alarm, self._alarm_at = None, math.inf
        for number, (answer, until) in list(self._calls.items()):
            if until <= now and not answer.done():
                answer.set_exception(TimeoutError())
                self._abandon(number)
        if self._calls:
            self._set_alarm(min(until for _, until in self._calls.values()))

    def _abandon(self, number: int) -> None:
        if self._calls.pop(number, None) is None:
            return  # it has been answered, or all is over
        self.is_alive = False
        self._abandoned.add(number)
        self._send(worker_frames.pack(worker_frames.CANCEL, number, b""))
        if not self._calls:
            self._finish(_LEFT_BEHIND)

    def _finish(self, why: str, *, tells: bool = True) -> None:
        if self._why:
            return
        self._why = why
        self.is_alive = False
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        if self._alarm is not None:
            self._alarm.cancel()
        waiting: list[asyncio.Future[Any]] = [answer for answer, _ in self._calls.values()]
        self._calls.clear()
        if self._loading is not None:
            waiting.append(self._loading)
        for future in waiting:
            if not future.done():
                future.set_exception(WorkerExited(CallFailure.DIED, why))
        if tells:
            self._on_end()
