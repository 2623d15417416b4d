"""HTTP requests of pulls, with errors for people.

Uses aiohttp, which is imported with the first pull. Wherever a registry sends us, to its token server or by a
redirect, `_lead` decides whether we follow: not without TLS, and no further inside the network than the
sender is. Redirects are followed here, so that credentials are sent to their own host only. Retries are the
caller's: `TransientFailure` says that one may help.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import skerry
from skerry.kit import tls
from skerry.kit.address_zones import AddressZone, is_misspelt_address, zones_of
from skerry.model import errors
from skerry.node.images import references
from skerry.node.images.registry_policy import RegistryPolicy

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READ_BUFFER = 1024 * 1024
_TOO_MANY_REQUESTS = 429
# Temporary errors of a server.
_TRANSIENT = frozenset({500, 502, 503, 504})
_MAX_RETRY_AFTER_S = 60.0


class TransientFailure(Exception):
    """A temporary failure; `error` is raised if retries do not help."""

    def __init__(self, error: errors.SkerryError, after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.after_s = after_s  # requested by the server


class TlsNotOffered(errors.FailedPrecondition):
    """The server does not support TLS."""


class RegistryHttpClient:
    """Connections of one pull, opened on demand."""

    def __init__(
        self,
        registry: str,
        *,
        insecure: Collection[str],
        ca: str,
        timeout_s: float,
        internal: Collection[str] = (),
        policy: RegistryPolicy | None = None,
    ) -> None:
        """For the registry at HOST[:PORT], which the user named: so it may be in any zone.

        `internal` are patterns of hosts in any zone that it may send us to. With `policy` no other hosts are
        contacted, not even the registry.
        """
        self._registry = registry.lower()
        self._insecure = frozenset(host.lower() for host in insecure)
        self._internal = (*self._insecure, *internal)
        self._ca = ca
        self._timeout_s = timeout_s
        self._policy = policy
        # By zone: connections and addresses of one are not used by another.
        self._sessions: dict[AddressZone | None, aiohttp.ClientSession] = {}
        self._zones: dict[str, AddressZone] = {}  # by host name: the outermost zone of its addresses
        self._context: ssl.SSLContext | None = None

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def allows_plain_http(self, host: str) -> bool:
        """True if HOST[:PORT] may be contacted without TLS."""
        return host.lower() in self._insecure or references.is_loopback(host)

    def _open(self, policy: RegistryPolicy | None) -> aiohttp.ClientSession:
        import aiohttp

        from skerry.kit.guarded_resolver import GuardedResolver

        def check(host: str, port: int, addresses: Sequence[str]) -> None:
            if policy is not None:
                policy.check(host, port, addresses)
            self._record_zone(host, addresses)

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=GuardedResolver(check)),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s
            ),
            auto_decompress=False,  # digests are of the bytes as sent
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"skerry/{skerry.__version__}", "Accept-Encoding": "identity"},
            read_bufsize=_READ_BUFFER,
        )

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        *,
        data: Mapping[str, str] | None = None,
        sent_by: URL | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and yield its response, whatever its status except temporary errors.

        `sent_by` is the host that named `url`, if not the user. The body is read inside the context; its
        errors are translated here, too.
        """
        import aiohttp

        try:
            async with await self._follow(method, url, headers, data, sent_by) as response:
                self._raise_if_transient(response)
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(error.host, error.port, error.certificate_error) from None
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise _no_tls(url, error) from None
        except TimeoutError:
            raise TransientFailure(
                errors.TimedOut(
                    f"{host_of(url)} did not respond for {self._timeout_s:g} s; see images.timeout_s"
                )
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise TransientFailure(
                errors.Unavailable(f"{host_of(url)} cannot be reached: {_reason(error.os_error)}")
            ) from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise TransientFailure(
                errors.Unavailable(f"the connection to {host_of(url)} broke", detail=repr(error))
            ) from None
        except aiohttp.ClientResponseError as error:
            raise errors.Unavailable(
                f"{host_of(url)} returned no valid HTTP: {error.message[:100]!r}", detail=repr(error)
            ) from None
        except aiohttp.ClientError as error:
            raise errors.Unavailable(f"asking {host_of(url)} failed", detail=repr(error)) from None

    async def _follow(
        self,
        method: str,
        url: URL,
        headers: Mapping[str, str],
        data: Mapping[str, str] | None,
        sent_by: URL | None,
    ) -> aiohttp.ClientResponse:
        from yarl import URL

        first, sent_headers = url, dict(headers)
        limit = None if sent_by is None else self._lead(sent_by, url, None)
        for _ in range(_MAX_REDIRECTS + 1):
            policy = self._policy_within(limit)
            if policy is not None:
                policy.check_url(url.host or "", url.port or 0)
            if limit not in self._sessions:
                self._sessions[limit] = self._open(policy)
            context = await self._tls(url) if url.scheme == "https" else False
            response = await self._sessions[limit].request(
                method, url, headers=sent_headers, data=data, ssl=context, allow_redirects=False
            )
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECTS or not location or data is not None:
                return response
            response.release()
            source = url
            try:
                # Unchanged: such URLs are often signed.
                url = source.join(URL(location, encoded=True))
                host = url.host
            except ValueError:
                host = None
            if not host or url.scheme not in ("http", "https"):
                raise errors.Unavailable(
                    f"{host_of(first)} redirects to {location[:120]!r}, which is not a valid URL"
                )
            limit = self._lead(source, url, limit)
            if url.origin() != first.origin():
                sent_headers.pop("Authorization", None)
        raise errors.Unavailable(f"{host_of(first)} redirects more than {_MAX_REDIRECTS} times")

    def _lead(self, source: URL, target: URL, limit: AddressZone | None) -> AddressZone | None:
        """The zone that limits connections to `target`, where `source` sends us; None: it is the registry
        itself. Raises FailedPrecondition if it has no TLS and needs it, and Unavailable if it is invalid.
        Applies to token servers and redirects."""
        host = host_of(target).lower()
        if is_misspelt_address(target.host or ""):
            raise errors.Unavailable(
                f"{host_of(source)} redirects to {host[:120]!r}, which is not a valid address"
            )
        is_registry = host == self._registry
        allows_plain_http = (
            host in self._insecure
            or (is_registry and self.allows_plain_http(host))
            or (references.is_loopback(host) and references.is_loopback(self._registry))
        )
        if target.scheme == "http" and not allows_plain_http:
            raise errors.FailedPrecondition(
                f"{host_of(source)} redirects to {host} without TLS; if that is intended, list the latter in "
                "images.insecure"
            )
        if is_registry:
            return None
        leads_to = self._zone(source).leads_to
        return leads_to if limit is None else min(leads_to, limit)

    def _policy_within(self, limit: AddressZone | None) -> RegistryPolicy | None:
        if self._policy is not None or limit is None:
            return self._policy
        return RegistryPolicy(
            self._internal,
            limit,
            refusal=f"{self._registry} redirects to {{host}}, which is further inside the network than "
            "the sender; if that is intended, list it in the setting images.internal_hosts",
        )

    def _zone(self, url: URL) -> AddressZone:
        """The outermost zone that `url` may be in; PUBLIC if it was not resolved yet."""
        host = (url.host or "").lower()
        try:
            return min(zones_of([host]))
        except ValueError:  # a name
            return self._zones.get(host, AddressZone.PUBLIC)

    def _record_zone(self, host: str, addresses: Iterable[str]) -> None:
        name = host.lower()
        self._zones[name] = min([*zones_of(addresses), self._zones.get(name, AddressZone.LINK)])

    async def _tls(self, url: URL) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(tls_context, self._ca)
        return self._context

    def _untrusted(self, host: str, port: int | None, error: Exception) -> errors.FailedPrecondition:
        reason = tls.explain(error) if isinstance(error, ssl.SSLError) else str(error)
        return errors.FailedPrecondition(
            f"{host}:{port} is not trusted: {reason}. If you trust its CA, set images.ca to it"
        )

    def _raise_if_transient(self, response: aiohttp.ClientResponse) -> None:
        host = host_of(response.url)
        retry_after = response.headers.get("Retry-After", "")
        after_s = (
            min(float(retry_after), _MAX_RETRY_AFTER_S)
            if retry_after.isdecimal() and len(retry_after) < 10
            else None
        )
        if response.status == _TOO_MANY_REQUESTS:
            raise TransientFailure(
                errors.Overloaded(
                    f"{host} limits the rate of requests; wait, or log in if you have not",
                    retry_after_s=after_s or 1.0,
                ),
                after_s,
            )
        if response.status in _TRANSIENT:
            raise TransientFailure(
                errors.Unavailable(f"{host} returned {response.status} {response.reason}"), after_s
            )


def tls_context(ca: str) -> ssl.SSLContext:
    """A TLS context that trusts this machine's CAs, and those of the file or folder `ca`."""
    context = ssl.create_default_context()
    if not ca:
        return context
    path = Path(ca)
    try:
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in found:
            if file == path or file.suffix in (".crt", ".pem"):
                context.load_verify_locations(cafile=file)
    except OSError as error:  # also an SSLError: a file without a certificate
        raise errors.FailedPrecondition(
            f"images.ca names {ca}, which cannot be used: {error.strerror or error}"
        ) from None
    return context


async def read(response: aiohttp.ClientResponse, most: int, label: str) -> bytes:
    """The whole body, of at most `most` bytes."""
    declared = response.content_length
    data = bytearray()
    if declared is None or declared <= most:
        async for piece in response.content.iter_any():
            data += piece
            if len(data) > most:
                break
        else:
            return bytes(data)
    raise errors.TooLarge(f"{label} has more than {most} bytes, which is the limit")


def host_of(url: URL) -> str:
    """HOST[:PORT] as in references."""
    host = url.host_subcomponent or ""
    return host if url.explicit_port is None else f"{host}:{url.explicit_port}"


def _no_tls(url: URL, error: BaseException) -> TlsNotOffered:
    inner = getattr(error, "os_error", error)
    reason = tls.explain(inner) if isinstance(inner, ssl.SSLError) else "the handshake failed"
    return TlsNotOffered(
        f"{host_of(url)} does not support TLS: {reason}. If it uses plain HTTP and that is intended, "
        "list it in images.insecure"
    )


def _reason(error: OSError) -> str:
    """The system's error text; asyncio appends the address, and a DNS failure has no errno."""
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
