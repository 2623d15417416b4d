"""Sessions of the web console: what a browser is signed in as, and until when.

A session begins as a link with a one-time code, and is open once that was redeemed. Records hold only digests
of codes and secrets.
"""

from __future__ import annotations

import msgspec

from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import Namespace


class ConsoleSession(msgspec.Struct, frozen=True):
    """A session as it is stored; `digest` is that of its code until it is redeemed, then that of its
    secret."""

    id: str
    digest: str
    origin: AuthMethod  # how the caller that asked for the link was authenticated
    name: str
    role: Role
    created_at: float
    expires_at: float  # of the code, then of the session
    token: str = ""  # the id of the token behind it; the session ends with that
    serial: str = ""  # likewise of the certificate
    namespaces: tuple[Namespace, ...] | None = None
    redeemed_at: float | None = None  # None: it is a link that nobody has opened yet
    uid: int | None = None  # the local user whose browser opened it; None: it is of another machine

    @property
    def caller(self) -> Caller:
        """The caller of its requests: the one that asked for the link."""
        return Caller(
            origin=self.origin,
            name=self.name,
            role=self.role,
            token=self.token,
            serial=self.serial,
            namespaces=self.namespaces,
        )
