"""Functions on a node: registered at its server, called at the node, whether the server is there or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.test_node import join_token
from tests.support.clusters import sweep
from tests.support.functions import body, create, delete, invoke, result, update
from tests.support.skerry import Skerry
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

ROOM = ("--set", "functions.memory_mb=256", "--set", "functions.spare_workers=0")
ONE = "def handler(params, context):\n    return ['one', params]\n"
TWO = "def handler(params, context):\n    return ['two', params]\n"


class Machine:
    """A node that can be killed and started again."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = ("--http", "127.0.0.1:0", "--set", "functions.neighbours=127.0.0.1:0", *ROOM)
        self.start(*flags)

    def start(self, *flags: str) -> None:
        self.skerry = Skerry(self.folder, *self._flags, *flags, role="node")
        self.skerry.wait_ready()

    def knows(self, *names: str) -> None:
        eventually_sync(lambda: self.skerry.call("GET", "/function") == (200, list(names)))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Skerry]:
    folder = tmp_path / "server"
    folder.mkdir()
    skerry = Skerry(folder, role="server")
    try:
        skerry.wait_ready()
        yield skerry
        if skerry.process.poll() is None:
            assert skerry.stop() == 0, skerry.said()
    finally:
        if skerry.process.poll() is None:
            skerry.kill()


@pytest.fixture
def machine(tmp_path: Path, server: Skerry) -> Iterator[Machine]:
    folder = tmp_path / "machine"
    folder.mkdir()
    joining = ("--join", server.ready["http"], "--token", join_token(server), "--name", "edge")
    made = Machine(folder, *joining)
    try:
        yield made
        assert made.skerry.stop() == 0, made.skerry.said()
    finally:
        sweep(made.skerry)


def until_taken(server: Skerry, name: str, code: str, **fields: Any) -> None:
    """Create a function as soon as there is a node for it."""
    eventually_sync(lambda: server.call("POST", "/create", body(name, code, **fields))[0] == 200)


def test_a_function_is_called_at_a_node_also_while_its_server_is_gone(
    server: Skerry, machine: Machine
) -> None:
    until_taken(server, "which", ONE)
    machine.knows("which")
    node = machine.skerry
    status, report = invoke(node, "which", {"n": 1})
    assert (status, json.loads(report["Result"])) == (200, ["one", {"n": 1}]), report
    assert report["ExecutionNode"] == "edge"

    update(server, "which", TWO)
    eventually_sync(lambda: result(node, "which")[0] == "two")
    create(server, "gone", ONE)
    machine.knows("gone", "which")
    delete(server, "gone")
    machine.knows("which")
    assert invoke(node, "gone") == (404, "Function unknown.")

    for path in ("/create", "/update"):
        status, refused = node.call("POST", path, body("other", ONE))
        assert (status, server.ready["http"] in refused["message"]) == (503, True)
    assert node.call("POST", "/delete", {"Name": "which"})[0] == 503
    assert node.call("GET", "/healthz")[0] == 200
    assert "skerry_function_calls_total" in node.call("GET", "/metrics")[1]
    assert node.call("GET", "/node/")[0] == 404
    assert node.call("GET", "/function", headers={"Authorization": "Bearer x"})[0] == 401

    # What it was told a moment ago is on its disk in a moment.
    file = node.data / "functions" / "functions.json"
    eventually_sync(lambda: [each["version"] for each in json.loads(file.read_text())["functions"]] == [2])
    server.kill()
    assert result(node, "which", {"n": 1}) == ["two", {"n": 1}]
    node.kill()
    machine.start()
    node = machine.skerry
    assert node.call("GET", "/function") == (200, ["which"])
    assert result(node, "which", {"n": 2}) == ["two", {"n": 2}]
    assert node.call("GET", "/function/which")[1]["Version"] == 2


def test_a_node_that_its_server_cannot_dial_is_told_by_status_until_it_can(
    server: Skerry, machine: Machine
) -> None:
    def unreachable() -> list[str]:
        return list(json.loads(server.cli("status", "-o", "json").stdout)["unreachable"])

    assert machine.skerry.stop() == 0
    machine.start("--name", "edge", "--set", "functions.neighbour_address=127.0.0.1:1")
    # The address of before is known until the node is connected again.
    (sentence,) = eventually_sync(lambda: [each for each in unreachable() if "127.0.0.1:1)" in each])
    assert sentence.startswith("edge (127.0.0.1:1) cannot be reached: ")
    assert "functions.neighbour_address" in sentence
    shown = server.cli("status")
    assert shown.returncode == 0
    assert "unreachable  edge (127.0.0.1:1) cannot be reached" in shown.stdout
    assert machine.skerry.stop() == 0
    machine.start()
    eventually_sync(lambda: unreachable() == [])


def test_a_server_passes_calls_on_to_a_node(server: Skerry, machine: Machine) -> None:
    assert server.call("POST", "/invoke/nobody", {})[0] == 404
    until_taken(server, "which", ONE)
    machine.knows("which")
    eventually_sync(lambda: invoke(server, "which")[0] == 200)
    status, report = invoke(server, "which", {"n": 2})
    assert (status, json.loads(report["Result"])) == (200, ["one", {"n": 2}])
    assert (report["ExecutionNode"], report["SchedAction"]) == ("edge", "O")
    status, large = server.call("POST", "/create", body("large", ONE, MemoryMB=300))
    assert (status, "256 MB" in large["message"]) == (422, True)
