"""A barrier just before the exec of a new process: it waits there for the agent.

Used by `skerry.node.launcher.client` for a start with work left once the process is confined. The other side
is the end of `skerry.node.launcher.child.exec_setup.script`. The cell's init sleeps meanwhile. A process
whose agent is gone, or failed, never becomes its program.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import TracebackType

_GO = b"1"


class ExecBarrier:
    """Calls `before` when the process is at the barrier, then opens it, or never if `before` raises."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._loop = asyncio.get_running_loop()
        # The agent has both ends until the program runs, so that only the agent's end closes the barrier.
        self._agent_end, self._process_end = socket.socketpair()
        self._agent_end.setblocking(False)
        self._failure: Exception | None = None
        self._loop.add_reader(self._agent_end, self._open)

    @property
    def descriptor(self) -> int:
        """The process's end, which stays ours."""
        return self._process_end.fileno()

    def check(self) -> None:
        """Raise the error of `before`, if there was one."""
        if self._failure is not None:
            raise self._failure

    def _open(self) -> None:
        self._loop.remove_reader(self._agent_end)
        try:
            self._before()
        except Exception as error:  # noqa: BLE001 - the caller of the start gets it
            self._failure = error
            self._agent_end.shutdown(socket.SHUT_RDWR)
        else:
            self._agent_end.send(_GO)

    def __enter__(self) -> ExecBarrier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._agent_end)
        self._agent_end.close()
        self._process_end.close()
