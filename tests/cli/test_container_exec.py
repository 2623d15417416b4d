"""`skerry container exec`: our streams or our terminal are the program's, and come back as they were."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import TestAuthority
from tests.support.containers import Execution, FakeContainers, container_server
from tests.support.nodes import Command, Node
from tests.support.screens import Screen
from tests.support.waiting import PATIENCE_S, eventually_sync


@pytest.fixture
def node(tmp_path: Path, authority: TestAuthority) -> Iterator[Node]:
    with Node(tmp_path, authority, FakeContainers, container_server) as running:
        assert running.cli("container", "run", "-d", "--name", "web", "example.org/web:1").exit_code == 0
        yield running


def test_output_errors_and_exit_code_are_the_programs(
    node: Node, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = "printf 'out\\0'; printf err >&2; exit 7"
    assert node.cli("container", "exec", "web", "sh", "-c", script).exit_code == 7
    assert capfdbinary.readouterr() == (b"out\0", b"err")


def test_what_comes_after_the_name_is_the_programs_own(node: Node) -> None:
    options = ("-e", "A=1", "--user", "web", "--workdir", "/tmp")
    assert node.cli("container", "exec", *options, "web", "env", "--", "-i", "--help").exit_code != 2
    assert node.keeper.executions == [
        Execution("web", ("env", "--", "-i", "--help"), ("A=1",), "web", "/tmp", tty=False)
    ]


def test_input_is_passed_on_to_its_end(node: Node) -> None:
    data = os.urandom(3 << 20)
    with Command(node, "container", "exec", "-i", "web", "cat", stdin=subprocess.PIPE) as process:
        output, _ = process.communicate(data, timeout=PATIENCE_S)
        assert process.returncode == 0
    assert output == data


def test_input_can_be_a_file(node: Node, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(b"from a file")
    with (
        (tmp_path / "input").open("rb") as file,
        Command(node, "container", "exec", "-i", "web", "cat", stdin=file) as process,
    ):
        assert process.communicate(timeout=PATIENCE_S)[0] == b"from a file"


def test_input_that_we_are_not_asked_for_is_left_to_others(node: Node) -> None:
    with Command(node, "container", "exec", "web", "cat", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b""
        assert process.wait(PATIENCE_S) == 0


def test_a_program_that_ends_before_its_input_ends_us(node: Node) -> None:
    with Command(node, "container", "exec", "-i", "web", "true", stdin=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_S) == 0


def test_input_without_end_does_not_keep_a_program_that_has_ended(node: Node) -> None:
    for _ in range(3):
        with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
            try:
                with Command(
                    node, "container", "exec", "-i", "web", "sh", "-c", "exit 4", stdin=endless.stdout
                ) as process:
                    assert process.wait(PATIENCE_S) == 4
            finally:
                endless.kill()


def test_the_first_signal_is_the_programs_to_take(node: Node) -> None:
    script = "trap 'echo taken; exit 3' TERM; echo on; while :; do sleep 0.02; done"
    with Command(node, "container", "exec", "web", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == b"taken\n"
        assert process.wait(PATIENCE_S) == 3


def test_a_second_signal_ends_us_and_the_program(node: Node) -> None:
    script = "trap 'echo no' INT; echo on; while :; do sleep 0.02; done"
    with Command(node, "container", "exec", "web", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"no\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    [session] = node.keeper.sessions
    eventually_sync(lambda: session.process.returncode == -signal.SIGKILL)


def test_a_program_is_killed_with_us(node: Node) -> None:
    with Command(node, "container", "exec", "web", "sh", "-c", "echo on; sleep 600") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.kill()
    [session] = node.keeper.sessions
    eventually_sync(lambda: session.process.returncode == -signal.SIGKILL)


def test_a_terminal_is_passed_through_with_its_size_and_restored(node: Node) -> None:
    script = "stty size; read line; echo got $line; stty size; exit 5"
    with (
        Screen() as screen,
        screen.command(node, "container", "exec", "-it", "web", "sh", "-c", script) as process,
    ):
        screen.read_until(b"30 90")
        assert not screen.is_as_before
        screen.resize(40, 100)
        process.send_signal(signal.SIGWINCH)
        [session] = node.keeper.sessions
        eventually_sync(lambda: session.size() == (40, 100))
        screen.type(b"some\n")
        screen.read_until(b"40 100")
        assert process.wait(PATIENCE_S) == 5
        assert b"got some" in screen.seen
        assert screen.is_as_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_is_restored_when_we_are_told_to_end(node: Node, number: int) -> None:
    script = "trap '' TERM HUP; echo on; sleep 600"
    with (
        Screen() as screen,
        screen.command(node, "container", "exec", "-it", "web", "sh", "-c", script) as process,
    ):
        screen.read_until(b"on")
        process.send_signal(number)
        [session] = node.keeper.sessions
        eventually_sync(lambda: session.signals == [number])
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 130
        assert screen.is_as_before


def test_a_terminal_is_restored_when_the_node_goes_away(node: Node) -> None:
    with (
        Screen() as screen,
        screen.command(node, "container", "exec", "-it", "web", "sh", "-c", "echo on; sleep 600") as process,
    ):
        screen.read_until(b"on")
        node.restart()
        assert process.wait(PATIENCE_S) != 0
        assert screen.is_as_before


def test_a_terminal_that_is_none_is_wrong_usage(node: Node) -> None:
    with Command(node, "container", "exec", "-it", "web", "sh") as process:
        assert process.stderr is not None
        assert b"not a terminal; leave out -t" in process.stderr.read()
        assert process.wait(PATIENCE_S) == 2


def test_a_container_that_does_not_run_is_125(node: Node) -> None:
    node.cli("container", "stop", "web")
    result = node.cli("container", "exec", "web", "true")
    assert (result.exit_code, result.stderr) == (
        125,
        "Error: container 'web' is not running; start it first\n",
    )
