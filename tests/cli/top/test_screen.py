"""`skerry top` at a real terminal: drawn, resized, steered by keys, and gone without a trace."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.cli.top.clouds import cloud
from tests.support import fake_servers
from tests.support.fake_servers import FakeServer, skerry
from tests.support.screens import Screen
from tests.support.waiting import PATIENCE_S

EVENTS = {"events": [{"at": 5.0, "kind": "instance.running", "reason": "it runs"}]}
CALLS = {"Name": "hello", "Namespace": "default", "Calls": 7, "Failed": 0, "ColdStarts": 1, "RunSeconds": 0.1}
COUNTED = {"Time": 5.0, "Members": 1, "Missing": ["edge-1: it does not answer"], "Functions": [CALLS]}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    """A server with a cloud, and a data folder that names it."""
    snapshot = cloud()
    with fake_servers.on_tcp() as fake:
        fake.answer("GET /about", {"version": "1.2.3"})
        fake.answer("GET /node", {"nodes": snapshot.nodes, "cursor": None})
        fake.answer("GET /instance", {"instances": snapshot.instances, "cursor": None})
        fake.answer("GET /service", {"services": snapshot.services, "cursor": None})
        fake.answer("GET /function-calls", COUNTED)
        fake.answer("GET /instance/id-web-0", {"reason": "", "image": "example.org/web:1"})
        fake.answer("GET /instance/id-web-0/events", EVENTS)
        (tmp_path / "ready.json").write_text(json.dumps({"pid": os.getpid(), "http": fake.url}))
        yield fake


@pytest.fixture
def running(tmp_path: Path) -> Any:
    return SimpleNamespace(data=tmp_path)


def test_a_person_looks_around_and_leaves(server: FakeServer, running: Any) -> None:
    with Screen(24, 80) as screen, screen.command(running, "top", "--interval", "500ms") as process:
        shown = screen.wait_for("web-0", "db", "edge-1", "calls of 1 node unknown", "q quit")
        assert shown.index("db ") < shown.index("web-0 "), "sorted by cpu"
        screen.type(b"n")
        screen.wait_for("NAME^")
        screen.type(b"/web")
        screen.wait_for("filter: web_")
        screen.type(b"\r\x1b[B\x1b[A\r")
        screen.wait_for("instance web-0", "example.org/web:1", "it runs", "skerry logs -f id-web-0")
        screen.type(b"\x1b")
        screen.wait_for("filter: web", "NAME^")
        screen.type(b"\x1b")
        screen.wait_for("db ")
        screen.type(b"3")
        screen.wait_for("CALLS/S", "hello")
        screen.type(b"?")
        screen.wait_for("filter by name, namespace")
        screen.type(b"q")
        assert process.wait(PATIENCE_S) == 0
        assert screen.is_as_before
        all_of_it = _rest_of(screen)
        assert all_of_it.count(b"\x1b[?1049h") == all_of_it.count(b"\x1b[?1049l") == 1
        assert screen.seen.rindex(b"\x1b[?25h") > screen.seen.rindex(b"\x1b[?25l"), "the cursor is back"


def test_it_follows_the_size_and_what_happens(
    server: FakeServer, running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # of the shell that it was started in, before the size changed
    monkeypatch.setenv("LINES", "24")
    with Screen(24, 80) as screen, screen.command(running, "top", "--interval", "200ms") as process:
        screen.wait_for("web-0", "q quit")
        screen.resize(12, 60)
        process.send_signal(signal.SIGWINCH)  # the kernel sends it to a terminal's owner
        screen.wait_for("4 Nodes", "web-0")
        one = cloud().instances[0]
        server.answer("GET /instance", {"instances": [{**one, "name": "newcomer"}], "cursor": None})
        screen.wait_for("newcomer")
        server.otherwise = (500, b'{"error": "the disk is full"}')
        server.answers.clear()
        screen.wait_for("No answer: the disk is full", "newcomer")
        screen.type(b"\x03")
        assert process.wait(PATIENCE_S) == 0
        assert screen.is_as_before


def test_a_signal_ends_it_and_the_terminal_is_as_before(server: FakeServer, running: Any) -> None:
    with Screen(24, 80) as screen, screen.command(running, "top") as process:
        screen.wait_for("web-0")
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert screen.is_as_before
        assert b"\x1b[?1049l" in _rest_of(screen)


def _rest_of(screen: Screen) -> bytes:
    os.write(screen.theirs, b"the end")
    screen.read_until(b"the end")
    return screen.seen


def test_without_a_server_it_says_so_and_ends(tmp_path: Path) -> None:
    result = skerry("top", "--data", str(tmp_path))
    assert result.exit_code == 3
    assert "skerry up" in result.stderr


def test_once_prints_tables_for_people_and_json_for_scripts(server: FakeServer, tmp_path: Path) -> None:
    printed = skerry("top", "--once", "--data", str(tmp_path))
    assert printed.exit_code == 0
    lines = printed.stdout.splitlines()
    assert [line for line in lines if line in ("Instances", "Services", "Functions", "Nodes")] == [
        "Instances",
        "Services",
        "Functions",
        "Nodes",
    ]
    assert lines[2].split()[:5] == ["db", "shop", "RUNNING", "edge-1", "90.0"]
    found = json.loads(skerry("top", "--json", "--data", str(tmp_path)).stdout)
    assert found["services"][0]["cpu_millicores"] == 750
    assert found["functions"] == [
        {
            "name": "hello",
            "namespace": "default",
            "calls_per_s": None,  # the server has read its members only once
            "errors_per_s": None,
            "cold_starts_per_s": None,
            "run_ms": None,
            "calls": 7,
        }
    ]
