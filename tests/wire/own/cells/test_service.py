"""Our own contract: limits, sandbox, exits, lists, usage, and who may do what."""

from __future__ import annotations

import asyncio

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model import errors
from skerry.model.cells import CellLimits, ExitStatus, Sandbox
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import cells_pb2 as pb
from skerry.transport.proto.cells_grpc import CellServiceStub
from tests.support.certificates import SERVER_NAME


@pytest.fixture
def cells(channel) -> CellServiceStub:
    return CellServiceStub(channel)


async def refused(call) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


async def allocate(cells: CellServiceStub, *names: str) -> None:
    for name in names:
        await cells.Allocate(pb.AllocateRequest(cell=name))


async def test_every_limit_arrives_and_is_listed_again(served, cells):
    told = pb.Limits(cpu_weight=400, cpu_milli=200, cpus="0-1", mems="0", memory_mb=32, pids=10)
    await cells.Allocate(pb.AllocateRequest(cell="a", limits=told, own_network=True))
    cell = served.keeper.cells["a"]
    assert cell.limits == CellLimits(cpu_weight=400, cpu_quota=200, cpus="0-1", mems="0", memory=32, pids=10)
    assert cell.isolates_network
    [listed] = await cells.List(pb.ListRequest())
    assert (listed.cell, listed.limits, listed.own_network) == ("a", told, True)
    assert not listed.HasField("usage")


async def test_limits_that_are_not_set_are_no_limits(served, cells):
    await allocate(cells, "a")
    assert served.keeper.cells["a"].limits == CellLimits()
    [listed] = await cells.List(pb.ListRequest())
    assert listed.limits == pb.Limits()


@pytest.mark.parametrize("is_v2", [True, False])
async def test_allocate_says_truthfully_whether_limits_are_held_by_v2(served, cells, is_v2):
    served.keeper.limits_in_v2 = is_v2
    assert (await cells.Allocate(pb.AllocateRequest(cell="a"))).cgroup_v2 is is_v2


@pytest.mark.parametrize(
    ("method", "request_", "begins"),
    [
        ("Allocate", pb.AllocateRequest(cell="a_b"), "cell name 'a_b' must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(cpu_weight=0)), "cpu_weight must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(cpu_milli=0)), "cpu_milli must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(memory_mb=0)), "memory_mb must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(pids=2**63)), "pids must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(cpus="1:2")), "cpus must"),
        ("Allocate", pb.AllocateRequest(cell="a", limits=pb.Limits(cpu_weight=1, cpu_shares=2)), "give "),
        ("Free", pb.FreeRequest(cell="a/"), "cell name 'a/' must"),
        ("Start", pb.StartRequest(cell="a", executable="x"), "command must"),
        ("Start", pb.StartRequest(cell="a", executable="x", command="l", arguments=["l"]), "give either"),
        ("Start", pb.StartRequest(cell="a", command="true"), "an executable's name must"),
        (
            "Start",
            pb.StartRequest(cell="a", executable="x", command="l", sandbox=pb.Sandbox(environment=["A"])),
            "'A' must read KEY=VALUE",
        ),
        (
            "Start",
            pb.StartRequest(cell="a", executable="x", command="l", sandbox=pb.Sandbox(folder="tmp")),
            "folder must",
        ),
        (
            "Start",
            pb.StartRequest(cell="a", executable="x", command="l", sandbox=pb.Sandbox(open_files=0)),
            "open_files must",
        ),
        ("Stop", pb.StopRequest(cell="a"), "executable must"),
        ("Stop", pb.StopRequest(cell="a", executable="x", grace_s=-1), "grace_s must"),
        ("Stop", pb.StopRequest(cell="a", executable="x", grace_s=float("nan")), "grace_s must"),
        ("Stop", pb.StopRequest(cell="a", executable="x", grace_s=float("inf")), "grace_s must"),
        ("List", pb.ListRequest(cell="a b"), "cell name 'a b' must"),
        ("Wait", pb.WaitRequest(cell="a"), "executable must"),
        ("Usage", pb.UsageRequest(), "cell name '' must"),
    ],
)
async def test_a_bad_field_is_an_invalid_argument_in_the_contracts_words(
    served, cells, method, request_, begins
):
    status, text = await refused(getattr(cells, method)(request_))
    assert status is Status.INVALID_ARGUMENT
    assert text.startswith(begins)
    assert served.keeper.cells == {}


async def test_a_program_is_started_as_its_sandbox_says_and_its_pid_is_told(served, cells):
    await allocate(cells, "a")
    sandbox = pb.Sandbox(
        uid=0, gid=5, root_capabilities=True, environment=["A=1", "B="], folder="/tmp", open_files=64
    )
    reply = await cells.Start(
        pb.StartRequest(cell="a", executable="x", arguments=["echo", "a b"], description="d", sandbox=sandbox)
    )
    one = served.keeper.started_one("a", "x")
    assert (reply.pid, reply.started_at) == (one.state.pid, 1000.0)
    assert (one.state.command, one.state.description) == ("echo 'a b'", "d")
    assert one.sandbox == Sandbox(
        uid=0,
        gid=5,
        root_capabilities=True,
        environment=("A=1", "B="),
        folder="/tmp",
        open_files=64,
        arguments=("echo", "a b"),
    )


async def test_without_a_sandbox_the_tight_defaults_hold(served, cells):
    await allocate(cells, "a")
    await cells.Start(pb.StartRequest(cell="a", executable="x", command="sleep 1"))
    assert served.keeper.started_one("a", "x").sandbox == Sandbox()


@pytest.mark.parametrize(
    "sandbox", [pb.Sandbox(uid=0), pb.Sandbox(gid=0), pb.Sandbox(root_capabilities=True)], ids=str
)
async def test_only_an_admin_may_choose_the_user(served, cells, sandbox):
    await allocate(cells, "a")
    channel = dial(str(served.path), served.tls("deployer"), server_name=SERVER_NAME)
    try:
        deploying = CellServiceStub(channel)
        request = pb.StartRequest(cell="a", executable="x", command="id", sandbox=sandbox)
        assert (await refused(deploying.Start(request)))[0] is Status.PERMISSION_DENIED
        assert served.keeper.started == {}
        await deploying.Start(pb.StartRequest(cell="a", executable="x", command="id"))
    finally:
        channel.close()


async def test_stop_tells_how_it_ended_and_passes_the_grace_on(served, cells):
    await allocate(cells, "a")
    for grace in (None, 0.0, 2.5):
        await cells.Start(pb.StartRequest(cell="a", executable="x", command="sleep 9"))
        reply = await cells.Stop(pb.StopRequest(cell="a", executable="x", grace_s=grace))
        assert (reply.exit.signal, reply.exit.HasField("code"), reply.exit.at) == (15, False, 2000.0)
    assert served.keeper.graces == [None, 0.0, 2.5]


@pytest.mark.parametrize(
    "how", [ExitStatus(at=3.5, code=0), ExitStatus(at=3.5, code=7), ExitStatus(at=3.5, signal=9, oom=True)]
)
async def test_wait_answers_when_it_has_ended_and_how(served, cells, how):
    await allocate(cells, "a")
    await cells.Start(pb.StartRequest(cell="a", executable="x", command="sleep 9"))
    waiting = [asyncio.ensure_future(cells.Wait(pb.WaitRequest(cell="a", executable="x"))) for _ in range(3)]
    await asyncio.sleep(0)
    served.keeper.started_one("a", "x").end(how)
    for [reply] in await asyncio.gather(*waiting):
        told = reply.exit
        assert (told.at, told.oom) == (3.5, how.oom)
        assert (told.code if told.HasField("code") else None) == how.code
        assert (told.signal if told.HasField("signal") else None) == how.signal


async def test_a_list_has_parents_before_children_with_all_that_runs_in_them(served, cells):
    await allocate(cells, "b", "a-b", "a", "a/z", "a/z/y")
    await cells.Start(pb.StartRequest(cell="a/z", executable="x", command="true", description="d"))
    await cells.Start(pb.StartRequest(cell="a/z", executable="y", command="false"))
    served.keeper.started_one("a/z", "y").end(ExitStatus(at=3.0, code=1))
    listed = await cells.List(pb.ListRequest(usage=True))
    assert [each.cell for each in listed] == ["a", "a/z", "a/z/y", "a-b", "b"]
    running, ended = listed[1].executables
    assert (running.name, running.command, running.description, running.pid) == ("x", "true", "d", 4242)
    assert not running.HasField("exit")
    assert (ended.exit.code, ended.exit.at) == (1, 3.0)
    assert listed[0].usage.cpu_ns == 1_500_000_000


async def test_a_list_can_be_of_one_cell_and_those_below_it(cells):
    await allocate(cells, "a", "a/b", "ab")
    assert [each.cell for each in await cells.List(pb.ListRequest(cell="a"))] == ["a", "a/b"]
    assert (await refused(cells.List(pb.ListRequest(cell="c"))))[0] is Status.NOT_FOUND


async def test_a_cell_that_goes_while_it_is_listed_is_left_out(served, cells):
    await allocate(cells, "a", "b")
    usage = served.keeper.usage

    def gone(name):
        if name == "a":
            raise errors.NotFound("there is no cell 'a'")
        return usage(name)

    served.keeper.usage = gone
    assert [each.cell for each in await cells.List(pb.ListRequest(usage=True))] == ["b"]


async def test_usage_is_told_field_by_field(cells):
    await allocate(cells, "a")
    usage = (await cells.Usage(pb.UsageRequest(cell="a"))).usage
    assert (usage.cpu_ns, usage.memory_bytes, usage.oom_kills) == (1_500_000_000, 3 << 20, 1)
    assert (await refused(cells.Usage(pb.UsageRequest(cell="b"))))[0] is Status.NOT_FOUND


async def test_the_node_tells_what_it_has_and_what_is_in_use(cells):
    node = await cells.Node(pb.NodeRequest())
    assert (node.architecture, node.cgroups, node.runtime, node.cpus, list(node.load)) == (
        "amd64",
        "hybrid",
        "runc 1.1.5",
        2,
        [0.5, 0.25, 0.125],
    )
    assert (node.memory_bytes, node.memory_available_bytes) == (1 << 30, 1 << 29)
    assert (node.disk_bytes, node.disk_free_bytes, node.cpu_busy_s) == (1 << 40, 1 << 39, 12.5)


@pytest.mark.parametrize("role", ["viewer", "deployer", "invoker", "node"])
async def test_a_viewer_may_look_a_deployer_may_change_and_others_neither(served, role):
    served.keeper.on_start = lambda one: one.end(ExitStatus(at=1.0, code=0))
    channel = dial(str(served.path), served.tls(role), server_name=SERVER_NAME)
    try:
        cells = CellServiceStub(channel)
        changes = [
            cells.Allocate(pb.AllocateRequest(cell="a")),
            cells.Start(pb.StartRequest(cell="a", executable="x", command="true")),
            cells.Stop(pb.StopRequest(cell="a", executable="x")),
            cells.Free(pb.FreeRequest(cell="a")),
        ]
        looks = [
            cells.List(pb.ListRequest()),
            cells.Wait(pb.WaitRequest(cell="a", executable="x")),
            cells.Logs(pb.LogsRequest(cell="a", executable="x")),
            cells.Usage(pb.UsageRequest(cell="a")),
        ]
        for calls, may in ((changes, role == "deployer"), (looks, role in ("viewer", "deployer"))):
            for call in calls:
                try:
                    await call
                    status = Status.OK
                except GRPCError as error:
                    status = error.status
                assert (status is not Status.PERMISSION_DENIED) is may
    finally:
        channel.close()
