"""Traces of a whole cloud: one trace from a request at a server to the function on a node, and back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.test_members import Machine, until_taken
from tests.daemon.test_node import join_token
from tests.support import imagery
from tests.support.clusters import sweep
from tests.support.functions import invoke
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

TELLS = "def handler(params, context):\n    return context.get('traceparent', '')\n"
CALLER = ("a" * 32, "b" * 16)
SERVER, CLIENT, CONSUMER = 2, 3, 5


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    with otlp_receiver() as made:
        yield made
        assert made.problems == []


@pytest.fixture
def cloud(tmp_path: Path, receiver: OtlpReceiver) -> Iterator[tuple[Skerry, Skerry]]:
    """A server, which runs nothing itself, and a node."""
    for name in ("server", "machine"):
        (tmp_path / name).mkdir()
    traced = ("--set", f"traces.endpoint={receiver.url}", "--set", "stop_timeout_s=50")
    server = Skerry(tmp_path / "server", *traced, "--set", "node.name=front", role="server")
    try:
        server.wait_ready()
        joining = ("--join", server.ready["http"], "--token", join_token(server), "--name", "edge")
        machine = Machine(tmp_path / "machine", *traced, *joining)
        try:
            until_taken(server, "tells", TELLS)
            machine.knows("tells")
            yield server, machine.skerry
            assert machine.skerry.stop() == 0, machine.skerry.said()
        finally:
            sweep(machine.skerry)
        assert server.stop() == 0, server.said()
    finally:
        server.kill()


def test_one_trace_has_the_request_its_offload_and_the_cold_start_and_run_on_the_node(
    cloud: tuple[Skerry, Skerry], receiver: OtlpReceiver, tmp_path: Path
) -> None:
    server, _ = cloud
    eventually_sync(lambda: invoke(server, "tells")[0] == 200)  # the members know each other
    eventually_sync(lambda: server.call("POST", "/delete", {"Name": "tells"})[0] == 200)
    until_taken(server, "tells", TELLS)  # no worker has it

    header = {"traceparent": f"00-{CALLER[0]}-{CALLER[1]}-01"}
    status, report = server.call("POST", "/invoke/tells", {"Params": {}}, header)
    assert (status, report["IsWarmStart"]) == (200, False), report
    names = (
        "POST /invoke/{function}",
        "offload tells",
        "invoke tells",
        "start worker",
        "load code",
        "run tells",
    )
    spans = eventually_sync(lambda: _all(receiver, CALLER[0], names))
    request, offload, call, start, load, run = (spans[name] for name in names)

    # One trace, from the caller down.
    assert (request.parent, request.kind, request.node) == (CALLER[1], SERVER, "front")
    assert (offload.parent, offload.kind, offload.node) == (request.id, CLIENT, "front")
    assert (call.parent, call.node) == (offload.id, "edge")
    assert (start.parent, load.parent, run.parent) == (call.id, start.id, call.id)
    chain = (request, offload, call, start, load)
    assert [inner for outer, inner in itertools.pairwise(chain) if not inner.is_within(outer)] == []
    assert run.is_within(call)
    assert start.end <= run.start
    assert (call.attributes["faas.name"], call.attributes["faas.coldstart"]) == ("tells", True)
    assert request.attributes["http.response.status_code"] == 200
    assert offload.attributes["server.address"] == "edge"
    # The function got the span of its run.
    assert json.loads(report["Result"]) == f"00-{CALLER[0]}-{run.id}-01"

    # A caller that does not want it is not recorded; a malformed header begins another trace.
    unsampled = {"traceparent": f"00-{'c' * 32}-{CALLER[1]}-00"}
    assert server.call("POST", "/invoke/tells", {}, unsampled)[0] == 200
    assert server.call("POST", "/invoke/tells", {}, {"traceparent": "00-zz"})[0] == 200

    # An async call is a trace of its own with a link to the request that was accepted.
    again = {"traceparent": f"00-{'d' * 32}-{CALLER[1]}-01"}
    _, accepted = server.call("POST", "/invoke/tells", {"Async": True}, again)
    assert eventually_sync(lambda: server.call("GET", f"/poll/{accepted['ReqId']}?wait=5s")[0] == 200)
    (process,) = eventually_sync(lambda: [span for span in receiver.spans if span.name == "process tells"])
    accepting = eventually_sync(lambda: receiver.trace("d" * 32).get("POST /invoke/{function}"))
    assert (process.kind, process.parent) == (CONSUMER, "")
    assert process.links == ((accepting.trace, accepting.id),)
    assert receiver.trace("c" * 32) == {}

    _check_instance(server, receiver, tmp_path)


def _check_instance(server: Skerry, receiver: OtlpReceiver, folder: Path) -> None:
    """From `PUT /instance/` over its placement to its start on the node."""
    image = imagery.write_oci_archive(imagery.busybox(command=("sleep", "1000")), folder / "image.tar")
    header = {"traceparent": f"00-{'e' * 32}-{CALLER[1]}-01"}
    body = {"name": "web", "type": "CONTAINER", "uri": f"oci-archive:{image}", "environment": []}
    status, answer = server.call("PUT", "/instance/", body, header)
    assert status in (200, 201), answer
    names = ("place instance", "create container", "start container", "start instance")
    spans = eventually_sync(lambda: _all(receiver, "e" * 32, names))
    put = next(span for name, span in receiver.trace("e" * 32).items() if name.startswith("PUT /instance"))
    place, create, start, whole = (spans[name] for name in names)
    assert (place.parent, whole.parent) == (put.id, put.id)
    assert (place.node, whole.node) == ("front", "edge")
    assert (create.parent, start.parent) == (whole.id, whole.id)
    assert create.is_within(whole)
    assert start.is_within(whole)
    assert server.cli("delete", "instance", "web").returncode == 0


def _all(receiver: OtlpReceiver, trace: str, names: tuple[str, ...]) -> dict[str, ReceivedSpan] | None:
    found = receiver.trace(trace)
    return found if set(names) <= found.keys() else None
