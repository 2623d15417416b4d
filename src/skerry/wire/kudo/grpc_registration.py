"""The node that a call acts for: by the certificate of the connection, by one in PEM, or by name on loopback.

The only field of a registration is `certificate`, in which Kudo's program sends a name. A certificate in PEM
must be that of a node of this cloud; its common name is the node's id. Any other text is a name, and is
accepted only from the user who runs Skerry, on the same machine.
"""

from __future__ import annotations

import hashlib
import ssl
from typing import Final

from skerry.kit import pki
from skerry.model import errors, ids
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.wire.kudo.grpc_ports import CertificateLookup

_PEM: Final = "-----BEGIN"
_MAX_TEXT: Final = 64 * 1024
_DIGITS: Final = 32


class RegistrationRefused(Exception):
    """The `certificate` of a registration is refused; the text says why, and what would be accepted."""


def registered_node(certificate: str, caller: Caller, certificates: CertificateLookup) -> str:
    """The id of the node that `caller` registers by `certificate`."""
    if not certificate or len(certificate) > _MAX_TEXT:
        raise RegistrationRefused("send the certificate of the node in PEM, or on loopback its name")
    if _PEM in certificate:
        node = _holder(certificate, certificates)
        if caller.role is Role.NODE and caller.node != node:
            raise RegistrationRefused(f"it is node {node}'s; this connection was made by node {caller.node}")
        return node
    if caller.origin is not AuthMethod.LOOPBACK:
        raise RegistrationRefused(
            "it is no PEM: a name is taken only without TLS, on the machine that Skerry runs on, from the "
            "user who runs it"
        )
    try:
        return ids.check_id(certificate)
    except errors.Invalid:
        return hashlib.sha256(certificate.encode()).hexdigest()[:_DIGITS]


def check_acts_for(caller: Caller, node: str) -> None:
    """Raise unless `caller` may act for `node`: a node may for itself, an admin for all."""
    if caller.role is Role.NODE and caller.node != node:
        raise errors.Forbidden(f"{caller.name} speaks only for itself, not for node {node}")


def _holder(certificate: str, certificates: CertificateLookup) -> str:
    try:
        leaf = pki.read_certificate(certificate.encode()).pem
        holder = certificates.caller_from_certificate(ssl.PEM_cert_to_DER_cert(leaf.decode()))
    except pki.InvalidCertificate as error:
        raise RegistrationRefused(str(error)) from None
    except errors.Unauthenticated as error:
        raise RegistrationRefused(error.message) from None
    if holder.role is not Role.NODE:
        raise RegistrationRefused(
            f"it makes its holder {holder.role}, not a node; join one with a node token"
        )
    return holder.node
