"""The identity of a link's peer, by its certificate, which TLS has verified.

Links are between nodes and servers of one cloud. A node is the one that its certificate names. A server's
certificate names no node, but its holder has the cloud's CA and could be any: so its statement is trusted.
Certificates of users and revoked ones are refused, and so is a node that is no member any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from skerry.model import errors
from skerry.model.callers import SERVER, Role
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember


class LinkAccess(Protocol):
    """Which peers may have a link, as far as this process knows. Both ends of every link check it, when it is
    made and on changes."""

    def is_revoked(self, serial: str) -> bool: ...

    def is_member(self, node: NodeId) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a peer that was accepted may not be any more."""
        ...


class MemberSource(Protocol):
    """The members that take calls, as the control plane has them or sent them."""

    @property
    def all(self) -> tuple[ContinuumMember, ...]: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


class RevocationChecker(Protocol):
    """Which certificates do not count, as far as this process can know."""

    def is_revoked(self, serial: str) -> bool: ...

    def listen(self, changed: Callable[[], None]) -> None: ...


class MemberLinkAccess:
    """Members have links, but with a certificate that was revoked."""

    def __init__(self, members: MemberSource, revocations: RevocationChecker) -> None:
        self._members = members
        self._revocations = revocations
        self.is_revoked = revocations.is_revoked

    def is_member(self, node: NodeId) -> bool:
        return any(member.node == node for member in self._members.all)

    def listen(self, changed: Callable[[], None]) -> None:
        self._members.listen(changed)
        self._revocations.listen(changed)


class LinkIdentity(msgspec.Struct, frozen=True):
    """A node or a server of this cloud."""

    role: str
    name: str
    serial: str  # as `skerry.model.callers.Certificate` has it

    def may_be(self, node: NodeId) -> bool:
        """Whether it may be `node`."""
        return self.role == SERVER or self.name == node


def identity_from_certificate(transport: asyncio.BaseTransport) -> LinkIdentity:
    """The identity of the peer's certificate; `Unauthenticated` if it is not accepted."""
    tls = transport.get_extra_info("ssl_object")
    certificate_der: dict[str, Any] = (tls.getpeercert() if tls is not None else None) or {}
    subject = {key: value for part in certificate_der.get("subject", ()) for key, value in part}
    found = LinkIdentity(
        role=subject.get("organizationName", ""),
        name=subject.get("commonName", ""),
        serial=str(certificate_der.get("serialNumber", "")).lower().rjust(32, "0"),
    )
    if found.role not in (Role.NODE, SERVER):
        raise errors.Unauthenticated(
            f"a certificate of the role {found.role[:40]!r} opens no link; nodes and servers have theirs"
        )
    return found


def check_access(identity: LinkIdentity, node: NodeId | None, access: LinkAccess) -> None:
    """Refuse a revoked peer, and a node whose `node` is no member; None: not known yet. Servers belong to the
    cloud by their certificate, and may call before they are known as members."""
    if access.is_revoked(identity.serial):
        raise errors.Unauthenticated("the certificate was revoked; a node joins again with a new token")
    if node is not None and identity.role != SERVER and not access.is_member(node):
        raise errors.Forbidden(f"node {node} is no member of this cloud any more, or not known as one yet")
