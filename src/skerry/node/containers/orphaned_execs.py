"""Ends execs whose runtime helper was killed; they are found by their parent and ended by session.

An exec is a child of the runtime's helper, which waits for it. If the helper is killed, the exec becomes a
child of the cell's init, which has no other child in the container but its main process. So it is found
without a record, also after a crash. The runtime makes each exec the leader of a session, and the whole
session is killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import NamedTuple

_PASSES = 20  # each kills what was forked during the one before


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def end_orphans(main: int) -> None:
    """Kill every exec in the container whose main process is `main` that has lost its helper, with its
    session."""
    for _ in range(_PASSES):
        processes = _processes()
        itself = next((each for each in processes if each.pid == main), None)
        if itself is None:
            return  # and everything in the container with it
        home = _namespace(main)
        leaders = {
            each.pid
            for each in processes
            if each.parent == itself.parent and each.pid != main and each.session == each.pid
        }
        doomed = [each for each in processes if each.session in leaders]
        if not sum(_kill(each, home) for each in doomed):
            return


def _kill(process: _Process, home: str | None) -> bool:
    """True if it existed, in the container, and is killed now."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        # The pid may have been reused before the pidfd was opened, but not since.
        now = _read(process.pid)
        if home is None or _namespace(process.pid) != home or now is None or now.session != process.session:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        return True
    finally:
        os.close(descriptor)


def _processes() -> list[_Process]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for pid in pids if (process := _read(pid)) is not None]


def _read(pid: int) -> _Process | None:
    try:
        state, parent, _, session = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:4]
    except OSError:
        return None
    return None if state in (b"Z", b"X") else _Process(pid, int(parent), int(session))


def _namespace(pid: int) -> str | None:
    """The pid namespace of a process."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
