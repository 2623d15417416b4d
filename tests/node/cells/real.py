"""Cells with real groups and processes, under a root group and in a folder that nothing else uses."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from skerry.kit.clock import SystemClock
from skerry.model.cells import Executable, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launcher.client import LauncherClient
from tests.support.folders import paths_below

_numbers = itertools.count()
_MOUNTS = Path("/sys/fs/cgroup")

needs_root = pytest.mark.root(tries=1)


def executable(cell: str, name: str, command: str) -> Executable:
    return Executable(ExecutableName(name), CellName(cell), command)


def printed(cells: Cells, cell: str, name: str, stream: OutputChannel = OutputChannel.STDOUT) -> bytes:
    """What an executable has written so far."""
    reader = cells.logs(CellName(cell), ExecutableName(name), stream)
    return b"".join(getattr(item, "data", b"<gap>") for item in reader.read())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Ground:
    """A place for cells that may be opened by one agent after another."""

    def __init__(self, folder: Path) -> None:
        self.root = f"skt-cells-{os.getpid()}-{next(_numbers)}"
        self.folder = folder / "cells"
        self.groups: Cgroups = detect(self.root)
        self.settings = NodeSettings(stop_grace_s=5.0, free_timeout_s=30.0)

    @contextlib.asynccontextmanager
    async def agent(self, failpoint: Callable[[str], None] = lambda step: None) -> AsyncIterator[Cells]:
        launcher = await LauncherClient.start()
        try:
            cells = await Cells.open(
                self.folder, self.groups, launcher, self.settings, SystemClock(), failpoint=failpoint
            )
            try:
                yield cells
            finally:
                await cells.close()
        finally:
            await launcher.stop()

    def group_folders(self) -> list[str]:
        """Every folder of the root group, in every hierarchy, but the root itself and where spares wait."""
        return sorted(
            folder
            for mount in _MOUNTS.iterdir()
            for folder, _, _ in os.walk(mount / self.root)
            if Path(folder) not in (mount / self.root, mount / self.root / "_spares")
        )

    def processes(self) -> list[int]:
        """Processes anywhere under the root group, in any hierarchy."""
        found: set[int] = set()
        for mount in _MOUNTS.iterdir():
            for folder, _, _ in os.walk(mount / self.root):
                with contextlib.suppress(OSError):
                    found.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
        return sorted(pid for pid in found if is_alive(pid))

    def leftovers(self) -> list[str]:
        """Everything there is of any cell."""
        return [
            *(f"process {pid}" for pid in self.processes()),
            *self.group_folders(),
            *(str(path) for path in paths_below(self.folder)),
        ]

    async def clear(self) -> None:
        """Whatever a failed test left goes."""
        for name in reversed(self.groups.cells()):
            self.groups.kill(name)
            await self.groups.emptied(name, within_s=10)
            self.groups.remove(name)
        self.groups.dispose()
