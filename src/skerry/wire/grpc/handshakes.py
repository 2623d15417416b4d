"""Why a connection was turned away before its first call, in a word for metrics and a sentence for the log.

Pure: errors of the socket and of OpenSSL come in, reasons go out to `skerry.wire.grpc.listener`.
"""

from __future__ import annotations

import ssl
from typing import Final


class TurnedAway(Exception):
    """The reason. `slug` is for metrics; `is_ordinary` if no operator needs to hear of it."""

    def __init__(self, slug: str, text: str, *, is_ordinary: bool = False) -> None:
        super().__init__(text)
        self.slug = slug
        self.is_ordinary = is_ordinary


# OpenSSL's numbers for what is wrong with a certificate (X509_V_ERR_*).
_VERIFY: Final = {
    9: ("not-yet-valid", "its certificate is not valid yet; compare the clocks of both machines"),
    10: ("expired", "its certificate has expired; the client must renew it or join again"),
    18: ("unknown-ca", "its certificate is self-signed, not issued by this cloud's CA"),
    19: ("unknown-ca", "its certificate was issued by another CA than this cloud's"),
    20: ("unknown-ca", "its certificate was issued by another CA than this cloud's"),
    21: ("unknown-ca", "its certificate was issued by another CA than this cloud's"),
    23: ("revoked", "its certificate was revoked"),
    26: ("wrong-purpose", "its certificate is not meant for clients"),
}
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("no-certificate", "it showed no client certificate"),
    "TLSV1_ALERT_UNKNOWN_CA": ("distrusted", "it does not trust this server's CA; give it the file ca.crt"),
    "SSLV3_ALERT_BAD_CERTIFICATE": ("distrusted", "it refused this server's certificate"),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": ("distrusted", "it holds this server's certificate for expired"),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": ("distrusted", "it refused this server's certificate"),
    "UNSUPPORTED_PROTOCOL": ("version", "it offers only versions of TLS that are too old"),
    "NO_SHARED_CIPHER": ("cipher", "it offers no cipher that this server takes"),
}


def explain(error: OSError) -> TurnedAway:
    """What a failed handshake means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        slug, text = _VERIFY.get(error.verify_code, ("bad-certificate", error.verify_message))
        return TurnedAway(slug, text)
    if isinstance(error, ssl.SSLError):
        slug, text = _REASONS.get(error.reason or "", ("handshake", f"TLS failed: {error.reason or error}"))
        return TurnedAway(slug, text)
    if isinstance(error, ConnectionAbortedError):  # the event loop's word for a handshake that takes too long
        return TurnedAway("slow", "it did not end the TLS handshake in time")
    return TurnedAway("left", f"it went away: {error.strerror or error}", is_ordinary=True)
