"""The agent's end of the socket to a worker: sends calls, receives results in any order.

This is the warm path: one system call each way, no task, no timer and no JSON of its own per call. The other
end is under the function's control, so anything but a valid reply to a pending call ends this connection, and
only this one. The creator of the worker explains its end (`explain`); nothing here starts or kills a process.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from skerry.kit.clock import Clock
from skerry.kit.response_stream import ResponseStream, StreamOverrun
from skerry.model import web_calls
from skerry.model.calls import CallFailure, CallResult, CallWaiter, CodeLoadError, WorkerExited
from skerry.model.web_calls import WebResponseHead
from skerry.node.workers import worker_frames

_SMALL_READ: Final = 64 * 1024  # enough for nearly every reply; a larger buffer costs more
_LARGE_READ: Final = 1024 * 1024
_LOADING: Final = 0  # the number of no call
SOCKET_CLOSED: Final = "its worker ended in the middle of it"
_EARLIER_TIMEOUT: Final = "its worker was ended because an earlier call timed out"
_EARLY_S: Final = 0.001  # the resolution of the loop's timers
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
    used_s: float = 0.0
    is_copy: bool = False


class _Failed(msgspec.Struct):
    error: str
    output: str = ""


class _InvalidFrame(ValueError):
    """An invalid frame."""


class LoadRequest(msgspec.Struct, frozen=True):
    """What a worker loads, once, before its first call."""

    handler: str
    folder: str  # in the worker
    environment: dict[str, str]  # all of it: nothing is inherited
    context: dict[str, Any]  # copied for every call's handler
    max_result_bytes: int
    max_output_bytes: int
    max_concurrency: int = 1
    is_program: bool = False  # the code contains an executable, and `handler` is unused
    is_web: bool = False  # the handler takes HTTP requests
    makes_template: bool = False  # of the file that comes with it, and then ends


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
        """`on_end` is called once, from the loop, when no more calls will be answered, unless `close` came
        first. `explain` turns a closed socket into the actual reason; `printed` returns the output of a call
        since its start, for one that ended without a reply."""
        end.setblocking(False)
        self._end = end
        self._on_end = on_end
        self._explain = explain
        self._printed = printed
        self._now = clock.now
        self._loop = asyncio.get_running_loop()
        self._newest = _LOADING  # the number of the last call
        self._calls: dict[int, tuple[CallWaiter, float]] = {}  # by number, with its deadline
        self._streams: dict[int, ResponseStream[WebResponseHead]] = {}  # of calls that are HTTP requests
        self._abandoned: set[int] = set()  # without a waiter, but the reply may still arrive
        self._loading: asyncio.Future[str] | None = None
        self._most = worker_frames.MAX_ERROR_BYTES  # no longer frame is valid before it has loaded
        self._received = bytearray()  # the beginning of a frame
        self._unsent = bytearray()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._end_reason = ""  # not empty: it is over
        self.is_alive = True  # it accepts another call
        self.runtime = ""  # the runtime's version, once it is loaded
        self.load_s = 0.0  # of processor time
        self.is_copy = False  # of a template
        self._loop.add_reader(end, self._read)

    @property
    def in_flight(self) -> int:
        """Pending calls."""
        return len(self._calls)

    async def load(self, request: LoadRequest, *, within_s: float, image: int | None = None) -> str:
        """Load the function, with the file of a template if there is one; returns the runtime's version.
        Raises CodeLoadError."""
        self._most = worker_frames.bound(request.max_result_bytes, request.max_output_bytes)
        self._loading = self._loop.create_future()
        if self._end_reason:
            self._loading.set_exception(WorkerExited(CallFailure.DIED, self._end_reason))
        frame = worker_frames.pack(worker_frames.LOAD, _LOADING, msgspec.json.encode(request))
        self._send(frame if image is None else self._send_with(frame, image))
        try:
            async with asyncio.timeout(within_s):
                self.runtime = await self._loading
        except TimeoutError:
            raise CodeLoadError(
                f"{request.handler!r} was not loaded within {within_s:g} s; do less at import"
            ) from None
        except WorkerExited as exited:
            exited = await self._explain(exited)
            raise CodeLoadError(
                f"loading {request.handler!r}: {exited.error}", output=exited.output
            ) from None
        return self.runtime

    async def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> CallResult:
        """The result of the handler for `params`, or a timeout after `within_s`. Raises WorkerExited.

        A call without a waiter, because of its timeout or a cancellation, goes on in the worker: no other
        call is accepted after that, and the connection ends once the concurrent ones have ended.
        """
        if not self.is_alive:
            raise await self._explain(
                WorkerExited(CallFailure.DIED, self._end_reason or "its worker takes no more calls")
            )
        began, result = self._now(), self._loop.create_future()
        number = self.begin_call(
            params, wants_output=wants_output, within_s=within_s, waiter=result, traceparent=traceparent
        )
        try:
            answer: CallResult = await result
        except (TimeoutError, WorkerExited) as error:
            return await self.explain_end(error, began=began, within_s=within_s)
        except asyncio.CancelledError:
            self.abandon(number)
            raise
        return answer

    def begin_call(
        self, params: bytes, *, wants_output: bool, within_s: float, waiter: CallWaiter, traceparent: str = ""
    ) -> int:
        """Send a call whose result goes to `waiter`, from the loop; it must be alive. Returns its number."""
        number = self._newest = self._newest + 1
        until = self._loop.time() + within_s
        self._calls[number] = waiter, until
        if until < self._alarm_at:
            self._set_timer(until)
        flags = b"\1" if wants_output else b"\0"
        if traceparent:
            flags = bytes([flags[0] | worker_frames.TRACED]) + traceparent.encode()
        self._send(
            worker_frames.HEADER.pack(len(params) + len(flags), worker_frames.CALL, number) + flags + params
        )
        return number

    async def explain_end(self, error: Exception, *, began: float, within_s: float) -> CallResult:
        """The result of a call that a waiter was told has timed out; raises WorkerExited with the cause."""
        if isinstance(error, WorkerExited):
            explained = await self._explain(error)
            raise WorkerExited(explained.failure, explained.error, self._printed(began)) from None
        text = f"the call did not end within {within_s:g} s"
        return CallResult(within_s, b"", self._printed(began), CallFailure.TIMEOUT, text)

    async def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> CallResult:
        """The same for an HTTP request, whose response goes to `response` as it comes; the result is empty.

        A reader that leaves is reported to the worker, which may then end the call at once and go on.
        """
        if not self.is_alive:
            raise await self._explain(
                WorkerExited(CallFailure.DIED, self._end_reason or "its worker takes no more calls")
            )
        number = self._newest = self._newest + 1
        began = self._now()
        result: asyncio.Future[CallResult] = self._loop.create_future()
        until = self._loop.time() + within_s
        self._calls[number] = result, until
        self._streams[number] = response
        if until < self._alarm_at:
            self._set_timer(until)
        self._send(worker_frames.pack(worker_frames.WEB_CALL, number, request))
        response.attach(lambda count: self._grant(number, count), lambda: self._cancel_softly(number))
        try:
            return await result
        except web_calls.InvalidResponse as invalid:
            return CallResult(self._now() - began, failure=CallFailure.RESULT, error=str(invalid))
        except (TimeoutError, WorkerExited) as error:
            return await self.explain_end(error, began=began, within_s=within_s)
        except asyncio.CancelledError:
            self.abandon(number)
            raise
        finally:
            self._streams.pop(number, None)

    def _grant(self, number: int, count: int) -> None:
        if number in self._streams:
            self._send(worker_frames.pack(worker_frames.GRANT, number, worker_frames.LENGTH.pack(count)))

    def _cancel_softly(self, number: int) -> None:
        """Its reader has left; the worker may end it in order."""
        if number in self._streams:
            self._send(worker_frames.pack(worker_frames.CANCEL, number, b""))

    def close(self) -> None:
        """Disconnect from the worker, which ends then if it can; its calls raise WorkerExited."""
        self._finish("its worker was ended in the middle of it", notifies=False)

    # Sending

    def _send_with(self, frame: bytes, descriptor: int) -> bytes:
        """Send the beginning of the first frame with a descriptor; returns the rest."""
        try:
            return frame[socket.send_fds(self._end, [frame], [descriptor]) :]
        except OSError:
            return frame  # the other end is gone, which is found again

    def _send(self, frame: bytes) -> None:
        if self._end_reason or not frame:
            return
        if not self._unsent:
            try:
                sent = self._end.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._loop.call_soon(self._read)  # the other end is gone; its last frames come first
                return
            if sent == len(frame):
                return
            frame = frame[sent:]
            self._loop.add_writer(self._end, self._send_remaining)
        self._unsent += frame

    def _send_remaining(self) -> None:
        try:
            sent = self._end.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._end)

    # Receiving

    def _read(self) -> None:
        # Until no reply can be left to a call that was sent before: if a worker died with unread calls, the
        # socket has an error, after which libuv does not poll it any more, whatever is still to be read. A
        # call that is sent in return for a reply has none yet.
        newest = self._newest
        while self._read_some() and self._calls and next(iter(self._calls)) <= newest:
            pass

    def _read_some(self) -> bool:
        """False if there was nothing, or it is over."""
        try:
            data = self._end.recv(_LARGE_READ if self._received else _SMALL_READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._finish(SOCKET_CLOSED)
            return False
        try:
            if self._received or not self._is_whole_result(data):
                self._received += data
                self._take_frames()
        except (_InvalidFrame, msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._finish(f"its worker sent an invalid reply ({error}); do not use the platform's socket")
        else:
            if not self.is_alive and not self._calls:
                self._finish(_EARLIER_TIMEOUT)
        return not self._end_reason

    def _is_whole_result(self, data: bytes) -> bool:
        """Handle `data` as a single complete reply, which it nearly always is."""
        if len(data) < _BEFORE_OUTPUT:
            return False
        length, kind, number, outcome, duration, printed = _RESULT_HEAD.unpack_from(data)
        if kind != worker_frames.RESULT or length != len(data) - _HEAD or length > self._most:
            return False
        self._set_result(number, outcome, duration, printed, data[_BEFORE_OUTPUT:])
        return True

    def _take_frames(self) -> None:
        while len(self._received) >= _HEAD:
            length, kind, number = worker_frames.HEADER.unpack_from(self._received)
            if length > self._most:
                raise _InvalidFrame(f"a frame of {length} bytes, where {self._most} are the most")
            if len(self._received) < _HEAD + length:
                return
            payload = bytes(memoryview(self._received)[_HEAD : _HEAD + length])
            del self._received[: _HEAD + length]
            self._take(kind, number, payload)

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if kind == worker_frames.RESULT and len(payload) >= worker_frames.OUTCOME.size:
            outcome, duration, printed = worker_frames.OUTCOME.unpack_from(payload)
            self._set_result(number, outcome, duration, printed, payload[worker_frames.OUTCOME.size :])
            return
        if kind in (worker_frames.WEB_HEAD, worker_frames.WEB_BODY):
            self._take_web(kind, number, payload)
            return
        loading = self._loading
        if loading is None or loading.done() or kind not in (worker_frames.LOADED, worker_frames.FAILED):
            raise _InvalidFrame(f"kind {kind}, {len(payload)} bytes")
        if kind == worker_frames.LOADED:
            loaded = msgspec.json.decode(payload, type=_Loaded)
            self.load_s, self.is_copy = loaded.used_s, loaded.is_copy
            loading.set_result(loaded.runtime)
        else:
            failed = msgspec.json.decode(payload, type=_Failed)
            loading.set_exception(CodeLoadError(failed.error, output=failed.output))

    def _take_web(self, kind: int, number: int, payload: bytes) -> None:
        waiting, response = self._calls.get(number), self._streams.get(number)
        if waiting is None or response is None:
            if number not in self._abandoned:
                raise _InvalidFrame(f"a response to call {number}, which was not asked")
            return
        try:
            if kind == worker_frames.WEB_HEAD:
                response.begin(web_calls.decode_response(payload))
            else:
                response.write(payload)
        except StreamOverrun as error:
            raise _InvalidFrame(str(error)) from None
        except web_calls.InvalidResponse as error:
            if not waiting[0].done():
                waiting[0].set_exception(error)
            self.abandon(number)  # the handler may go on for long

    def _set_result(self, number: int, outcome: int, duration: float, printed: int, payload: bytes) -> None:
        waiting = self._calls.pop(number, None)
        if waiting is None:
            if number not in self._abandoned:
                raise _InvalidFrame(f"an answer to call {number}, which was not asked")
            self._abandoned.discard(number)
            return
        result = waiting[0]
        if result.done():
            return  # its caller was cancelled just now
        if outcome not in _FAILURES or printed > len(payload) or not 0.0 <= duration < math.inf:
            self._calls[number] = waiting
            raise _InvalidFrame(f"outcome {outcome}, {duration} s, {printed} of {len(payload)} bytes printed")
        if outcome == worker_frames.OK and not printed:
            result.set_result(CallResult(duration, payload))
            return
        output, text = payload[:printed].decode("utf-8", "replace"), payload[printed:]
        if outcome == worker_frames.OK:
            result.set_result(CallResult(duration, text, output))
        else:
            error = text.decode("utf-8", "replace")
            result.set_result(CallResult(duration, b"", output, _FAILURES[outcome], error))

    # The end

    def _set_timer(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(at, self._expire_calls)
        self._alarm_at = at

    def _expire_calls(self) -> None:
        """End calls that timed out. One timer serves many calls, most of which were answered long before."""
        now = self._loop.time() + _EARLY_S
        self._alarm, self._alarm_at = None, math.inf
        for number, (result, until) in list(self._calls.items()):
            if until <= now and not result.done():
                result.set_exception(TimeoutError())
                self.abandon(number)
        if self._calls:
            self._set_timer(min(until for _, until in self._calls.values()))

    def abandon(self, number: int) -> None:
        """Nobody waits for this call any more."""
        if self._calls.pop(number, None) is None:
            return  # it was answered, or all is over
        self.is_alive = False
        self._abandoned.add(number)
        self._send(worker_frames.pack(worker_frames.CANCEL, number, b""))
        if not self._calls:
            self._finish(_EARLIER_TIMEOUT)

    def _finish(self, reason: str, *, notifies: bool = True) -> None:
        if self._end_reason:
            return
        self._end_reason = reason
        self.is_alive = False
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        if self._alarm is not None:
            self._alarm.cancel()
        waiters = [waiter for waiter, _ in self._calls.values()]
        self._calls.clear()
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(WorkerExited(CallFailure.DIED, reason))
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(WorkerExited(CallFailure.DIED, reason))
        if notifies:
            self._on_end()
