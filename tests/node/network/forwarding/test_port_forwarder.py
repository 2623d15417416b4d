"""Published ports that a process forwards into another network namespace, and its life without an agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from skerry.model import errors
from skerry.model.ports import PortMapping, Protocol
from skerry.node.kernel import namespaces
from skerry.node.network.bridge_namespace import BridgeNamespace
from skerry.node.network.forwarding.port_forwarder import PortForwarder
from skerry.node.network.port_reservations import PortReservations
from tests.support.waiting import eventually

pytestmark = pytest.mark.root


class Place(NamedTuple):
    """A network namespace with a loopback, and the folder of its forwarder."""

    namespace: BridgeNamespace
    folder: Path

    def forwarder(self) -> PortForwarder:
        return PortForwarder(self.namespace, self.folder)

    def listen(self, port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
        sock = self.namespace.open_socket(socket.AF_INET, kind)
        sock.settimeout(10)
        sock.bind(("127.0.0.1", port))
        if kind is socket.SOCK_STREAM:
            sock.listen()
        return sock


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    def make() -> int:
        namespaces.enter_new_namespace()
        subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    descriptor = namespaces.in_own_thread(make)
    folder = Path("/run") / f"skerry-test-{os.getpid()}"
    try:
        yield Place(BridgeNamespace(descriptor), folder)
    finally:
        with contextlib.suppress(errors.Unavailable):
            left = PortForwarder(BridgeNamespace(descriptor), folder)
            left.remove(left.ports())
            left.close()
        _reap()
        os.close(descriptor)
        (folder / "control").unlink(missing_ok=True)
        if folder.exists():
            folder.rmdir()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


def bound(port: int, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    sock = socket.socket(socket.AF_INET, kind)
    sock.bind(("127.0.0.1", port))
    return sock


def test_connections_carry_any_amount_in_both_directions_until_both_ends_are_closed(
    place: Place, port: int
) -> None:
    forwarder, data = place.forwarder(), os.urandom(1 << 20) * 8
    with bound(port) as reserved, place.listen(port) as server:
        forwarder.add({(port, Protocol.TCP): [reserved]})
        reserved.close()
        with socket.create_connection(("127.0.0.1", port), 10) as client:
            inside, _ = server.accept()
            with inside:

                def send() -> None:
                    client.sendall(data)
                    client.shutdown(socket.SHUT_WR)

                sending = threading.Thread(target=send)
                sending.start()
                received = _read_all(inside)
                sending.join()
                assert received == data
                inside.sendall(b"the answer after the end of the question")
            assert _read_all(client) == b"the answer after the end of the question"
    forwarder.close()


def test_a_connection_is_reset_where_nobody_listens(place: Place, port: int) -> None:
    forwarder = place.forwarder()
    with bound(port) as reserved:
        forwarder.add({(port, Protocol.TCP): [reserved]})
    with pytest.raises(ConnectionResetError), socket.create_connection(("127.0.0.1", port), 10) as client:
        client.recv(1)
    forwarder.close()


def test_datagrams_are_answered_to_the_client_that_sent_them(place: Place, port: int) -> None:
    forwarder = place.forwarder()
    with bound(port, socket.SOCK_DGRAM) as reserved, place.listen(port, socket.SOCK_DGRAM) as server:
        forwarder.add({(port, Protocol.UDP): [reserved]})
        clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        for number, client in enumerate(clients):
            client.settimeout(10)
            client.sendto(b"%d" % number, ("127.0.0.1", port))
        for _ in clients:
            question, sender = server.recvfrom(10)
            server.sendto(question * 2, sender)
        for number, client in enumerate(clients):
            assert client.recv(10) == b"%d" % number * 2
            client.close()
    forwarder.close()


def test_the_next_agent_finds_the_ports_of_the_one_before_and_the_last_one_ends_the_process(
    place: Place, port: int
) -> None:
    first = place.forwarder()
    with bound(port) as reserved:
        first.add({(port, Protocol.TCP): [reserved]})
    first.close()
    second = place.forwarder()
    assert second.ports() == {(port, Protocol.TCP)}
    second.remove([(port, Protocol.TCP)])
    bound(port).close()  # free again
    pid = _pid(place)
    second.close()
    assert not Path(f"/proc/{pid}").exists() or _is_zombie(pid)


async def test_ports_are_reserved_and_published_again_when_the_process_is_killed(
    place: Place, port: int
) -> None:
    reservations = PortReservations(lambda: False, forwarder=place.forwarder())
    mapping = PortMapping(port, port)
    await reservations.reserve("web", [mapping])
    await reservations.publish([mapping])
    with pytest.raises(errors.FailedPrecondition, match="is published by 'web'"):
        await reservations.reserve("other", [mapping])
    running = asyncio.create_task(reservations.run())
    pid = _pid(place)
    os.kill(pid, 9)
    await eventually(lambda: _pid(place) not in (0, pid), what="another process")
    with place.listen(port) as server:

        def connects() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                server.accept()[0].close()
                return True
            return False

        await eventually(connects, what="the port")
    running.cancel()
    await reservations.withdraw([mapping])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5)
    reservations.release([mapping])
    reservations.close()


def test_work_in_a_namespace_does_not_move_the_caller(place: Place) -> None:
    here = os.readlink("/proc/thread-self/ns/net")
    there = place.namespace.run(lambda: os.readlink("/proc/thread-self/ns/net"))
    again = place.namespace.run(lambda: place.namespace.run(lambda: os.readlink("/proc/thread-self/ns/net")))
    assert there == again != here
    assert os.readlink("/proc/thread-self/ns/net") == here


def _read_all(sock: socket.socket) -> bytes:
    sock.settimeout(30)
    parts = []
    while part := sock.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


def _pid(place: Place) -> int:
    """Of the forwarder of this place; 0 if there is none."""
    namespace = place.namespace.run(lambda: os.readlink("/proc/thread-self/ns/net"))
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_one = (folder / "comm").read_text().strip() == "skerry-ports"
            if is_one and os.readlink(folder / "ns/net") == namespace:
                return int(folder.name)
    return 0


def _reap() -> None:
    """In life the parent of a forwarder, an earlier agent, is gone when it ends."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[1] == str(os.getpid()) and (folder / "comm").read_text().strip() == "skerry-ports":
                os.waitpid(int(folder.name), 0)


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
