"""The conversation in which a machine turns a join token into a certificate: two HTTP requests.

First `GET /ca.pem`, not verified, since there is nothing to verify it with yet; the pin in the token tells
whether the CA is the right one. Then `POST /join`, verified with that CA, so that the token is shown only to
a server of that cloud. Blocking, for use in a thread; `skerry.node.membership` keeps what comes of it.
"""

from __future__ import annotations

import hmac
import http.client
import ipaddress
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from skerry.kit import jsonio, pki, tls
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.tokens import TokenText, pin_of

_TIMEOUT_S = 10.0  # for one step: connecting, or the next part of an answer
_DEADLINE_S = 30.0  # for one whole answer
_MAX_ANSWER = 64 * 1024
_MAX_MESSAGE = 500


class Answer(msgspec.Struct, frozen=True):
    """What a server says to a machine that it lets in; `grpc` is the HOST:PORT to dial from now on."""

    node: str
    certificate: str
    ca: str
    grpc: str


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """Where to join, taken from a URL."""

    url: str
    host: str
    port: int
    path: str
    is_https: bool

    @classmethod
    def parse(cls, url: str) -> Server:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError:
            parts, host, port = urlsplit(""), "", None
        is_https = parts.scheme == "https"
        if not host or parts.scheme not in ("http", "https") or parts.username or parts.query:
            raise errors.Invalid(
                "the server to join is given as a URL, such as https://server.example:1323", field="join"
            )
        if not is_https and not _is_loopback(host):
            raise errors.Invalid(
                f"joining {host} over plain http would show the token to everybody on the way; use https",
                field="join",
            )
        return cls(url, host, port or (443 if is_https else 80), parts.path.rstrip("/"), is_https)


def fetch_authority(server: Server, pin: str, clock: Clock) -> bytes:
    """The server's CA certificate (PEM), if it is the one that `pin` stands for."""
    context = tls.unverified_client() if server.is_https else None
    pem = _exchange(server, context, clock, "GET", "/ca.pem")
    try:
        found = pki.fingerprint(pem)
    except pki.BadCertificate:
        raise errors.Refused(f"{server.url}/ca.pem is no certificate; is this a Skerry server?") from None
    if not hmac.compare_digest(pin_of(found), pin):
        raise errors.Refused(
            f"the CA of {server.url} is not the one that this token was made for: either the token is of "
            "another cloud, or somebody stands between; nothing was sent"
        )
    return pem


def ask(
    server: Server, authority_pem: bytes, token: TokenText, csr_pem: bytes, name: str, clock: Clock
) -> Answer:
    """Show the token and the signing request; the server's answer, or its reason as an error."""
    body = jsonio.encode({"token": token.format(), "csr": csr_pem.decode("ascii"), "name": name})
    context = tls.client(authority_pem, tls.HTTP1) if server.is_https else None
    answer = _exchange(server, context, clock, "POST", "/join", body)
    try:
        return jsonio.decode(answer, Answer)
    except jsonio.Malformed as error:
        raise errors.Unavailable(
            f"{server.url} gave an answer that is no answer to a join: {error}"
        ) from None


def _exchange(
    server: Server,
    context: ssl.SSLContext | None,
    clock: Clock,
    method: str,
    path: str,
    body: bytes | None = None,
) -> bytes:
    connection: http.client.HTTPConnection
    if context is not None:
        connection = http.client.HTTPSConnection(
            server.host, server.port, timeout=_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, server.path + path, body, headers)
        with connection.getresponse() as response:
            status, answer = response.status, _read(response, clock)
    except ssl.SSLCertVerificationError as error:
        raise errors.Unavailable(
            f"{server.url} cannot be trusted: {tls.explain(error)}. If {server.host} is right, add it to "
            "http.names (SKERRY_HTTP_NAMES) of the server, or call the server by another of its names",
            detail=str(error),
        ) from None
    except ssl.SSLError as error:
        raise errors.Unavailable(
            f"no TLS with {server.url}: {tls.explain(error)}", detail=str(error)
        ) from None
    except TimeoutError:
        raise errors.TimedOut(f"{server.url} did not answer in time; try again") from None
    except (OSError, http.client.HTTPException) as error:
        raise errors.Unavailable(
            f"{server.url} cannot be reached: {error or type(error).__name__}. Is Skerry running there?"
        ) from None
    finally:
        connection.close()
    if status != 200:
        raise _refusal(server, status, answer)
    return answer


def _read(response: http.client.HTTPResponse, clock: Clock) -> bytes:
    deadline = clock.monotonic() + _DEADLINE_S
    answer = b""
    while part := response.read1(_MAX_ANSWER):
        answer += part
        if len(answer) > _MAX_ANSWER:
            raise http.client.HTTPException(f"an answer of more than {_MAX_ANSWER} bytes")
        if clock.monotonic() > deadline:
            raise TimeoutError
    return answer


_BY_SLUG = {kind.slug: kind for kind in errors.SkerryError.__subclasses__()}


def _refusal(server: Server, status: int, answer: bytes) -> errors.SkerryError:
    try:
        said = jsonio.decode(answer, _Refusal)
    except jsonio.Malformed:
        said = _Refusal()
    # It goes to a person's terminal, which must not be told what to do by a stranger.
    message = "".join(letter for letter in said.error if letter.isprintable())[:_MAX_MESSAGE]
    kind = _BY_SLUG.get(said.code, errors.Unavailable)
    return kind(message or f"{server.url} answered {status}; is this a Skerry server?")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
