"""`skerry container` as a person or a script uses it; `exec` is in `test_container_exec`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skerry.cli import container_options
from skerry.model import errors
from skerry.model.cells import ExitStatus
from skerry.model.containers import ContainerSpec, ContainerState, NetworkMode
from skerry.model.ports import PortMapping, Protocol
from skerry.model.resources import Resources
from tests.support.cells import program
from tests.support.certificates import TestAuthority
from tests.support.containers import ID, FakeContainers, container_server
from tests.support.nodes import Command, Node
from tests.support.waiting import PATIENCE_S, eventually_sync

WEB = "example.org/web:1"


@pytest.fixture
def node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    with Node(tmp_path, authority, FakeContainers, container_server) as running:
        yield running


@pytest.fixture
def small_node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    """One that keeps hardly any output."""
    with Node(tmp_path, authority, partial(FakeContainers, log_bytes=4096), container_server) as running:
        yield running


def detached(node: Node, *names: str) -> None:
    for name in names:
        assert node.cli("container", "run", "-d", "--name", name, WEB).exit_code == 0


def test_every_option_is_part_of_the_spec(node: Node, tmp_path: Path) -> None:
    variables = tmp_path / "variables"
    variables.write_text("# two\nA=file\n\n  C = 3 \n")
    result = node.cli(
        *(
            "container",
            "run",
            "-d",
            "--name",
            "web",
            "-e",
            "A=1",
            "-e",
            "B=x=y",
            "--env-file",
            str(variables),
        ),
        *("-p", "8080:80", "-p", "53/udp", "--cpu", "500", "--memory", "64", "--disk", "2", "--pids", "9"),
        *("--user", "web:web", "--workdir", "/srv", "--hostname", "shop", "--entrypoint", "/bin/sh"),
        *("--stop-signal", "SIGINT", "--stop-grace", "2.5", "--read-only", WEB, "-c", "true", "--rm"),
    )
    assert (result.exit_code, result.stdout) == (0, "web\n")
    assert node.keeper.views["web"].spec == ContainerSpec(
        name="web",
        image=WEB,
        entrypoint=("/bin/sh",),
        arguments=("-c", "true", "--rm"),
        environment=("A=1", "C = 3", "B=x=y"),
        user="web:web",
        folder="/srv",
        host_name="shop",
        stop_signal="SIGINT",
        stop_grace_s=2.5,
        resources=Resources(500, 64, 2),
        pids=9,
        ports=(PortMapping(8080, 80), PortMapping(53, 53, Protocol.UDP)),
        read_only=True,
    )


def test_without_options_everything_is_the_images_or_the_nodes_word(node: Node) -> None:
    assert node.cli("container", "create", "--name", "web", "--network", "none", WEB).stdout == "web\n"
    view = node.keeper.views["web"]
    assert view.spec == ContainerSpec(name="web", image=WEB, network=NetworkMode.NONE)
    assert view.state is ContainerState.CREATED


@pytest.mark.parametrize(
    ("image", "begins"),
    [
        ("docker.io/library/nginx:1.27", "nginx-"),
        ("localhost:5000/Team_x/my.app@sha256:" + "a" * 64, "my-"),
        ("oci-archive:/srv/big file.tar.gz", "big-file-"),
        ("rootfs:/srv/tree/", "tree-"),
        ("///", "container-"),
        ("a" * 200, "a" * 40 + "-"),
    ],
)
def test_a_container_without_a_name_gets_one_that_says_what_it_is(image: str, begins: str) -> None:
    names = {container_options.name_for(image) for _ in range(20)}
    assert len(names) == 20
    for name in names:
        assert re.fullmatch(re.escape(begins) + "[a-z0-9]{6}", name)
        ContainerSpec(name=name, image="x")  # the node takes it


@pytest.mark.parametrize(("policy", "pulled"), [("missing", []), ("always", [WEB]), ("never", [])])
def test_the_image_is_fetched_as_one_wants(node: Node, policy: str, pulled: list[str]) -> None:
    node.cli("image", "pull", WEB)
    node.keeper.images.pulled.clear()
    assert node.cli("container", "run", "-d", "--pull", policy, WEB).exit_code == 0
    assert node.keeper.images.pulled == pulled


@pytest.mark.parametrize(
    ("how", "code"),
    [({"code": 0}, 0), ({"code": 7}, 7), ({"signal": 9}, 137), ({"signal": 9, "oom": True}, 137)],
)
def test_run_has_the_output_and_the_exit_code_of_the_container(
    node: Node, capfdbinary: Any, how: dict[str, Any], code: int
) -> None:
    node.cli("image", "pull", WEB)
    node.keeper.on_start = program(b"out\xff", errors=b"err", **how)
    result = node.cli("container", "run", "--name", "web", WEB)
    assert result.exit_code == code
    assert capfdbinary.readouterr() == (b"out\xff", b"err")
    assert ("memory" in result.stderr) is bool(how.get("oom"))
    assert node.keeper.get("web").state is ContainerState.EXITED


def test_run_with_rm_leaves_nothing(node: Node) -> None:
    node.keeper.on_start = program(code=3)
    assert node.cli("container", "run", "--rm", WEB).exit_code == 3
    assert node.keeper.views == {}


def test_rm_and_detach_cannot_both_be_had(node: Node) -> None:
    result = node.cli("container", "run", "--rm", "-d", WEB)
    assert result.exit_code == 2
    assert "cannot be combined with -d" in result.stderr


def test_progress_of_a_run_goes_where_its_errors_go(node: Node, capfdbinary: Any) -> None:
    node.keeper.on_start = program(b"out", code=0)
    result = node.cli("container", "run", WEB)
    assert result.stdout == ""
    assert "layer " in result.stderr
    assert capfdbinary.readouterr().out == b"out"


@pytest.mark.parametrize(
    ("why", "code"),
    [
        (errors.FailedPrecondition("runc: exec: 'x': executable file not found in $PATH"), 127),
        (errors.FailedPrecondition("runc: exec /x: no such file or directory"), 127),
        (errors.FailedPrecondition("runc: exec /x: permission denied"), 126),
        (errors.FailedPrecondition("runc: exec /x: exec format error"), 126),
        (errors.AlreadyExists("port 80 is taken by other"), 125),
        (errors.ResourcesExhausted("no address is free"), 125),
    ],
)
@pytest.mark.parametrize("detach", [(), ("-d",)], ids=["foreground", "detached"])
def test_a_container_that_cannot_be_run_is_told_from_one_that_failed(
    node: Node, why: errors.SkerryError, code: int, detach: tuple[str, ...]
) -> None:
    node.cli("image", "pull", WEB)
    node.keeper.fails_to_start = why
    result = node.cli("container", "run", *detach, WEB)
    assert (result.exit_code, result.stderr) == (code, f"Error: {why.message}\n")
    assert node.keeper.views == {}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_container_and_its_code_is_ours(node: Node, number: int) -> None:
    node.keeper.on_start = program(b"on\n")
    with Command(node, "container", "run", "--name", "web", WEB) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert node.keeper.graces == [None]
    assert node.keeper.get("web").state is ContainerState.EXITED


def test_a_second_signal_kills_it(node: Node) -> None:
    node.keeper.on_start = program(b"on\n")
    node.keeper.stubborn = True
    with Command(node, "container", "run", "--rm", WEB) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        eventually_sync(lambda: node.keeper.graces == [None])
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert node.keeper.graces == [None, 0.0]
    assert node.keeper.views == {}


def test_a_signal_during_the_pull_gives_the_pull_up(node: Node) -> None:
    node.do(node.keeper.images.go_on.clear)
    with Command(node, "container", "run", WEB) as process:
        assert process.stderr is not None
        assert b"asking the registry" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
    eventually_sync(lambda: node.keeper.images.cancelled == 1)
    assert node.keeper.views == {}


def test_a_container_is_stopped_when_the_reader_of_its_output_is_gone(node: Node) -> None:
    node.keeper.on_start = program(b"x" * 300_000)
    with Command(node, "container", "run", "--name", "web", "--pull", "always", WEB) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0
    assert node.keeper.get("web").state is ContainerState.EXITED


def test_output_goes_on_after_a_restart_of_the_agent(node: Node) -> None:
    node.keeper.on_start = program(b"one\n")
    with Command(node, "container", "run", "--name", "web", WEB) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one\n"
        node.restart()
        started = node.keeper.running["web"]
        node.do(lambda: started.write(b"two\n"))
        assert process.stdout.readline() == b"two\n"
        node.do(lambda: started.end(ExitStatus(at=1.0, code=4)))
        assert process.wait(PATIENCE_S) == 4


def test_run_does_not_claim_success_if_output_was_lost(small_node: Node, capfdbinary: Any) -> None:
    small_node.keeper.on_start = program(*[b"%d\n" % number for number in range(1000)], code=0)
    result = small_node.cli("container", "run", WEB)
    assert b"records of output are lost here" in capfdbinary.readouterr().err
    assert result.exit_code == 1


def test_the_list_tells_what_runs_and_how_what_has_ended_did(node: Node) -> None:
    for name, does in (
        ("on", program()),
        ("done", program(code=3)),
        ("killed", program(signal=9)),
        ("fat", program(signal=9, oom=True)),
    ):
        node.keeper.on_start = does
        detached(node, name)
    node.cli("container", "create", "--name", "new", "-p", "8080:80", WEB)
    header, *rows = node.cli("container", "list").stdout.splitlines()
    assert header.split() == ["NAME", "IMAGE", "STATUS", "IP", "PORTS", "AGE"]
    assert [re.split(r"  +", row)[:3] for row in rows] == [
        ["on", WEB, "running"],
        ["done", WEB, "exited (exit code 3)"],
        ["killed", WEB, "exited (signal 9)"],
        ["fat", WEB, "exited (killed: out of memory)"],
        ["new", WEB, "created"],
    ]
    assert "10.86.0.2" in rows[0]
    assert "8080:80" in rows[4]
    shown = node.json("container", "ps")["containers"]
    assert [each["state"] for each in shown] == ["running", "exited", "exited", "exited", "created"]
    assert [each["exit"] and each["exit"]["code"] for each in shown] == [None, 3, None, None, None]


def test_containers_are_stopped_started_and_removed_each_with_its_own_answer(node: Node) -> None:
    detached(node, "a", "b")
    result = node.cli("container", "stop", "a", "b", "c", "--grace", "1.5")
    assert result.exit_code == 1
    assert result.stdout == "stopped a: exited (signal 15)\nstopped b: exited (signal 15)\n"
    assert result.stderr == "Error: there is no container 'c'\n"
    assert node.keeper.graces == [1.5, 1.5, 1.5]
    assert node.cli("container", "start", "a").stdout == "started a\n"
    refused = node.cli("container", "remove", "a")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "--force" in refused.stderr
    assert node.cli("container", "rm", "--force", "a", "b").stdout == "removed a\nremoved b\n"
    assert node.keeper.views == {}


def test_logs_are_byte_for_byte_and_each_stream_in_its_place(node: Node, capfdbinary: Any) -> None:
    node.keeper.on_start = program(b"\x00\xff", b"one\ntwo\nthree\n", errors=b"bad\n")
    detached(node, "web")
    capfdbinary.readouterr()
    assert node.cli("container", "logs", "web").exit_code == 0
    assert capfdbinary.readouterr() == (b"\x00\xffone\ntwo\nthree\n", b"bad\n")
    node.cli("container", "logs", "web", "--only", "stderr")
    assert capfdbinary.readouterr() == (b"", b"bad\n")
    node.cli("container", "logs", "web", "--only", "stdout", "--tail", "2")
    assert capfdbinary.readouterr() == (b"two\nthree\n", b"")
    lines = node.cli("container", "logs", "web", "--tail", "1", "--only", "stdout", "-o", "json").stdout
    assert json.loads(lines)["line"] == "three"


def test_logs_can_be_followed_from_the_last_line_to_the_end(node: Node) -> None:
    node.keeper.on_start = program(b"old\nfirst\n")
    detached(node, "web")
    with Command(node, "container", "logs", "-f", "-n", "1", "web") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        node.restart()
        node.do(lambda: node.keeper.running["web"].write(b"second\n"))
        assert process.stdout.readline() == b"second\n"
        node.do(lambda: node.keeper.running["web"].end(ExitStatus(at=1.0, code=0)))
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0


def test_stats_are_of_all_that_run_or_of_those_that_are_named(node: Node) -> None:
    detached(node, "a", "b")
    node.cli("container", "stop", "b")
    header, row = node.cli("container", "stats").stdout.splitlines()
    assert header.split()[:4] == ["NAME", "CPU", "THROTTLED", "MEMORY"]
    assert row.split() == ["a", "1.50s", "0.00s", "3.0MB", "0B", "2", "0B", "0B", "4.0KB", "1.0GB"]
    [used] = node.json("container", "stats", "b")["containers"]
    assert (used["name"], used["usage"]["pids"], used["disk_limit_kind"]) == ("b", 2, "measured")


def test_wait_prints_the_exit_code(node: Node) -> None:
    node.keeper.on_start = program(signal=9, oom=True)
    detached(node, "web")
    assert node.cli("container", "wait", "web").stdout == "137\n"
    assert node.json("container", "wait", "web") == {"at": 1.0, "code": None, "signal": 9, "oom": True}


def test_inspect_prints_everything_as_json(node: Node) -> None:
    detached(node, "web")
    told = json.loads(node.cli("container", "inspect", "web").stdout)
    assert (told["spec"]["name"], told["image"], told["state"], told["pid"]) == ("web", ID, "running", 4242)
    assert told["exit"] is None


def test_what_the_node_refuses_is_told_in_its_own_words(node: Node) -> None:
    result = node.cli("container", "run", "-p", "x", WEB)
    assert (result.exit_code, result.stderr) == (
        125,
        "Error: 'x' is no port mapping; write `80`, `8080:80` or `8080:80/udp`\n",
    )
    assert node.cli("container", "inspect", "web").exit_code == 1


def test_a_file_of_variables_that_cannot_be_read_is_told_with_the_line(node: Node, tmp_path: Path) -> None:
    variables = tmp_path / "variables"
    variables.write_text("A=1\nB\n")
    result = node.cli("container", "run", "--env-file", str(variables), WEB)
    assert result.exit_code == 2
    assert "line 2: write KEY=VALUE" in result.stderr
