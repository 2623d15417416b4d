"""`skerry server` under a service manager that this test plays: passed sockets, and notifications."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.skerry import COMMAND, environment
from tests.support.waiting import PATIENCE_S


class PlayedManager:
    """Holds listening sockets and receives notifications, as systemd does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notified.bind(str(folder / "notify"))
        self.notified.settimeout(PATIENCE_S)
        self.sockets = {name: socket.create_server(("127.0.0.1", 0)) for name in ("http", "grpc")}

    def close(self) -> None:
        for each in (self.notified, *self.sockets.values()):
            each.close()

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.sockets[name].getsockname()[1]}"

    def start(self, http: str, names: str = "http:grpc") -> subprocess.Popen[bytes]:
        """The program, with descriptors 3 and 4, and its own pid in LISTEN_PID."""
        options = ["--data", str(self.folder / "data"), "--socket", str(self.folder / "s.sock")]
        command = [*COMMAND, "server", *options, "--http", http, "--grpc", self.address("grpc")]
        first, second = (each.fileno() for each in self.sockets.values())
        script = f'exec 8<&{first} 9<&{second} 3<&8 4<&9 8<&- 9<&-; export LISTEN_PID=$$; exec "$@"'
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                ["bash", "-c", script, "bash", *command],
                pass_fds=(first, second),
                env=environment(
                    NOTIFY_SOCKET=str(self.folder / "notify"),
                    WATCHDOG_USEC="300000",
                    LISTEN_FDS="2",
                    LISTEN_FDNAMES=names,
                ),
                stderr=log,
            )

    def wait_for(self, field: str) -> None:
        """Until a notification has this field; the others are dropped."""
        while field not in self.notified.recv(4096).decode().split("\n"):
            pass

    def healthy(self) -> bool:
        connection = http.client.HTTPConnection(self.address("http"), timeout=PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[PlayedManager]:
    with contextlib.closing(PlayedManager(tmp_path)) as played:
        yield played


def test_a_server_takes_sockets_by_name_and_a_restart_refuses_nobody(manager: PlayedManager) -> None:
    process = manager.start(manager.address("http"))
    try:
        manager.wait_for("READY=1")
        manager.wait_for("WATCHDOG=1")
        assert manager.healthy()
        process.send_signal(signal.SIGTERM)
        manager.wait_for("STOPPING=1")
        assert process.wait(PATIENCE_S) == 0
        waiting = socket.create_connection(manager.sockets["http"].getsockname())  # into the queue
        with waiting:
            waiting.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            process = manager.start(manager.address("http"))
            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(64).startswith(b"HTTP/1.1 200")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("listen", "names", "said"),
    [
        (
            "127.0.0.1:1",
            "http:grpc",
            "skerry install",
        ),  # the settings name another address than the socket has
        ("", "http:other", "other"),  # nobody would accept from it
        ("", "http:http", "names"),
    ],
)
def test_sockets_that_do_not_fit_the_settings_are_refused(
    manager: PlayedManager, listen: str, names: str, said: str
) -> None:
    process = manager.start(listen or manager.address("http"), names)
    assert process.wait(PATIENCE_S) != 0
    assert said in (manager.folder / "log").read_text()
