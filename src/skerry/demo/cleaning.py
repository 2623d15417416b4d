"""Removal of all that a demo created: processes, cgroups, and its folder.

It reads the record alone, so it works as well when the demo was killed. A process is killed only if its start
time is the recorded one, or if it is in a cgroup of the demo. Network namespaces, links and mounts go with
the processes.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from skerry.demo.record import DemoRecord, GroupsRecord, ProcessRecord, is_alive

_CGROUPS: Final = Path("/sys/fs/cgroup")
_WITHIN_S: Final = 30.0
_PAUSE_S: Final = 0.02


class Removed(NamedTuple):
    """How much was removed."""

    processes: int
    groups: int


class CleaningFailed(RuntimeError):
    """Something could not be removed."""


def clean(folder: Path) -> Removed:
    """Remove all that the demo of `folder` created. Raises `CleaningFailed` with what is left."""
    record = DemoRecord(folder)
    if not record.exists():
        return Removed(0, 0)
    entries = record.entries()
    processes = [entry for entry in entries if isinstance(entry, ProcessRecord) and is_alive(entry)]
    for process in reversed(processes):
        _kill(process.pid)
    _wait_until_gone(processes)
    groups = 0
    for entry in entries:
        if isinstance(entry, GroupsRecord):
            groups += sum(remove_group(group) for group in groups_of(entry.prefix))
    _remove_folder(record)
    return Removed(len(processes), groups)


def groups_of(prefix: str) -> list[Path]:
    """The cgroups at the top of all hierarchies whose names begin with `prefix`."""
    # A search further below would meet groups of others, which come and go.
    tops = [_CGROUPS, *(path for path in _CGROUPS.iterdir() if path.is_dir())]
    return sorted(group for top in tops for group in top.glob(f"{prefix}*") if group.is_dir())


def pids_of(group: Path) -> Iterator[int]:
    """The processes of a cgroup and of all below it."""
    for folder, _, _ in os.walk(group):
        with suppress(OSError):  # it was removed meanwhile
            yield from (int(pid) for pid in Path(folder, "cgroup.procs").read_text().split() if pid != "0")


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _wait_until_gone(processes: Iterable[ProcessRecord]) -> None:
    ends_at = time.monotonic() + _WITHIN_S
    for entry in processes:
        while is_alive(entry) and not _is_reaped(entry.pid):
            if time.monotonic() > ends_at:
                raise CleaningFailed(f"process {entry.pid} ({entry.name}) does not end; try again later")
            time.sleep(_PAUSE_S)


def _is_reaped(pid: int) -> bool:
    """True if the process has ended; waits for it if it is a child of this process."""
    with suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def remove_group(group: Path) -> int:
    """Kill what is in a cgroup and remove it with all below; 1, for the count of groups."""
    ends_at = time.monotonic() + _WITHIN_S
    while group.exists():
        for pid in pids_of(group):
            _kill(pid)
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):  # a process in it has not quite ended
                os.rmdir(folder)
        if time.monotonic() > ends_at:
            raise CleaningFailed(f"the cgroup {group} cannot be removed; try again later")
        if group.exists():
            time.sleep(_PAUSE_S)
    return 1


def _remove_folder(record: DemoRecord) -> None:
    folder = record.folder
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    if within := [path for path in mounts if path.startswith(f"{folder}/")]:
        raise CleaningFailed(f"{within[0]} is mounted; unmount it with 'umount {within[0]}' and try again")
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != record.path:
            path.unlink()
    record.path.unlink()  # last: while there is something left, the record is there
    folder.rmdir()
