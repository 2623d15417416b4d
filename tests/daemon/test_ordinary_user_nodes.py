"""A cloud with nodes of ordinary users: they tell what they cannot give, and get what they can."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.daemon.ordinary import OrdinarySkerry, processes_of, skerry_of
from tests.support.ordinary_users import CAN_HAVE_NAMESPACES, IDS, ordinary_user
from tests.support.skerry import running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.skipif(not CAN_HAVE_NAMESPACES, reason="needs user namespaces of ordinary users")


class Commands(Protocol):
    """The command line of the server."""

    def __call__(self, *arguments: str) -> str: ...


@pytest.fixture(params=["by this user", "by another user"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Commands]:
    """A server without a node of its own. Root is this user where tests run as root."""
    if request.param == "by another user":
        with ordinary_user() as user, skerry_of(user) as skerry:
            skerry.start("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", role="server")
            yield skerry.cli
            assert skerry.stop() == 0
            assert processes_of(user) == []
        return
    with running(tmp_path, role="server") as theirs:

        def cli(*arguments: str) -> str:
            done = theirs.cli(*arguments)
            assert done.returncode == 0, (done.stdout, done.stderr)
            return done.stdout

        yield cli


@pytest.fixture
def node(server: Commands) -> Iterator[OrdinarySkerry]:
    with ordinary_user(ids=IDS) as user, skerry_of(user) as node:
        invitation = server("token", "create", "--role", "node").strip()
        node.start("--join", invitation, "--name", "laptop", role="node")
        yield node


def test_it_tells_what_it_enforces_and_gets_only_what_it_can_give(
    server: Commands, node: OrdinarySkerry
) -> None:
    [listed] = json.loads(server("get", "nodes", "-o", "json"))["nodes"]
    told = listed["facts"]["enforcement"]
    assert told["isolation"] == "user-namespace"
    assert told["limits"]["disk"] == "none"
    assert "not enforced" in server("describe", "node", "laptop")
    image, port = node.cli("image", "sample").strip(), free_port()
    reasons = {
        ("--disk", "1"): "cannot limit disk",
        ("-p", "81:80"): "port 81 cannot be published there",
        ("--userns", "host"): "runs without root",
        ("--constraint", "isolation=root"): 'label isolation is "user-namespace", "root" is wanted',
    }
    for number, (flags, reason) in enumerate(reasons.items()):
        server("run", "-d", "--name", f"cannot-{number}", *flags, image)
        assert reason in server("explain", f"cannot-{number}")
    server(
        "run",
        "--name",
        "can",
        "--memory",
        "200",
        "--constraint",
        "isolation!=root",
        "-p",
        f"{port}:80",
        image,
    )
    assert b"It works" in _page(port)
    running_ones = [each["name"] for each in _instances(server) if each["status"] == "RUNNING"]
    assert running_ones == ["can"]
    server("delete", "instance", "can")
    assert node.stop() == 0
    eventually_sync(lambda: processes_of(node.user) == [], what="the end of all that it had")


def _instances(server: Commands) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(server("get", "instances", "-o", "json"))["instances"]
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _page(port: int) -> bytes:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().read()
