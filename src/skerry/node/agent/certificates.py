"""Authenticates callers on a node's own socket by certificate alone.

A node may be cut off from its server, so nothing is looked up there: a certificate is valid if this cloud's
CA signed it, it has not expired, and it is not on the revocation list that the server sent. The node's own
certificate, whose key only this machine's root can read, has the role admin. The namespaces that a
certificate is bound to stand in it. Tokens are rejected: only servers know them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from skerry.kit import pki
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role, read_certificate_role
from skerry.node.agent.revocations import RevocationList


class CertificateVerifier:
    """Authenticates callers of a node without its control plane. `node` is this machine's id."""

    def __init__(self, node: str, clock: Clock, revocations: RevocationList) -> None:
        self._node = node
        self._clock = clock
        self._revocations = revocations

    def listen(self, changed: Callable[[], None]) -> None:
        self._revocations.listen(changed)

    def caller_from_token(self, text: str) -> Caller:
        raise errors.Unauthenticated(
            "a node accepts no tokens: use a client certificate, or call the server of this node"
        )

    def caller_from_certificate(self, der: bytes) -> Caller:
        """The caller that the certificate names. TLS has already verified the signature of our CA."""
        try:
            certificate = pki.read_certificate(ssl.DER_cert_to_PEM_cert(der).encode())
        except pki.InvalidCertificate as error:
            raise errors.Unauthenticated(f"the certificate cannot be used: {error}") from None
        if certificate.not_after <= self._clock.now():
            raise errors.Unauthenticated("the certificate has expired: renew it, or join again")
        if self._revocations.is_revoked(certificate.serial):
            raise errors.Unauthenticated("the certificate was revoked; a node joins again with a new token")
        if certificate.role == Role.NODE and certificate.name == self._node:
            return Caller(
                AuthMethod.CERTIFICATE, "this-node", Role.ADMIN, node=self._node, serial=certificate.serial
            )
        try:
            role, namespaces = read_certificate_role(certificate.role, certificate.units)
        except ValueError:
            raise errors.Forbidden(
                f"a certificate of the role {certificate.role!r} may not call a node"
            ) from None
        return Caller(
            AuthMethod.CERTIFICATE,
            certificate.name,
            role,
            serial=certificate.serial,
            namespaces=namespaces,
        )
