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

from skerry.kit.recent import Recent
from skerry.model import errors
from skerry.model.cells import (
    Cell,
    Executable,
    ExecutableState,
    Exit,
    Sandbox,
    Stream,
    Usage,
    is_within,
    parent_of,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import GrpcSettings
from skerry.node.host import Host, HostUsage
from skerry.node.logs.readers import RingReader
from skerry.node.logs.rings import RingWriter
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.runtime import EMPTY_SERVICES, RuntimeService
from skerry.wire.cells.keeper import CellKeeper
from skerry.wire.cells.service import CellService
from skerry.wire.gate import Gate
from skerry.wire.grpc import standard
from skerry.wire.grpc.server import GrpcServer
from tests.support.certificates import TestAuthority
from tests.wire.grpc.fakes import FakeIdentity

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
            stream: RingWriter(self._descriptor, stream, max_bytes=self.log_bytes) for stream in Stream
        }

    def write(
        self, data: bytes, stream: Stream = Stream.STDOUT, *, at_ns: int = 1_700_000_000_000_000_000
    ) -> None:
        self._writers[stream].write(data, at_ns)

    def end(self, how: Exit) -> None:
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
            started.write(errors, Stream.STDERR)
        if how:
            started.end(Exit(at=1.0, **how))

    return does


@dataclass(frozen=True)
class View:
    cell: Cell
    executables: tuple[ExecutableState, ...]


def a_node() -> tuple[Host, HostUsage]:
    """A machine that is always the same."""
    host = Host(
        *("amd64", "linux", "6.1", "boot", "hybrid", "runc 1.1.5"),
        cpus=2,
        memory_bytes=1 << 30,
        disk_bytes=1 << 40,
    )
    return host, HostUsage(12.5, (0.5, 0.25, 0.125), memory_available_bytes=1 << 29, disk_free_bytes=1 << 39)


class FakeKeeper:
    """What `skerry.wire.cells.keeper.CellKeeper` asks for, in memory."""

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
            raise errors.Refused(f"cgroup {cell.name!r} exists on this host and is not ours")
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

    async def stop(self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None) -> Exit:
        self._maybe_fail()
        self.graces.append(grace_s)
        self.get(cell, name)
        return self._end((cell, name))

    async def wait(self, cell: CellName, name: ExecutableName) -> Exit:
        started = self.get(cell, name)
        await started.ended.wait()
        assert started.state.exit is not None
        return started.state.exit

    def list(self) -> list[View]:
        return [
            View(cell, tuple(one.state for key, one in self.started.items() if key[0] == name))
            for name, cell in self.cells.items()
        ]

    def by_pid(self, pid: int) -> ExecutableState:
        for started in self.started.values():
            if started.state.pid == pid:
                return started.state
        raise errors.NotFound(f"process {pid} is no executable of a cell")

    def logs(self, cell: CellName, name: ExecutableName, stream: Stream) -> RingReader:
        return RingReader(self.get(cell, name).folder, stream)

    def usage(self, name: CellName) -> Usage:
        self._cell(name)
        return Usage(cpu_ns=1_500_000_000, memory_bytes=3 << 20, pids=len(self.started), oom_kills=1)

    def get(self, cell: str, name: str) -> Started:
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

    def _end(self, key: Key) -> Exit:
        started = self.started.pop(key)
        started.end(Exit(at=2000.0, signal=15))
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
    recent: Recent


@asynccontextmanager
async def cell_server(
    folder: Path, authority: TestAuthority, keeper: CellKeeper
) -> AsyncIterator[CellServer]:
    """Every contract for the cells of `keeper`, on a socket in `folder`."""
    recent = Recent()
    services = [RuntimeService(keeper), ObserveService(keeper, recent), CellService(keeper, a_node)]
    async with listening(folder, authority, services) as path:
        yield CellServer(path, authority, keeper, recent)


@asynccontextmanager
async def listening(
    folder: Path, authority: TestAuthority, services: Sequence[IServable]
) -> AsyncIterator[Path]:
    """A server of `services`, on the socket that is given."""
    server = GrpcServer(
        standard.beside(services, {}, empty_services=EMPTY_SERVICES),
        Gate(FakeIdentity(), os.getuid()),
        GrpcSettings(),
    )
    path = folder / "run" / "aurae.sock"
    try:
        await server.listen_unix(path, authority.server_context())
        yield path
    finally:
        await server.stop(5.0)
