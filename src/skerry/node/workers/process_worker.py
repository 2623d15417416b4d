"""A worker that has a function loaded, as the pool knows it: called, watched, and ended with its cell.

What is said to it is `worker_channel`'s, how it came to be is `process_workers`'. Here is what its end means:
a socket that closes says nothing of why, but the cell's init has seen the process end, and the kernel counts
what it kills for memory.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, WorkerExited
from skerry.model.cells import ExitStatus
from skerry.model.functions import Function
from skerry.node.cells.cells import Cells
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.prestarted import PROCESS, PrestartedWorker, PrestartedWorkerFactory
from skerry.node.workers.worker_channel import HUNG_UP, LoadRequest, WorkerChannel

_NOTICE_S: Final = 0.5  # from the end of its socket to that of its process, if that was why
_WORDS: Final = 16 * 1024  # of what it has printed last


class ProcessWorker:
    """One worker; `process_workers` makes it. Owns the prestarted worker that it was, and the socket."""

    def __init__(
        self,
        blank: PrestartedWorker,
        function: Function,
        cells: Cells,
        blanks: PrestartedWorkerFactory,
        logs: FunctionLogs,
        clock: Clock,
        on_closed: Callable[[ProcessWorker], None],
    ) -> None:
        self.id = blank.id
        self.init_s = 0.0
        self._blank = blank
        self._function = function
        self._cells = cells
        self._blanks = blanks
        self._logs = logs
        self._on_closed = on_closed
        self._tell: Callable[[], None] | None = None
        self._has_ended = False
        self._explained: asyncio.Task[WorkerExited] | None = None
        self._closing: asyncio.Task[None] | None = None
        assert blank.socket is not None, "its process runs"
        self._talk = WorkerChannel(
            blank.socket, clock, on_end=self._end, explain=self._explain, printed=self._printed
        )
        blank.socket = None

    @property
    def runtime(self) -> str:
        return self._talk.runtime

    @property
    def is_alive(self) -> bool:
        return self._talk.is_alive

    @property
    def in_flight(self) -> int:
        return self._talk.in_flight

    async def load(self, what: LoadRequest, *, within_s: float) -> None:
        """Have it load its function. Raises CodeLoadError; close it then."""
        await self._talk.load(what, within_s=within_s)

    def call(self, params: bytes, *, wants_output: bool, within_s: float) -> Coroutine[Any, Any, CallResult]:
        """Run the handler once. After `within_s` the answer is that it did not end. Raises WorkerExited."""
        return self._talk.call(params, wants_output=wants_output, within_s=within_s)

    def on_end(self, tell: Callable[[], None]) -> None:
        """Have `tell` called from the loop, once, when it has ended without `close`."""
        if self._has_ended:
            asyncio.get_running_loop().call_soon(tell)
        else:
            self._tell = tell

    async def close(self) -> None:
        """End it, with whatever runs in it; returns when its room is free. May be repeated."""
        if self._closing is None:
            self._talk.close()
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._blanks.close(self._blank)
        if self._explained is not None:
            await tasks.cancel_and_wait([self._explained])
        self._on_closed(self)
        self._logs.end(self.id, self._function.name)

    def _end(self) -> None:
        self._has_ended = True
        if self._tell is not None:
            self._tell()

    def _printed(self, began: float) -> str:
        """What a call that began then has printed; nothing where others may have printed meanwhile."""
        if self._function.max_concurrency > 1:
            return ""
        return self._logs.last_words(self.id, self._function.name, _WORDS, since_ns=int(began * 1e9))

    async def _explain(self, gone: WorkerExited) -> WorkerExited:
        """What really happened to it, with all its last words; the same to everybody who asks."""
        if self._closing is not None:
            return gone
        if self._explained is None:
            self._explained = asyncio.create_task(self._find_out(gone))
        return await asyncio.shield(self._explained)

    async def _find_out(self, gone: WorkerExited) -> WorkerExited:
        try:
            ended = await self._exit()
        except errors.SkerryError:
            return gone  # closed meanwhile, or the kernel holds it
        words = self._logs.last_words(self.id, self._function.name, _WORDS)
        if ended is not None and ended.oom:
            return WorkerExited(
                CallFailure.MEMORY,
                f"its worker was killed because it used more than its {self._function.memory} MB of memory; "
                "let the function use less, or give it more",
                words,
            )
        if ended is None or gone.error != HUNG_UP:  # what it did before it ended, or we ended it
            return WorkerExited(gone.failure, gone.error, words)
        return WorkerExited(CallFailure.DIED, f"its worker {_told(ended)} in the middle of it", words)

    async def _exit(self) -> ExitStatus | None:
        """How its process ended by itself; None if it did not."""
        waiting = self._cells.wait(self._blank.cell, PROCESS)
        try:
            async with asyncio.timeout(_NOTICE_S):
                return await waiting
        except TimeoutError:
            ended = await self._cells.kill(self._blank.cell, PROCESS)
        return None if ended.signal == signal.SIGKILL and not ended.oom else ended


def _told(ended: ExitStatus) -> str:
    if ended.signal is None:
        return f"exited with {ended.code}"
    try:
        return f"was ended by {signal.Signals(ended.signal).name}"
    except ValueError:
        return f"was ended by signal {ended.signal}"
