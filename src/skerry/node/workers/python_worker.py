"""The program in a Python worker: loads a function and handles its calls until the socket closes.

It is imported into a zygote and forked, or run in an interpreter of its own, with the standard library only;
importing it has no effects. `main` never returns. A handler may change its own process, but nothing passes
between calls through this program: each has its own context, parameters and output, and processes that it
leaves are killed (`python_leftovers`).

With one call at a time it runs in the main thread, as in a script. With several each has a thread; coroutines
run in one event loop for the life of the worker, so that connections can be kept. Calls of web functions
(`python_web`) have threads too, while the main thread reads what the agent says of their responses.
"""

from __future__ import annotations

import contextvars
import gc
import inspect
import json
import os
import queue
import site
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from skerry.node.workers import (
    python_executables,
    python_handlers,
    python_output,
    python_template,
    worker_frames,
)
from skerry.node.workers.python_leftovers import LeftoverProcesses
from skerry.node.workers.python_web import WebHandler, call_with_params
from skerry.node.workers.python_web_call import ClientGone, ResponseSender, decode_request

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

_AT_ONCE: Final = 64 * 1024
_JSON_TYPES: Final = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_Frame = tuple[int, int, bytes]  # kind, call, payload
_decode = json.JSONDecoder().decode


def main(socket_fd: int) -> NoReturn:
    """Serve the agent at the other end of `socket_fd`, which this program owns from now on."""
    status = 1
    try:
        end = socket.socket(fileno=socket_fd)
        end.set_inheritable(False)
        end.setblocking(True)
        data, image = python_template.receive_first(end, _AT_ONCE)
        frames = _frames(end, data)
        first = next(frames, None)
        if first is not None and first[0] == worker_frames.LOAD:
            _serve(end, frames, json.loads(first[2]), image)
        status = 0
    except OSError:
        pass  # the agent is gone, or the function has closed the socket
    finally:
        os._exit(status)


def _serve(
    end: socket.socket, frames: Iterator[_Frame], load: dict[str, Any], image: int | None = None
) -> None:
    """`image` is the file of a template, to be made or to be restored."""
    output = python_output.CallOutput(load["max_output_bytes"])
    if image is not None and not load["makes_template"]:
        python_template.try_restore(image, load["folder"])
        image = None
    _set_up_interpreter(load)
    before = None if image is None else python_template.ProcessState.read()
    used_s = time.process_time()
    is_copy = False
    try:
        context = contextvars.copy_context()
        context.run(python_output.current.set, output)
        handler: python_handlers.Handler | WebHandler
        if load["is_program"]:
            handler = context.run(python_executables.load, load["folder"])
        elif load["is_web"]:
            found = context.run(python_handlers.find, load["handler"], load["folder"])
            handler = WebHandler(found, load["handler"])
        else:
            handler = context.run(python_handlers.load, load["handler"], load["folder"])
        used_s = time.process_time() - used_s
        if image is not None and before is not None:
            output.end()
            is_copy = python_template.make(image, before)
            if not is_copy:
                _report_loaded(end, load, used_s, is_copy=False)
                return
        calls = HandlerCalls(end, handler, load)
        context.run(calls.start)
    except BaseException as error:  # noqa: BLE001 - whatever the function's module does when it is imported
        message = python_handlers.explain(error).decode()
        failed = {"error": message, "output": output.end().decode("utf-8", "replace")}
        end.sendall(worker_frames.pack(worker_frames.FAILED, 0, json.dumps(failed).encode()))
        return
    output.end()
    calls.watch_leftovers()
    gc.freeze()  # existing objects stay, and are not collected
    _report_loaded(end, load, used_s, is_copy=is_copy)
    if load["max_concurrency"] == 1 and not load["is_web"]:
        calls.serve_sequentially(frames)
    else:
        calls.serve_concurrently(frames, load["max_concurrency"])


def _report_loaded(end: socket.socket, load: dict[str, Any], used_s: float, *, is_copy: bool) -> None:
    runs = "a program of its own" if load["is_program"] else f"Python {sys.version.partition(' ')[0]}"
    loaded = {"runtime": runs, "used_s": used_s, "is_copy": is_copy}
    end.sendall(worker_frames.pack(worker_frames.LOADED, 0, json.dumps(loaded).encode()))


def _set_up_interpreter(load: dict[str, Any]) -> None:
    """Turn the fork into an interpreter for the function."""
    environment = load["environment"]
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.chdir(load["folder"])
    sys.argv = [load["handler"]]
    sys.dont_write_bytecode = True  # the code is read-only
    sys.set_int_max_str_digits(0)  # numbers of any size; the time counts for the function
    site.setquit()  # a bare interpreter lacks `exit` and `quit`
    if "random" in sys.modules:
        sys.modules["random"].seed()  # else every fork would have the same seed
    python_output.install()


def _frames(end: socket.socket, data: bytes = b"") -> Iterator[_Frame]:
    """Frames from the agent, the first of which begins with `data`, until it closes the socket."""
    receive, header, unpack = end.recv, worker_frames.HEADER.size, worker_frames.HEADER.unpack_from
    while True:
        while len(data) < header:
            more = receive(_AT_ONCE)
            if not more:
                return
            data += more
        length, kind, number = unpack(data)
        whole = header + length
        if len(data) < whole:
            parts = bytearray(data)
            while len(parts) < whole:
                more = receive(min(whole - len(parts), _AT_ONCE))
                if not more:
                    return
                parts += more
            data = bytes(parts)
        yield kind, number, data[header:whole]
        data = data[whole:]


class HandlerCalls:
    """Runs the handler for the agent's calls."""

    def __init__(
        self, end: socket.socket, handler: python_handlers.Handler | WebHandler, load: dict[str, Any]
    ) -> None:
        self._end = end
        self._web = handler if isinstance(handler, WebHandler) else None
        self._handler = self._respond_to_params if isinstance(handler, WebHandler) else handler
        self._responses: dict[int, ResponseSender] = {}  # by call
        self._context: dict[str, Any] = load["context"]
        self._most_result: int = load["max_result_bytes"]
        self._most_output: int = load["max_output_bytes"]
        self._base = contextvars.copy_context()
        self._is_fork = False  # of a worker, made by the function: not connected to the agent
        self._sending = threading.Lock()
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_shared = self._web is not None  # the loop, by calls in several threads
        self._awaited: dict[int, concurrent.futures.Future[Any]] = {}
        self._cancelled: set[int] = set()
        self._leftovers: LeftoverProcesses
        self._running = 0  # calls in progress, where there may be several
        self._counting = threading.Lock()
        os.register_at_fork(after_in_child=self._become_fork)

    def watch_leftovers(self) -> None:
        """The function is loaded: processes that are started from now on are of calls."""
        self._leftovers = LeftoverProcesses()

    def start(self) -> None:
        """Before the first call. Raises what the function raises."""
        if self._web is not None:
            self._web.start(lambda coroutine: self._await(0, coroutine))

    def serve_sequentially(self, frames: Iterator[_Frame]) -> None:
        _start_threads_in_context()
        send, run, kill_leftovers = self._end.sendall, self._run, self._leftovers.kill
        for kind, number, payload in frames:
            if kind == worker_frames.CALL:
                kill_leftovers()  # a thread may have started some since
                send(run(number, payload))
                kill_leftovers()

    def serve_concurrently(self, frames: Iterator[_Frame], most: int) -> None:
        self._is_shared = True
        pending: queue.SimpleQueue[_Frame] = queue.SimpleQueue()
        idle = threading.Semaphore(0)

        def work() -> None:
            while True:
                kind, number, payload = pending.get()
                if kind == worker_frames.WEB_CALL:
                    reply = self._run_web(number, payload)
                else:
                    reply = b"" if number in self._cancelled else self._run(number, payload)
                self._end_call()  # first: the agent may send the next call as soon as it has the reply
                if kind == worker_frames.WEB_CALL:
                    self._send_frames(reply)
                elif reply:
                    self._send_reply(number, reply)
                self._cancelled.discard(number)
                idle.release()

        threads = 0
        for kind, number, payload in frames:
            if kind == worker_frames.CANCEL:
                self._cancel(number)
            elif kind == worker_frames.GRANT:
                if (response := self._responses.get(number)) is not None:
                    response.grant(*worker_frames.LENGTH.unpack(payload))
            elif kind in (worker_frames.CALL, worker_frames.WEB_CALL):
                if kind == worker_frames.WEB_CALL:
                    self._responses[number] = ResponseSender(number, self._send_frames)
                self._begin_call()
                pending.put((kind, number, payload))
                if threads < most and not idle.acquire(blocking=False):
                    threading.Thread(target=work, name=f"call-{threads}", daemon=True).start()
                    threads += 1

    def _begin_call(self) -> None:
        """One of several. The first kills what threads have started since the last one ended."""
        with self._counting:
            if not self._running:
                self._leftovers.kill()
            self._running += 1

    def _end_call(self) -> None:
        """One of several. The last kills what they have left, and no other begins meanwhile."""
        with self._counting:
            self._running -= 1
            if not self._running:
                self._leftovers.kill()

    def _send_reply(self, number: int, frame: bytes) -> None:
        try:
            with self._sending:
                if number not in self._cancelled:
                    self._end.sendall(frame)
        except OSError:
            os._exit(1)  # as the main thread does, which waits for the agent

    def _send_frames(self, frames: bytes) -> None:
        if self._is_fork:
            return  # the worker itself answers
        try:
            with self._sending:
                self._end.sendall(frames)
        except OSError:
            os._exit(1)

    def _cancel(self, number: int) -> None:
        if (response := self._responses.get(number)) is not None:
            response.cancel()
        else:
            self._cancelled.add(number)
        awaited = self._awaited.get(number)
        if awaited is not None:
            awaited.cancel()

    def _become_fork(self) -> None:
        self._is_fork = True
        self._end.close()  # else the agent would not notice the worker's end

    def _run(self, number: int, payload: bytes) -> bytes:
        """The reply to a call, as a frame."""
        output = python_output.CallOutput(self._most_output)
        outcome, duration, body = self._base.copy().run(self._handle, number, payload, output)
        printed = output.end()
        if outcome == worker_frames.OK and not payload[0] & worker_frames.WANTS_OUTPUT:
            printed = b""
        length = worker_frames.OUTCOME.size + len(printed) + len(body)
        head = worker_frames.HEADER.pack(length, worker_frames.RESULT, number)
        return head + worker_frames.OUTCOME.pack(outcome, duration, len(printed)) + printed + body

    def _run_web(self, number: int, payload: bytes) -> bytes:
        """Answer an HTTP request; returns the last frames of that."""
        output, response = python_output.CallOutput(self._most_output), self._responses[number]
        outcome, duration, error = self._base.copy().run(self._handle_web, number, payload, output, response)
        pending = b"" if outcome != worker_frames.OK else response.take_pending()
        output.end()
        del self._responses[number]
        head = worker_frames.OUTCOME.pack(outcome, duration, 0)
        return pending + worker_frames.pack(worker_frames.RESULT, number, head + error)

    def _handle_web(
        self, number: int, payload: bytes, output: python_output.CallOutput, response: ResponseSender
    ) -> tuple[int, float, bytes]:
        assert self._web is not None
        python_output.current.set(output)
        begun = time.perf_counter()
        outcome, text = worker_frames.OK, b""
        try:
            request = decode_request(payload, self._context.copy())
            begun = time.perf_counter()
            self._web.respond(request, response, lambda coroutine: self._await(number, coroutine))
        except BaseException as error:  # noqa: BLE001 - whatever the function does; the worker goes on
            if self._is_fork:
                _leave(output, error)
            if isinstance(error, python_handlers.Unrepresentable):
                outcome, text = worker_frames.UNREPRESENTABLE, str(error).encode("utf-8", "replace")
            else:
                outcome, text = worker_frames.RAISED, python_handlers.explain(error)
            if not isinstance(error, ClientGone):
                output.add(2, text + b"\n")  # nobody but the logs gets it
            if response.is_cancelled:
                outcome, text = worker_frames.OK, b""
        if self._is_fork:
            _leave(output, None)
        return outcome, time.perf_counter() - begun, text

    def _respond_to_params(self, params: Any, context: dict[str, Any]) -> Any:
        """A call of a web function that is no HTTP request."""
        assert self._web is not None
        return call_with_params(
            self._web, params, context, lambda coroutine: self._await(-id(coroutine), coroutine)
        )

    def _handle(
        self, number: int, payload: bytes, output: python_output.CallOutput
    ) -> tuple[int, float, bytes]:
        python_output.current.set(output)
        begun = time.perf_counter()
        try:
            context = self._context.copy()
            if payload[0] & worker_frames.TRACED:
                start = 1 + worker_frames.TRACEPARENT_BYTES
                context["traceparent"] = payload[1:start].decode()
                params = _decode(payload[start:].decode())
            else:
                params = _decode(payload[1:].decode())
            begun = time.perf_counter()
            value = self._handler(params, context)
            if type(value) not in _JSON_TYPES:
                value = self._final_value(number, value)
        except BaseException as error:  # noqa: BLE001 - whatever the function does; the worker goes on
            if self._is_fork:
                _leave(output, error)
            return worker_frames.RAISED, time.perf_counter() - begun, python_handlers.explain(error)
        if self._is_fork:
            _leave(output, None)
        duration = time.perf_counter() - begun
        try:
            result = python_handlers.to_json(value)
        except python_handlers.Unrepresentable as error:
            return worker_frames.UNREPRESENTABLE, duration, python_handlers.explain(error)
        if len(result) > self._most_result:
            text = (
                f"the handler returned {len(result)} bytes of JSON, and {self._most_result} are allowed; "
                "return less, or store it elsewhere and return where"
            )
            return worker_frames.TOO_LARGE, duration, text.encode()
        return worker_frames.OK, duration, result

    def _final_value(self, number: int, value: Any) -> Any:
        """The final value: awaited if it is awaitable, a list if it is a generator."""
        if inspect.isawaitable(value):
            value = self._await(number, value)
        if hasattr(value, "__anext__"):
            value = self._await(number, _collected(value))
        return list(value) if isinstance(value, Iterator) else value

    def _await(self, number: int, value: Any) -> Any:
        import asyncio

        loop = self._loop or self._make_loop()
        if not self._is_shared:
            result, error = loop.run_until_complete(_outcome(value))
        else:
            awaited = asyncio.run_coroutine_threadsafe(_outcome(value), loop)
            self._awaited[number] = awaited
            try:
                result, error = awaited.result()
            finally:
                del self._awaited[number]
        if error is not None:
            raise error
        return result

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                if self._is_shared:
                    threading.Thread(target=_run_for_ever, args=(loop,), name="loop", daemon=True).start()
                else:
                    asyncio.set_event_loop(loop)
                self._loop = loop
            return self._loop


async def _outcome(value: Any) -> tuple[Any, BaseException | None]:
    """The result of awaiting `value`. Returned, not raised: SystemExit would end the loop."""
    try:
        return await value, None
    except BaseException as error:  # noqa: BLE001 - raised again where it was awaited
        return None, error


async def _collected(value: Any) -> list[Any]:
    return [each async for each in value]


def _run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - a task that the function left behind wants to exit
            sys.stderr.write(python_handlers.explain(error).decode() + "\n")


def _start_threads_in_context() -> None:
    """Make a thread print into the output of the call that starts it.

    Only where calls run one at a time: with several, a thread that calls share would mix their output.
    """
    start = threading.Thread.start

    def start_in_context(thread: threading.Thread) -> None:
        run, context = thread.run, contextvars.copy_context()

        def run_in_context() -> None:
            del thread.run  # no reference cycle
            context.run(run)

        thread.run = run_in_context  # type: ignore[method-assign]  # of this one only
        start(thread)

    threading.Thread.start = start_in_context  # type: ignore[assignment,method-assign]  # what the words say


def _leave(output: python_output.CallOutput, error: BaseException | None) -> NoReturn:
    """End a process that the function has forked and that returned from the handler, as a script would."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        output.add(2, python_handlers.explain(error) + b"\n")
        code = 1
    output.end()
    os._exit(code & 0xFF)
