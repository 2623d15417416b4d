"""Who gets in: callers by token, certificate and local user; Host, Origin and listeners."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.identity import ANONYMOUS, Caller, Origin, Role
from skerry.wire.gate import Gate, allowed_hosts, check_exposure, check_host, check_origin
from skerry.wire.peers import Peer, is_loopback, peer_of

OWN_UID = 1000
LOCAL = allowed_hosts("127.0.0.1")


class KnownCallers:
    """An identity that knows one token and one certificate."""

    viewer = Caller(origin=Origin.TOKEN, name="token:1", role=Role.VIEWER, token="1")
    node = Caller(origin=Origin.CERTIFICATE, name="node-a", role=Role.NODE, node="node-a", serial="2a")

    def caller_from_token(self, text: str) -> Caller:
        if text != "skerry_1_good":
            raise errors.Unauthenticated("the token is unknown")
        return self.viewer

    def caller_from_certificate(self, der: bytes) -> Caller:
        if der != b"good":
            raise errors.Unauthenticated("the certificate was revoked")
        return self.node


@pytest.fixture
def gate() -> Gate:
    return Gate(KnownCallers(), own_uid=OWN_UID)


def local(uid: int | None, certificate: bytes | None = None) -> Peer:
    return Peer(address="127.0.0.1", loopback=True, uid=uid, certificate=certificate)


@pytest.mark.parametrize("uid", [OWN_UID, 0])
def test_the_servers_own_user_and_root_are_admin_on_loopback(gate: Gate, uid: int) -> None:
    caller = gate.caller(local(uid), None)
    assert (caller.role, caller.origin, caller.name) == (Role.ADMIN, Origin.LOOPBACK, f"uid:{uid}")


@pytest.mark.parametrize("peer", [local(1001), local(None), Peer(address="192.0.2.7", uid=OWN_UID)])
def test_others_without_proof_are_nobody(gate: Gate, peer: Peer) -> None:
    assert gate.caller(peer, None) is ANONYMOUS


def test_a_token_counts_before_everything_else(gate: Gate) -> None:
    peer = local(OWN_UID, certificate=b"good")
    assert gate.caller(peer, "Bearer skerry_1_good") is KnownCallers.viewer
    assert gate.caller(peer, "bearer  skerry_1_good ") is KnownCallers.viewer


def test_a_certificate_counts_before_the_local_user(gate: Gate) -> None:
    assert gate.caller(local(OWN_UID, certificate=b"good"), None) is KnownCallers.node


@pytest.mark.parametrize(
    "shown", ["Bearer skerry_1_bad", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "skerry_1_good", ""]
)
def test_a_bad_token_is_refused_even_for_root_on_loopback(gate: Gate, shown: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        gate.caller(local(0), shown)


def test_a_bad_certificate_is_refused_even_for_root_on_loopback(gate: Gate) -> None:
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        gate.caller(local(0, certificate=b"revoked"), None)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1323",
        "127.0.0.1:1",
        "127.0.0.1",
        "[::1]:1323",
        "[0:0:0:0:0:0:0:1]",
        "localhost.",
    ],
)
def test_a_server_on_loopback_answers_to_its_local_names(host: str) -> None:
    check_host(host, LOCAL)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "evil.example:1323",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "192.0.2.2:1323",
        "[::2]:1323",
        "2130706433",
    ],
)
def test_a_name_that_a_web_page_could_bring_is_refused_with_the_way_out(host: str) -> None:
    with pytest.raises(errors.Forbidden, match=r"DNS rebinding.*http\.names"):
        check_host(host, LOCAL)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        " ",
        ":80",
        "localhost:x",
        "localhost:1:2",
        "::1",
        "[::1",
        "[a]",
        "[::1]x",
        "localhost]",
        "localhost :80",
        " localhost",
        "localhost@evil.example",
        "localhost:123456",
    ],
)
def test_a_host_that_is_none_is_malformed(host: str | None) -> None:
    with pytest.raises(errors.Invalid):
        check_host(host, LOCAL)


@given(
    st.text()
    | st.lists(st.sampled_from(["localhost", "127.0.0.1", "[", "]", "::1", ":", "80", ".", " "])).map("".join)
)
def test_no_host_header_makes_anything_but_a_refusal(host: str) -> None:
    try:
        check_host(host, LOCAL)
    except (errors.Invalid, errors.Forbidden):
        return
    assert re.fullmatch(r"(localhost\.?|127\.0\.0\.1\.?|\[[0:]*1\])(:[0-9]*)?", host, re.IGNORECASE)


def test_names_and_the_listening_address_are_let_in() -> None:
    allowed = allowed_hosts("127.0.0.5", ["Skerry.Example.", "2001:DB8::0001"])
    for host in ("127.0.0.5:1", "skerry.example", "SKERRY.example:443", "[2001:db8::1]:1323"):
        check_host(host, allowed)


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "[::]", ""])
def test_a_wildcard_is_an_address_to_listen_on_and_no_name(wildcard: str) -> None:
    assert allowed_hosts(wildcard) == {"localhost", "127.0.0.1", "::1"}


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        (None, "localhost:1323"),
        ("http://localhost:1323", "localhost:1323"),
        ("https://localhost:1323", "localhost:1323"),
        ("http://[::1]:1323", "[::1]:1323"),
        ("http://localhost", "localhost:80"),
        ("https://localhost", "localhost"),
        ("http://LOCALHOST:1323", "localhost:1323"),
    ],
)
def test_programs_and_the_servers_own_pages_may_call(origin: str | None, host: str) -> None:
    check_origin(origin, LOCAL, host_header=host)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("null", "localhost:1323"),
        ("", "localhost:1323"),
        ("https://evil.example", "localhost:1323"),
        ("https://evil.example", "evil.example"),
        ("http://localhost.evil.example:1323", "localhost:1323"),
        ("http://localhost:8000", "localhost:1323"),  # a page that somebody else serves on this machine
        ("http://localhost", "localhost:1323"),
        ("http://127.0.0.1:1323", "localhost:1323"),
        ("file://localhost:1323", "localhost:1323"),
        ("chrome-extension://localhost:1323", "localhost:1323"),
        ("http://user@localhost:1323", "localhost:1323"),
        ("http://[", "localhost:1323"),
        ("http://localhost:1323", None),
    ],
)
def test_pages_of_other_origins_are_refused(origin: str, host: str | None) -> None:
    with pytest.raises(errors.Forbidden, match="may not call this server"):
        check_origin(origin, LOCAL, host_header=host)


@given(st.text())
def test_no_origin_makes_anything_but_a_refusal(origin: str) -> None:
    try:
        check_origin(origin, LOCAL, host_header="localhost:1323")
    except errors.Forbidden:
        return
    assert "localhost:1323" in origin.lower()


def resolve(host: str) -> list[str]:
    known = {
        "localhost": ["127.0.0.1", "::1"],
        "both.example": ["127.0.0.1", "192.0.2.2"],
        "gone.example": [],
    }
    return known.get(host, [host])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "[::1]", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_tls(host: str) -> None:
    check_exposure(host, tls=False, resolve=resolve)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "[::]",
        "",
        "192.0.2.2",
        "2001:db8::1",
        "both.example",
        "gone.example",
        "::ffff:192.0.2.2",
    ],
)
def test_everywhere_else_needs_tls_and_says_how(host: str) -> None:
    with pytest.raises(errors.Invalid, match=r"off loopback Skerry needs TLS.*http\.tls=true.*--tls"):
        check_exposure(host, tls=False, resolve=resolve)
    check_exposure(host, tls=True, resolve=resolve)


def test_the_machines_own_resolver_knows_localhost_and_refuses_nonsense() -> None:
    check_exposure("localhost", tls=False)
    with pytest.raises(errors.Invalid, match="cannot be resolved"):
        check_exposure("a" * 300, tls=False)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("::1%lo", True),
        ("::ffff:127.1.2.3", True),
        ("10.0.0.1", False),
        ("localhost", False),
    ],
)
def test_loopback_is_told_by_literal_address_only(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


async def accepted_peer(listening: socket.socket, dial: socket.socket) -> Peer:
    """The peer that a server on `listening` sees when `dial` connects."""
    seen: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()

    async def on_connect(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.set_result(peer_of(writer.transport))
        writer.close()

    start = asyncio.start_unix_server if listening.family == socket.AF_UNIX else asyncio.start_server
    async with await start(on_connect, sock=listening):
        with dial:
            dial.setblocking(False)
            await asyncio.get_running_loop().sock_connect(dial, listening.getsockname())
            return await seen


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
async def test_a_tcp_peer_on_loopback_has_its_address_and_user(
    family: socket.AddressFamily, host: str
) -> None:
    listening = socket.create_server((host, 0), family=family)
    peer = await accepted_peer(listening, socket.socket(family))
    assert peer == Peer(address=host, loopback=True, uid=os.getuid())


async def test_a_unix_peer_has_the_user_that_the_kernel_knows(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    peer = await accepted_peer(listening, socket.socket(socket.AF_UNIX))
    assert peer == Peer(address="unix", loopback=True, uid=os.getuid())


def test_a_transport_that_is_gone_shows_nothing() -> None:
    assert peer_of(asyncio.BaseTransport()) == Peer(address="")
