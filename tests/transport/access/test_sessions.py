"""The gate of console sessions: the cookie, the origin and the CSRF token of changes."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.transport.access.peers import ConnectionPeer
from skerry.transport.access.sessions import SessionGate, cookie_name, csrf_token, session_text, set_cookie

ADMIN = Caller(origin=AuthMethod.LOOPBACK, name="uid:0", role=Role.ADMIN)
PEER = ConnectionPeer("127.0.0.1", loopback=True, uid=0)
HOST = (b"host", b"localhost:1323")


class OneSession:
    """Knows one secret, of one local user."""

    def caller(self, text: str, uid: int | None) -> Caller:
        if (text, uid) != ("good", 0):
            raise errors.Unauthenticated("no such session")
        return ADMIN


gate = SessionGate(OneSession())


def headers(**more: str) -> dict[bytes, bytes]:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in more.items()}
    return dict([HOST]) | {b"cookie": b"a=b; skerry-console-1323=good"} | named


def test_a_cookie_makes_the_caller() -> None:
    assert gate.caller("GET", headers(), PEER) == ADMIN


def test_without_a_cookie_nobody_is_known_however_local() -> None:
    with pytest.raises(errors.Unauthenticated, match="skerry console"):
        gate.caller("GET", dict([HOST]), PEER)


def test_a_token_does_not_stand_in_for_a_session() -> None:
    with pytest.raises(errors.Unauthenticated):
        gate.caller("GET", dict([HOST]) | {b"authorization": b"Bearer x"}, PEER)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_change_needs_its_origin_and_its_token(method: str) -> None:
    origin, token = "http://localhost:1323", csrf_token("good")
    for shown in (
        headers(),
        headers(origin=origin),
        headers(x_skerry_csrf=token),
        headers(origin=origin, x_skerry_csrf=csrf_token("other")),
    ):
        with pytest.raises(errors.Forbidden):
            gate.caller(method, shown, PEER)
    assert gate.caller(method, headers(origin=origin, x_skerry_csrf=token), PEER) == ADMIN


def test_a_cookie_of_another_port_is_not_this_ones() -> None:
    assert session_text({b"host": b"localhost:1324", b"cookie": b"skerry-console-1323=good"}) == ""
    assert cookie_name({b"host": b"example.org"}) == "skerry-console"


def test_a_cookie_is_for_this_site_alone_and_secure_over_tls() -> None:
    _, plain = set_cookie({b"host": b"h:1", b"origin": b"http://h:1"}, "x", 60)
    _, tls = set_cookie({b"host": b"h:1", b"origin": b"https://h:1"}, "x", 60)
    assert plain == b"skerry-console-1=x; Path=/; Max-Age=60; HttpOnly; SameSite=Strict"
    assert tls == plain + b"; Secure"
