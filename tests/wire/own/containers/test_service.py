"""Containers over the wire: what a spec says arrives, its fate is told, and nothing half-done stays."""

from __future__ import annotations

import asyncio

import pytest
from grpclib.const import Status

from skerry.model import errors
from skerry.model.cells import ExitStatus, OutputChannel
from skerry.model.containers import ContainerSpec, ContainerState, NetworkMode
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import Resources
from skerry.model.workloads import UserNamespaceMode
from skerry.transport.proto import cells_pb2
from skerry.transport.proto import containers_pb2 as pb
from skerry.wire.own.containers import messages
from tests.support.containers import ID, an_image
from tests.support.waiting import eventually
from tests.wire.own.containers.test_images import WEB, refused

SPEC = pb.ContainerSpec(
    name="web",
    image=WEB,
    entrypoint=["/bin/sh"],
    arguments=["-c", "true"],
    environment=["A=1", "B="],
    user="web:web",
    folder="/srv",
    host_name="shop",
    stop_signal="SIGINT",
    stop_grace_s=2.5,
    cpu_milli=500,
    memory_mb=64,
    disk_gb=1,
    pids=10,
    network=pb.NETWORK_BRIDGE,
    ports=["8080:80", "53:5353/udp"],
    read_only=True,
)
NOUN = ContainerSpec(
    name="web",
    image=WEB,
    entrypoint=("/bin/sh",),
    arguments=("-c", "true"),
    environment=("A=1", "B="),
    user="web:web",
    folder="/srv",
    host_name="shop",
    stop_signal="SIGINT",
    stop_grace_s=2.5,
    resources=Resources(500, 64, 1),
    pids=10,
    ports=(PortMapping(8080, 80), PortMapping(53, 5353, Protocol.UDP)),
    read_only=True,
)
SMALL = pb.ContainerSpec(name="web", image=WEB)


async def run(containers, spec: pb.ContainerSpec = SMALL, **more) -> pb.Container:
    *_, last = await containers.Run(pb.CreateRequest(spec=spec, **more))
    assert last.WhichOneof("item") == "container"
    return last.container


def test_a_spec_is_the_same_in_both_languages():
    assert messages.decode_spec(SPEC) == NOUN
    assert messages.encode_spec(NOUN) == SPEC
    assert messages.decode_spec(SMALL) == ContainerSpec(name="web", image=WEB)
    assert messages.encode_spec(ContainerSpec(name="web", image=WEB)) == SMALL
    alone = pb.ContainerSpec(name="web", image=WEB, network=pb.NETWORK_NONE, stop_grace_s=0)
    assert messages.decode_spec(alone) == ContainerSpec(
        name="web", image=WEB, network=NetworkMode.NONE, stop_grace_s=0
    )
    assert messages.encode_spec(messages.decode_spec(alone)) == alone
    host = pb.ContainerSpec(name="web", image=WEB, userns=pb.USER_NAMESPACE_HOST)
    assert messages.decode_spec(host) == ContainerSpec(name="web", image=WEB, userns=UserNamespaceMode.HOST)
    assert messages.encode_spec(messages.decode_spec(host)) == host


def test_the_bytes_of_a_spec_never_change():
    assert SPEC.SerializeToString(deterministic=True).hex() == (
        "0a03776562"
        "12116578616d706c652e6f72672f7765623a31"
        "1a072f62696e2f7368"
        "22022d63" "220474727565"
        "2a03413d31" "2a02423d"
        "32077765623a776562"
        "3a042f737276"
        "420473686f70"
        "4a06534947494e54"
        "510000000000000440"
        "58f403" "6040" "6801" "700a"
        "8201073830" "38303a3830"
        "82010b35333a353335332f756470"
        "880101"
    )  # fmt: skip


async def test_a_container_is_created_with_progress_and_told_as_it_is(served, containers):
    *progress, last = await containers.Create(pb.CreateRequest(spec=SPEC))
    assert {each.WhichOneof("item") for each in progress} == {"progress"}
    assert last.container == pb.Container(spec=SPEC, image=ID, state=pb.STATE_CREATED, created_at=1000.0)
    assert served.containers.views["web"].spec == NOUN
    assert served.images.pulled == [WEB]


async def test_a_container_goes_from_created_to_removed(served, containers):
    await containers.Create(pb.CreateRequest(spec=SMALL))
    running = await containers.Start(pb.StartRequest(container="web"))
    assert (running.state, running.pid, running.address) == (pb.STATE_RUNNING, 4242, "10.86.0.2")
    assert (running.started_at, running.HasField("exit")) == (2000.0, False)
    stopped = await containers.Stop(pb.StopRequest(container="web", grace_s=1.5))
    assert (stopped.state, stopped.HasField("pid"), stopped.address) == (pb.STATE_EXITED, False, "")
    assert stopped.exit == cells_pb2.Exit(at=3000.0, signal=15)
    assert served.containers.graces == [1.5]
    assert await containers.Get(pb.GetRequest(container="web")) == stopped
    await containers.Remove(pb.RemoveRequest(container="web"))
    assert (await refused(containers.Get(pb.GetRequest(container="web"))))[0] is Status.NOT_FOUND


async def test_a_run_creates_and_starts(served, containers):
    assert (await run(containers)).state == pb.STATE_RUNNING
    assert [each.spec.name for each in await containers.List(pb.ListRequest())] == ["web"]


@pytest.mark.parametrize("why", [errors.FailedPrecondition("there is no such program"), ZeroDivisionError()])
async def test_a_run_that_cannot_start_leaves_no_container(served, containers, why):
    served.containers.fails_to_start = why
    status, text = await refused(run(containers))
    if isinstance(why, errors.FailedPrecondition):
        assert (status, text) == (Status.FAILED_PRECONDITION, "there is no such program")
    assert served.containers.removed == [("web", True)]
    assert await containers.List(pb.ListRequest()) == []


async def test_a_run_whose_caller_goes_away_is_undone(served, containers):
    reached = asyncio.Event()

    async def start(name):
        reached.set()
        await asyncio.Event().wait()

    served.containers.start = start
    async with containers.Run.open() as stream:
        await stream.send_message(pb.CreateRequest(spec=SMALL), end=True)
        await reached.wait()
        await stream.cancel()
    await eventually(lambda: served.containers.removed == [("web", True)])


async def test_a_name_that_is_taken_is_said_and_what_has_it_stays(served, containers):
    await run(containers)
    assert (await refused(run(containers)))[0] is Status.ALREADY_EXISTS
    assert served.containers.get("web").state is ContainerState.RUNNING


async def test_the_image_is_pulled_if_it_is_missing_always_or_never(served, containers):
    status, text = await refused(run(containers, pull=pb.PULL_NEVER))
    assert status is Status.NOT_FOUND
    assert "skerry image pull" in text
    served.images.images[WEB] = an_image(WEB)
    for number, pull in enumerate((pb.PULL_NEVER, pb.PULL_MISSING)):
        await run(containers, pb.ContainerSpec(name=f"a{number}", image=WEB), pull=pull)
    assert served.images.pulled == []
    await run(containers, pull=pb.PULL_ALWAYS)
    assert served.images.pulled == [WEB]


@pytest.mark.parametrize(
    ("spec", "begins"),
    [
        (pb.ContainerSpec(image=WEB), "container name '' must"),
        (pb.ContainerSpec(name="Web", image=WEB), "container name 'Web' must"),
        (pb.ContainerSpec(name="web"), "image must"),
        (pb.ContainerSpec(name="web", image="a b"), "image 'a b' "),
        (pb.ContainerSpec(name="web", image=WEB, cpu_milli=2**40), "cpu_milli must"),
        (pb.ContainerSpec(name="web", image=WEB, memory_mb=2**40), "memory_mb must"),
        (pb.ContainerSpec(name="web", image=WEB, disk_gb=2**40), "disk_gb must"),
        (pb.ContainerSpec(name="web", image=WEB, pids=2**40), "pids must"),
        (pb.ContainerSpec(name="web", image=WEB, environment=["A"]), "environment[0] must"),
        (pb.ContainerSpec(name="web", image=WEB, folder="srv"), "folder must"),
        (pb.ContainerSpec(name="web", image=WEB, ports=["80:80:80"]), "'80:80:80' is no port mapping"),
        (pb.ContainerSpec(name="web", image=WEB, ports=["80", "80:81"]), "port 80/tcp is mapped twice"),
        (pb.ContainerSpec(name="web", image=WEB, stop_grace_s=-1), "stop_grace_s must"),
        (pb.ContainerSpec(name="web", image=WEB, stop_grace_s=float("nan")), "stop_grace_s must"),
        (pb.ContainerSpec(name="web", image=WEB, network=2), "network 2 is"),
        (pb.ContainerSpec(name="web", image=WEB, userns=2), "userns 2 is"),
        (pb.ContainerSpec(name="web", image=WEB, network=1, ports=["80"]), "a container without a network"),
    ],
)
async def test_a_bad_field_is_an_invalid_argument_in_the_contracts_words(served, containers, spec, begins):
    for method in (containers.Create, containers.Run):
        status, text = await refused(method(pb.CreateRequest(spec=spec)))
        assert status is Status.INVALID_ARGUMENT
        assert text.startswith(begins)
    assert (served.containers.views, served.images.pulled) == ({}, [])


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("Start", pb.StartRequest()),
        ("Stop", pb.StopRequest()),
        ("Stop", pb.StopRequest(container="web", grace_s=-1)),
        ("Stop", pb.StopRequest(container="web", grace_s=float("inf"))),
        ("Remove", pb.RemoveRequest()),
        ("Get", pb.GetRequest()),
        ("Wait", pb.WaitRequest()),
        ("Logs", pb.LogsRequest()),
        ("Logs", pb.LogsRequest(container="web", channel=3)),
        ("Stats", pb.StatsRequest()),
        ("Run", pb.CreateRequest(spec=SMALL, pull=3)),
    ],
)
async def test_what_names_nothing_or_means_nothing_is_refused(containers, method, request_):
    assert (await refused(getattr(containers, method)(request_)))[0] is Status.INVALID_ARGUMENT


async def test_a_container_that_runs_is_removed_only_by_force(served, containers):
    await run(containers)
    assert (await refused(containers.Remove(pb.RemoveRequest(container="web"))))[
        0
    ] is Status.FAILED_PRECONDITION
    await containers.Remove(pb.RemoveRequest(container="web", force=True))
    assert served.containers.views == {}


async def test_a_wait_ends_with_the_container_and_tells_how(served, containers):
    await run(containers)
    waiting = asyncio.ensure_future(containers.Wait(pb.WaitRequest(container="web")))
    await asyncio.sleep(0)
    served.containers.running["web"].end(ExitStatus(at=1.0, signal=9, oom=True))
    [reply] = await waiting
    assert reply.exit == cells_pb2.Exit(at=1.0, signal=9, oom=True)


async def test_stats_are_told_field_by_field(containers):
    await run(containers)
    stats = await containers.Stats(pb.StatsRequest(container="web"))
    assert stats == pb.StatsReply(
        usage=cells_pb2.Usage(cpu_ns=1_500_000_000, memory_bytes=3 << 20, pids=2, oom_kills=1),
        disk_bytes=4096,
        disk_limit_bytes=1 << 30,
        disk_limit_kind="measured",
    )


async def test_logs_are_those_of_both_streams_and_can_be_followed_from_the_last_lines(served, containers):
    def does(started):
        for number in range(5):
            started.write(b"%d\n" % number, at_ns=number)
        started.write(b"bad\n", OutputChannel.STDERR, at_ns=9)

    served.containers.on_start = does
    await run(containers)
    items = await containers.Logs(pb.LogsRequest(container="web"))
    assert [item.data for item in items] == [b"0\n", b"1\n", b"2\n", b"3\n", b"4\n", b"bad\n"]
    last = await containers.Logs(pb.LogsRequest(container="web", tail=2, form=cells_pb2.FORM_LINES))
    assert [(item.channel, item.data) for item in last] == [(1, b"4"), (2, b"bad")]
    async with containers.Logs.open() as stream:
        await stream.send_message(pb.LogsRequest(container="web", tail=1, follow=True), end=True)
        assert (await stream.recv_message()).data == b"bad\n"
        served.containers.running["web"].write(b"new\n")
        assert (await stream.recv_message()).data == b"new\n"
        served.containers.running["web"].end(ExitStatus(at=1.0, code=0))
        assert await stream.recv_message() is None
