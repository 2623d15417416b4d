"""`skerry cell` and `skerry aurae` as a person or a script uses them."""

from __future__ import annotations

import json
import os
import signal
import stat
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skerry.cli import main
from skerry.model import errors
from skerry.model.cells import CellLimits, ExitStatus, Sandbox
from tests.support.cells import FakeKeeper, cell_server, program
from tests.support.certificates import TestAuthority
from tests.support.nodes import Command, Node
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    with Node(tmp_path, authority, FakeKeeper, cell_server) as running:
        yield running


@pytest.fixture
def small_node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    """One that keeps hardly any output."""
    with Node(tmp_path, authority, partial(FakeKeeper, log_bytes=4096), cell_server) as running:
        yield running


def test_a_cell_is_allocated_with_its_limits_listed_and_freed(node: Node) -> None:
    limits = ["--memory", "32", "--cpu", "200", "--weight", "400", "--pids", "9", "--cpus", "0-1", "--net"]
    assert node.cli("cell", "allocate", "a", *limits).stdout == "allocated a\n"
    cell = node.keeper.cells["a"]
    assert cell.limits == CellLimits(memory=32, cpu_quota=200, cpu_weight=400, pids=9, cpus="0-1")
    assert cell.isolates_network
    [listed] = node.json("cell", "list")["cells"]
    assert listed["limits"] == {
        "memory_mb": 32,
        "cpu_milli": 200,
        "cpu_weight": 400,
        "pids": 9,
        "cpus": "0-1",
    }
    assert "memory_mb=32" in node.cli("cell", "list").stdout
    assert node.cli("cell", "free", "a").stdout == "freed a\n"
    assert node.keeper.cells == {}


def test_a_program_is_started_with_its_arguments_as_they_are(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    result = node.cli("cell", "start", "a", "x", "-e", "A=1", "--folder", "/tmp", "--", "echo", "-n", "a b")
    assert result.stdout == "started x in a, pid 4242\n"
    one = node.keeper.started_one("a", "x")
    assert one.sandbox == Sandbox(environment=("A=1",), folder="/tmp", arguments=("echo", "-n", "a b"))


def test_a_line_for_the_shell_is_started_with_c(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    told = node.json("cell", "start", "a", "x", "-c", "echo $HOME | cat", "--description", "d")
    assert told == {"cell": "a", "executable": "x", "pid": 4242, "started_at": 1000.0}
    state = node.keeper.started_one("a", "x").state
    assert (state.command, state.description) == ("echo $HOME | cat", "d")


@pytest.mark.parametrize("arguments", [(), ("-c", "true", "--", "true")])
def test_a_start_without_a_program_or_with_two_is_wrong_usage(node: Node, arguments: tuple[str, ...]) -> None:
    result = node.cli("cell", "start", "a", "x", *arguments)
    assert result.exit_code == 2
    assert "-c" in result.stderr


def test_the_list_tells_what_runs_and_how_what_has_ended_did(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    for name, does in (
        ("on", program()),
        ("done", program(code=3)),
        ("killed", program(signal=9)),
        ("fat", program(signal=9, oom=True)),
    ):
        node.keeper.on_start = does
        node.cli("cell", "start", "a", name, "--", "true")
    row = node.cli("cell", "list").stdout.splitlines()[1]
    assert "on (pid 4242), done (exit code 3), killed (signal 9)" in row
    assert "fat (killed: out of memory)" in row
    shown = node.json("cell", "list")["cells"][0]["executables"]
    assert [each["exit"] and each["exit"]["code"] for each in shown] == [None, 3, None, None]


def test_stop_says_how_it_ended(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    node.cli("cell", "start", "a", "x", "--", "sleep", "9")
    result = node.cli("cell", "stop", "a", "x", "--grace", "0.5")
    assert result.stdout == "stopped x in a: signal 15\n"
    assert node.keeper.graces == [0.5]


def test_usage_is_for_people_and_for_scripts(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    node.cli("cell", "allocate", "b")
    machine, _, first, *_ = node.cli("cell", "usage").stdout.splitlines()
    assert machine.startswith(
        "node: 2 processors (amd64), hybrid cgroups, runc 1.1.5, load 0.50, memory 512.0MB of 1.0GB free"
    )
    assert first.split()[:4] == ["a", "1.50s", "0.00s", "3.0MB"]
    [used] = node.json("cell", "usage", "b")["cells"]
    assert (used["cell"], used["cpu_ns"], used["oom_kills"]) == ("b", 1_500_000_000, 1)


def test_logs_are_byte_for_byte_and_each_stream_in_its_place(node: Node, capfdbinary: Any) -> None:
    node.cli("cell", "allocate", "a")
    node.keeper.on_start = program(b"\x00\xff", b"more\n", errors=b"bad\n")
    node.cli("cell", "start", "a", "x", "--", "true")
    assert node.cli("cell", "logs", "a", "x").exit_code == 0
    assert capfdbinary.readouterr() == (b"\x00\xffmore\n", b"bad\n")
    node.cli("cell", "logs", "a", "x", "--only", "stderr")
    assert capfdbinary.readouterr() == (b"", b"bad\n")


def test_logs_as_json_have_one_line_each(node: Node) -> None:
    node.cli("cell", "allocate", "a")
    node.keeper.on_start = program(b"one\ntw", b"o\n", errors=b"bad\n", code=0)
    node.cli("cell", "start", "a", "x", "--", "true")
    lines = node.cli("cell", "logs", "a", "x", "-f", "-o", "json").stdout.splitlines()
    told = [json.loads(line) for line in lines]
    assert [(each["channel"], each["line"]) for each in told if each["channel"] == "stdout"] == [
        ("stdout", "one"),
        ("stdout", "two"),
    ]
    assert {"channel", "position", "time_ns", "line"} == set(told[0])


def test_logs_can_be_followed_to_the_end_of_the_program(node: Node, tmp_path: Path) -> None:
    node.cli("cell", "allocate", "a")
    node.keeper.on_start = program(b"first\n")
    node.cli("cell", "start", "a", "x", "--", "true")
    with Command(node, "cell", "logs", "-f", "a", "x") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        node.do(lambda: node.keeper.started_one("a", "x").write(b"second\n"))
        assert process.stdout.readline() == b"second\n"
        node.do(lambda: node.keeper.started_one("a", "x").end(ExitStatus(at=1.0, code=0)))
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize(
    ("how", "code"),
    [({"code": 0}, 0), ({"code": 7}, 7), ({"signal": 9}, 137), ({"signal": 9, "oom": True}, 137)],
)
def test_run_has_the_output_and_the_exit_code_of_the_program_and_leaves_nothing(
    node: Node, capfdbinary: Any, how: dict[str, Any], code: int
) -> None:
    node.keeper.on_start = program(b"out\xff", errors=b"err", **how)
    result = node.cli("cell", "run", "--", "some", "thing")
    assert result.exit_code == code
    assert capfdbinary.readouterr() == (b"out\xff", b"err")
    assert ("memory" in result.stderr) is bool(how.get("oom"))
    assert (node.keeper.cells, node.keeper.started) == ({}, {})


def test_run_passes_limits_and_environment_on(node: Node) -> None:
    seen = []

    def does(started: Any) -> None:
        seen.append((dict(node.keeper.cells), started.sandbox))
        started.end(ExitStatus(at=1.0, code=0))

    node.keeper.on_start = does
    node.cli("cell", "run", "--memory", "32", "--pids", "5", "-e", "A=1", "--", "env", "--help")
    [(cells, sandbox)] = seen
    [cell] = cells.values()
    assert cell.limits == CellLimits(memory=32, pids=5)
    assert cell.name.startswith("run-")
    assert sandbox == Sandbox(environment=("A=1",), arguments=("env", "--help"))


def test_run_frees_its_cell_if_the_program_cannot_be_started(node: Node) -> None:
    def does(started: Any) -> None:
        started.end(ExitStatus(at=1.0, code=127))
        node.keeper.started.clear()
        raise errors.FailedPrecondition("there is no program of that name")

    node.keeper.on_start = does
    result = node.cli("cell", "run", "--", "nothing")
    assert result.exit_code == 1
    assert "there is no program of that name" in result.stderr
    assert node.keeper.cells == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_run_frees_its_cell_when_it_is_interrupted(node: Node, number: int) -> None:
    node.keeper.on_start = program(b"on\n")
    with Command(node, "cell", "run", "--", "sleep", "999") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
    assert (node.keeper.cells, node.keeper.started) == ({}, {})


def test_run_is_heard_by_signals_also_while_nobody_reads_its_output(node: Node) -> None:
    node.keeper.on_start = program(*[b"x" * 60_000] * 10)
    with Command(node, "cell", "run", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"  # and no more: the pipe is full
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert node.keeper.cells == {}


def test_run_frees_its_cell_when_its_reader_is_gone(node: Node) -> None:
    node.keeper.on_start = program(b"x" * 300_000)
    with Command(node, "cell", "run", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert node.keeper.cells == {}


@pytest.mark.parametrize("verb", [("run", "--", "true"), ("logs", "-f", "a", "x")], ids=["run", "logs"])
def test_output_goes_on_after_a_restart_of_the_agent(node: Node, verb: tuple[str, ...]) -> None:
    node.keeper.on_start = program(b"one\n")
    if verb[0] == "logs":
        node.cli("cell", "allocate", "a")
        node.cli("cell", "start", "a", "x", "--", "true")
    with Command(node, "cell", *verb) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        [started] = node.keeper.started.values()
        node.restart()
        node.do(lambda: started.write(b"two\n"))
        assert process.stdout.readline() == b"two\n"
        node.do(lambda: started.end(ExitStatus(at=1.0, code=4)))
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == (4 if verb[0] == "run" else 0)


def test_run_passes_on_what_comes_after_the_program_without_looking_at_it(node: Node) -> None:
    node.keeper.on_start = program(code=0)
    seen: list[Any] = []
    node.keeper.on_start = lambda started: (seen.append(started.sandbox.arguments), program(code=0)(started))
    assert node.cli("cell", "run", "--pids", "5", "ls", "-l", "--help", "--", "x").exit_code == 0
    assert seen == [("ls", "-l", "--help", "--", "x")]


def test_run_does_not_claim_success_if_output_was_lost(small_node: Node, capfdbinary: Any) -> None:
    small_node.keeper.on_start = program(*[b"%d\n" % number for number in range(1000)], code=0)
    result = small_node.cli("cell", "run", "--", "seq", "1000")
    out, err = capfdbinary.readouterr()
    assert out.endswith(b"998\n999\n")
    assert b"records of output are lost here" in err
    assert result.exit_code == 1
    assert "faster than its output was read" in result.stderr


def test_what_the_node_refuses_is_told_in_its_own_words(node: Node) -> None:
    result = node.cli("cell", "free", "nothing")
    assert (result.exit_code, result.stderr) == (1, "Error: there is no cell 'nothing'\n")
    assert node.cli("cell", "allocate", "a_b").exit_code == 1


def test_without_a_node_the_exit_code_is_3_and_the_next_step_is_told(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.cli, ["cell", "list", "--data", str(tmp_path)])
    assert result.exit_code == 3
    assert "skerry up" in result.stderr


def test_a_socket_that_nobody_serves_is_told_with_its_path(node: Node, tmp_path: Path) -> None:
    result = node.cli("cell", "list", "--socket", str(tmp_path / "no.sock"))
    assert result.exit_code == 3
    assert str(tmp_path / "no.sock") in result.stderr


def test_a_skerry_without_a_socket_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "ready.json").write_text(json.dumps({"pid": os.getpid()}))
    result = CliRunner().invoke(main.cli, ["cell", "list", "--data", str(tmp_path)])
    assert result.exit_code == 3
    assert "has no node socket" in result.stderr


def test_a_node_of_another_cloud_is_not_trusted(node: Node, tmp_path: Path) -> None:
    other = TestAuthority(tmp_path / "other")
    ready = json.loads((node.data / "ready.json").read_text())
    (node.data / "ready.json").write_text(json.dumps({**ready, "ca": str(other.ca)}))
    result = node.cli("cell", "list")
    assert result.exit_code == 3
    assert "TLS handshake" in result.stderr


def test_aurae_config_is_what_its_clients_read(node: Node) -> None:
    config = tomllib.loads(node.cli("aurae", "config").stdout)
    ready = json.loads((node.data / "ready.json").read_text())
    assert config == {
        "auth": {
            "ca_crt": ready["ca"],
            "client_crt": ready["client_cert"],
            "client_key": ready["client_key"],
        },
        "system": {"socket": ready["socket"]},
    }
    assert all(os.path.isabs(path) for part in config.values() for path in part.values())


def test_aurae_config_is_written_for_its_owner_alone_and_replaces_nothing_unasked(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".aurae" / "config"
    for _ in range(2):
        assert node.cli("aurae", "config", "--write").stdout == f"wrote {path}\n"
    assert path.read_text() == node.cli("aurae", "config").stdout
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("mine")
    result = node.cli("aurae", "config", "--write")
    assert (result.exit_code, path.read_text()) == (1, "mine")
    assert "--force" in result.stderr
    assert node.cli("aurae", "config", "--write", "--force").exit_code == 0
    assert "[auth]" in path.read_text()
    assert [each.name for each in path.parent.iterdir()] == ["config"]
