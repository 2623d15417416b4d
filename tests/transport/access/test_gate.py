"""Who gets in: callers by token, certificate and local user; Host, Origin and listeners."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access.gate import (
    AccessGate,
    allowed_hosts,
    check_exposure,
    check_host,
    check_origin,
    is_forwarding,
)
from skerry.transport.access.peers import ConnectionPeer, is_loopback, peer_of

OWN_UID = 1000
LOCAL = allowed_hosts("127.0.0.1")


class KnownCallers:
    """An identity that knows one token and one certificate."""

    viewer = Caller(origin=AuthMethod.TOKEN, name="token:1", role=Role.VIEWER, token="1")
    node = Caller(origin=AuthMethod.CERTIFICATE, name="node-a", role=Role.NODE, node="node-a", serial="2a")

    def caller_from_token(self, text: str) -> Caller:
        if text != "skerry_1_good":
            raise errors.Unauthenticated("the token is unknown")
        return self.viewer

    def caller_from_certificate(self, der: bytes) -> Caller:
        if der != b"good":
            raise errors.Unauthenticated("the certificate was revoked")
        return self.node

    def listen(self, changed: Callable[[], None]) -> None:
        pass


@pytest.fixture
def gate() -> AccessGate:
    return AccessGate(KnownCallers(), own_uid=OWN_UID)


def local(uid: int | None, certificate: bytes | None = None) -> ConnectionPeer:
    return ConnectionPeer(address="127.0.0.1", loopback=True, uid=uid, certificate=certificate)


@pytest.mark.parametrize("uid", [OWN_UID, 0])
def test_the_servers_own_user_and_root_are_admin_on_loopback(gate: AccessGate, uid: int) -> None:
    caller = gate.caller(local(uid), None, is_forwarded=False)
    assert (caller.role, caller.origin, caller.name) == (Role.ADMIN, AuthMethod.LOOPBACK, f"uid:{uid}")


@pytest.mark.parametrize("peer", [local(1001), local(None), ConnectionPeer(address="192.0.2.7", uid=OWN_UID)])
def test_others_without_proof_are_nobody(gate: AccessGate, peer: ConnectionPeer) -> None:
    assert gate.caller(peer, None, is_forwarded=False) is ANONYMOUS


def test_a_token_counts_before_everything_else(gate: AccessGate) -> None:
    peer = local(OWN_UID, certificate=b"good")
    assert gate.caller(peer, "Bearer skerry_1_good", is_forwarded=False) is KnownCallers.viewer
    assert gate.caller(peer, "bearer  skerry_1_good ", is_forwarded=False) is KnownCallers.viewer


def test_a_certificate_counts_before_the_local_user(gate: AccessGate) -> None:
    assert gate.caller(local(OWN_UID, certificate=b"good"), None, is_forwarded=False) is KnownCallers.node


@pytest.mark.parametrize(
    "shown", ["Bearer skerry_1_bad", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "skerry_1_good", ""]
)
def test_a_bad_token_is_refused_even_for_root_on_loopback(gate: AccessGate, shown: str) -> None:
    with pytest.raises(errors.Unauthenticated):
        gate.caller(local(0), shown, is_forwarded=False)


def test_a_bad_certificate_is_refused_even_for_root_on_loopback(gate: AccessGate) -> None:
    with pytest.raises(errors.Unauthenticated, match="revoked"):
        gate.caller(local(0, certificate=b"revoked"), None, is_forwarded=False)


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


def accepted_peer(listening: socket.socket, dial: socket.socket) -> ConnectionPeer:
    """The peer that a server on `listening` sees when `dial` connects."""
    with listening, dial:
        listening.listen()
        dial.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            return peer_of(accepted)


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_tcp_peer_on_loopback_has_its_address_and_user(family: socket.AddressFamily, host: str) -> None:
    listening = socket.create_server((host, 0), family=family)
    peer = accepted_peer(listening, socket.socket(family))
    assert peer == ConnectionPeer(address=host, loopback=True, uid=os.getuid())


def test_a_local_peer_that_calls_from_another_address_of_the_machine_has_its_user() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no address but loopback")
        address = probe.getsockname()[0]
    if is_loopback(address):
        pytest.skip("this machine has no address but loopback")
    dial = socket.socket()
    dial.bind((address, 0))
    peer = accepted_peer(socket.create_server(("127.0.0.1", 0)), dial)
    assert peer == ConnectionPeer(address=address, loopback=False, uid=os.getuid())


def test_a_unix_peer_has_the_user_that_the_kernel_knows(tmp_path: Path) -> None:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "s"))
    peer = accepted_peer(listening, socket.socket(socket.AF_UNIX))
    assert peer == ConnectionPeer(address="unix", loopback=True, uid=os.getuid())


def test_a_socket_that_is_gone_shows_nothing() -> None:
    with socket.socket() as unconnected:
        assert peer_of(unconnected) == ConnectionPeer(address="")


@pytest.mark.parametrize(
    "name",
    [
        b"forwarded",
        b"via",
        b"x-real-ip",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded",
        b"x_forwarded_for",
        b"forwarded-for",
        b"x-original-forwarded-for",
        b"client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
        b"cf-connecting-ipv6",
        b"fastly-client-ip",
        b"x-azure-clientip",
        b"x-remote-addr",
        b"cdn-loop",
        b"x-amzn-trace-id",
    ],
)
def test_what_a_proxy_has_passed_on_is_never_the_local_users(gate: AccessGate, name: bytes) -> None:
    is_forwarded = is_forwarding([b"host", name])
    assert is_forwarded
    assert gate.caller(local(0), None, is_forwarded=is_forwarded) is ANONYMOUS
    assert gate.caller(local(0), "Bearer skerry_1_good", is_forwarded=is_forwarded) is KnownCallers.viewer


def test_ordinary_headers_are_no_proxys() -> None:
    assert not is_forwarding([b"host", b"x-request-id", b"viable", b"max-forwards", b"user-agent", b"x-zip"])


def test_without_local_trust_the_local_user_is_nobody() -> None:
    strict = AccessGate(KnownCallers(), own_uid=OWN_UID, local_trust=False)
    for uid in (0, OWN_UID):
        assert strict.caller(local(uid), None, is_forwarded=False) is ANONYMOUS


def test_who_finds_a_place_by_the_kernels_word_is_who_is_trusted_by_it() -> None:
    assert AccessGate(KnownCallers(), 7).trusted_uids == {0, 7}
    assert AccessGate(KnownCallers(), 7, local_trust=False).trusted_uids == frozenset()
