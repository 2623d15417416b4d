"""Listeners of another process are replaced, and no client notices."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from skerry.kit import process_sockets
from skerry.kit.process_sockets import ForeignProcess
from tests.support.waiting import PATIENCE_S, eventually_sync

HOLDER = """
import fcntl, socket, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["127.0.0.1", "::1", "::"])
def former(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family, backlog=64) as listening:
        listening.setblocking(False)
        yield listening


def accept_all(listening: socket.socket) -> int:
    """How many connections were in its queue."""
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def test_who_connects_after_a_listener_was_replaced_waits_for_the_next_one(former: socket.socket) -> None:
    address = former.getsockname()[:2]
    with ExitStack() as clients:
        served = clients.enter_context(socket.create_connection(address))
        accepted = clients.enter_context(former.accept()[0])
        clients.enter_context(socket.create_connection(address))
        assert process_sockets.queue_length(former) == 1
        following = clients.enter_context(process_sockets.replace_tcp(former))
        for _ in range(32):
            clients.enter_context(socket.create_connection(address))
        assert accept_all(former) == 1, "who came before stays"
        former.shutdown(socket.SHUT_RDWR)
        former.close()
        process_sockets.end_sharing(following)
        clients.enter_context(socket.create_connection(address))
        assert accept_all(following) == 33
        accepted.sendall(b"x")
        assert served.recv(1) == b"x"
        with pytest.raises(OSError, match="Address already in use"):
            socket.create_server(address, family=following.family)


def test_a_listener_that_cannot_be_replaced_stays_as_it_was(
    former: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_sockets, "_SO_ATTACH_REUSEPORT_CBPF", 9999)
    with pytest.raises(OSError, match="Protocol not available"):
        process_sockets.replace_tcp(former)
    address = former.getsockname()[:2]
    for _ in range(8):
        socket.create_connection(address).close()
    assert accept_all(former) == 8


def test_a_unix_socket_is_replaced_with_its_permissions_and_the_former_process_leaves_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.sock"
    with closing(socket.socket(socket.AF_UNIX)) as former:
        former.bind(str(path))
        former.listen()
        path.chmod(0o660)
        following = process_sockets.replace_unix(path)
    with following, closing(socket.socket(socket.AF_UNIX)) as client:
        assert path.stat().st_mode & 0o777 == 0o660
        client.connect(str(path))
        assert accept_all(following) == 1
    assert os.listdir(tmp_path) == ["s.sock"]
    with pytest.raises(FileNotFoundError):
        process_sockets.replace_unix(tmp_path / "none.sock")
    assert os.listdir(tmp_path) == ["s.sock"]


def test_what_a_connection_was_at_when_its_owner_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        owned, _ = listening.accept()
    with client, owned:
        assert not process_sockets.awaits_answer(owned), "it is new"
        # The kernel counts in milliseconds, of which several may be one tick.
        eventually_sync(lambda: exchange(client, owned) and process_sockets.awaits_answer(owned))
        owned.sendall(b"answer")
        assert not process_sockets.awaits_answer(owned)
        client.sendall(b"next")
        eventually_sync(lambda: owned.recv(4, socket.MSG_PEEK) == b"next")
        assert not process_sockets.awaits_answer(owned), "the next owner reads it"
        owned.recv(4)
        client.close()
        eventually_sync(lambda: process_sockets.awaits_answer(owned))


def exchange(client: socket.socket, owned: socket.socket) -> bool:
    client.sendall(b"x")
    return owned.recv(1) == b"x"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with a lock and a listener, and the port of that."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def test_a_process_is_known_by_its_lock_and_its_sockets_can_be_had(
    holder: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = holder
    with closing(ForeignProcess(process.pid)) as foreign:
        assert foreign.has_lock(tmp_path / "lock")
        assert foreign.shares_network()
        assert foreign.uid == os.geteuid()
        (listening,) = foreign.sockets()
        with listening:
            assert process_sockets.is_listening(listening)
            assert listening.getsockname()[1] == port
        assert not foreign.has_ended()
        foreign.terminate()
        assert foreign.has_ended(PATIENCE_S)
        assert process.wait(PATIENCE_S) == -signal.SIGTERM
        foreign.terminate()


def test_who_only_reads_the_lock_does_not_hold_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with lock.open("w") as opened, closing(ForeignProcess(os.getpid())) as this:
        assert not this.has_lock(lock)
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert this.has_lock(lock)
