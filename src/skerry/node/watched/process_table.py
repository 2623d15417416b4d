"""Processes by the tag that they inherit, and what they use, from /proc.

A tag is a hard limit of a resource that Linux has not counted since 2.4, the number of file locks
(`RLIMIT_LOCKS`). Every process inherits it, every user may read it, and without privileges nobody can raise
it: a process may lower its own, and is then part of what its parent is (`decisions.leaves_of`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Final, NamedTuple

_PROC: Final = "/proc"
_LINE: Final = b"Max file locks"
_ENDED: Final = frozenset((b"Z", b"X"))
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_UNLIMITED: Final = 0
_KB: Final = 1024
_READ: Final = 16384


class ProcessStatus(NamedTuple):
    """One process at one moment."""

    pid: int
    parent: int
    has_ended: bool  # it waits for its parent only
    start_time: int
    cpu_ns: int  # with its children that have ended
    threads: int
    resident: int  # bytes, those shared with others included
    line: bytes  # of the kernel; stays the same while the process does not run


def line(pid: int) -> bytes:
    """What `status` is read from; empty if there is no such process."""
    return _content(f"{_PROC}/{pid}/stat")


def status(pid: int) -> ProcessStatus | None:
    """None if there is no such process."""
    content = line(pid)
    fields = content.rpartition(b")")[2].split()
    if len(fields) < 22:
        return None
    ticks = sum(map(int, fields[11:15]))
    return ProcessStatus(
        pid,
        int(fields[1]),
        fields[0] in _ENDED,
        int(fields[19]),
        ticks * _TICK_NS,
        int(fields[17]),
        int(fields[21]) * _PAGE,
        content,
    )


def newest_pid() -> bytes:
    """The last pid that was given to a process or thread of the machine; empty if it is not known."""
    return _content(f"{_PROC}/loadavg").rpartition(b" ")[2]


def tag(pid: int) -> int:
    """0 without one, and for a process that is gone."""
    _, found, rest = _content(f"{_PROC}/{pid}/limits").partition(_LINE)
    hard = rest.split(None, 2)[1] if found else b""
    return int(hard) if hard.isdigit() else _UNLIMITED


def tagged(tags: Iterable[int]) -> list[int]:
    """Every process of the machine with one of `tags`; ended ones are left out. Takes milliseconds."""
    wanted = frozenset(tags)
    pids = [int(name) for name in os.listdir(_PROC) if name.isdecimal()] if wanted else []
    return [pid for pid in pids if tag(pid) in wanted and not _has_ended(pid)]


def below(pid: int) -> list[ProcessStatus]:
    """The children of `pid`, and theirs, each after its parent. Those that have ended and were not waited for
    are among them."""
    found: dict[int, ProcessStatus] = {}
    left = [(pid, 2)]  # it may have several threads
    while left:
        for child in _children(*left.pop()):
            # One that is listed twice was moved to another parent meanwhile.
            if child not in found and (each := status(child)) is not None:
                found[child] = each
                left.append((child, each.threads))
    return list(found.values())


def memory(pid: int) -> int:
    """Bytes that are its own, and its part of those that it shares. Takes up to a millisecond."""
    for line in _content(f"{_PROC}/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * _KB
    found = status(pid)
    return 0 if found is None else found.resident


def disk_bytes(pid: int) -> tuple[int, int]:
    """What it and its ended children have read and written."""
    rows = dict(line.split(b": ", 1) for line in _content(f"{_PROC}/{pid}/io").splitlines() if b": " in line)
    return int(rows.get(b"read_bytes", 0)), int(rows.get(b"write_bytes", 0))


def has_own_pids(pid: int) -> bool:
    """True if it is in a pid namespace other than ours: when the first process there ends, all do."""
    try:
        return os.readlink(f"{_PROC}/{pid}/ns/pid") != os.readlink(f"{_PROC}/self/ns/pid")
    except OSError:
        return False


def _children(pid: int, threads: int) -> list[int]:
    if threads == 1:
        return [int(child) for child in _content(f"{_PROC}/{pid}/task/{pid}/children").split()]
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"{_PROC}/{pid}/task"):
            found += map(int, _content(f"{_PROC}/{pid}/task/{thread}/children").split())
    return found


def _has_ended(pid: int) -> bool:
    found = status(pid)
    return found is None or found.has_ended


def _content(path: str) -> bytes:
    """Empty if the process is gone, or does not let itself be read."""
    parts = []
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while part := os.read(file, _READ):
            parts.append(part)
    except OSError:
        return b""
    finally:
        os.close(file)
    return b"".join(parts)
