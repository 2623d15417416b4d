"""The contract over the real node: real groups, real processes, seen from the socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from grpclib.client import Channel
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model.ids import CellName
from skerry.transport.grpc.channels import dial
from skerry.transport.proto.observe_grpc import ObserveStub
from skerry.transport.proto.observe_pb2 import CHANNEL_STDERR, GetSubProcessStreamRequest
from skerry.transport.proto.runtime_grpc import CellServiceStub
from skerry.transport.proto.runtime_pb2 import (
    AllocateCellRequest,
    Cell,
    Executable,
    FreeCellRequest,
    StartCellRequest,
    StopCellRequest,
)
from tests.node.cells.real import Ground, is_alive
from tests.support.cells import CellServer
from tests.support.certificates import SERVER_NAME, TestAuthority
from tests.support.waiting import eventually
from tests.wire.aurae.calls import DOCUMENT, compile_stubs, raw, real_server, script

pytestmark = pytest.mark.root

CPU = Path("/sys/fs/cgroup/cpu")


@pytest.fixture
async def served(tmp_path: Path, authority: TestAuthority, ground: Ground) -> AsyncIterator[CellServer]:
    async with real_server(tmp_path, authority, ground) as server:
        yield server


@pytest.fixture
def cells(channel: Channel) -> CellServiceStub:
    return CellServiceStub(channel)


async def allocate(cells: CellServiceStub, name: str, shares: int = 0) -> None:
    await cells.Allocate(AllocateCellRequest(cell=Cell(name=name, cpu_shares=shares)))


async def start(cells: CellServiceStub, cell: str, name: str, command: str) -> None:
    executable = Executable(name=name, command=command, cell_name=cell)
    await cells.Start(StartCellRequest(executable=executable))


async def status_of(call) -> Status:
    try:
        await call
    except GRPCError as error:
        return error.status
    return Status.OK


async def test_the_table_of_codes_holds(served, ground, cells):
    free, stop = FreeCellRequest(cell_name="c"), StopCellRequest(cell_name="c", executable_name="x")
    assert await status_of(start(cells, "c", "x", "true")) is Status.NOT_FOUND
    assert await status_of(cells.Stop(stop)) is Status.NOT_FOUND
    assert await status_of(cells.Free(free)) is Status.NOT_FOUND
    assert await status_of(allocate(cells, "c/d")) is Status.NOT_FOUND
    await allocate(cells, "c")
    assert await status_of(allocate(cells, "c")) is Status.ALREADY_EXISTS
    assert await status_of(cells.Stop(stop)) is Status.NOT_FOUND
    await start(cells, "c", "x", "exit 3")
    [state] = served.keeper.get(CellName("c")).executables
    await served.keeper.wait(state.cell, state.name)
    assert await status_of(start(cells, "c", "x", "true")) is Status.ALREADY_EXISTS
    assert await status_of(cells.Stop(stop)) is Status.OK  # it has exited already
    assert await status_of(cells.Stop(stop)) is Status.NOT_FOUND
    await start(cells, "c", "x", "no-such-program-anywhere")  # the shell's matter
    assert await status_of(cells.Free(free)) is Status.OK
    assert await status_of(cells.Free(free)) is Status.NOT_FOUND
    await allocate(cells, "c")  # a freed name is free
    assert await status_of(cells.Free(free)) is Status.OK


async def test_a_bad_name_frees_nobody_else(served, cells):
    await allocate(cells, "parent")
    await start(cells, "parent", "x", "sleep 1000")
    for name in ("parent/bad_child", "parent/..", "parent/", "/parent"):
        assert await status_of(cells.Free(FreeCellRequest(cell_name=name))) is Status.FAILED_PRECONDITION
    [view] = served.keeper.list()
    assert view.executables[0].exit is None


async def test_a_group_of_somebody_else_is_left_alone(ground, cells):
    folder = Path("/sys/fs/cgroup/pids") / ground.root / "taken"
    folder.mkdir()
    stranger = await asyncio.create_subprocess_exec("sleep", "1000")
    try:
        (folder / "cgroup.procs").write_text(str(stranger.pid))
        assert await status_of(allocate(cells, "taken")) is Status.FAILED_PRECONDITION
        assert stranger.returncode is None
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        await stranger.wait()
        await eventually(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


async def test_the_golden_bytes_make_a_real_cell_that_holds_exactly_the_shares_they_ask_for(served, ground):
    reply = await raw(
        served,
        "/runtime.CellService/Allocate",
        "0a0b0a076d792d63656c6c1002",
        scheme="hxxp",
        authority="null",
    )
    assert reply == (0, "0a076d792d63656c6c" + ("1001" if ground.groups.limits_in_v2 else ""))
    assert ground.groups.read_limits(CellName("my-cell")).cpu_shares == 2
    if (CPU / ground.root).exists():
        assert (CPU / ground.root / "my-cell" / "cpu.shares").read_text() == "2\n"


async def test_what_a_real_executable_writes_is_streamed_by_its_pid_until_it_ends(served, channel, cells):
    await allocate(cells, "a")
    await allocate(cells, "a/b")
    await start(cells, "a/b", "x", "echo one; echo oops >&2; printf 'two\\377'; sleep 1000 & exit 0")
    [state] = served.keeper.get(CellName("a/b")).executables
    stub = ObserveStub(channel)
    out = await stub.GetSubProcessStream(GetSubProcessStreamRequest(process_id=state.pid))
    err = await stub.GetSubProcessStream(
        GetSubProcessStreamRequest(channel_type=CHANNEL_STDERR, process_id=state.pid)
    )
    assert [item.line for item in out] == ["one", "two�"]
    assert [item.line for item in err] == ["oops"]
    assert all(item.timestamp > 1_600_000_000 for item in (*out, *err))


async def test_a_follower_of_a_stopped_executable_is_let_go(served, channel, cells):
    await allocate(cells, "a")
    await start(cells, "a", "x", "echo on; exec sleep 1000")
    [state] = served.keeper.get(CellName("a")).executables
    async with ObserveStub(channel).GetSubProcessStream.open() as stream:
        await stream.send_message(GetSubProcessStreamRequest(process_id=state.pid), end=True)
        assert (await stream.recv_message()).line == "on"
        await cells.Stop(StopCellRequest(cell_name="a", executable_name="x"))
        assert await stream.recv_message() is None


async def test_the_canonical_script_by_a_client_of_the_document(served, ground, tmp_path):
    told = await script("document_client", served, compile_stubs(DOCUMENT, tmp_path))
    assert told == {"allocated": ["my-cell", ground.groups.limits_in_v2], "second_free": "NOT_FOUND"}
    assert ground.leftovers() == []


async def test_many_at_once_from_many_connections_leave_nothing(served, ground):
    async def cycle(number: int) -> None:
        channel = dial(str(served.path), tls, server_name=SERVER_NAME)
        try:
            stub = CellServiceStub(channel)
            name = f"c{number}"
            await allocate(stub, name)
            await start(stub, name, "x", "sleep 1000")
            if number % 2:
                await stub.Stop(StopCellRequest(cell_name=name, executable_name="x"))
            await stub.Free(FreeCellRequest(cell_name=name))
        finally:
            channel.close()

    tls = served.tls()
    await asyncio.gather(*(cycle(number) for number in range(20)))
    assert ground.leftovers() == []


async def test_a_client_that_leaves_in_the_middle_of_a_start_leaves_nothing_half_done(served, cells):
    await allocate(cells, "a")
    channel = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
    try:
        starting = asyncio.ensure_future(start(CellServiceStub(channel), "a", "x", "sleep 1000"))
        await eventually(lambda: served.keeper._locks.work or starting.done())
    finally:
        channel.close()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await eventually(lambda: not served.keeper._locks.work)
    for state in served.keeper.get(CellName("a")).executables:
        assert os.path.exists(f"/proc/{state.pid}")


async def test_a_cell_whose_groups_are_gone_is_dropped_when_it_is_freed(served, ground, cells):
    await allocate(cells, "a")
    ground.groups.remove(CellName("a"))
    assert await status_of(cells.Free(FreeCellRequest(cell_name="a"))) is Status.NOT_FOUND
    assert served.keeper.list() == []
