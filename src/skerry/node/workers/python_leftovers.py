"""Kills processes that a call left behind in its worker, before the next call begins.

Standard library only: it runs in the worker, as the function's user; worker.js does the same for Node.js. The
kernel reports the newest pid of the cell, so a call that started nothing costs one read of a small file.
Processes that the function started while it was loaded stay, with their descendants. Threads are part of the
worker itself and are not handled here.
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
    """Create one when the function is loaded, and call `kill` whenever no call runs."""

    def __init__(self) -> None:
        self._is_confined = is_confined()
        if self._is_confined:
            self._file = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
            self._newest = self._read()
            self._loaded = frozenset(processes())

    def kill(self) -> None:
        """Kill processes that calls have left. If that fails, the worker ends."""
        if not self._is_confined:
            return
        newest = self._read()
        if newest == self._newest != b"":
            return
        self._newest = newest  # of before the kill: processes started meanwhile are found the next time
        with contextlib.suppress(ProcessLookupError):
            for _ in range(_ROUNDS):
                self._kill_all()
                time.sleep(_PAUSE_S)
            os._exit(1)

    def _read(self) -> bytes:
        """The newest pid or thread id in the cell; empty if the function has closed our file."""
        try:
            return os.pread(self._file, 128, 0).rpartition(b" ")[2]
        except OSError:
            return b""

    def _kill_all(self) -> None:
        """Once. Raises ProcessLookupError if there is none left; zombies do not count."""
        if not self._loaded:
            os.kill(_EVERYBODY, signal.SIGKILL)  # in one call, so that no fork escapes
        parents = processes()
        leftovers = [pid for pid in parents if not self._descends_from_loaded(pid, parents)]
        if not leftovers:
            raise ProcessLookupError
        for pid in leftovers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _descends_from_loaded(self, pid: int, parents: dict[int, int]) -> bool:
        while pid in parents and pid not in self._loaded:
            pid = parents[pid]
        return pid in self._loaded


def is_confined() -> bool:
    """True if this process sees and reaches only those of its cell. Anywhere else nothing must be killed."""
    try:
        with open("/proc/1/comm", "rb") as file:
            return file.read() == messages.INIT_NAME + b"\n" and os.getuid() != 0
    except OSError:
        return False


def processes() -> dict[int, int]:
    """Living processes in the cell besides its init and this one, each with its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (1, os.getpid()):
            with contextlib.suppress(OSError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent, *_ = file.read().rpartition(b")")[2].split()
                if state not in _ENDED:
                    found[int(name)] = int(parent)
    return found
