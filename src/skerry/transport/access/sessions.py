"""The gate of the web console: from the cookie of a browser to a caller.

Rows of `skerry.transport.access.console_rules` are for sessions alone: neither a token nor the kernel's
report of a local user opens them, so a page of another site, which a browser sends no session for
(SameSite=Strict), is anonymous here. A request that changes something must also carry the session's CSRF
token, in a header that other sites cannot set, and an Origin, which the dispatcher has compared with the
Host. A session is bound to the local user that opened it: cookies do not know ports, and a browser sends them
to every server of this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Protocol

from skerry.model import errors
from skerry.model.callers import Caller
from skerry.transport.access.peers import ConnectionPeer

CSRF_HEADER = b"x-skerry-csrf"
_READS = frozenset({"GET", "HEAD"})
_COOKIE = "skerry-console"
_PORT = re.compile(rb":([0-9]{1,5})$")


class SessionVerifier(Protocol):
    """Who is behind the secret of a session, used by this local user; raises `Unauthenticated`."""

    def caller(self, text: str, uid: int | None) -> Caller: ...


class SessionGate:
    """Turns the cookie of a request into a `Caller`."""

    def __init__(self, sessions: SessionVerifier) -> None:
        self._sessions = sessions

    def caller(self, method: str, headers: Mapping[bytes, bytes], peer: ConnectionPeer) -> Caller:
        """`Unauthenticated` without a valid session, `Forbidden` for a change that is not of its own page."""
        text = session_text(headers)
        if not text:
            raise errors.Unauthenticated(
                "sign in first: run `skerry console` on a machine where `skerry status` works, and open the "
                "link that it prints"
            )
        caller = self._sessions.caller(text, peer.uid)
        if method not in _READS:
            check_same_origin(headers)
            shown = headers.get(CSRF_HEADER, b"").decode("latin-1")
            if not hmac.compare_digest(shown.encode(), csrf_token(text).encode()):
                raise errors.Forbidden(
                    "this change was not sent by a page of this session; reload the page, and try again"
                )
        return caller


def check_same_origin(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a change without an Origin, which every browser sends with one; that it is our own was
    checked."""
    if b"origin" not in headers:
        raise errors.Forbidden("the console takes changes from browsers only; use the API or `skerry`")


def csrf_token(session: str) -> str:
    """The token that pages of this session send with changes."""
    return hashlib.sha256(b"skerry console csrf " + session.encode()).hexdigest()


def cookie_name(headers: Mapping[bytes, bytes]) -> str:
    """The name of the cookie at this server: with its port, as several may be on one machine."""
    port = _PORT.search(headers.get(b"host", b""))
    return _COOKIE if port is None else f"{_COOKIE}-{port[1].decode()}"


def session_text(headers: Mapping[bytes, bytes]) -> str:
    """The secret of the session in the cookies of a request; empty if there is none."""
    name = cookie_name(headers)
    for part in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def set_cookie(headers: Mapping[bytes, bytes], value: str, max_age_s: float) -> tuple[bytes, bytes]:
    """The header that stores the secret in the browser; without a value, that removes it."""
    is_tls = headers.get(b"origin", b"").startswith(b"https:")
    attributes = [
        f"{cookie_name(headers)}={value}",
        "Path=/",
        f"Max-Age={int(max_age_s)}",
        "HttpOnly",
        "SameSite=Strict",
        *(["Secure"] if is_tls else []),
    ]
    return b"set-cookie", "; ".join(attributes).encode()
