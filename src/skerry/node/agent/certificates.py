"""Who calls on a node's own socket, told by certificate alone.

A node away from its server cannot look anything up, so here a certificate counts if this cloud's CA signed
it, it has not expired, and it is not among the revoked ones that the server told of. The node's own
certificate, whose key only this machine's root can read, stands for whoever administers this machine. Tokens
are the server's matter and are refused.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from skerry.kit import pki
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.node.agent.revocations import RevocationList


class CertificateVerifier:
    """Callers of the node runtime on a machine without a control plane. `node` is this machine's id."""

    def __init__(self, node: str, clock: Clock, revocations: RevocationList) -> None:
        self._node = node
        self._clock = clock
        self._revocations = revocations

    def listen(self, changed: Callable[[], None]) -> None:
        self._revocations.listen(changed)

    def caller_from_token(self, text: str) -> Caller:
        raise errors.Unauthenticated(
            "a node knows no tokens: show a client certificate, or ask the server this node belongs to"
        )

    def caller_from_certificate(self, der: bytes) -> Caller:
        """Who holds it. TLS has already checked that our CA signed it."""
        try:
            shown = pki.read_certificate(ssl.DER_cert_to_PEM_cert(der).encode())
        except pki.InvalidCertificate as error:
            raise errors.Unauthenticated(f"the certificate cannot be used: {error}") from None
        if shown.not_after <= self._clock.now():
            raise errors.Unauthenticated("the certificate has expired: renew it, or join again")
        if self._revocations.is_revoked(shown.serial):
            raise errors.Unauthenticated("the certificate was revoked; a node joins again with a new token")
        if shown.role == Role.NODE and shown.name == self._node:
            return Caller(
                AuthMethod.CERTIFICATE, "this-node", Role.ADMIN, node=self._node, serial=shown.serial
            )
        try:
            role = Role(shown.role)
        except ValueError:
            raise errors.Forbidden(f"a certificate of the role {shown.role!r} calls nobody") from None
        return Caller(AuthMethod.CERTIFICATE, shown.name, role, serial=shown.serial)
