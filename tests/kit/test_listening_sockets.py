"""Listening sockets go from one owner to the next, and clients that come between them are not refused."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from skerry.kit.listening_sockets import ListeningSockets


@pytest.fixture
def bound() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def test_who_connects_while_nobody_accepts_is_served_by_the_next_owner(bound: socket.socket) -> None:
    address = bound.getsockname()
    former, later = ListeningSockets(), ListeningSockets()
    former.register("--http 127.0.0.1:0", bound)
    held = former.hold()
    bound.close()
    with socket.create_connection(address) as client:
        later.inherit(held)
        adopted = later.adopt("--http 127.0.0.1:0")
        assert adopted is not None
        with adopted, adopted.accept()[0] as accepted:
            accepted.sendall(b"here")
            assert client.recv(10) == b"here"


def test_a_socket_is_found_by_its_name_or_else_by_its_address(bound: socket.socket) -> None:
    sockets = ListeningSockets()
    sockets.inherit({"neighbours 127.0.0.1:0": bound})
    port = bound.getsockname()[1]
    assert sockets.adopt("neighbours other") is None
    assert sockets.adopt("neighbours 127.0.0.1:1", ("127.0.0.1", 1)) is None
    assert sockets.adopt("any", ("127.0.0.1", 0)) is None, "any port is no address"
    with contextlib.closing(bound):
        assert sockets.adopt(f"neighbours 127.0.0.1:{port}", ("127.0.0.1", port)) is bound
        assert sockets.adopt("neighbours 127.0.0.1:0") is None, "it has an owner"


def test_what_nobody_adopts_is_closed_once_the_process_before_is_gone(bound: socket.socket) -> None:
    sockets = ListeningSockets()
    sockets.inherit({"--grpc": bound})
    assert sockets.is_shared
    assert sockets.end_sharing() == ["--grpc"]
    assert not sockets.is_shared
    assert bound.fileno() < 0


def test_sockets_that_were_closed_are_not_handed_over(bound: socket.socket) -> None:
    sockets = ListeningSockets()
    sockets.register("--http", bound)
    bound.close()
    assert sockets.hold() == {}


def test_those_who_retire_are_asked_until_they_take_it_back() -> None:
    sockets = ListeningSockets()
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        running = loop.create_future()
        undo = sockets.when_retired(lambda: [running])
        assert sockets.retire() == [running]
        undo()
        assert sockets.retire() == []


def test_connections_go_to_the_listener_of_their_port_and_the_others_are_closed(bound: socket.socket) -> None:
    sockets = ListeningSockets()
    port = bound.getsockname()[1]
    with bound, socket.create_connection(bound.getsockname()), socket.create_connection(bound.getsockname()):
        accepted = [bound.accept()[0] for _ in range(2)]
        sockets.inherit({}, accepted[:1])
        assert sockets.adopt_connections(port + 1) == []
        assert sockets.adopt_connections(port) == accepted[:1]
        assert sockets.adopt_connections(port) == [], "they have an owner"
        sockets.inherit({}, accepted[1:])
        sockets.end_sharing()
        assert [sock.fileno() >= 0 for sock in accepted] == [True, False]
        accepted[0].close()


def test_datagrams_are_found_by_their_address_and_not_taken_for_a_listener() -> None:
    sockets = ListeningSockets()
    with socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        sockets.inherit({"udp": datagrams})
        address = datagrams.getsockname()
        assert sockets.adopt("dns", address) is None
        assert sockets.adopt("dns", address, socket.SOCK_DGRAM) is datagrams
