"""What each call of Aurae's present API means: limits, nesting, users, names, and who may call."""

from __future__ import annotations

import asyncio

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model import cells as model
from skerry.model import errors
from skerry.model.cells import CellLimits, CellOwner, ExitStatus
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.transport.grpc import health
from skerry.transport.grpc.channels import dial
from skerry.transport.proto.aurae_cells_grpc import CellServiceStub
from skerry.transport.proto.aurae_cells_pb2 import (
    Cell,
    CellServiceAllocateRequest,
    CellServiceFreeRequest,
    CellServiceListRequest,
    CellServiceListResponse,
    CellServiceStartRequest,
    CellServiceStopRequest,
    CpuController,
    CpusetController,
    Executable,
    MemoryController,
)
from skerry.transport.proto.aurae_discovery_grpc import DiscoveryServiceStub
from skerry.transport.proto.aurae_discovery_pb2 import DiscoverRequest
from skerry.wire.aurae.cells_v0 import graph
from skerry.wire.aurae.discovery_v0 import DiscoveryServiceV0
from tests.support.cells import View, listening
from tests.support.certificates import SERVER_NAME


@pytest.fixture
def cells(channel) -> CellServiceStub:
    return CellServiceStub(channel)


def allocation(name: str, **fields) -> CellServiceAllocateRequest:
    return CellServiceAllocateRequest(cell=Cell(name=name, **fields))


def start(
    cell: str | None = "c", name: str = "x", command: str = "sleep 1", **fields
) -> CellServiceStartRequest:
    executable = Executable(name=name, command=command, description="")
    return CellServiceStartRequest(cell_name=cell, executable=executable, **fields)


async def refused(call) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


@pytest.mark.parametrize(
    ("fields", "limits"),
    [
        ({}, CellLimits()),
        (
            {
                "cpu": CpuController(),
                "cpuset": CpusetController(),
                "memory": MemoryController(),
            },  # as `aer` does
            CellLimits(),
        ),
        ({"cpu": CpuController(weight=200)}, CellLimits(cpu_weight=200)),
        ({"cpu": CpuController(max=50_000)}, CellLimits(cpu_quota=Millicores(500))),
        ({"cpu": CpuController(max=300_000, period=1_000_000)}, CellLimits(cpu_quota=Millicores(300))),
        ({"cpu": CpuController(max=50_199)}, CellLimits(cpu_quota=Millicores(501))),  # rounded down
        ({"cpuset": CpusetController(cpus="0-1,3", mems="0")}, CellLimits(cpus="0-1,3", mems="0")),
        ({"memory": MemoryController(max=64 << 20)}, CellLimits(memory=Megabytes(64))),
        ({"memory": MemoryController(min=0, low=0, max=(64 << 20) + 5)}, CellLimits(memory=Megabytes(64))),
    ],
    ids=str,
)
async def test_controllers_become_the_limits_of_the_cell(served, cells, fields, limits):
    await cells.Allocate(allocation("c", **fields))
    assert served.keeper.cells["c"].limits == limits


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (CellServiceAllocateRequest(), "cell"),
        (allocation(""), "cell.name"),
        (allocation("parent/bad_child"), "cell.name"),
        (allocation("c", cpu=CpuController(weight=0)), "cell.cpu.weight"),
        (allocation("c", cpu=CpuController(weight=10_001)), "cell.cpu.weight"),
        (allocation("c", cpu=CpuController(weight=2**64 - 1)), "cell.cpu.weight"),
        (allocation("c", cpu=CpuController(max=-1)), "cell.cpu.max"),
        (allocation("c", cpu=CpuController(max=0)), "cell.cpu.max"),
        (allocation("c", cpu=CpuController(max=99)), "cell.cpu.max"),
        (allocation("c", cpu=CpuController(max=2**63 - 1)), "cell.cpu.max"),
        (allocation("c", cpu=CpuController(max=1000, period=0)), "cell.cpu.period"),
        (allocation("c", cpu=CpuController(max=1000, period=2**63)), "cell.cpu.period"),
        (allocation("c", cpu=CpuController(period=1000)), "cell.cpu.period"),
        (allocation("c", cpuset=CpusetController(cpus="foo")), "cell.cpuset.cpus"),
        (allocation("c", cpuset=CpusetController(cpus="1:2")), "cell.cpuset.cpus"),
        (allocation("c", cpuset=CpusetController(mems="1..3")), "cell.cpuset.mems"),
        (allocation("c", memory=MemoryController(max=-1)), "cell.memory.max"),
        (allocation("c", memory=MemoryController(max=0)), "cell.memory.max"),
        (allocation("c", memory=MemoryController(max=2**63 - 1)), "cell.memory.max"),
        (allocation("c", memory=MemoryController(min=1)), "cell.memory.min"),
        (allocation("c", memory=MemoryController(low=-1)), "cell.memory.low"),
        (allocation("c", memory=MemoryController(high=1 << 20)), "cell.memory.high"),
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
        (start(None), "cell_name"),
        (start(""), "cell_name"),
        (start("a_b"), "cell_name"),
        (CellServiceStartRequest(cell_name="c"), "executable"),
        (start(name=""), "executable.name"),
        (start(command=" "), "executable.command"),
        (start(uid=2**32 - 1), "uid"),
        (start(gid=2**31), "gid"),
    ],
    ids=str,
)
async def test_a_bad_field_of_start_is_a_failed_precondition_that_names_it(served, cells, request_, field):
    await cells.Allocate(allocation("c"))
    status, text = await refused(cells.Start(request_))
    assert (status, text.partition("; ")[0]) == (Status.FAILED_PRECONDITION, f"Field = {field}")
    assert served.keeper.started == {}


async def test_start_and_stop_without_a_cell_say_that_nothing_runs_outside_of_cells(cells):
    for call in (cells.Start(start(None)), cells.Stop(CellServiceStopRequest(executable_name="x"))):
        status, text = await refused(call)
        assert (status, "nothing outside of cells" in text) == (Status.FAILED_PRECONDITION, True)


async def test_the_codes_are_those_of_the_document(served, cells):
    free, stop = (
        CellServiceFreeRequest(cell_name="c"),
        CellServiceStopRequest(cell_name="c", executable_name="x"),
    )
    for call in (cells.Start(start()), cells.Stop(stop), cells.Free(free), cells.Allocate(allocation("c/d"))):
        assert (await refused(call))[0] is Status.NOT_FOUND
    await cells.Allocate(allocation("c"))
    assert (await refused(cells.Allocate(allocation("c"))))[0] is Status.ALREADY_EXISTS
    await cells.Start(start())
    assert (await refused(cells.Start(start())))[0] is Status.ALREADY_EXISTS
    served.keeper.started_one("c", "x").end(ExitStatus(at=1.0, code=0))
    await cells.Stop(stop)
    assert (await refused(cells.Stop(stop)))[0] is Status.NOT_FOUND
    await cells.Free(free)
    assert (await refused(cells.Free(free)))[0] is Status.NOT_FOUND


async def test_stop_without_an_executable_stops_all_of_the_cell_and_no_others(served, cells):
    for cell in ("c", "c/d"):
        await cells.Allocate(allocation(cell))
    for cell, name in (("c", "one"), ("c", "two"), ("c/d", "three")):
        await cells.Start(start(cell, name))
    await cells.Stop(CellServiceStopRequest(cell_name="c"))
    assert [name for _, name in served.keeper.started] == ["three"]
    assert (await refused(cells.Stop(CellServiceStopRequest(cell_name="no-such"))))[0] is Status.NOT_FOUND


async def test_start_tells_the_process_and_the_user_that_it_runs_as(served, cells):
    await cells.Allocate(allocation("c"))
    own = served.keeper.list()[0].uid
    reply = await cells.Start(start())
    assert (reply.pid, reply.uid, reply.gid) == (served.keeper.started_one("c", "x").state.pid, own, own)
    chosen = await cells.Start(start(name="y", uid=0, gid=7))
    assert (chosen.uid, chosen.gid) == (0, 7)
    sandbox = served.keeper.started_one("c", "y").sandbox
    assert (sandbox.uid, sandbox.gid) == (0, 7)


async def test_only_an_admin_chooses_a_user(served):
    channel = dial(str(served.path), served.tls("deployer"), server_name=SERVER_NAME)
    try:
        cells = CellServiceStub(channel)
        await cells.Allocate(allocation("c"))
        for fields in ({"uid": 0}, {"gid": 0}, {"uid": 1000, "gid": 1000}):
            status, text = await refused(cells.Start(start(**fields)))
            assert (status, "only an admin" in text) == (Status.PERMISSION_DENIED, True)
        await cells.Start(start())
    finally:
        channel.close()


@pytest.mark.parametrize(
    ("role", "changes", "lists", "discovers"),
    [
        ("deployer", True, True, True),
        ("viewer", False, True, True),
        ("invoker", False, False, True),
        ("node", False, False, False),
    ],
)
async def test_each_role_may_do_what_its_row_says(served, role, changes, lists, discovers):
    channel = dial(str(served.path), served.tls(role), server_name=SERVER_NAME)
    calls = (
        (changes, CellServiceStub(channel).Allocate(allocation("c"))),
        (lists, CellServiceStub(channel).List(CellServiceListRequest())),
        (discovers, DiscoveryServiceStub(channel).Discover(DiscoverRequest())),
    )
    try:
        for is_allowed, call in calls:
            if is_allowed:
                await call
            else:
                assert (await refused(call))[0] is Status.PERMISSION_DENIED
    finally:
        channel.close()


async def test_the_network_is_isolated_if_that_is_asked_for_and_processes_always_are(served, cells):
    await cells.Allocate(allocation("a"))
    await cells.Allocate(allocation("b", isolate_process=True, isolate_network=True))
    made = served.keeper.cells
    assert [(each.isolates_processes, each.isolates_network) for each in made.values()] == [
        (True, False),
        (True, True),
    ]
    listed = await cells.List(CellServiceListRequest())
    assert [(node.cell.isolate_process, node.cell.isolate_network) for node in listed.cells] == [
        (True, False),
        (True, True),
    ]


async def test_cells_are_listed_as_a_tree_with_whole_names_and_what_they_are_held_to(cells):
    for name in ("d", "a", "a/b", "a/b/c", "a-b", "d/e"):
        await cells.Allocate(allocation(name))
    await cells.Allocate(
        allocation(
            "a/f",
            cpu=CpuController(max=300_000, period=1_000_000),
            cpuset=CpusetController(cpus="0"),
            memory=MemoryController(max=(64 << 20) + 1),
        )
    )
    listed = (await cells.List(CellServiceListRequest())).cells

    def told(nodes):
        return {node.cell.name: told(node.children) for node in nodes}

    assert told(listed) == {
        "a": {"a/b": {"a/b/c": {}}, "a/f": {}},
        "a-b": {},
        "d": {"d/e": {}},
    }
    a = next(node for node in listed if node.cell.name == "a")
    plain, limited = (child.cell for child in a.children)
    assert not any(plain.HasField(field) for field in ("cpu", "cpuset", "memory"))
    assert limited.cpu == CpuController(max=30_000, period=100_000)
    assert limited.cpuset == CpusetController(cpus="0")
    assert limited.memory == MemoryController(max=64 << 20)


def view(name: str, **fields) -> View:
    return View(model.Cell(CellName(name), **fields), 60_000, ())


def test_cells_that_belong_to_skerry_are_not_listed():
    views = [view("mine"), view("box", owner=CellOwner.CONTAINER), view("fn", owner=CellOwner.FUNCTIONS)]
    assert [node.cell.name for node in graph(views)] == ["mine"]


def test_shares_of_the_documents_api_are_listed_as_a_weight():
    [node] = graph([view("c", limits=CellLimits(cpu_shares=2048))])
    assert node.cell.cpu == CpuController(weight=200)


def test_the_deepest_nesting_that_a_name_allows_is_listed_so_that_readers_can_follow():
    views = [view("/".join("a" * depth)) for depth in range(1, 129)]
    reply = CellServiceListResponse.FromString(
        CellServiceListResponse(cells=graph(views)).SerializeToString()
    )
    names, level = [], list(reply.cells)
    while level:
        names += [node.cell.name for node in level]
        level = [child for node in level for child in node.children]
    assert sorted(names) == sorted(each.cell.name for each in views)


async def test_discover_says_that_it_is_not_healthy_while_a_readiness_check_fails(tmp_path, authority):
    async def fails() -> None:
        raise RuntimeError("the disk is full")

    checks = health.ReadinessChecks({"disk": fails})
    async with listening(tmp_path, authority, [DiscoveryServiceV0(checks.all_pass)]) as path:
        tls = authority.client_context(authority.issue("some-viewer", "viewer"))
        channel = dial(str(path), tls, server_name=SERVER_NAME)
        try:
            reply = await DiscoveryServiceStub(channel).Discover(DiscoverRequest())
        finally:
            channel.close()
    assert not reply.healthy


async def test_two_stops_of_all_at_once_both_work(served, cells):
    await cells.Allocate(allocation("c"))
    for number in range(20):
        await cells.Start(start(name=f"x{number}"))
    stop = CellServiceStopRequest(cell_name="c")
    await asyncio.gather(cells.Stop(stop), cells.Stop(stop))
    assert served.keeper.started == {}


async def test_what_the_node_finds_wrong_with_a_limit_is_told_by_the_contracts_field(served, cells):
    served.keeper.fails = errors.Invalid("cpus 9 are not to be had here", field="cpus")
    status, text = await refused(cells.Allocate(allocation("c", cpuset=CpusetController(cpus="9"))))
    assert (status, text) == (
        Status.FAILED_PRECONDITION,
        "Field = cell.cpuset.cpus; cpus 9 are not to be had here",
    )
