"""SSL contexts for our listeners and for clients of them; certificates are exchanged in place.

A listener holds on to its context object, so renewing means loading the new pair into that same object: new
connections get the new certificate, open ones go on. A server context sends the reason of a rejection to the
client, and logs it. No context resumes sessions: a resumed one would skip the client's certificate and would
hide a renewed certificate of ours. TLS below 1.2 is disabled.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = structlog.get_logger(__name__)

HTTP2 = ("h2",)
HTTP1 = ("http/1.1",)
# Of a large upload, as much as the loop reads at a time; of tiny records, what takes as long as a request.
READS_PER_TURN: Final = 32

# Messages for OpenSSL's verification results (X509_V_ERR_*); the rest keep OpenSSL's own text.
_VERIFY = {
    9: "the certificate is not yet valid: compare the clocks of the two machines",
    10: "the certificate has expired: renew it, or join again",
    7: "the certificate was signed by another CA",
    18: "the certificate is self-signed, not issued by this cloud's CA",
    19: "the certificate was issued by another CA",
    20: "the certificate was issued by another CA",
    21: "the certificate was issued by another CA",
    26: "the certificate is not made for this side of a connection",
    62: "the certificate does not name the host that was called",
    64: "the certificate does not name the address that was called",
}
# Alerts of the other side, and clients without TLS.
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a client certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the other side says that our certificate has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the other side does not accept our certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the other side does not accept our certificate",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "the other side does not accept this kind of certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the other side does not know the CA of our certificate",
    "HTTP_REQUEST": "plain HTTP was sent to a TLS port",
    "WRONG_VERSION_NUMBER": "the other side does not speak TLS here",
    "UNSUPPORTED_PROTOCOL": "the other side speaks only TLS older than 1.2",
    "NO_SHARED_CIPHER": "the two sides have no cipher in common",
    "NO_APPLICATION_PROTOCOL": "the two sides have no application protocol (ALPN) in common",
}


def _log_refusal(error: ssl.SSLError) -> None:
    log.info("tls.refused", reason=explain(error), openssl=error.reason)


# Called when a server's handshake fails. An accept loop sets it for the connection that it is about to
# create, so that it can add the peer's address; otherwise the failure is logged.
on_refusal: ContextVar[Callable[[ssl.SSLError], None]] = ContextVar("on_refusal", default=_log_refusal)


def mutual_server(authority_pem: bytes, alpn: Sequence[str] = HTTP2) -> ssl.SSLContext:
    """For listeners that serve only clients with a certificate of `authority_pem`."""
    return _server(authority_pem, ssl.CERT_REQUIRED, alpn)


def https_server(authority_pem: bytes, alpn: Sequence[str] = HTTP1) -> ssl.SSLContext:
    """For HTTPS, where a client may use a certificate instead of a token; an invalid one is rejected."""
    return _server(authority_pem, ssl.CERT_OPTIONAL, alpn)


def client(authority_pem: bytes, alpn: Sequence[str] = HTTP2) -> ssl.SSLContext:
    """For clients: trusts only `authority_pem` and checks the host name. `load` gives it a certificate."""
    return _common(_TrustedContext(ssl.PROTOCOL_TLS_CLIENT), authority_pem, alpn)


def unverified_client(alpn: Sequence[str] = HTTP1) -> ssl.SSLContext:
    """For data that is verified otherwise, such as a CA whose fingerprint is known."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(list(alpn))
    return context


def load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Put the pair into `context`, also while it is in use.

    A pair that does not fit together raises `ssl.SSLError` and leaves the context as it was: OpenSSL would
    already have thrown the old certificate away, so the pair is tried on another context first.
    """
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    replaced = context.replacement if isinstance(context, _TrustedContext) else None
    for each in (trial, context, *(() if replaced is None else (replaced,))):
        # The empty password turns an encrypted key into an error instead of a question on the terminal.
        each.load_cert_chain(certificate, key, password="")
    if isinstance(context, _TrustedContext):
        context.pair = (certificate, key)


def trust(context: ssl.SSLContext, authority_pem: bytes) -> None:
    """Trust the CAs of `authority_pem` from now on, and no others, also while `context` is in use: open
    connections go on. For contexts that were made here.

    OpenSSL can add to what a context trusts and take nothing away, so the context passes new connections on
    to another one.
    """
    assert isinstance(context, _TrustedContext), "made by this module"
    fresh = type(context)(context.protocol)
    if isinstance(context, _ServerContext):
        fresh.verify_mode = context.verify_mode
        fresh.num_tickets = 0
    _common(fresh, authority_pem, context.alpn)
    if context.pair is not None:
        certificate, key = context.pair
        fresh.load_cert_chain(certificate, key, password="")
    context.replacement = fresh


def explain(error: ssl.SSLError) -> str:
    """Why a handshake failed, as a sentence."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _VERIFY.get(error.verify_code, error.verify_message)
    reason = getattr(error, "reason", None) or ""
    return _REASONS.get(reason, reason.replace("_", " ").lower() or str(error))


class _TrustedContext(ssl.SSLContext):
    """A context whose CAs can be exchanged by `trust`."""

    alpn: Sequence[str] = ()
    pair: tuple[Path, Path] | None = None  # that was loaded
    replacement: ssl.SSLContext | None = None

    def wrap_socket(self, *arguments: Any, **more: Any) -> ssl.SSLSocket:
        if self.replacement is not None:
            return self.replacement.wrap_socket(*arguments, **more)
        return super().wrap_socket(*arguments, **more)

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        if self.replacement is not None:
            return self.replacement.wrap_bio(*arguments, **more)
        return super().wrap_bio(*arguments, **more)


def _server(authority_pem: bytes, verify: ssl.VerifyMode, alpn: Sequence[str]) -> ssl.SSLContext:
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.verify_mode = verify
    context.num_tickets = 0
    return _common(context, authority_pem, alpn)


def _common(context: _TrustedContext, authority_pem: bytes, alpn: Sequence[str]) -> ssl.SSLContext:
    context.alpn = alpn
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(cadata=authority_pem.decode("ascii"))
    context.set_alpn_protocols(list(alpn))
    return context


def pace_reads(transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Let a server's connection decrypt `READS_PER_TURN` records in an iteration of the loop, and continue in
    later ones.

    The result undoes that when it has ended. asyncio and uvloop decrypt all that was received before they
    deliver any of it: of a flood of records of one byte more than ten thousand in one turn, which takes as
    long as thousands of requests.
    """
    wrapped = transport.get_extra_info("ssl_object")
    if not isinstance(wrapped, _ServerSide):
        return lambda: None

    def resume() -> None:
        wrapped.reads_left = READS_PER_TURN
        # A resumed transport delivers what it has. If its reader has paused it, the reader resumes it.
        if transport.is_reading() and not transport.is_closing():
            transport.pause_reading()
            transport.resume_reading()

    def undo() -> None:
        wrapped.pause = None

    wrapped.pause = partial(loop.call_soon, resume)
    return undo


class _ServerSide(ssl.SSLObject):
    """The server's end of a connection.

    When a handshake fails, asyncio and uvloop drop the connection: they report nothing, and do not send the
    alert with the reason. So the failure is reported here, and raised one round later if there is an alert to
    send: on a request for more input, they first send pending output. The client's next bytes or its
    disconnect, or the listener's handshake timeout, then end the connection. Reads are counted for
    `pace_reads`; after too many it reports that there is no input.
    """

    _sslobj: Any  # of the base class
    outgoing: ssl.MemoryBIO
    on_failure: Callable[[ssl.SSLError], None]
    failure: ssl.SSLError | None = None
    pause: Callable[[], object] | None = None  # called when it has had its reads; None: they are not counted
    reads_left = READS_PER_TURN

    def read(self, len: int = 1024, buffer: WriteableBuffer | None = None) -> bytes:
        if self.pause is not None:
            if not self.reads_left:
                raise ssl.SSLWantReadError("the other connections have their turn")
            self.reads_left -= 1
            if not self.reads_left:
                self.pause()
        # As the base class does, without a call more for each record.
        return self._sslobj.read(len) if buffer is None else super().read(len, buffer)

    def do_handshake(self) -> None:
        if self.failure is not None:
            raise self.failure
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError, ssl.SSLSyscallError):
            raise  # not finished, or the client just went away
        except ssl.SSLError as error:
            self.on_failure(error)
            if not self.outgoing.pending:
                raise
            self.failure = error
            raise ssl.SSLWantReadError from error


class _ServerContext(_TrustedContext):
    sslobject_class = _ServerSide

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        wrapped = super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        assert isinstance(wrapped, _ServerSide)
        wrapped.outgoing = outgoing
        wrapped.on_failure = on_refusal.get()
        return wrapped
