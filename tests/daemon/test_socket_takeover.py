"""Which processes are taken over without their help, and what is said where that is refused or fails.

`test_upgrade.py` takes over from a real 0.1.0."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from skerry.daemon import socket_takeover
from skerry.daemon.socket_takeover import ReadyFile, SocketTakeover
from skerry.kit import json_codec
from skerry.kit.process_sockets import ForeignProcess
from skerry.model import errors

FORMER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
if sys.argv[2] == "locked":
    fcntl.flock(lock, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def former(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReadyFile]:
    process = subprocess.Popen(
        [sys.executable, "-c", FORMER, str(tmp_path / "lock"), request.param],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield ReadyFile(process.pid, "server", "0.1.0")
        assert process.poll() is None, "it goes on"
        process.kill()


def refusal(folder: Path, former: ReadyFile, role: str = "server") -> str:
    with pytest.raises(errors.FailedPrecondition) as raised:
        socket_takeover.take_over(folder, former, role, within_s=0.0)
    return str(raised.value)


def test_only_a_ready_process_of_0_1_that_has_the_folder_is_taken_over_so(tmp_path: Path) -> None:
    assert socket_takeover.former_process(tmp_path, 7) is None
    ready = tmp_path / "ready.json"
    for version in ("0.2.0", "0.10.1", "1.0.0"):
        ready.write_bytes(json_codec.encode(ReadyFile(7, "server", version)))
        assert socket_takeover.former_process(tmp_path, 7) is None
    ready.write_bytes(json_codec.encode(ReadyFile(7, "server", "0.1.3")))
    assert socket_takeover.former_process(tmp_path, 8) is None, "the file is of a process that was killed"
    assert socket_takeover.former_process(tmp_path, 7) == ReadyFile(7, "server", "0.1.3")
    ready.write_text("{")
    assert socket_takeover.former_process(tmp_path, 7) is None


@pytest.mark.parametrize("former", ["locked"], indirect=True)
def test_one_of_another_role_or_that_may_not_be_traced_is_refused_and_goes_on(
    former: ReadyFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is a 'skerry server', not a 'skerry up'; stop it first" in refusal(tmp_path, former, "up")

    def refuse(_: ForeignProcess) -> Iterator[socket.socket]:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(ForeignProcess, "sockets", refuse)
    said = refusal(tmp_path, former)
    assert "cannot be taken over: Operation not permitted" in said
    assert "the permission to trace it, which root has" in said
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "not 4711" in refusal(tmp_path, former)


@pytest.mark.parametrize("former", ["unlocked"], indirect=True)
def test_a_process_that_got_the_pid_of_the_former_one_is_left_alone(
    former: ReadyFile, tmp_path: Path
) -> None:
    assert "it does not hold the lock of the folder" in refusal(tmp_path, former)


def test_a_process_that_fails_after_the_former_one_has_ended_says_that_nothing_serves() -> None:
    former = ReadyFile(7, "server", "0.1.0")
    listening = socket.create_server(("127.0.0.1", 0))
    failed = SocketTakeover(former)
    failed.sockets["tcp"] = listening
    with capture_logs() as logged:
        failed.close()
    assert [(line["event"], line["log_level"]) for line in logged] == [("process.takeover_failed", "error")]
    assert "nothing serves" in logged[0]["effect"]
    assert listening.fileno() < 0
    succeeded = SocketTakeover(former)
    succeeded.report_ready()
    with capture_logs() as logged:
        succeeded.close()
    assert logged == []
