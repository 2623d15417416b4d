"""Processes that a call leaves behind in its worker: killed before the next call begins.

Standard library only: it runs in the worker, as the function's user; worker.js does the same for Node.js. The
kernel tells the newest process id of the cell, so a call that started nothing costs one read of a small file.
What the function started while it was loaded is no call's, and stays with all that comes of it. Threads are
none of this module's business: they are the worker itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Final

from skerry.node.launcher.child import messages

_ROUNDS: Final = 1000
_PAUSE_S: Final = 0.001
_ENDED: Final = (b"Z", b"X")
_EVERYBODY: Final = -1


class LeftoverProcesses:
    """Make one when the function is loaded, and `kill` whenever no call runs."""

    def __init__(self) -> None:
        self._is_confined = is_confined()
        if self._is_confined:
            self._file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            self._newest = self._read()
            self._kept = frozenset(_processes())

    def kill(self) -> None:
        """End what calls have started and left. If it cannot be ended, the worker is."""
        if not self._is_confined:
            return
        newest = self._read()
        if newest == self._newest != b"":
            return
        self._newest = newest  # of before the kill: what is started meanwhile is found the next time
        with contextlib.suppress(ProcessLookupError):
            for _ in range(_ROUNDS):
                self._kill_all()
                time.sleep(_PAUSE_S)
            os._exit(1)

    def _read(self) -> bytes:
        """The newest id of a process or thread in the cell; empty if the function has closed our file."""
        try:
            return os.pread(self._file, 128, 0).rpartition(b" ")[2]
        except OSError:
            return b""

    def _kill_all(self) -> None:
        """Once. Raises ProcessLookupError if there is nobody left, which the dead who wait to be reaped are
        not."""
        if not self._kept:
            os.kill(_EVERYBODY, signal.SIGKILL)  # in one step, so that nothing can fork away from it
        parents = _processes()
        left = [pid for pid in parents if not self._is_kept(pid, parents)]
        if not left:
            raise ProcessLookupError
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_kept(self, pid: int, parents: dict[int, int]) -> bool:
        while pid in parents and pid not in self._kept:
            pid = parents[pid]
        return pid in self._kept


def is_confined() -> bool:
    """Whether this process sees and reaches those of its cell only. Anywhere else nothing must be killed."""
    try:
        with open("/proc/1/comm", "rb") as file:
            return file.read() == messages.INIT_NAME + b"\n" and os.getuid() != 0
    except OSError:
        return False


def _processes() -> dict[int, int]:
    """Those that live in the cell besides its init and this one, each with its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent, *_ = file.read().rpartition(b")")[2].split()
                if state not in _ENDED:
                    found[int(name)] = int(parent)
    return found
