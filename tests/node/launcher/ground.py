"""Cells made by hand, with real groups and inits, and a way to run things in them and see what they did."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from skerry.model.cells import CellLimits, Sandbox
from skerry.model.ids import CellName
from skerry.node.cgroups.detection import detect
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import InitClient, LauncherClient
from skerry.node.launcher.specs import InitSpec, ProcessExit, StartedProcess, StartSpec
from skerry.node.logs.readers import LogRecord, RingReader
from tests.support.waiting import eventually

UID = 61184
LOG_BYTES = 1024 * 1024
_numbers = itertools.count()
_PLAIN = HostView()

needs_root = pytest.mark.root(tries=1)


@dataclass
class Ran:
    """How something ended and what it printed."""

    exited: ProcessExit
    out: str
    err: str


class LaunchedCell:
    """One cell: its groups, its folder, and its init once there is one."""

    def __init__(self, groups: Cgroups, name: str, folder: Path, limits: CellLimits) -> None:
        self.groups = groups
        self.name = CellName(name)
        self.folder = folder
        self._keys = itertools.count(1)
        self._early: dict[str, ProcessExit] = {}
        groups.create(self.name, limits)
        groups.add_leaf(self.name, "_init")

    async def open(
        self, launcher: LauncherClient, spec: InitSpec | None = None, *, outside_quota: bool = False
    ) -> InitClient:
        with self.groups.entry(self.name, "_init", outside_quota=outside_quota) as entrance:
            self.init = await launcher.make_init(spec or InitSpec("cell"), entrance)
        return self.init

    def leaf(self, key: str) -> str:
        return f"_x{key}"

    def place(self, key: str) -> Path:
        return self.folder / f"{self.name}-{key}"

    async def start(
        self,
        command: str,
        *,
        sandbox: Sandbox | None = None,
        key: str = "",
        uid: int = UID,
        within_s: float = 10,
        before_exec: Callable[[], None] | None = None,
        outside_quota: bool = False,
    ) -> tuple[str, StartedProcess]:
        """Start `command` in a leaf of its own; the caller closes what it gets."""
        key = key or str(next(self._keys))
        self.place(key).mkdir(parents=True)
        self.groups.add_leaf(self.name, self.leaf(key))
        spec = StartSpec(key, command, sandbox or Sandbox(), uid, uid, LOG_BYTES)
        with self.groups.entry(
            self.name, self.leaf(key), from_within=True, outside_quota=outside_quota
        ) as entrance:
            return key, await self.init.start(
                spec, self.place(key), entrance, before_exec=before_exec, within_s=within_s
            )

    async def ended(self, key: str) -> ProcessExit:
        """How the executable ended, once it has."""
        while key not in self._early:
            exited = await anext(self.init.exits())
            self._early[exited.key] = exited
        return self._early.pop(key)

    async def run(self, command: str, *, sandbox: Sandbox | None = None, uid: int = UID) -> Ran:
        """Run `command` to its end and read all that it printed."""
        key, started = await self.start(command, sandbox=sandbox, uid=uid)
        started.close()
        exited = await self.ended(key)
        out, err = [await self.followed(key, stream) for stream in ("stdout", "stderr")]
        return Ran(exited, out.decode(), err.decode())

    async def followed(self, key: str, stream: str) -> bytes:
        """All of a stream, until it ends."""
        reader = RingReader(self.place(key), stream)
        async with contextlib.aclosing(reader.follow()) as items:
            return b"".join([item.data async for item in items if isinstance(item, LogRecord)])

    def printed(self, key: str, stream: str = "stdout") -> bytes:
        """What is there of a stream now."""
        return b"".join(
            item.data for item in RingReader(self.place(key), stream).read() if isinstance(item, LogRecord)
        )

    async def close(self) -> None:
        self.groups.kill(self.name)
        assert await self.groups.emptied(self.name, within_s=10)
        if hasattr(self, "init"):
            await self.init.ended()
            self.init.close()
        self.groups.remove(self.name)


class Ground:
    """Rooms in a root group of their own."""

    def __init__(self, folder: Path) -> None:
        self.root = f"skt-launch-{os.getpid()}-{next(_numbers)}"
        self.groups = detect(self.root)
        self.folder = folder
        self.rooms: list[LaunchedCell] = []

    def cell(self, name: str = "one", limits: CellLimits | None = None) -> LaunchedCell:
        cell = LaunchedCell(self.groups, name, self.folder, limits or CellLimits())
        self.rooms.append(cell)
        return cell

    async def close(self) -> None:
        for cell in self.rooms:
            await cell.close()
        self.groups.dispose()


@contextlib.asynccontextmanager
async def launching(view: HostView = _PLAIN) -> AsyncIterator[LauncherClient]:
    launcher = await LauncherClient.start(view=view)
    try:
        yield launcher
    finally:
        await launcher.stop()


async def gone(pid: int) -> None:
    """Wait until no process, dead or alive, has the pid."""
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), what=f"process {pid} is gone")
