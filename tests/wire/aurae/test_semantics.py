"""What each call means, row by row of the contract's table, and what of it is better here."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.transport.grpc.channels import dial
from skerry.transport.proto.observe_grpc import ObserveStub
from skerry.transport.proto.observe_pb2 import GetSubProcessStreamRequest
from skerry.transport.proto.runtime_grpc import CellServiceStub
from skerry.transport.proto.runtime_pb2 import (
    AllocateCellRequest,
    Cell,
    Executable,
    FreeCellRequest,
    StartCellRequest,
    StopCellRequest,
)
from tests.support.certificates import SERVER_NAME


@pytest.fixture
def cells(channel) -> CellServiceStub:
    return CellServiceStub(channel)


def allocation(name: str, shares: int = 0) -> AllocateCellRequest:
    return AllocateCellRequest(cell=Cell(name=name, cpu_shares=shares))


def start(cell: str = "c", name: str = "x", command: str = "sleep 1") -> StartCellRequest:
    return StartCellRequest(executable=Executable(name=name, command=command, cell_name=cell))


async def refused(call) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (AllocateCellRequest(), "cell"),
        (allocation(""), "cell.name"),
        (allocation("no_underscore"), "cell.name"),
        (allocation("parent/../other"), "cell.name"),
        (allocation("/a"), "cell.name"),
        (allocation("a/"), "cell.name"),
        (allocation("-a"), "cell.name"),
        (allocation("ok", 1), "cell.cpu_shares"),
        (allocation("ok", 262_145), "cell.cpu_shares"),
    ],
    ids=str,
)
async def test_a_bad_field_of_allocate_is_a_failed_precondition_that_names_it(served, cells, request_, field):
    status, text = await refused(cells.Allocate(request_))
    assert status is Status.FAILED_PRECONDITION
    assert text.startswith(f"Field = {field}; ")
    assert served.keeper.cells == {}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (StartCellRequest(), "executable"),
        (start(cell=""), "executable.cell_name"),
        (start(cell="c_d"), "executable.cell_name"),
        (start(name=""), "executable.name"),
        (start(name="a/b"), "executable.name"),
        (start(command=""), "executable.command"),
        (start(command="  "), "executable.command"),
        (start(command="a\0b"), "executable.command"),
    ],
    ids=str,
)
async def test_a_bad_field_of_start_is_a_failed_precondition_that_names_it(served, cells, request_, field):
    await cells.Allocate(allocation("c"))
    status, text = await refused(cells.Start(request_))
    assert status is Status.FAILED_PRECONDITION
    assert text.startswith(f"Field = {field}; ")
    assert served.keeper.started == {}


async def test_a_bad_field_of_free_and_stop_is_a_failed_precondition_that_names_it(cells):
    for call, field in (
        (cells.Free(FreeCellRequest()), "cell_name"),
        (cells.Stop(StopCellRequest(cell_name="a_b", executable_name="x")), "cell_name"),
    ):
        status, text = await refused(call)
        assert (status, text.partition("; ")[0]) == (Status.FAILED_PRECONDITION, f"Field = {field}")


async def test_a_name_is_refused_whole_so_that_no_other_cell_is_freed_for_it(served, cells):
    await cells.Allocate(allocation("parent"))
    for name in ("parent/bad_child", "parent/", "parent//", "/parent", "parent/.."):
        status, _ = await refused(cells.Free(FreeCellRequest(cell_name=name)))
        assert status is Status.FAILED_PRECONDITION
    assert list(served.keeper.cells) == ["parent"]


async def test_what_the_node_finds_wrong_with_a_field_is_told_in_the_same_way(served, cells):
    served.keeper.fails = errors.Invalid("cpu_shares are not to be had here", field="cpu_shares")
    status, text = await refused(cells.Allocate(allocation("c", 2)))
    assert (status, text) == (
        Status.FAILED_PRECONDITION,
        "Field = cell.cpu_shares; cpu_shares are not to be had here",
    )


async def test_shares_are_kept_as_they_are_and_0_means_none(served, cells):
    await cells.Allocate(allocation("two", 2))
    await cells.Allocate(allocation("none", 0))
    assert served.keeper.cells["two"].limits.cpu_shares == 2
    assert served.keeper.cells["none"].limits.cpu_shares is None


async def test_allocating_what_is_there_is_already_exists(cells):
    await cells.Allocate(allocation("c"))
    assert (await refused(cells.Allocate(allocation("c"))))[0] is Status.ALREADY_EXISTS


async def test_allocating_over_a_group_of_somebody_else_is_a_failed_precondition(served, cells):
    served.keeper.foreign.add("c")
    status, text = await refused(cells.Allocate(allocation("c")))
    assert status is Status.FAILED_PRECONDITION
    assert "exists on this host" in text


async def test_allocating_in_a_parent_that_is_missing_is_not_found_and_names_it(cells):
    await cells.Allocate(allocation("a"))
    status, text = await refused(cells.Allocate(allocation("a/b/c")))
    assert status is Status.NOT_FOUND
    assert "'a/b'" in text


async def test_a_fault_of_the_node_is_internal_and_says_nothing_of_its_inside(served, cells):
    served.keeper.fails = errors.Internal("clone failed", detail="a secret")
    status, text = await refused(cells.Allocate(allocation("c")))
    assert status is Status.INTERNAL
    assert "clone" not in text
    served.keeper.fails = RuntimeError("a secret")
    status, text = await refused(cells.Allocate(allocation("c")))
    assert status is Status.INTERNAL
    assert "secret" not in text


async def test_freeing_what_is_not_there_is_not_found_also_the_second_time(cells):
    await cells.Allocate(allocation("c"))
    await cells.Free(FreeCellRequest(cell_name="c"))
    assert (await refused(cells.Free(FreeCellRequest(cell_name="c"))))[0] is Status.NOT_FOUND


async def test_freeing_ends_what_runs_in_it_and_below(served, cells):
    for name in ("a", "a/b"):
        await cells.Allocate(allocation(name))
        await cells.Start(start(name))
    await cells.Free(FreeCellRequest(cell_name="a"))
    assert (served.keeper.cells, served.keeper.started) == ({}, {})


async def test_a_freed_name_can_be_allocated_anew(cells):
    for _ in range(2):
        await cells.Allocate(allocation("c"))
        await cells.Free(FreeCellRequest(cell_name="c"))


async def test_starting_in_a_cell_that_is_not_there_is_not_found(cells):
    assert (await refused(cells.Start(start("nowhere"))))[0] is Status.NOT_FOUND


async def test_starting_a_name_that_is_known_is_already_exists_also_if_it_has_exited(served, cells):
    await cells.Allocate(allocation("c"))
    await cells.Start(start())
    assert (await refused(cells.Start(start())))[0] is Status.ALREADY_EXISTS
    served.keeper.started_one("c", "x").end(ExitStatus(at=1.0, code=0))
    assert (await refused(cells.Start(start())))[0] is Status.ALREADY_EXISTS


async def test_several_executables_run_in_one_cell(served, cells):
    await cells.Allocate(allocation("c"))
    for name in ("one", "two"):
        await cells.Start(start(name=name, command=f"echo {name}"))
    assert [each.state.command for each in served.keeper.started.values()] == ["echo one", "echo two"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.Internal("the fork failed"), Status.INTERNAL),
        (errors.Unavailable("the launcher is away; try again"), Status.UNAVAILABLE),
        (errors.ResourcesExhausted("no more users; free a cell"), Status.RESOURCE_EXHAUSTED),
    ],
)
async def test_a_start_that_fails_leaves_the_name_free(served, cells, error, status):
    await cells.Allocate(allocation("c"))
    served.keeper.fails = error
    assert (await refused(cells.Start(start())))[0] is status
    await cells.Start(start())


async def test_stopping_what_is_not_there_is_not_found_also_the_second_time(cells):
    stop = StopCellRequest(cell_name="c", executable_name="x")
    assert (await refused(cells.Stop(stop)))[0] is Status.NOT_FOUND
    await cells.Allocate(allocation("c"))
    assert (await refused(cells.Stop(stop)))[0] is Status.NOT_FOUND
    await cells.Start(start())
    await cells.Stop(stop)
    assert (await refused(cells.Stop(stop)))[0] is Status.NOT_FOUND


async def test_stop_without_an_executable_stops_all_of_the_cell_and_no_others(served, cells):
    for cell in ("c", "c/d", "e"):
        await cells.Allocate(allocation(cell))
    for cell, name in (("c", "one"), ("c", "two"), ("c/d", "three"), ("e", "four")):
        await cells.Start(start(cell, name))
    served.keeper.started_one("c", "one").end(ExitStatus(at=1.0, code=0))
    await cells.Stop(StopCellRequest(cell_name="c"))
    assert [name for _, name in served.keeper.started] == ["three", "four"]
    await cells.Stop(StopCellRequest(cell_name="c"))  # nothing is left to stop
    status, _ = await refused(cells.Stop(StopCellRequest(cell_name="no-such")))
    assert status is Status.NOT_FOUND


async def test_a_stop_of_all_that_one_executable_refuses_is_told_and_stops_the_others(served, cells):
    await cells.Allocate(allocation("c"))
    for name in ("one", "two"):
        await cells.Start(start("c", name))
    served.keeper.fails = errors.Unavailable("process 7 does not die; stop it again later")
    status, text = await refused(cells.Stop(StopCellRequest(cell_name="c")))
    assert (status, "does not die" in text) == (Status.UNAVAILABLE, True)
    assert [name for _, name in served.keeper.started] == ["one"]


async def test_stopping_what_has_exited_is_fine_and_frees_its_name(served, cells):
    await cells.Allocate(allocation("c"))
    await cells.Start(start())
    served.keeper.started_one("c", "x").end(ExitStatus(at=1.0, code=0))
    await cells.Stop(StopCellRequest(cell_name="c", executable_name="x"))
    await cells.Start(start())


@pytest.mark.parametrize("role", ["deployer", "admin"])
async def test_deployers_and_admins_may_change_cells(served, role):
    channel = dial(str(served.path), served.tls(role), server_name=SERVER_NAME)
    try:
        cells = CellServiceStub(channel)
        await cells.Allocate(allocation("c"))
        await cells.Start(start())
        await cells.Stop(StopCellRequest(cell_name="c", executable_name="x"))
        await cells.Free(FreeCellRequest(cell_name="c"))
    finally:
        channel.close()


@pytest.mark.parametrize("role", ["viewer", "invoker", "node"])
async def test_others_may_not(served, role):
    channel = dial(str(served.path), served.tls(role), server_name=SERVER_NAME)
    try:
        status, text = await refused(CellServiceStub(channel).Allocate(allocation("c")))
    finally:
        channel.close()
    assert status is Status.PERMISSION_DENIED
    assert "admin or deployer" in text
    assert served.keeper.cells == {}


@pytest.mark.parametrize(
    ("role", "status"),
    [("viewer", Status.NOT_FOUND), ("invoker", Status.PERMISSION_DENIED), ("node", Status.PERMISSION_DENIED)],
)
async def test_a_viewer_may_observe(served, role, status):
    channel = dial(str(served.path), served.tls(role), server_name=SERVER_NAME)
    try:
        found, _ = await refused(
            ObserveStub(channel).GetSubProcessStream(GetSubProcessStreamRequest(process_id=1))
        )
    finally:
        channel.close()
    assert found is status


async def test_health_is_on_the_same_socket(channel):
    for name in ("", "runtime.CellService", "observe.Observe", "runtime.Pods"):
        reply = await HealthStub(channel).Check(HealthCheckRequest(service=name))
        assert reply.status == HealthCheckResponse.SERVING
