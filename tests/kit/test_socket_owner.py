"""The kernel's word on who owns a connection, asked about real sockets on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from skerry.kit import socket_owner

OTHER_UID = 65533
# Nothing is imported after the change of user: the other user may not be able to read the library.
DIAL_AS = """
import os, socket, sys
family, host, port, uid = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
os.setuid(uid)
with socket.socket(family) as sock:
    sock.connect((host, port))
    os.read(0, 1)
"""


@contextlib.contextmanager
def listener(family: socket.AddressFamily, host: str) -> Iterator[socket.socket]:
    with socket.socket(family) as sock:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, 0))
        sock.listen()
        sock.settimeout(30)  # a client that fails to come fails the test, not the whole run
        yield sock


def owner_of_client(accepted: socket.socket) -> int | None:
    return socket_owner.owner_of(accepted.getpeername()[:2], accepted.getsockname()[:2])


@pytest.mark.parametrize(
    ("server", "listens", "client", "dials"),
    [
        (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
        (socket.AF_INET, "127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
        (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET6, "::", socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_the_owner_of_a_connection_is_found_in_every_family(
    server: socket.AddressFamily, listens: str, client: socket.AddressFamily, dials: str
) -> None:
    with listener(server, listens) as listening, socket.socket(client) as dialling:
        dialling.connect((dials, listening.getsockname()[1]))
        with listening.accept()[0] as accepted:
            assert owner_of_client(accepted) == os.getuid()


@pytest.mark.root
@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_another_user_is_seen_as_that_user_and_as_nobody_once_gone(
    family: socket.AddressFamily, host: str
) -> None:
    with listener(family, host) as listening:
        words = [str(int(family)), host, str(listening.getsockname()[1]), str(OTHER_UID)]
        command = [sys.executable, "-c", DIAL_AS, *words]
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE) as child,
            listening.accept()[0] as accepted,
        ):
            assert owner_of_client(accepted) == OTHER_UID
            child.communicate()
            # The kernel calls what is left of the connection root's; we must not.
            assert owner_of_client(accepted) is None


def test_a_client_that_is_done_with_sending_is_still_known() -> None:
    with (
        listener(socket.AF_INET, "127.0.0.1") as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as accepted,
    ):
        client.shutdown(socket.SHUT_WR)
        assert owner_of_client(accepted) == os.getuid()


def test_a_closed_connection_has_no_owner_though_the_kernel_says_root() -> None:
    with listener(socket.AF_INET, "127.0.0.1") as listening:
        client = socket.create_connection(listening.getsockname())
        accepted = listening.accept()[0]
        ends = accepted.getpeername(), accepted.getsockname()
        client.close()
        assert socket_owner.owner_of(*ends) is None
        accepted.close()  # from here on the client's end is only remembered, as user 0
        assert socket_owner.owner_of(*ends) is None


def test_a_listener_on_the_port_is_not_taken_for_the_connection() -> None:
    with listener(socket.AF_INET, "127.0.0.1") as listening:
        assert socket_owner.owner_of(listening.getsockname(), ("127.0.0.1", 9)) is None


@pytest.mark.parametrize(
    ("local", "remote"),
    [
        (("127.0.0.1", 1), ("127.0.0.1", 1)),
        (("127.0.0.1", 1), ("::1", 1)),
        (("no address", 1), ("127.0.0.1", 1)),
        (("127.0.0.1", 70_000), ("127.0.0.1", 1)),
        (("", 1), ("", 1)),
    ],
)
def test_every_doubt_is_answered_with_nobody(local: tuple[str, int], remote: tuple[str, int]) -> None:
    assert socket_owner.owner_of(local, remote) is None


def test_nobody_owns_it_if_the_kernel_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        listener(socket.AF_INET, "127.0.0.1") as listening,
        socket.create_connection(listening.getsockname()),
        listening.accept()[0] as accepted,
    ):
        monkeypatch.setattr(socket_owner, "_NETLINK_SOCK_DIAG", 31)  # no such netlink family
        assert owner_of_client(accepted) is None
