"""A server is taken over by the next process: refused where that is wrong, undone where that one fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.daemon import process
from skerry.kit import listening_sockets
from tests.support.skerry import Skerry, running
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import eventually_sync


@pytest.fixture
def former(tmp_path: Path) -> Iterator[Skerry]:
    with running(tmp_path, role="server") as server:
        yield server


def refusal(former: Skerry, *flags: str, role: str = "server") -> str:
    """What the next process says, which must not start."""
    done = former.cli(
        *(role, "--takeover", "--data", str(former.data), "--http", "127.0.0.1:0"),
        *("--grpc", "127.0.0.1:0", "--socket", str(former.data.parent / "s.sock"), *flags),
    )
    assert done.returncode == 1, done.stderr
    return done.stderr


def is_back(former: Skerry, failures: int) -> bool:
    """Whether that many handovers have failed, and it serves again after each."""
    counts = [former.said().count(event) for event in ("process.handover_failed", "process.ready")]
    return counts == [failures, failures + 1]


def test_if_the_next_process_fails_the_former_goes_on_and_no_request_fails(former: Skerry) -> None:
    before = former.ready
    with SteadyLoad(f"{before['http']}/about") as load:
        load.until_answered()
        # It finds out late, with the store open: a socket that only it has cannot be made.
        assert "/proc/none/web.sock" in refusal(former, "--set", "functions.web_socket=/proc/none/web.sock")
        eventually_sync(lambda: is_back(former, 1))
        load.until_answered()
        # The same if it is killed meanwhile.
        killed = Skerry(former.data.parent, "--takeover", role="server")
        eventually_sync(lambda: former.said().count("process.handing_over") == 2)
        killed.kill()
        eventually_sync(lambda: is_back(former, 2))
        load.until_answered()
    assert load.failures == []
    assert former.process.poll() is None
    assert former.call("GET", "/about")[1]["pid"] == before["pid"]
    assert (former.data / "lock").read_text() == f"{before['pid']}\n"
    assert former.cli("version").returncode == 0


def test_a_process_of_another_role_is_not_taken_over_and_one_that_is_gone_needs_no_takeover(
    former: Skerry, tmp_path: Path
) -> None:
    assert "it is a 'skerry server', not a 'skerry up'; stop it first" in refusal(former, role="up")
    (former.data / "handover.sock").rename(former.data / "elsewhere")
    said = refusal(former)
    assert "cannot hand over" in said
    assert "stop it and start this one without --takeover" in said
    assert former.stop() == 0
    with running(tmp_path, "--takeover", role="server") as later:
        assert later.ready["pid"] != former.ready["pid"]


@pytest.mark.parametrize("ends_it", ["answer", "stop"])
async def test_requests_that_run_are_answered_before_the_sockets_are_handed_over_unless_it_is_stopped(
    ends_it: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets = listening_sockets.ListeningSockets()
    monkeypatch.setattr(listening_sockets, "_current", sockets)
    monkeypatch.setattr(process, "_RETIRE_S", 0.0)
    answered, stop = asyncio.get_running_loop().create_future(), asyncio.Event()
    sockets.when_retired(lambda: [answered])
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sockets.register("--http", listening)
        retiring = asyncio.create_task(process._retire(stop, wait_s=3600.0))
        done, _ = await asyncio.wait({retiring}, timeout=0.05)
        assert not done, "a request runs"
        answered.set_result(None) if ends_it == "answer" else stop.set()
        held = await retiring
        assert list(held) == ["--http"]
        held["--http"].close()


async def test_requests_that_run_longer_than_they_may_do_not_keep_the_next_process_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sockets = listening_sockets.ListeningSockets()
    monkeypatch.setattr(listening_sockets, "_current", sockets)
    monkeypatch.setattr(process, "_RETIRE_S", 0.0)
    endless = asyncio.get_running_loop().create_future()
    sockets.when_retired(lambda: [endless])
    assert await process._retire(asyncio.Event(), wait_s=0.01) == {}
    assert not endless.done()
