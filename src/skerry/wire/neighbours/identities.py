"""Who is at the other end of a link: what its certificate says, which TLS has verified.

Links are between nodes and servers of one cloud. A node is the one that its certificate names, whatever it
says itself. A server's certificate names no node, but its holder has the cloud's CA and could be any: so it
is believed. Certificates of people open nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from skerry.model import errors
from skerry.model.identity import SERVER, Role
from skerry.model.ids import NodeId

# Whether a certificate of this serial counts, as far as this process can know.
Counts = Callable[[str], bool]


class Identity(msgspec.Struct, frozen=True):
    """A node or a server of this cloud."""

    role: str
    name: str
    serial: str  # as `skerry.model.identity.Certificate` has it

    def may_be(self, node: NodeId) -> bool:
        """Whether it may speak as `node`."""
        return self.role == SERVER or self.name == node


def identity_of(transport: asyncio.BaseTransport, counts: Counts) -> Identity:
    """Who showed its certificate; `Unauthenticated` says why it is nobody to us."""
    tls = transport.get_extra_info("ssl_object")
    shown: dict[str, Any] = (tls.getpeercert() if tls is not None else None) or {}
    subject = {key: value for part in shown.get("subject", ()) for key, value in part}
    found = Identity(
        role=subject.get("organizationName", ""),
        name=subject.get("commonName", ""),
        serial=str(shown.get("serialNumber", "")).lower().rjust(32, "0"),
    )
    if found.role not in (Role.NODE, SERVER):
        raise errors.Unauthenticated(
            f"a certificate of the role {found.role[:40]!r} opens no link; nodes and servers have theirs"
        )
    if not counts(found.serial):
        raise errors.Unauthenticated("the certificate was revoked; a node joins again with a new token")
    return found
