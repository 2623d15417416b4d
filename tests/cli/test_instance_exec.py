"""`skerry exec`: a program in an instance, with our streams or our terminal, through a server.

What is common to it and `skerry container exec` is tested in `test_container_exec`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit import pki
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.streams import ExecStreamRequest, TunnelChannel, TunnelFrame
from tests.support.nodes import Command, read_until
from tests.support.screens import Screen
from tests.support.sites import CloudServer
from tests.support.waiting import PATIENCE_S, eventually_sync


class Programs:
    """A node that runs what it is asked to, on this machine."""

    def __init__(self) -> None:
        self.cloud: CloudServer
        self.sizes: list[bytes] = []
        self.processes: list[Process] = []

    async def play(self, end: TunnelEndpoint) -> None:
        ask = self.cloud.far.asked[-1]
        assert isinstance(ask, ExecStreamRequest)
        if ask.arguments[0] == "missing":
            raise errors.FailedPrecondition('exec: "missing": executable file not found in $PATH')
        process = await asyncio.create_subprocess_exec(*ask.arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        up = asyncio.ensure_future(self._up(end, process))
        down = [
            self._down(end, TunnelChannel.OUTPUT, process.stdout),
            self._down(end, TunnelChannel.ERRORS, process.stderr),
        ]
        try:
            await asyncio.gather(*down)
            await end.send(TunnelFrame(TunnelChannel.EXIT, b"%d" % await process.wait()).pack())
            await end.receive()  # until the other end is gone
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await cancel_and_wait([up])

    async def _up(self, end: TunnelEndpoint, process: Process) -> None:
        assert process.stdin is not None
        while (packed := await end.receive()) is not None:
            frame = TunnelFrame.unpack(packed)
            match frame.channel:
                case TunnelChannel.INPUT:
                    process.stdin.write(frame.data)
                    await process.stdin.drain()
                case TunnelChannel.END_OF_INPUT:
                    process.stdin.close()
                case TunnelChannel.SIZE:
                    self.sizes.append(frame.data)
                case TunnelChannel.SIGNAL:
                    process.send_signal(int(frame.data))

    async def _down(self, end: TunnelEndpoint, channel: TunnelChannel, pipe: asyncio.StreamReader) -> None:
        while data := await pipe.read(32 * 1024):
            await end.send(TunnelFrame(channel, data).pack())


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def cloud(
    tmp_path: Path, cloud_authority: pki.CertificateAuthority, programs: Programs
) -> Iterator[CloudServer]:
    with CloudServer(tmp_path, cloud_authority, programs.play) as running:
        programs.cloud = running
        running.say("run", "--name", "web", "example.org/web:1")
        yield running


def test_output_errors_and_exit_code_are_the_programs(
    cloud: CloudServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    script = "printf 'out\\0'; printf err >&2; exit 7"
    assert cloud.cli("exec", "web", "sh", "-c", script).exit_code == 7
    assert capfdbinary.readouterr() == (b"out\0", b"err")


def test_what_comes_after_the_name_is_the_programs_own(cloud: CloudServer) -> None:
    options = ("-e", "A=1 & 2", "--user", "web", "--workdir", "/tmp")
    assert cloud.cli("exec", *options, "web", "echo", "--", "-i", "ü").exit_code == 0
    assert cloud.far.asked == [ExecStreamRequest(("echo", "--", "-i", "ü"), ("A=1 & 2",), "web", "/tmp")]


@pytest.mark.parametrize("given", [("--", "ls", "-l"), ("ls", "-l")])
def test_dashes_before_the_program_are_not_its_own(cloud: CloudServer, given: tuple[str, ...]) -> None:
    assert cloud.cli("exec", "web", *given).exit_code == 0
    assert [ask.arguments for ask in cloud.far.asked] == [("ls", "-l")]


def test_dashes_alone_are_no_program(cloud: CloudServer) -> None:
    assert cloud.cli("exec", "web", "--").exit_code == 2
    assert cloud.far.asked == []


def test_input_is_passed_on_to_its_end(cloud: CloudServer) -> None:
    data = os.urandom(3 << 20)
    with Command(cloud, "exec", "-i", "web", "cat", stdin=subprocess.PIPE) as process:
        output, _ = process.communicate(data, timeout=PATIENCE_S)
        assert process.returncode == 0
    assert output == data


def test_a_signal_is_the_programs_to_take(cloud: CloudServer) -> None:
    script = "trap 'echo taken; exit 3' TERM; echo on; while :; do sleep 0.02; done"
    with Command(cloud, "exec", "web", "sh", "-c", script) as process:
        read_until(process.stdout, b"on\n")
        process.send_signal(signal.SIGTERM)
        read_until(process.stdout, b"taken\n")
        assert process.wait(PATIENCE_S) == 3


def test_a_second_signal_ends_us(cloud: CloudServer) -> None:
    script = "trap 'echo no' INT; echo on; while :; do sleep 0.02; done"
    with Command(cloud, "exec", "web", "sh", "-c", script) as process:
        read_until(process.stdout, b"on\n")
        process.send_signal(signal.SIGINT)
        read_until(process.stdout, b"no\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_the_size_of_our_terminal_is_the_programs(cloud: CloudServer, programs: Programs) -> None:
    script = "echo on; read line; echo got $line; exit 5"
    with Screen() as screen, screen.command(cloud, "exec", "-it", "web", "sh", "-c", script) as process:
        screen.read_until(b"on")
        screen.resize(40, 100)
        process.send_signal(signal.SIGWINCH)
        eventually_sync(lambda: programs.sizes == [b"40 100"])
        screen.type(b"some\n")
        screen.read_until(b"got some")
        assert process.wait(PATIENCE_S) == 5
        assert screen.is_as_before
    [ask] = cloud.far.asked
    assert isinstance(ask, ExecStreamRequest)
    assert (ask.terminal, ask.takes_input, ask.rows, ask.columns) == (True, True, 30, 90)


def test_a_program_that_is_not_there_is_127(cloud: CloudServer) -> None:
    result = cloud.cli("exec", "web", "missing")
    assert result.exit_code == 127
    assert result.stderr == 'Error: exec: "missing": executable file not found in $PATH\n'


def test_what_the_server_refuses_is_125(cloud: CloudServer) -> None:
    cloud.say("delete", "instance", "web")
    result = cloud.cli("exec", "web", "true")
    assert result.exit_code == 125
    assert "There is no instance 'web'" in result.stderr
    result = cloud.cli("exec", "--token", "skerry_bad_token", "web", "true")
    assert result.exit_code == 125


def test_a_server_that_goes_away_is_told(tmp_path: Path, cloud: CloudServer) -> None:
    with Command(cloud, "exec", "web", "sh", "-c", "echo on; exec sleep 600") as process:
        read_until(process.stdout, b"on\n")
        cloud.stop()
        assert process.stderr is not None
        assert b"the server is stopping; try again" in process.stderr.read()
        assert process.wait(PATIENCE_S) == 125
