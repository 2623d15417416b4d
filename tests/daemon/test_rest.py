"""An instance of a whole Skerry over HTTP: from a workload to a page, output, programs in it, its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from grpclib.exceptions import GRPCError

from skerry.model.streams import TunnelChannel, TunnelFrame
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import kudo_controller_pb2 as a
from skerry.transport.proto import kudo_scheduler_pb2 as pb
from skerry.transport.proto.kudo_services_grpc import InstanceServiceStub, SchedulerServiceStub
from tests.support import imagery
from tests.support.pages import get, served
from tests.support.shares import free_port
from tests.support.skerry import Skerry, running
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

PAGE = "a page\n"
SERVE = "trap 'exit 0' TERM; echo serving; echo quietly >&2; httpd -f -p 80 -h /www & wait"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("rest")) as one:
        yield one
        # Containers outlive a server, and a test that failed may have left some.
        for left in one.call("GET", "/instance/")[1]["instances"]:
            one.call("DELETE", f"/instance/{left['id']}")
        eventually_sync(lambda: one.call("GET", "/instance/")[1]["count"] == 0, what="an empty node")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> str:
    """busybox that serves a page, as a file."""
    page = imagery.layer(imagery.file("www/index.html", PAGE))
    made = imagery.busybox(page, command=("sh", "-c", SERVE))
    return f"oci-archive:{imagery.write_oci_archive(made, tmp_path_factory.mktemp('image') / 'web.tar')}"


def shown(skerry: Skerry, id: str) -> dict[str, Any]:
    status, said = skerry.call("GET", f"/instance/{id}")
    assert status == 200, said
    return dict(said)


async def run(skerry: Skerry, id: str, script: str, *sent: TunnelFrame, **more: str) -> list[TunnelFrame]:
    """What a script in the instance says, to its end."""
    query = [("command", "sh"), ("command", "-c"), ("command", script), *more.items()]
    async with (
        aiohttp.ClientSession(skerry.ready["http"]) as session,
        session.ws_connect(f"/instance/{id}/exec", params=query) as socket,
    ):
        for frame in sent:
            await socket.send_bytes(frame.pack())
        return [TunnelFrame.unpack(message.data) async for message in socket]


def joined(frames: list[TunnelFrame], channel: TunnelChannel) -> bytes:
    return b"".join(frame.data for frame in frames if frame.channel is channel)


def test_the_id_of_a_request_is_in_the_events_of_its_instance_and_in_the_log_of_the_node(
    skerry: Skerry, archive: str
) -> None:
    headers = {"Content-Type": "application/json", "X-Request-Id": "walk:put-1"}
    status, made = skerry.call("PUT", "/instance/", {"name": "traced", "uri": archive}, headers)
    assert status == 201, made
    id = made["id"]
    eventually_sync(lambda: shown(skerry, id)["status"] == "RUNNING", what="a running instance")
    told = skerry.call("GET", f"/instance/{id}/events")[1]["events"]
    assert [(one["kind"], one["request_id"]) for one in told] == [
        (f"instance.{status}", "walk:put-1") for status in ("scheduling", "scheduled", "starting", "running")
    ]
    lines = [line for line in map(json.loads, skerry.said().splitlines()) if line.get("instance") == id]
    assert {(line["event"], line["status"], line["request_id"]) for line in lines} == {
        ("instance.status", status, "walk:put-1") for status in ("STARTING", "RUNNING")
    }
    started = [
        line for line in map(json.loads, skerry.said().splitlines()) if line.get("container") == f"i-{id}"
    ]
    assert {line["event"] for line in started} >= {"container.created", "container.started"}
    assert {line["request_id"] for line in started} == {"walk:put-1"}
    skerry.cli("delete", "instance", id)
    (by_cli,) = {
        one["request_id"]
        for one in skerry.call("GET", f"/instance/{id}/events")[1]["events"]
        if one["kind"] in ("instance.destroying", "instance.terminated")
    }
    assert by_cli not in ("", "walk:put-1"), "a verb of the command line has an id of its own"


def test_an_instance_serves_is_listened_to_and_spoken_to_and_goes(skerry: Skerry, archive: str) -> None:
    port = free_port()
    spec = {"name": "web", "uri": archive, "ports": [f"{port}:80"], "env": ["WHO=me"]}
    status, workload = skerry.call("PUT", "/workload/", spec)
    assert status == 201, workload
    status, made = skerry.call("PUT", f"/instance/?workloadId={workload['id']}")
    assert status == 201, made
    id = made["id"]
    eventually_sync(lambda: shown(skerry, id)["status"] == "RUNNING", what="a running instance")
    assert shown(skerry, id)["ip"]
    assert served(port) == PAGE

    logs = skerry.call("GET", f"/instance/{id}/logs")
    assert (logs[0], set(logs[1].split())) == (200, {"serving", "quietly"})
    assert skerry.call("GET", f"/instance/{id}/logs?stream=stderr") == (200, "quietly\n")

    hello, end = TunnelFrame(TunnelChannel.INPUT, b"hello"), TunnelFrame(TunnelChannel.END_OF_INPUT)
    piped = asyncio.run(run(skerry, id, "cat; echo $WHO >&2; exit 7", hello, end, input="true"))
    assert joined(piped, TunnelChannel.OUTPUT) == b"hello"
    assert joined(piped, TunnelChannel.ERRORS) == b"me\n"
    assert piped[-1] == TunnelFrame(TunnelChannel.EXIT, b"7")
    # A runtime sets the size a moment after the start.
    script = 'until [ "$(stty size)" = "30 100" ]; do sleep 0.01; done; read line; echo got $line'
    line = TunnelFrame(TunnelChannel.INPUT, b"it\n")
    size = {"terminal": "true", "rows": "30", "columns": "100"}
    on_terminal = asyncio.run(run(skerry, id, script, line, input="true", **size))
    assert b"got it" in joined(on_terminal, TunnelChannel.OUTPUT)
    assert on_terminal[-1] == TunnelFrame(TunnelChannel.EXIT, b"0")

    assert skerry.call("DELETE", f"/workload/{workload['id']}")[0] == 200
    eventually_sync(lambda: skerry.call("GET", f"/instance/{id}")[0] == 404, what="its end")
    with pytest.raises(OSError, match="refused"):
        get(port)


async def follow(skerry: Skerry, archive: str) -> None:
    """Be Kudo's controller: create an instance that computes, and lie about it when it does."""
    line = dial(skerry.ready["grpc"], None)
    try:
        async with asyncio.timeout(PATIENCE_S), InstanceServiceStub(line).Create.open() as stream:
            await stream.send_message(pb.Instance(id="busy", uri=archive), end=True)
            told = await stream.recv_message()
            while told is not None and not told.resource.usage.cpu:
                told = await stream.recv_message()
            assert told is not None
            assert told.status == pb.RUNNING
            for lie in ("TERMINATED", "CRASHED", "STOPPING"):
                with pytest.raises(GRPCError, match="what that node sees counts"):
                    await SchedulerServiceStub(line).setInstanceStatus(
                        a.InstanceStatus(id="busy", status=lie)
                    )
            again = await stream.recv_message()  # at the next report
            assert again is not None
            assert again.status == pb.RUNNING
            await stream.cancel()
    finally:
        line.close()


def test_a_stream_carries_the_usage_of_what_a_node_runs_and_nobody_else_says_how_it_is(
    skerry: Skerry, tmp_path: Path
) -> None:
    made = imagery.busybox(command=("sh", "-c", "while :; do :; done"))
    archive = f"oci-archive:{imagery.write_oci_archive(made, tmp_path / 'busy.tar')}"
    asyncio.run(follow(skerry, archive))
    busy = shown(skerry, "busy")
    assert busy["status"] == "RUNNING"
    assert busy["name"].startswith("busy-")  # none was given
    assert skerry.call("PATCH", "/instance/busy", busy)[0] == 200
    assert skerry.call("DELETE", "/instance/busy")[0] == 200
