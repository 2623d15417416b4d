"""A barrier just before the program of a new process: the process waits there until the agent lets it on.

Used by `skerry.node.launcher.client` for a start that has something left to do once the process is confined.
The other side is the end of `skerry.node.launcher.child.exec_setup.script`. The cell's init sleeps meanwhile.
A process whose agent is gone, or could not do its part, never becomes its program.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import TracebackType

_ANSWER = b"1"


class ExecBarrier:
    """Calls `before` when the process is at the barrier, then opens it, or never if `before` raises."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before
        self._loop = asyncio.get_running_loop()
        # The agent has both ends until the program runs, so that nothing but its own end closes the barrier.
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._failure: Exception | None = None
        self._loop.add_reader(self._ours, self._open)

    @property
    def descriptor(self) -> int:
        """The process's end, which stays ours."""
        return self._theirs.fileno()

    def check(self) -> None:
        """Raise what `before` raised, if it did."""
        if self._failure is not None:
            raise self._failure

    def _open(self) -> None:
        self._loop.remove_reader(self._ours)
        try:
            self._before()
        except Exception as error:  # noqa: BLE001 - whoever starts the process is told
            self._failure = error
            self._ours.shutdown(socket.SHUT_RDWR)
        else:
            self._ours.send(_ANSWER)

    def __enter__(self) -> ExecBarrier:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self._theirs.close()
