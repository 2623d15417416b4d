"""Cells without a kernel: a keeper that follows the contract and runs nothing, with real rings for output.

And a server of all contracts for cells over one such keeper, with mutual TLS on a unix socket.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from grpclib._typing import IServable

from skerry.kit.log_buffer import LogBuffer
from skerry.model import errors
from skerry.model.cells import (
    Cell,
    CellUsage,
    Executable,
    ExecutableState,
    ExitStatus,
    OutputChannel,
    Sandbox,
    is_within,
    parent_of,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import GrpcSettings
from skerry.node.host import HostInfo, HostUsage
from skerry.node.logs.readers import RingReader
from skerry.node.logs.rings import RingWriter
from skerry.node.signals.following import SignalSource
from skerry.node.signals.tracing import Trace
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc import health
from skerry.transport.grpc.server import GrpcServer
from skerry.wire.aurae.cells_v0 import CellServiceV0
from skerry.wire.aurae.discovery_v0 import DiscoveryServiceV0
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.observe_v0 import ObserveServiceV0
from skerry.wire.aurae.runtime import EMPTY_SERVICES, AuraeCellService
from skerry.wire.own.cells.service import CellService
from tests.support.certificates import TestAuthority
from tests.support.signals import FakeKernel
from tests.transport.grpc.fakes import FakeIdentity

Key = tuple[CellName, ExecutableName]


@dataclass
class Started:
    """An executable that nobody runs; a test writes its output and ends it."""

    state: ExecutableState
    sandbox: Sandbox | None
    folder: Path
    log_bytes: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self._descriptor = os.open(self.folder, os.O_RDONLY)
        self._writers = {
            stream: RingWriter(self._descriptor, stream, max_bytes=self.log_bytes) for stream in OutputChannel
        }

    def write(
        self,
        data: bytes,
        stream: OutputChannel = OutputChannel.STDOUT,
        *,
        at_ns: int = 1_700_000_000_000_000_000,
    ) -> None:
        self._writers[stream].write(data, at_ns)

    def end(self, how: ExitStatus) -> None:
        if self.state.exit is None:
            self.state = msgspec.structs.replace(self.state, exit=how)
            for writer in self._writers.values():
                writer.end(0)
            os.close(self._descriptor)
            self.ended.set()


def program(*output: bytes, errors: bytes = b"", **how: Any) -> Callable[[Any], None]:
    """What a program does as soon as it is started."""

    def does(started: Any) -> None:
        for piece in output:
            started.write(piece)
        if errors:
            started.write(errors, OutputChannel.STDERR)
        if how:
            started.end(ExitStatus(at=1.0, **how))

    return does


@dataclass(frozen=True)
class View:
    cell: Cell
    uid: int
    executables: tuple[ExecutableState, ...]


def a_node() -> tuple[HostInfo, HostUsage]:
    """A machine that is always the same."""
    host = HostInfo(
        *("amd64", "linux", "6.1", "boot", "hybrid", "runc 1.1.5"),
        cpus=2,
        memory_bytes=1 << 30,
        disk_bytes=1 << 40,
    )
    return host, HostUsage(12.5, (0.5, 0.25, 0.125), memory_available_bytes=1 << 29, disk_free_bytes=1 << 39)


class FakeKeeper:
    """What `skerry.node.cells.ports.CellRuntime` asks for, in memory."""

    def __init__(self, folder: Path, *, log_bytes: int = 1 << 20) -> None:
        self._folder = folder
        self._log_bytes = log_bytes
        self.limits_in_v2 = False
        self.cells: dict[CellName, Cell] = {}
        self.started: dict[Key, Started] = {}
        self.foreign: set[str] = set()  # groups of somebody else
        self.fails: Exception | None = None  # raised by whatever is called next
        self.graces: list[float | None] = []
        self.on_start = lambda started: None  # what the program does at once
        self._pids = iter(range(4242, 10_000))

    async def allocate(self, cell: Cell) -> None:
        self._maybe_fail()
        if cell.name in self.cells:
            raise errors.AlreadyExists(f"cell {cell.name!r} exists already")
        parent = parent_of(cell.name)
        if parent is not None and parent not in self.cells:
            raise errors.NotFound(f"there is no cell {parent!r}")
        if cell.name in self.foreign:
            raise errors.FailedPrecondition(f"cgroup {cell.name!r} exists on this host and is not ours")
        self.cells[cell.name] = cell

    async def free(self, name: CellName) -> None:
        self._maybe_fail()
        self._cell(name)
        for key in [key for key in self.started if is_within(key[0], name)]:
            self._end(key)
        self.cells = {each: cell for each, cell in self.cells.items() if not is_within(each, name)}

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState:
        self._maybe_fail()
        self._cell(executable.cell)
        key = (executable.cell, executable.name)
        if key in self.started:
            raise errors.AlreadyExists(f"executable {executable.name!r} exists already")
        pid = next(self._pids)
        state = ExecutableState(
            name=executable.name,
            cell=executable.cell,
            command=executable.command,
            description=executable.description,
            pid=pid,
            started_at=1000.0,
        )
        self.started[key] = started = Started(state, sandbox, self._folder / str(pid), self._log_bytes)
        self.on_start(started)
        return started.state

    async def stop(self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None) -> ExitStatus:
        self._maybe_fail()
        self.graces.append(grace_s)
        self.started_one(cell, name)
        return self._end((cell, name))

    async def wait(self, cell: CellName, name: ExecutableName) -> ExitStatus:
        started = self.started_one(cell, name)
        await started.ended.wait()
        assert started.state.exit is not None
        return started.state.exit

    def get(self, name: CellName) -> View:
        self._cell(name)
        return next(view for view in self.list() if view.cell.name == name)

    def list(self) -> list[View]:
        return [
            View(
                cell, 60_000 + place, tuple(one.state for key, one in self.started.items() if key[0] == name)
            )
            for place, (name, cell) in enumerate(self.cells.items())
        ]

    def by_pid(self, pid: int) -> ExecutableState:
        for started in self.started.values():
            if started.state.pid == pid:
                return started.state
        raise errors.NotFound(f"process {pid} is not an executable of a cell")

    def logs(self, cell: CellName, name: ExecutableName, stream: OutputChannel) -> RingReader:
        return RingReader(self.started_one(cell, name).folder, stream)

    def pids(self, name: CellName) -> list[int]:
        self._cell(name)
        return [each.state.pid for key, each in self.started.items() if key[0] == name]

    def usage(self, name: CellName) -> CellUsage:
        self._cell(name)
        return CellUsage(cpu_ns=1_500_000_000, memory_bytes=3 << 20, pids=len(self.started), oom_kills=1)

    def started_one(self, cell: str, name: str) -> Started:
        self._cell(CellName(cell))
        try:
            return self.started[CellName(cell), ExecutableName(name)]
        except KeyError:
            raise errors.NotFound(f"cell {cell!r} has no executable {name!r}") from None

    def close(self) -> None:
        for key in list(self.started):
            self._end(key)

    def _cell(self, name: CellName) -> Cell:
        try:
            return self.cells[name]
        except KeyError:
            raise errors.NotFound(f"there is no cell {name!r}") from None

    def _end(self, key: Key) -> ExitStatus:
        started = self.started.pop(key)
        started.end(ExitStatus(at=2000.0, signal=15))
        assert started.state.exit is not None
        return started.state.exit

    def _maybe_fail(self) -> None:
        if self.fails is not None:
            error, self.fails = self.fails, None
            raise error


@dataclass
class Served:
    """A server that is up."""

    path: Path
    authority: TestAuthority

    def tls(self, role: str = "admin") -> ssl.SSLContext:
        return self.authority.client_context(self.authority.issue(f"some-{role}", role))


@dataclass
class CellServer(Served):
    """`keeper` is whatever it was given, most often a fake."""

    keeper: Any
    recent: LogBuffer
    kernel: FakeKernel


@asynccontextmanager
async def cell_server(
    folder: Path, authority: TestAuthority, keeper: Any, *, has_kernel: bool = False
) -> AsyncIterator[CellServer]:
    """Every contract for the cells of `keeper`, on a socket in `folder`. Signals are made up, unless it
    `has_kernel`."""
    recent, kernel = LogBuffer(), FakeKernel()
    signals = SignalSource(keeper, Trace.open if has_kernel else kernel.open, check_s=0.05)
    checks = health.ReadinessChecks({})
    services = [
        AuraeCellService(keeper),
        ObserveService(keeper, recent),
        CellServiceV0(keeper),
        ObserveServiceV0(keeper, signals, recent),
        DiscoveryServiceV0(checks.all_pass),
        CellService(keeper, a_node),
    ]
    async with listening(folder, authority, services) as path:
        yield CellServer(path, authority, keeper, recent, kernel)


@asynccontextmanager
async def listening(
    folder: Path, authority: TestAuthority, services: Sequence[IServable]
) -> AsyncIterator[Path]:
    """A server of `services`, on the socket that is given."""
    server = GrpcServer(
        health.with_health_and_reflection(services, {}, empty_services=EMPTY_SERVICES),
        AccessGate(FakeIdentity(), os.getuid()),
        GrpcSettings(),
    )
    path = folder / "run" / "aurae.sock"
    try:
        await server.listen_unix(path, authority.server_context())
        yield path
    finally:
        await server.stop(5.0)
