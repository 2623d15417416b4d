"""Cells are made, used and freed many times over, and then nothing may be left of them.

    python -m bench.soak cells [--cycles CYCLES] [--at-once AT_ONCE]

Runs CYCLES times allocate, start, stop, free in a row, then AT_ONCE of them at the same time, on a root
group and in a folder of its own. Whatever a cell is made of is looked for afterwards: processes, groups,
files, mounts, namespaces, sockets and other descriptors, in this process and in the launcher. A short
version of it is in the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
import uvloop

from skerry.kit.clock import SystemClock
from skerry.model.cells import Cell, CellLimits, Executable, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.model.resources import Megabytes
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launcher.client import LauncherClient

CYCLES, AT_ONCE = 10_000, 200
_CGROUPS = Path("/sys/fs/cgroup")
_KINDS = ("ipc", "mnt", "net", "pid", "uts")
_SETTLE_S = 10.0


class Field:
    """An agent on ground of its own, and what is to be seen of it from outside."""

    def __init__(self, root: str, folder: Path, cells: Cells, launcher: LauncherClient) -> None:
        self.root = root
        self.folder = folder
        self.cells = cells
        self.launcher = launcher
        self.namespaces: set[str] = set()  # every one that was seen in a cell
        self._own = namespaces_of(os.getpid())
        self._before = self._descriptors()

    def note(self, pid: int) -> None:
        """Remember in which namespaces this process of a cell is."""
        self.namespaces |= namespaces_of(pid) - self._own

    def left(self) -> list[str]:
        """What there is of any cell, in words."""
        return [
            *(f"process {pid}" for pid in self._processes()),
            *(f"group {folder}" for folder in self._groups()),
            *(f"file {path}" for path in sorted(self.folder.rglob("*"))),
            *(f"mount {line}" for line in self._mounts()),
            *self._held_namespaces(),
            *(f"{n} descriptors more: {name}" for name, n in (self._descriptors() - self._before).items()),
        ]

    def _trees(self) -> list[Path]:
        tops = [mount / self.root for mount in _CGROUPS.iterdir()]
        return [Path(folder) for top in tops for folder, _, _ in os.walk(top)]

    def _groups(self) -> list[str]:
        return sorted(str(folder) for folder in self._trees() if folder.name != self.root)

    def _processes(self) -> list[int]:
        found: set[int] = set()
        for folder in self._trees():
            with contextlib.suppress(OSError):
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return sorted(found)

    def _mounts(self) -> list[str]:
        """Mounts in our folder that show in this process; cells have theirs for themselves."""
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if str(self.folder) in line]

    def _held_namespaces(self) -> list[str]:
        """Namespaces of cells that a process is still in, leaving out those under other people's groups:
        the kernel gives a number that was ours to the next who asks."""
        held = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (mine := namespaces_of(int(entry.name)) & self.namespaces):
                with contextlib.suppress(OSError):
                    group = (entry / "cgroup").read_text().rpartition("0::")[2].strip()
                    if group == "/" or group.startswith(f"/{self.root}"):
                        held.append(f"process {entry.name} is in {', '.join(sorted(mine))}")
        return held

    def _descriptors(self) -> Counter[str]:
        """Open descriptors of this process and of the launcher, counted by what they are."""
        found: Counter[str] = Counter()
        for owner, pid in (("agent", os.getpid()), ("launcher", self.launcher.pid)):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(entry)
                    if f"/proc/{pid}/fd" not in target:
                        found[f"{owner}: {target.partition(':')[0]}"] += 1
        return found


def namespaces_of(pid: int) -> set[str]:
    try:
        return {os.readlink(f"/proc/{pid}/ns/{kind}") for kind in _KINDS}
    except OSError:
        return set()


@contextlib.asynccontextmanager
async def opened(root: str, folder: Path) -> AsyncIterator[Field]:
    """An agent with nothing in it."""
    groups: Cgroups = detect(root)
    try:
        launcher = await LauncherClient.start()
        try:
            cells = await Cells.open(folder, groups, launcher, NodeSettings(), SystemClock())
            try:
                yield Field(root, folder, cells, launcher)
            finally:
                for view in reversed(cells.list()):
                    await cells.free(view.cell.name)
                await cells.close()
        finally:
            await launcher.stop()
    finally:
        groups.dispose()


async def cycle(field: Field, number: int) -> None:
    """Allocate, start, stop, free; now and then with a network of its own, with a child, without a stop."""
    cells = field.cells
    name, run = CellName(f"c{number}"), ExecutableName("run")
    await cells.allocate(
        Cell(name, CellLimits(pids=32, memory=Megabytes(64)), isolates_network=number % 10 == 0)
    )
    state = await cells.start(Executable(run, name, f"echo {number}; sleep 1000 & sleep 1000"))
    field.note(state.pid)
    if number % 7 == 0:
        child = CellName(f"{name}/child")
        await cells.allocate(Cell(child))
        await cells.start(Executable(run, child, "exit 3"))
        assert (await cells.wait(child, run)).code == 3
    if number % 11 == 0:
        async for item in cells.logs(name, run, OutputChannel.STDOUT).follow():
            assert getattr(item, "data", b"") == b"%d\n" % number
            break
    if number % 5:
        await cells.stop(name, run, grace_s=30)
    await cells.free(name)


async def soak(
    field: Field, cycles: int, at_once: int, tell: Callable[[str], None] = lambda line: None
) -> list[str]:
    """What is left after `cycles` in a row and `at_once` at the same time."""
    began = time.monotonic()
    for number in range(cycles):
        await cycle(field, number)
        if (number + 1) % max(1, cycles // 10) == 0:
            seconds = time.monotonic() - began
            tell(f"{number + 1} of {cycles} in a row, {seconds / (number + 1) * 1000:.1f} ms each")
    await asyncio.gather(*(cycle(field, number) for number in range(at_once)))
    tell(f"{at_once} at once")
    deadline = time.monotonic() + _SETTLE_S  # processes that ended are reaped by others, a moment later
    while (left := field.left()) and time.monotonic() < deadline:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0.05)
    return left


def run(cycles: int = CYCLES, at_once: int = AT_ONCE) -> list[str]:
    """The whole campaign; what is left behind."""
    return uvloop.run(_run(cycles, at_once))


async def _run(cycles: int, at_once: int) -> list[str]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory() as folder:
        async with opened(f"skerry-soak-{os.getpid()}", Path(folder) / "cells") as field:
            left = await soak(field, cycles, at_once, lambda line: print(f"  {line}", flush=True))
    return [f"left behind: {each}" for each in left]
