"""A worker with a loaded function: calls it, watches it, and ends it with its cell.

`worker_channel` talks to it, `process_workers` creates it. Here its end is explained: a closed socket has no
reason, but the cell's init has seen the process exit, and the kernel counts OOM kills.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.kit.response_stream import ResponseStream
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, CallWaiter, WorkerExited
from skerry.model.cells import ExitStatus
from skerry.model.functions import Function
from skerry.model.web_calls import WebResponseHead
from skerry.node.cells.cells import Cells
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.prestarted import PROCESS, PrestartedWorker, PrestartedWorkerFactory
from skerry.node.workers.worker_channel import SOCKET_CLOSED, LoadRequest, WorkerChannel

_EXIT_NOTICE_S: Final = 0.5  # from the end of its socket to that of its process, if that was the cause
_LAST_OUTPUT_BYTES: Final = 16 * 1024  # of its last output


class ProcessWorker:
    """One worker; created by `process_workers`. Owns its prestarted worker and the socket."""

    def __init__(
        self,
        prestarted: PrestartedWorker,
        function: Function,
        cells: Cells,
        factory: PrestartedWorkerFactory,
        logs: FunctionLogs,
        clock: Clock,
        on_closed: Callable[[ProcessWorker], None],
    ) -> None:
        self.id = prestarted.id
        self.init_s = 0.0
        self.start_phases: tuple[tuple[str, float], ...] = ()
        self.cell = prestarted.cell
        self._blank = prestarted
        self.function = function
        self._cells = cells
        self._blanks = factory
        self._logs = logs
        self._on_closed = on_closed
        self._end_callback: Callable[[], None] | None = None
        self._has_ended = False
        self._explained: asyncio.Task[WorkerExited] | None = None
        self._closing: asyncio.Task[None] | None = None
        assert prestarted.socket is not None, "its process runs"
        self._channel = WorkerChannel(
            prestarted.socket, clock, on_end=self._end, explain=self._explain, printed=self._printed
        )
        prestarted.socket = None

    @property
    def runtime(self) -> str:
        return self._channel.runtime

    @property
    def load_s(self) -> float:
        """Processor time of loading the code."""
        return self._channel.load_s

    @property
    def is_copy(self) -> bool:
        """True if it was made from a template."""
        return self._channel.is_copy

    @property
    def is_alive(self) -> bool:
        return self._channel.is_alive

    @property
    def in_flight(self) -> int:
        return self._channel.in_flight

    async def load(self, request: LoadRequest, *, within_s: float, image: int | None = None) -> None:
        """Load its function, or make or use the template in the file `image`. Raises CodeLoadError; close it
        then."""
        await self._channel.load(request, within_s=within_s, image=image)

    def call(
        self, params: bytes, *, wants_output: bool, within_s: float, traceparent: str = ""
    ) -> Coroutine[Any, Any, CallResult]:
        """Run the handler once; a timeout after `within_s` is a result. Raises WorkerExited."""
        return self._channel.call(
            params, wants_output=wants_output, within_s=within_s, traceparent=traceparent
        )

    def begin_call(self, params: bytes, *, wants_output: bool, within_s: float, waiter: CallWaiter) -> int:
        """The same for a `waiter`, who is told the result or an error for `explain_end`."""
        return self._channel.begin_call(params, wants_output=wants_output, within_s=within_s, waiter=waiter)

    def explain_end(
        self, error: Exception, *, began: float, within_s: float
    ) -> Coroutine[Any, Any, CallResult]:
        return self._channel.explain_end(error, began=began, within_s=within_s)

    def abandon_call(self, number: int) -> None:
        self._channel.abandon(number)

    def call_web(
        self, request: bytes, response: ResponseStream[WebResponseHead], *, within_s: float
    ) -> Coroutine[Any, Any, CallResult]:
        """The same with an HTTP request, whose response goes to `response`."""
        return self._channel.call_web(request, response, within_s=within_s)

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the loop, once, when it has ended without `close`."""
        if self._has_ended:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._end_callback = callback

    async def close(self) -> None:
        """End it, with everything in it; its resources are free on return. Idempotent."""
        if self._closing is None:
            self._channel.close()
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._blanks.close(self._blank)
        if self._explained is not None:
            await tasks.cancel_and_wait([self._explained])
        self._on_closed(self)
        self._logs.end(self.id, self.function.name)

    def _end(self) -> None:
        self._has_ended = True
        if self._end_callback is not None:
            self._end_callback()

    def _printed(self, began: float) -> str:
        """Output of a call that began then; empty where other calls may have printed meanwhile."""
        if self.function.max_concurrency > 1:
            return ""
        return self._logs.last_output(
            self.id, self.function.name, _LAST_OUTPUT_BYTES, since_ns=int(began * 1e9)
        )

    async def _explain(self, exited: WorkerExited) -> WorkerExited:
        """The actual reason of its end, with its last output; the same for all calls."""
        if self._closing is not None:
            return exited
        if self._explained is None:
            self._explained = asyncio.create_task(self._find_reason(exited))
        return await asyncio.shield(self._explained)

    async def _find_reason(self, exited: WorkerExited) -> WorkerExited:
        try:
            ended = await self._exit()
        except errors.SkerryError:
            return exited  # closed meanwhile, or stuck in the kernel
        output = self._logs.last_output(self.id, self.function.name, _LAST_OUTPUT_BYTES)
        if ended is not None and ended.oom:
            return WorkerExited(
                CallFailure.MEMORY,
                f"its worker was killed because it used more than its {self.function.memory} MB of memory; "
                "let the function use less, or give it more",
                output,
            )
        if ended is None or exited.error != SOCKET_CLOSED:  # an earlier error, or the agent ended it
            return WorkerExited(exited.failure, exited.error, output)
        return WorkerExited(
            CallFailure.DIED, f"its worker {_describe_exit(ended)} in the middle of it", output
        )

    async def _exit(self) -> ExitStatus | None:
        """Exit status of its process, if it ended by itself; else None."""
        waiting = self._cells.wait(self._blank.cell, PROCESS)
        try:
            async with asyncio.timeout(_EXIT_NOTICE_S):
                return await waiting
        except TimeoutError:
            ended = await self._cells.kill(self._blank.cell, PROCESS)
        return None if ended.signal == signal.SIGKILL and not ended.oom else ended


def _describe_exit(ended: ExitStatus) -> str:
    if ended.signal is None:
        return f"exited with {ended.code}"
    try:
        return f"was ended by {signal.Signals(ended.signal).name}"
    except ValueError:
        return f"was ended by signal {ended.signal}"
