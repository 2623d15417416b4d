"""Why a connection was rejected before its first request: a slug for metrics, a sentence for the log.

Pure; used by `skerry.transport.listeners`. `skerry.kit.tls` has the sentences on TLS.
"""

from __future__ import annotations

import ssl
from typing import Final

from skerry.kit import tls

# OpenSSL's numbers for what is wrong with a certificate (X509_V_ERR_*).
_VERIFY: Final = {
    9: "not-yet-valid",
    10: "expired",
    18: "unknown-ca",
    19: "unknown-ca",
    20: "unknown-ca",
    21: "unknown-ca",
    26: "wrong-purpose",
}


class ConnectionRejected(Exception):
    """The reason. `slug` is for metrics; `is_ordinary` if no operator needs to know."""

    def __init__(self, slug: str, text: str, *, is_ordinary: bool = False) -> None:
        super().__init__(text)
        self.slug = slug
        self.is_ordinary = is_ordinary


def rejection_of(error: OSError) -> ConnectionRejected:
    """What it means that a connection was not made because of `error`."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionRejected(_VERIFY.get(error.verify_code, "bad-certificate"), tls.explain(error))
    if isinstance(error, ssl.SSLError):
        no_certificate = error.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE"
        return ConnectionRejected("no-certificate" if no_certificate else "handshake", tls.explain(error))
    if isinstance(
        error, ConnectionAbortedError
    ):  # the event loops' error for a handshake that takes too long
        return ConnectionRejected("slow", "the TLS handshake did not end in time")
    return ConnectionRejected("left", "it left before the connection was made", is_ordinary=True)
