"""Exchanges a join token for a node certificate: two HTTP requests.

`GET /ca.pem` is not verified, since there is nothing to verify it with yet; the fingerprint in the
invitation, or the part of it in the token, identifies the CA. `POST /join` is verified with that CA, so the
token is sent only to a server of that cloud. A machine that is a node already requests `GET /join` with its
certificate and sends no token. Blocking, for use in a thread; `skerry.node.agent.node_identity` stores the
result.
"""

from __future__ import annotations

import hmac
import http.client
import ipaddress
import ssl
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from skerry.kit import json_codec, pki, tls
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.token_text import TokenText

A = TypeVar("A")

_CONNECT_S = 3.0  # of several addresses most may be dead
_TIMEOUT_S = 10.0  # for the next part of a response
_DEADLINE_S = 30.0  # for one whole response
_MAX_RESPONSE = 64 * 1024
_MAX_MESSAGE = 500


class JoinReply(msgspec.Struct, frozen=True):
    """Response to a machine that joined; `grpc` is the HOST:PORT to dial from now on."""

    node: str
    certificate: str
    ca: str
    grpc: str


class AuthorityMismatch(errors.FailedPrecondition):
    """The server is not of the expected cloud; no secret was sent to it."""


class ServerAddress(msgspec.Struct, frozen=True):
    """Response to a machine that is a node already: the HOST:PORT to dial."""

    grpc: str


class _ErrorResponse(msgspec.Struct, frozen=True):
    error: str = ""
    code: str = ""


class JoinServer(msgspec.Struct, frozen=True):
    """The server to join, from a URL."""

    url: str
    host: str
    port: int
    path: str
    is_https: bool

    @classmethod
    def parse(cls, url: str) -> JoinServer:
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
                f"joining {host} over plain http would expose the token; use https",
                field="join",
            )
        return cls(url, host, port or (443 if is_https else 80), parts.path.rstrip("/"), is_https)

    def grpc_addresses(self, advertised: str) -> tuple[str, ...]:
        """Addresses to dial gRPC at: the host by which the server was reached, then the advertised one."""
        port = advertised.rpartition(":")[2]
        host = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(dict.fromkeys((f"{host}:{port}", advertised)))


def fetch_authority(server: JoinServer, fingerprint: str, clock: Clock) -> bytes:
    """The server's CA certificate (PEM), if its fingerprint equals `fingerprint` or, from a token alone,
    begins with it."""
    context = tls.unverified_client() if server.is_https else None
    pem = _exchange(server, context, clock, "GET", "/ca.pem")
    try:
        offered = pki.split_bundle(pem)
    except pki.InvalidCertificate:
        raise AuthorityMismatch(f"{server.url}/ca.pem is no certificate; is this a Skerry server?") from None
    # While the CA is replaced there are two. Only the one that is named is trusted: others may be anybody's.
    matching = [
        each
        for each in offered
        if hmac.compare_digest(pki.fingerprint(each)[: len(fingerprint)], fingerprint)
    ]
    if not fingerprint or not matching:
        raise AuthorityMismatch(
            f"the CA of {server.url} is not the one in this token: the token is of another cloud, or another "
            "server has that address, or somebody intercepts the connection; the token was not sent"
        )
    return matching[0]


def request_certificate(
    server: JoinServer,
    authority_pem: bytes,
    token: TokenText,
    csr_pem: bytes,
    name: str,
    clock: Clock,
    *,
    previous_pem: bytes = b"",
) -> JoinReply:
    """Send token and signing request, and `previous_pem`, the previous certificate of the same key, by which
    the server recognises this node. Returns the response, or raises the server's error."""
    request = {"token": token.format(), "csr": csr_pem.decode("ascii"), "name": name}
    if previous_pem:
        request["certificate"] = previous_pem.decode("ascii")
    context = tls.client(authority_pem, tls.HTTP1) if server.is_https else None
    return _decoded(
        server, _exchange(server, context, clock, "POST", "/join", json_codec.encode(request)), JoinReply
    )


def fetch_server_address(
    server: JoinServer, authority: Path, certificate: Path, key: Path, clock: Clock
) -> ServerAddress:
    """Request the address at which nodes dial this server, authenticated by certificate; `Unauthenticated` if
    it is rejected. Over plain http, which is for loopback, no certificate is sent, and none is rejected."""
    context = None
    if server.is_https:
        context = tls.client(authority.read_bytes(), tls.HTTP1)
        tls.load(context, certificate, key)
    return _decoded(server, _exchange(server, context, clock, "GET", "/join"), ServerAddress)


def _decoded(server: JoinServer, body: bytes, kind: type[A]) -> A:
    try:
        return json_codec.decode(body, kind)
    except json_codec.InvalidJson as error:
        raise errors.Unavailable(f"{server.url} returned an invalid response to a join: {error}") from None


def _exchange(
    server: JoinServer,
    context: ssl.SSLContext | None,
    clock: Clock,
    method: str,
    path: str,
    body: bytes | None = None,
) -> bytes:
    connection: http.client.HTTPConnection
    if context is not None:
        connection = http.client.HTTPSConnection(
            server.host, server.port, timeout=_CONNECT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(server.host, server.port, timeout=_CONNECT_S)
    try:
        connection.connect()
        connection.sock.settimeout(_TIMEOUT_S)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, server.path + path, body, headers)
        with connection.getresponse() as response:
            status, content = response.status, _read(response, clock)
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
        raise _error_from(server, status, content)
    return content


def _read(response: http.client.HTTPResponse, clock: Clock) -> bytes:
    deadline = clock.monotonic() + _DEADLINE_S
    content = b""
    while part := response.read1(_MAX_RESPONSE):
        content += part
        if len(content) > _MAX_RESPONSE:
            raise http.client.HTTPException(f"a response of more than {_MAX_RESPONSE} bytes")
        if clock.monotonic() > deadline:
            raise TimeoutError
    return content


_BY_SLUG = {kind.slug: kind for kind in errors.SkerryError.__subclasses__()}


def _error_from(server: JoinServer, status: int, body: bytes) -> errors.SkerryError:
    try:
        reply = json_codec.decode(body, _ErrorResponse)
    except json_codec.InvalidJson:
        reply = _ErrorResponse()
    # Printed on a terminal: control characters of an untrusted server are removed.
    message = "".join(letter for letter in reply.error if letter.isprintable())[:_MAX_MESSAGE]
    kind = _BY_SLUG.get(reply.code, errors.Unavailable)
    return kind(message or f"{server.url} answered {status}; is this a Skerry server?")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
