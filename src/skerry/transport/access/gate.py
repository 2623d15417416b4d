"""The access gate: from the peer of a connection and its credentials to a caller; and which Host and Origin
headers are accepted.

Both servers use this one gate, and `skerry.transport.access.rules` decides what the caller may do. Everything
here is a decision on values: `skerry.transport.access.peers` reads the connection,
`skerry.control.identity.authenticator` verifies tokens and certificates. A credential that is sent and
invalid is an error, never a reason to try the next one.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable
from typing import Protocol
from urllib.parse import urlsplit

from skerry.kit.networks import Network, is_within, plain_address
from skerry.model import errors
from skerry.model.callers import ANONYMOUS, AuthMethod, Caller, Role
from skerry.transport.access import peers
from skerry.transport.access.peers import ConnectionPeer, is_loopback

# Headers of proxies, by standard and by custom, beside all with `forwarded` in their name.
_PROXY_HEADERS = frozenset(
    {
        b"via",
        b"cdn-loop",
        b"x-original-host",
        b"x-remote-addr",
        b"x-envoy-external-address",
        b"x-amzn-trace-id",
        b"x-amz-cf-id",
    }
)
_PROXY_WORD = b"forwarded"
_PROXY_ENDS = (b"-ip", b"_ip", b"clientip", b"-ipv4", b"-ipv6")  # such as X-Real-IP, CF-Connecting-IP
_DEFAULT_PORTS = {"http": 80, "https": 443}
_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|([A-Za-z0-9._-]+))(?::([0-9]{0,5}))?")


class CredentialVerifier(Protocol):
    """Who is behind a token or a certificate; raises `Unauthenticated` with the reason."""

    def caller_from_token(self, text: str) -> Caller: ...

    def caller_from_certificate(self, der: bytes) -> Caller: ...

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a certificate that was accepted may not be any more."""
        ...


class AccessGate:
    """Turns every request's peer and `authorization` into a `Caller`."""

    def __init__(self, identity: CredentialVerifier, own_uid: int, *, local_trust: bool = True) -> None:
        """Without `local_trust` the user at the other end, as the kernel reports it, is not trusted."""
        self._identity = identity
        uids = peers.trusted_uids(own_uid) if local_trust else frozenset()
        self._local = {
            uid: Caller(origin=AuthMethod.LOOPBACK, name=f"uid:{uid}", role=Role.ADMIN) for uid in uids
        }

    @property
    def trusted_uids(self) -> frozenset[int]:
        """The local users that are trusted by the kernel's evidence alone."""
        return frozenset(self._local)

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        """The caller by its token, if one is sent; else by certificate; else by local user; else anonymous.

        A request through a proxy (`is_forwarded`, by `is_forwarding`) is never the local user's: the kernel
        knows only the proxy.
        """
        if authorization is not None:
            return self._identity.caller_from_token(_bearer(authorization))
        if peer.certificate is not None:
            return self._identity.caller_from_certificate(peer.certificate)
        if peer.loopback and peer.uid is not None and not is_forwarded:
            return self._local.get(peer.uid, ANONYMOUS)
        return ANONYMOUS

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a certificate that was accepted may not be valid any more."""
        self._identity.listen(changed)

    def still_accepts(self, peer: ConnectionPeer) -> bool:
        """Whether a peer with a certificate would be accepted with it now."""
        if peer.certificate is None:
            return True
        try:
            self._identity.caller_from_certificate(peer.certificate)
        except errors.Unauthenticated:
            return False
        return True


class Guard(Protocol):
    """Who a request is of, by its connection and by what it shows; raises if that is refused."""

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller: ...


class AddressGate:
    """For a listener without TLS: callers are identified by their address, which must be a configured one.

    No other credential is accepted, because it could be read on the way; a caller on this machine is not the
    local user, and a request through a proxy is refused.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        self._networks = tuple(networks)

    def caller(self, peer: ConnectionPeer, authorization: str | None, *, is_forwarded: bool) -> Caller:
        if authorization is not None:
            raise errors.Forbidden(
                "this listener takes no credentials, as it is not encrypted; show them at the server's other "
                "one, and as others may have read these, make new ones"
            )
        if is_forwarded:
            raise errors.Forbidden("this listener serves no proxies; call it from the buyer's own address")
        if not is_within(peer.address, self._networks):
            raise errors.Forbidden("this listener serves named addresses only (market.plain_addresses)")
        return Caller(origin=AuthMethod.ADDRESS, name=f"address:{plain_address(peer.address)}")


def is_forwarding(names: Iterable[bytes]) -> bool:
    """True if one of these headers, in lower case, is added by proxies."""
    return _is_forwarding(tuple(names))


@functools.lru_cache(maxsize=64)  # a client sends the same ones each time
def _is_forwarding(names: tuple[bytes, ...]) -> bool:
    return any(name in _PROXY_HEADERS or _PROXY_WORD in name or name.endswith(_PROXY_ENDS) for name in names)


def _bearer(authorization: str) -> str:
    scheme, _, token = authorization.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise errors.Unauthenticated("the authorization header must read `Bearer TOKEN`")
    return token.strip()


def allowed_hosts(listen_host: str, names: Iterable[str] = ()) -> frozenset[str]:
    """The hosts by which this server may be called: loopback, where it listens, and its configured names."""
    hosts = {"localhost", "127.0.0.1", "::1", *(_plain_host(name) for name in names)}
    listening = _plain_host(listen_host)
    if not _is_wildcard(listening):
        hosts.add(listening)
    return frozenset(hosts)


def check_host(host_header: str | None, allowed: frozenset[str]) -> None:
    """Refuse a request that was meant for another name: a web page can point its own name at this machine."""
    host, _ = _host_and_port(host_header or "")
    if not host:
        raise errors.Invalid("the request needs one Host header, such as `localhost:1323`", field="host")
    if host not in allowed:
        raise errors.Forbidden(
            f"this server is not called {host[:100]!r}; to keep web pages from reaching it under a name of "
            "their own (DNS rebinding), only known names are served. Call it as `localhost` or by the "
            "address it listens on, or add the name to http.names (SKERRY_HTTP_NAMES), on a node node.names"
        )


def check_origin(origin_header: str | None, allowed: frozenset[str], *, host_header: str | None) -> None:
    """Refuse what a web page of another origin sends; programs other than browsers send no Origin.

    The port counts too: a page that another user serves on this machine is another origin.
    """
    if origin_header is None:
        return
    refusal = errors.Forbidden(
        f"web pages of {origin_header[:100]!r} may not call this server; only its own pages may. If it has "
        "another name, add that to http.names (SKERRY_HTTP_NAMES)"
    )
    try:
        parts = urlsplit(origin_header)
    except ValueError:
        raise refusal from None
    default_port = _DEFAULT_PORTS.get(parts.scheme)
    if default_port is None:  # `null` and anything that is no web page
        raise refusal
    host, port = _host_and_port(parts.netloc)
    called_host, called_port = _host_and_port(host_header or "")
    if not host or host not in allowed or host != called_host:
        raise refusal
    if (port or default_port) != (called_port or default_port):
        raise refusal


def _addresses_of(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise errors.Invalid(
            f"{host!r} cannot be resolved; listen on an address of this machine",
            field="listen",
            detail=str(error),
        ) from error
    return sorted({str(address[0]) for *_, address in found})


def outside_addresses(host: str, resolve: Callable[[str], Iterable[str]] = _addresses_of) -> list[str]:
    """The addresses of a listener on `host` that are not loopback."""
    plain = _plain_host(host)
    addresses = [plain or "every address"] if _is_wildcard(plain) else list(resolve(plain))
    return [address for address in addresses if not is_loopback(address)] if addresses else ["no address"]


def check_exposure(host: str, *, tls: bool, resolve: Callable[[str], Iterable[str]] = _addresses_of) -> None:
    """Refuse to listen where others can listen in: off loopback there must be TLS, and then tokens count."""
    if tls:
        return
    if outside := outside_addresses(host, resolve):
        reached = ", ".join(outside)
        raise errors.Invalid(
            f"{host or 'an empty host'} means {reached}, which is not loopback; off loopback Skerry needs "
            "TLS, so that tokens cannot be read on the way. Set http.tls=true (SKERRY_HTTP_TLS=true, --tls), "
            "or listen on 127.0.0.1",
            field="listen",
        )


def _is_wildcard(plain_host: str) -> bool:
    if not plain_host:
        return True
    try:
        return ipaddress.ip_address(plain_host).is_unspecified
    except ValueError:
        return False


def _host_and_port(authority: str) -> tuple[str, int | None]:
    """`host`, `host:80`, `[::1]:80`; an empty host if it is none of these to the letter."""
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return "", None
    literal, name, port = parts.groups()
    return _plain_host(literal or name), int(port) if port else None


def _plain_host(host: str) -> str:
    """One spelling per host: lower case, no brackets, no root dot, addresses in their short form."""
    plain = host.lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return str(ipaddress.ip_address(plain))
    except ValueError:
        return plain
