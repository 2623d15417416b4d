"""Cgroups as somebody other than Skerry looks at them and removes them: root, by hand."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import eventually

_TOP = Path("/sys/fs/cgroup")


def _mounts() -> list[Path]:
    return [_TOP] if (_TOP / "cgroup.procs").exists() else [path for path in _TOP.iterdir() if path.is_dir()]


def _below(root: str, cell: str) -> Iterator[tuple[Path, Path]]:
    """Each group of the cell with its mount, in every hierarchy, children first."""
    for mount in _mounts():
        for group in groups_from(mount / root / cell):
            yield mount, group


def pids_in(group: Path) -> list[int]:
    """What is in this very group; nothing is, if it goes meanwhile."""
    with contextlib.suppress(OSError):
        return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    return []


def groups_from(group: Path) -> list[Path]:
    """It and all below it, children first; without those that go meanwhile."""
    return [Path(folder) for folder, _, _ in os.walk(group, topdown=False)]


def pids_from(group: Path) -> set[int]:
    """What is in it and in all below it."""
    return {pid for each in groups_from(group) for pid in pids_in(each)}


async def remove_groups(root: str, cell: str, *, kills: bool = True) -> None:
    """Remove every group of `cell`, below the root group `root`. What is in them is killed first, or moved to
    the top of its hierarchy, where it lives on."""

    def is_gone() -> bool:
        """Again at each look: meanwhile a process may have forked, or the agent have begun another there."""
        for mount, group in _below(root, cell):
            for pid in pids_in(group):
                with contextlib.suppress(ProcessLookupError):
                    if kills:
                        os.kill(pid, signal.SIGKILL)
                    else:
                        (mount / "cgroup.procs").write_text(str(pid))
        # All are emptied before the first is removed: a process is in a group of each hierarchy.
        return all(removed(group) for _, group in _below(root, cell))

    await eventually(is_gone)


def removed(group: Path) -> bool:
    """True if it is gone; who was killed in it may not quite have ended."""
    with contextlib.suppress(FileNotFoundError):
        try:
            group.rmdir()
        except OSError:
            return False
    return True
