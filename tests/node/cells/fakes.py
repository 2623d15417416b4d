"""A host in memory: groups, a launcher and inits whose processes live until a test ends them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.cells import CellLimits, CellUsage, is_within, parent_of
from skerry.model.ids import CellName
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.specs import InitSpec, ProcessExit, StartedProcess, StartSpec

SIGTERM, SIGKILL = 15, 9


@dataclass
class Process:
    """Ends on SIGTERM unless it is stubborn, and on SIGKILL unless the kernel holds it."""

    pid: int
    place: str  # the group: cell/leaf
    start_time: int
    stubborn: bool = False
    unkillable: bool = False
    on_end: Callable[[int], None] = lambda signal: None
    signals: list[int] = field(default_factory=list)


@dataclass
class Host:
    """Everything that outlives an agent: processes, groups, inits."""

    clock: ManualClock = field(default_factory=ManualClock)
    processes: dict[int, Process] = field(default_factory=dict)
    groups: dict[str, CellLimits] = field(default_factory=dict)  # cells
    leaves: set[str] = field(default_factory=set)
    ooms: dict[str, int] = field(default_factory=dict)  # by cell
    cpu_ns: dict[str, int] = field(default_factory=dict)  # by cell
    inits: dict[int, FakeInit] = field(default_factory=dict)
    time_stands: bool = False  # who waits for processes to end does so until this is False again
    pids: itertools.count[int] = field(default_factory=lambda: itertools.count(1000))
    order: list[str] = field(default_factory=list)  # what was removed, in that order

    def spawn(self, place: str, on_end: Callable[[int], None] = lambda signal: None) -> Process:
        pid = next(self.pids)
        process = Process(pid, place, start_time=pid * 10, on_end=on_end)
        self.processes[pid] = process
        return process

    def signal(self, pid: int, number: int) -> None:
        process = self.processes.get(pid)
        if process is None:
            return
        process.signals.append(number)
        if process.unkillable or (number == SIGTERM and process.stubborn):
            return
        self.end(pid, number)

    def end(self, pid: int, number: int) -> None:
        process = self.processes.pop(pid)
        process.on_end(number)

    def inside(self, place: str) -> list[Process]:
        return [p for p in self.processes.values() if p.place == place or p.place.startswith(f"{place}/")]


class FakeCgroups:
    """`skerry.node.cgroups.protocol.Cgroups` over a `Host`."""

    kind = "hybrid"
    limits_in_v2 = False
    can_leave_cpu_quota = False

    def __init__(self, host: Host) -> None:
        self.host = host
        self.quota_exits: list[str] = []  # the leaves of starts that were to be made outside of a quota
        self.fail_next_create: Exception | None = None
        self.fail_next_change: Exception | None = None

    def create(self, cell: CellName, limits: CellLimits) -> None:
        if self.fail_next_create is not None:
            error, self.fail_next_create = self.fail_next_create, None
            raise error
        parent = parent_of(cell)
        if parent is not None and parent not in self.host.groups:
            raise errors.NotFound(f"there is no cell {parent}")
        if cell in self.host.groups:
            raise errors.AlreadyExists(f"cell {cell} already exists")
        self.host.groups[cell] = limits

    def change_limits(self, cell: CellName, limits: CellLimits) -> None:
        if self.fail_next_change is not None:
            error, self.fail_next_change = self.fail_next_change, None
            raise error
        given = {key: value for key, value in structs.asdict(limits).items() if value}
        self.host.groups[cell] = structs.replace(self.host.groups[cell], **given)

    def lift_cpu_quota(self, cell: CellName) -> None:
        self.host.groups[cell] = structs.replace(self.host.groups[cell], cpu_quota=None)

    def read_limits(self, cell: CellName) -> CellLimits:
        return self.host.groups[cell]

    def effective_limits(self, cell: CellName) -> CellLimits:
        return self.host.groups[cell]

    def add_leaf(self, cell: CellName, leaf: str) -> None:
        if cell not in self.host.groups:
            raise errors.NotFound(f"cell {cell} has no cgroup on this host")
        self.host.leaves.add(f"{cell}/{leaf}")

    def remove_leaf(self, cell: CellName, leaf: str) -> None:
        if self.host.inside(f"{cell}/{leaf}"):
            raise errors.FailedPrecondition("there are processes")
        self.host.leaves.discard(f"{cell}/{leaf}")

    def leaves(self, cell: CellName) -> list[str]:
        return sorted(e.rpartition("/")[2] for e in self.host.leaves if e.rpartition("/")[0] == cell)

    def entry(
        self, cell: CellName, leaf: str, *, from_within: bool = False, outside_quota: bool = False
    ) -> CgroupEntryFds:
        if f"{cell}/{leaf}" not in self.host.leaves:
            raise errors.NotFound("there is no such group")
        if outside_quota:
            self.quota_exits.append(f"{cell}/{leaf}")
        entrance = CgroupEntryFds(None, ())
        entrance.place = f"{cell}/{leaf}"  # type: ignore[attr-defined]
        return entrance

    def runtime_group(self, cell: CellName, leaf: str) -> str:
        return f"/groups/{cell}/{leaf}"

    def pool_entry(self) -> CgroupEntryFds | None:
        return None

    def pids(self, cell: CellName, leaf: str | None = None) -> list[int]:
        return [p.pid for p in self.host.inside(cell if leaf is None else f"{cell}/{leaf}")]

    def kill(self, cell: CellName, leaf: str | None = None) -> None:
        for pid in self.pids(cell, leaf):
            self.host.signal(pid, SIGKILL)

    async def emptied(self, cell: CellName, leaf: str | None = None, *, within_s: float) -> bool:
        """Nothing ends by itself here, so `within_s` is over at once, unless a test holds the time."""
        deadline = self.host.clock.monotonic() + within_s
        await asyncio.sleep(0)
        while self.pids(cell, leaf) and self.host.time_stands:  # noqa: ASYNC110 - turns of the loop, no time
            await asyncio.sleep(0)
        if self.pids(cell, leaf):
            self.host.clock.advance(max(0.0, deadline - self.host.clock.monotonic()))
            return False
        return True

    def freeze(self, cell: CellName) -> None: ...

    def thaw(self, cell: CellName) -> None: ...

    def remove(self, cell: CellName) -> None:
        if self.host.inside(cell) or any(
            is_within(CellName(g), cell) and g != cell for g in self.host.groups
        ):
            raise errors.FailedPrecondition("there are processes or cells")
        self.host.leaves = {leaf for leaf in self.host.leaves if leaf.rpartition("/")[0] != cell}
        if self.host.groups.pop(cell, None) is not None:
            self.host.order.append(cell)

    def exists(self, cell: CellName) -> bool:
        return cell in self.host.groups

    def cells(self) -> list[CellName]:
        return [CellName(name) for name in sorted(self.host.groups)]

    def usage(self, cell: CellName) -> CellUsage:
        return CellUsage(
            cpu_ns=self.host.cpu_ns.get(cell, 0),
            pids=len(self.pids(cell)),
            oom_kills=self.host.ooms.get(cell, 0),
        )

    def oom_kills(self, cell: CellName, leaf: str) -> int:
        return self.host.ooms.get(cell, 0)

    def dispose(self) -> None: ...


class FakeInit:
    """What lives on in the host: the init process and its children."""

    def __init__(self, host: Host, place: str, spec: InitSpec) -> None:
        self.host = host
        self.spec = spec
        self.process = host.spawn(place, self._die)
        self.received: asyncio.Queue[ProcessExit | None] = asyncio.Queue()
        self.children: dict[int, StartSpec] = {}
        self.is_mute = False
        self.can_write = True  # a full disk takes no record, and whoever listens is told all the same
        host.inits[self.process.pid] = self

    def _die(self, signal: int) -> None:
        del self.host.inits[self.process.pid]
        for pid in list(self.children):
            process = self.host.processes.get(pid)
            if process is not None:
                process.on_end = lambda signal: None
                if not process.unkillable:
                    self.host.end(pid, SIGKILL)
        self.received.put_nowait(None)

    def launch(self, spec: StartSpec, folder: Path, place: str) -> Process:
        def ended(signal: int) -> None:
            self.report(process.pid, folder, code=None, signal=signal)

        process = self.host.spawn(place, ended)
        self.children[process.pid] = spec
        return process

    def exits(self, process: Process, code: int, folder: Path) -> None:
        """The process ends by itself."""
        process.on_end = lambda signal: self.report(process.pid, folder, code=code, signal=None)
        self.host.end(process.pid, 0)

    def report(self, pid: int, folder: Path, *, code: int | None, signal: int | None) -> None:
        spec = self.children.pop(pid)
        if self.is_mute:
            return
        record = {"code": code, "signal": signal, "at": self.host.clock.now()}
        if folder.exists() and self.can_write:
            (folder / "exit.json").write_text(json.dumps(record))
        self.received.put_nowait(ProcessExit(spec.key, self.host.clock.now(), code, signal))


class FakeInitHandle:
    """`skerry.node.launcher.client.InitClient`."""

    control_fd = 3

    def __init__(self, init: FakeInit, launcher: FakeLauncher) -> None:
        self.init = init
        self.launcher = launcher
        self.pid = init.process.pid
        self.start_time = init.process.start_time
        self.is_closed = False
        self.mounted: list[tuple[int, str]] = []

    async def start(
        self,
        spec: StartSpec,
        folder: Path,
        entrance: CgroupEntryFds,
        *,
        before_exec: Callable[[], None] | None = None,
        within_s: float = 0.0,
    ) -> StartedProcess:
        await asyncio.sleep(0)
        launcher = self.launcher
        if spec.runtime is not None and launcher.runtime_gate is not None:
            await launcher.runtime_gate.wait()
        if launcher.fail_next_start is not None:
            error, launcher.fail_next_start = launcher.fail_next_start, None
            raise error
        if self.init.process.pid not in self.init.host.processes:
            raise errors.Unavailable("the init of the cell is gone")
        launcher.preparing += 1
        if launcher.start_gate is not None:
            await launcher.start_gate.wait()
        launcher.preparing -= 1
        if launcher.on_prepare is not None:
            launcher.on_prepare()
        if before_exec is not None:
            before_exec()
        process = self.init.launch(spec, folder, entrance.place)  # type: ignore[attr-defined]
        launcher.started.append(spec)
        if launcher.on_start is not None:
            launcher.on_start(self.init, process, folder)
        return FakeStarted(process.pid, -1)

    async def mount(self, detached: int, place: str) -> None:
        self.mounted.append((detached, place))

    async def exits(self) -> AsyncIterator[ProcessExit]:
        while (exited := await self.init.received.get()) is not None:
            yield exited

    async def ended(self) -> None:
        assert self.pid not in self.init.host.processes, "nobody has killed it"

    def close(self) -> None:
        self.is_closed = True


class FakeStarted(StartedProcess):
    def close(self) -> None: ...


class FakeLauncher:
    """`skerry.node.launcher.client.LauncherClient`."""

    view = HostView()

    def __init__(self, host: Host) -> None:
        self.host = host
        self.handles: list[FakeInitHandle] = []
        self.fail_next_init: Exception | None = None
        self.fail_next_start: Exception | None = None
        self.started: list[StartSpec] = []
        self.runtime_gate: asyncio.Event | None = None  # runtimes wait for it
        self.start_gate: asyncio.Event | None = None  # what is prepared waits for it
        self.preparing = 0  # those that do
        self.on_prepare: Callable[[], None] | None = None
        self.on_start: Callable[[FakeInit, Process, Path], None] | None = None

    async def make_init(self, spec: InitSpec, entrance: CgroupEntryFds) -> FakeInitHandle:
        await asyncio.sleep(0)
        if self.fail_next_init is not None:
            error, self.fail_next_init = self.fail_next_init, None
            raise error
        return self.handle(FakeInit(self.host, entrance.place, spec))  # type: ignore[attr-defined]

    def handle(self, init: FakeInit) -> FakeInitHandle:
        self.handles.append(FakeInitHandle(init, self))
        return self.handles[-1]


class FakeProcesses:
    """`skerry.node.cells.processes.HostProcesses`."""

    def __init__(self, host: Host, launcher: FakeLauncher) -> None:
        self.host = host
        self.launcher = launcher

    def sigterm(self, list_pids: Callable[[], list[int]]) -> set[int]:
        signalled = set(list_pids())
        for pid in signalled:
            self.host.signal(pid, SIGTERM)
        return signalled

    def sigterm_orphans(self, list_pids: Callable[[], list[int]], signalled: set[int]) -> None: ...

    def start_time(self, pid: int) -> int | None:
        process = self.host.processes.get(pid)
        return None if process is None else process.start_time

    def adopt(self, pid: int, start_time: int, control_fd: int) -> FakeInitHandle | None:
        init = self.host.inits.get(pid)
        if init is None or init.process.start_time != start_time:
            return None
        return self.launcher.handle(init)
