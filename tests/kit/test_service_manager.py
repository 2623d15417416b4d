"""Notifications to a service manager, and sockets from it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from skerry.kit.service_manager import InvalidSockets, ServiceManager


def receiver(address: str) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bound.bind(f"\0{address[1:]}" if address.startswith("@") else address)
    bound.settimeout(5)
    return bound


def received(bound: socket.socket) -> list[str]:
    return bound.recv(4096).decode().split("\n")


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_a_start_and_a_stop_are_reported_to_a_socket_of_either_kind(kind: str, tmp_path: Path) -> None:
    address = str(tmp_path / "notify") if kind == "path" else f"@skerry-test-{os.getpid()}"
    environment = {"NOTIFY_SOCKET": address, "PATH": "/bin"}
    with receiver(address) as bound:
        manager = ServiceManager.take(environment)
        assert environment == {"PATH": "/bin"}  # children are not told
        manager.starting("opening\nthe store", 2.5)
        assert received(bound) == ["STATUS=opening the store", "EXTEND_TIMEOUT_USEC=2500000"]
        manager.ready("serving " + "x" * 1000)
        ready, status = received(bound)
        assert ready == "READY=1"
        assert len(status) < 600
        manager.stopping()
        assert received(bound)[0] == "STOPPING=1"


async def test_signs_of_life_come_from_the_event_loop_several_times_per_timeout(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with receiver(address) as bound:
        manager = ServiceManager.take({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "30000"})
        alive = asyncio.create_task(manager.signal_alive())
        signs = [await asyncio.to_thread(received, bound) for _ in range(4)]
        alive.cancel()
    assert signs == [["WATCHDOG=1"]] * 4


def test_a_watchdog_and_sockets_of_another_process_are_not_ours() -> None:
    environment = {
        "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1",
        "LISTEN_FDS": "1", "LISTEN_PID": "1", "LISTEN_FDNAMES": "http",
    }  # fmt: skip
    manager = ServiceManager.take(environment, pid=4711)
    assert (manager.watchdog_s, manager.sockets, environment) == (0.0, {}, {})


def test_a_manager_that_cannot_be_reached_stops_nothing(tmp_path: Path) -> None:
    ServiceManager.take({"NOTIFY_SOCKET": str(tmp_path / "none")}).ready("up")
    ServiceManager.take({"NOTIFY_SOCKET": "vsock:2:1234"}).ready("up")
    ServiceManager().ready("up")


@pytest.mark.parametrize(
    ("count", "names"),
    [("2", "http"), ("2", "http:http"), ("1", ""), ("x", "http"), ("-1", ""), ("1000", ":".join("x" * 1000))],
)
def test_sockets_without_names_of_their_own_are_refused(count: str, names: str) -> None:
    with pytest.raises(InvalidSockets):
        ServiceManager.take({"LISTEN_FDS": count, "LISTEN_PID": "7", "LISTEN_FDNAMES": names}, pid=7)
