"""Aurae's present API over the real node: real groups, processes and signals, seen from the socket."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry import __version__
from skerry.model.ids import CellName
from skerry.transport.proto.aurae_cells_grpc import CellServiceStub
from skerry.transport.proto.aurae_cells_pb2 import (
    Cell,
    CellServiceAllocateRequest,
    CellServiceFreeRequest,
    CellServiceListRequest,
    CellServiceStartRequest,
    CellServiceStartResponse,
    CellServiceStopRequest,
    CpuController,
    Executable,
    MemoryController,
)
from skerry.transport.proto.aurae_observe_grpc import ObserveServiceStub
from skerry.transport.proto.aurae_observe_pb2 import (
    WORKLOAD_TYPE_CELL,
    GetPosixSignalsStreamRequest,
    Workload,
)
from tests.node.cells.real import Ground, is_alive
from tests.support.cells import CellServer
from tests.support.certificates import TestAuthority
from tests.support.signals import needs_signals
from tests.support.waiting import eventually
from tests.wire.aurae.calls import PRESENT, compile_stubs, real_server, script

pytestmark = pytest.mark.root


@pytest.fixture
async def served(tmp_path: Path, authority: TestAuthority, ground: Ground) -> AsyncIterator[CellServer]:
    async with real_server(tmp_path, authority, ground) as server:
        yield server


@pytest.fixture
def cells(channel) -> CellServiceStub:
    return CellServiceStub(channel)


async def allocate(cells: CellServiceStub, name: str, **fields) -> None:
    await cells.Allocate(CellServiceAllocateRequest(cell=Cell(name=name, **fields)))


async def start(cells: CellServiceStub, cell: str, name: str, command: str) -> CellServiceStartResponse:
    executable = Executable(name=name, command=command)
    return await cells.Start(CellServiceStartRequest(cell_name=cell, executable=executable))


@needs_signals
async def test_a_client_that_knows_only_the_present_layout_does_what_aer_does(served, ground, tmp_path):
    is_v2 = ground.groups.limits_in_v2
    told = await script("present_client", served, compile_stubs(PRESENT, tmp_path), signals="yes")
    assert told == {
        "discovered": [True, __version__],
        "allocated": [["my-cell", is_v2], ["my-cell/child", is_v2]],
        "started": [True, True, True],
        "first_line": "zzz",
        "listed": [["my-cell", 200, ["my-cell/child"]]],
        "signal": [15, True],
        "second_free": "NOT_FOUND",
        "left": 0,
    }
    assert ground.leftovers() == []


async def test_limits_are_held_by_the_kernel_and_listed_as_they_are_held(served, ground, cells):
    await allocate(
        cells, "a", cpu=CpuController(weight=200, max=50_000), memory=MemoryController(max=64 << 20)
    )
    held = ground.groups.read_limits(CellName("a"))
    assert (held.cpu_weight, held.cpu_quota, held.memory) == (200, 500, 64)
    [node] = (await cells.List(CellServiceListRequest())).cells
    assert node.cell.cpu == CpuController(weight=200, max=50_000, period=100_000)
    assert node.cell.memory == MemoryController(max=64 << 20)


async def test_the_pid_and_user_that_start_tells_are_those_of_the_process(cells):
    await allocate(cells, "a")
    reply = await start(cells, "a", "x", "exec sleep 1000")
    status = Path(f"/proc/{reply.pid}/status").read_text()
    assert f"Uid:\t{reply.uid}\t" in status
    assert f"Gid:\t{reply.gid}\t" in status


async def test_namespaces_are_the_cells_own_but_for_user_and_unless_asked_for_network(cells):
    def own(pid: int) -> set[str]:
        kinds = ("pid", "mnt", "ipc", "uts", "net", "user")
        return {
            kind
            for kind in kinds
            if os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        }

    await allocate(cells, "a")
    await allocate(cells, "b", isolate_network=True)
    plain, apart = [await start(cells, cell, "x", "exec sleep 1000") for cell in ("a", "b")]
    assert own(plain.pid) == {"pid", "mnt", "ipc", "uts"}
    assert own(apart.pid) == {"pid", "mnt", "ipc", "uts", "net"}


async def test_stop_without_an_executable_ends_all_processes_of_the_cell_and_no_others(served, cells):
    for name in ("a", "a/b"):
        await allocate(cells, name)
    ended = [await start(cells, "a", name, "sleep 1000 & exec sleep 1000") for name in ("x", "y", "z")]
    kept = await start(cells, "a/b", "x", "exec sleep 1000")
    await cells.Stop(CellServiceStopRequest(cell_name="a"))
    assert not any(is_alive(each.pid) for each in ended)
    assert served.keeper.pids(CellName("a")) == []
    assert is_alive(kept.pid)
    again = await start(cells, "a", "x", "true")  # the names are free
    assert again.pid


class Listener:
    """Follows signals, and keeps what it was told."""

    def __init__(self, channel, cell: str | None) -> None:
        workload = None if cell is None else Workload(workload_type=WORKLOAD_TYPE_CELL, id=cell)
        self._request = GetPosixSignalsStreamRequest(workload=workload)
        self._stream = ObserveServiceStub(channel).GetPosixSignalsStream.open()
        self.told: list[tuple[int, int]] = []

    async def __aenter__(self) -> Listener:
        stream = await self._stream.__aenter__()
        await stream.send_message(self._request, end=True)
        await stream.recv_initial_metadata()
        self._task = asyncio.ensure_future(self._listen())
        return self

    async def _listen(self) -> None:
        async for reply in self._stream:
            self.told.append((reply.signal.signal, reply.signal.process_id))

    async def __aexit__(self, *exit_: object) -> None:
        if not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            await self._stream.cancel()
        await self._stream.__aexit__(None, None, None)

    async def hears(self, *wanted: tuple[int, int]) -> None:
        await eventually(lambda: set(wanted) <= set(self.told))


@needs_signals
async def test_signals_to_a_cells_processes_are_told_with_the_pid_that_start_told(served, channel, cells):
    for name in ("a", "a/b", "c"):
        await allocate(cells, name)
    early = await start(cells, "a", "early", "exec sleep 1000")
    nested = await start(cells, "a/b", "x", "exec sleep 1000")
    other = await start(cells, "c", "x", "exec sleep 1000")
    async with Listener(channel, "a") as heard, Listener(channel, "a/b") as heard_nested:
        late = await start(cells, "a", "late", "trap '' USR1; echo on; sleep 1000; true")
        await eventually(lambda: len(children_of(late.pid)) == 1)
        [child] = children_of(late.pid)
        for pid in (other.pid, nested.pid):
            os.kill(pid, signal.SIGTERM)
        os.kill(late.pid, signal.SIGUSR1)  # which it ignores: the kernel tells it all the same
        for name in ("early", "late"):
            await cells.Stop(CellServiceStopRequest(cell_name="a", executable_name=name))
        await heard.hears(
            (signal.SIGTERM, early.pid),
            (signal.SIGUSR1, late.pid),
            (signal.SIGTERM, late.pid),
            (signal.SIGTERM, child),
        )
        await heard_nested.hears((signal.SIGTERM, nested.pid))
        assert {pid for _, pid in heard.told} == {early.pid, late.pid, child}
        assert {pid for _, pid in heard_nested.told} == {nested.pid}


@needs_signals
async def test_a_kill_that_leaves_no_trace_of_the_process_is_told(served, channel, cells):
    await allocate(cells, "a")
    async with Listener(channel, "a") as heard:
        started = [
            await start(cells, "a", f"x{number}", "trap '' TERM; sleep 1000 & wait; wait")
            for number in range(5)
        ]
        await eventually(lambda: all(len(children_of(each.pid)) == 1 for each in started))
        pids = [each.pid for each in started] + [children_of(each.pid)[0] for each in started]
        for number in range(5):
            await served.keeper.kill(CellName("a"), f"x{number}")
        await heard.hears(*((signal.SIGKILL, pid) for pid in pids))
        await cells.Free(CellServiceFreeRequest(cell_name="a"))
        await eventually(heard._task.done)  # the stream has ended with its cell


@needs_signals
async def test_the_whole_machine_is_heard_where_no_workload_is_named(channel):
    stranger = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        async with Listener(channel, None) as heard:
            stranger.terminate()
            await heard.hears((signal.SIGTERM, stranger.pid))
    finally:
        await stranger.wait()


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
