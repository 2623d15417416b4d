"""An instance of a whole Skerry over HTTP: from a workload to a page, output, programs in it, its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from skerry.model.tunnels import Channel, Frame
from tests.support import imagery
from tests.support.etcd import free_port
from tests.support.pages import get
from tests.support.skerry import Skerry, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")

PAGE = "a page\n"
SERVE = "trap 'exit 0' TERM; echo serving; echo quietly >&2; httpd -f -p 80 -h /www & wait"


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(tmp_path_factory.mktemp("rest")) as one:
        yield one
        # Containers outlive a server, and a test that failed may have left some.
        for left in one.call("GET", "/instance/")[1]["instances"]:
            one.call("DELETE", f"/instance/{left['id']}")
        eventually_sync(
            lambda: one.call("GET", "/instance/")[1]["count"] == 0, within=30, what="an empty node"
        )


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


async def run(skerry: Skerry, id: str, script: str, *sent: Frame, **more: str) -> list[Frame]:
    """What a script in the instance says, to its end."""
    query = [("command", "sh"), ("command", "-c"), ("command", script), *more.items()]
    async with (
        aiohttp.ClientSession(skerry.ready["http"]) as session,
        session.ws_connect(f"/instance/{id}/exec", params=query) as socket,
    ):
        for frame in sent:
            await socket.send_bytes(frame.pack())
        return [Frame.unpack(message.data) async for message in socket]


def joined(frames: list[Frame], channel: Channel) -> bytes:
    return b"".join(frame.data for frame in frames if frame.channel is channel)


def test_an_instance_serves_is_listened_to_and_spoken_to_and_goes(skerry: Skerry, archive: str) -> None:
    port = free_port()
    spec = {"name": "web", "uri": archive, "ports": [f"{port}:80"], "env": ["WHO=me"]}
    status, workload = skerry.call("PUT", "/workload/", spec)
    assert status == 201, workload
    status, made = skerry.call("PUT", f"/instance/?workloadId={workload['id']}")
    assert status == 201, made
    id = made["id"]
    eventually_sync(lambda: shown(skerry, id)["status"] == "RUNNING", within=30, what="a running instance")
    assert shown(skerry, id)["ip"]
    eventually_sync(lambda: get(port) == PAGE, within=10, what="the page")

    logs = skerry.call("GET", f"/instance/{id}/logs")
    assert (logs[0], set(logs[1].split())) == (200, {"serving", "quietly"})
    assert skerry.call("GET", f"/instance/{id}/logs?stream=stderr") == (200, "quietly\n")

    hello, end = Frame(Channel.INPUT, b"hello"), Frame(Channel.END_OF_INPUT)
    piped = asyncio.run(run(skerry, id, "cat; echo $WHO >&2; exit 7", hello, end, input="true"))
    assert joined(piped, Channel.OUTPUT) == b"hello"
    assert joined(piped, Channel.ERRORS) == b"me\n"
    assert piped[-1] == Frame(Channel.EXIT, b"7")
    # A runtime sets the size a moment after the start.
    script = 'until [ "$(stty size)" = "30 100" ]; do sleep 0.01; done; read line; echo got $line'
    line = Frame(Channel.INPUT, b"it\n")
    size = {"terminal": "true", "rows": "30", "columns": "100"}
    on_terminal = asyncio.run(run(skerry, id, script, line, input="true", **size))
    assert b"got it" in joined(on_terminal, Channel.OUTPUT)
    assert on_terminal[-1] == Frame(Channel.EXIT, b"0")

    assert skerry.call("DELETE", f"/workload/{workload['id']}")[0] == 200
    eventually_sync(lambda: skerry.call("GET", f"/instance/{id}")[0] == 404, within=30, what="its end")
    with pytest.raises(OSError, match="refused"):
        get(port)
