"""HTTP as pulls need it: one exchange at a time, with every way in which it can fail put into words.

On aiohttp, which is imported with the first pull and not before. Wherever a registry sends us, to its token
server or by a redirect, `_lead` decides whether we go: not without TLS, and no further inside the network
than who sends us is. Redirects are followed here, so that what proves who we are goes to the host it is meant
for and to no other. Decides nothing about trying again: `TransientFailure` says that it may help.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import skerry
from skerry.kit import tls
from skerry.model import errors
from skerry.node.images import references
from skerry.node.images.registry_policy import AddressZone, RegistryPolicy, is_misspelt_address, zones_of

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

_MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_READ_BUFFER = 1024 * 1024
_TOO_MUCH = 429
# Answers of a server that may be fine a moment later.
_PASSING = frozenset({500, 502, 503, 504})
_MAX_RETRY_AFTER_S = 60.0


class TransientFailure(Exception):
    """It did not work and may work later; `error` is what to say if it does not."""

    def __init__(self, error: errors.SkerryError, after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.after_s = after_s  # the server's wish


class TlsNotOffered(errors.FailedPrecondition):
    """The other side cannot be spoken to with TLS."""


class RegistryHttpClient:
    """Connections of one pull, made as they are needed."""

    def __init__(
        self,
        registry: str,
        *,
        insecure: Collection[str],
        ca: str,
        timeout_s: float,
        internal: Collection[str] = (),
        reach: RegistryPolicy | None = None,
    ) -> None:
        """For the registry at HOST[:PORT], which somebody named: so it is spoken to wherever it is.

        `internal` are patterns of hosts that it may send us to wherever they are. With `reach` nobody else is
        spoken to, also not the registry.
        """
        self._registry = registry.lower()
        self._insecure = frozenset(host.lower() for host in insecure)
        self._internal = (*self._insecure, *internal)
        self._ca = ca
        self._timeout_s = timeout_s
        self._reach = reach
        # By the zone that limits them: no connection or address that one has found is used by another.
        self._sessions: dict[AddressZone | None, aiohttp.ClientSession] = {}
        self._zones: dict[str, AddressZone] = {}  # of names: the outermost that each was seen in
        self._context: ssl.SSLContext | None = None

    async def close(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for session in sessions:
            await session.close()

    def may_be_plain(self, host: str) -> bool:
        """True if HOST[:PORT] may be spoken to without TLS."""
        return host.lower() in self._insecure or references.is_loopback(host)

    def _open(self, reach: RegistryPolicy | None) -> aiohttp.ClientSession:
        import aiohttp

        from skerry.node.images.guarded_resolver import GuardedResolver

        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(resolver=GuardedResolver(reach, self._saw)),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s
            ),
            auto_decompress=False,  # digests are of what is sent
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
        """Send one request and have its answer, whatever its status but for those that pass.

        `sent_by` is who named `url`, if not we. The body is read inside the context; what goes wrong there is
        put into words here, too.
        """
        import aiohttp

        try:
            async with await self._follow(method, url, headers, data, sent_by) as answer:
                self._raise_if_passing(answer)
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(error.host, error.port, error.certificate_error) from None
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise _no_tls(url, error) from None
        except TimeoutError:
            raise TransientFailure(
                errors.TimedOut(f"{host_of(url)} was silent for {self._timeout_s:g} s; see images.timeout_s")
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
                f"{host_of(url)} does not speak HTTP: {error.message[:100]!r}", detail=repr(error)
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

        first, shown = url, dict(headers)
        limit = None if sent_by is None else self._lead(sent_by, url, None)
        for _ in range(_MAX_REDIRECTS + 1):
            reach = self._reach_within(limit)
            if reach is not None:
                reach.check_url(url.host or "", url.port or 0)
            if limit not in self._sessions:
                self._sessions[limit] = self._open(reach)
            context = await self._tls(url) if url.scheme == "https" else False
            answer = await self._sessions[limit].request(
                method, url, headers=shown, data=data, ssl=context, allow_redirects=False
            )
            place = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not place or data is not None:
                return answer
            answer.release()
            source = url
            try:
                # As it was sent: such addresses are often signed.
                url = source.join(URL(place, encoded=True))
                host = url.host
            except ValueError:
                host = None
            if not host or url.scheme not in ("http", "https"):
                raise errors.Unavailable(f"{host_of(first)} sends us to {place[:120]!r}, which is no address")
            limit = self._lead(source, url, limit)
            if url.origin() != first.origin():
                shown.pop("Authorization", None)
        raise errors.Unavailable(f"{host_of(first)} redirects more than {_MAX_REDIRECTS} times")

    def _lead(self, source: URL, target: URL, limit: AddressZone | None) -> AddressZone | None:
        """The zone that limits who is spoken to at `target`, where `source` sends us; None: it is the
        registry itself. Raises FailedPrecondition if it has no TLS and needs it, and Unavailable if it is
        no address. The rule, for tokens and redirects."""
        host = host_of(target).lower()
        if is_misspelt_address(target.host or ""):
            raise errors.Unavailable(f"{host_of(source)} sends us to {host[:120]!r}, which is no address")
        is_registry = host == self._registry
        may_be_plain = (
            host in self._insecure
            or (is_registry and self.may_be_plain(host))
            or (references.is_loopback(host) and references.is_loopback(self._registry))
        )
        if target.scheme == "http" and not may_be_plain:
            raise errors.FailedPrecondition(
                f"{host_of(source)} sends us to {host} without TLS; if that is meant, name the latter in "
                "images.insecure"
            )
        if is_registry:
            return None
        leads_to = self._zone(source).leads_to
        return leads_to if limit is None else min(leads_to, limit)

    def _reach_within(self, limit: AddressZone | None) -> RegistryPolicy | None:
        if self._reach is not None or limit is None:
            return self._reach
        return RegistryPolicy(
            self._internal,
            limit,
            refusal=f"{self._registry} sends us to {{host}}, which is further inside the network than who "
            "sends us there; if that is meant, name it in the setting images.internal_hosts",
        )

    def _zone(self, url: URL) -> AddressZone:
        """Where `url` is at least as far outside as; one that nobody looked at is outside of all."""
        host = (url.host or "").lower()
        try:
            return min(zones_of([host]))
        except ValueError:  # a name
            return self._zones.get(host, AddressZone.PUBLIC)

    def _saw(self, host: str, addresses: Iterable[str]) -> None:
        name = host.lower()
        self._zones[name] = min([*zones_of(addresses), self._zones.get(name, AddressZone.LINK)])

    async def _tls(self, url: URL) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(trusting, self._ca)
        return self._context

    def _untrusted(self, host: str, port: int | None, error: Exception) -> errors.FailedPrecondition:
        reason = tls.explain(error) if isinstance(error, ssl.SSLError) else str(error)
        return errors.FailedPrecondition(
            f"{host}:{port} is not trusted: {reason}. If its CA is your own, name it in images.ca"
        )

    def _raise_if_passing(self, answer: aiohttp.ClientResponse) -> None:
        host = host_of(answer.url)
        retry_after = answer.headers.get("Retry-After", "")
        after_s = (
            min(float(retry_after), _MAX_RETRY_AFTER_S)
            if retry_after.isdecimal() and len(retry_after) < 10
            else None
        )
        if answer.status == _TOO_MUCH:
            raise TransientFailure(
                errors.Overloaded(
                    f"{host} says that we ask too often; wait, or log in if you have not",
                    retry_after_s=after_s or 1.0,
                ),
                after_s,
            )
        if answer.status in _PASSING:
            raise TransientFailure(
                errors.Unavailable(f"{host} answers {answer.status} {answer.reason}"), after_s
            )


def trusting(ca: str) -> ssl.SSLContext:
    """For clients that trust this machine's CAs, and those of the file or folder `ca`."""
    context = ssl.create_default_context()
    if not ca:
        return context
    place = Path(ca)
    try:
        found = sorted(place.iterdir()) if place.is_dir() else [place]
        for file in found:
            if file == place or file.suffix in (".crt", ".pem"):
                context.load_verify_locations(cafile=file)
    except OSError as error:  # also an SSLError: a file without a certificate
        raise errors.FailedPrecondition(
            f"images.ca names {ca}, which cannot be used: {error.strerror or error}"
        ) from None
    return context


async def read(answer: aiohttp.ClientResponse, most: int, what: str) -> bytes:
    """The whole body, of at most `most` bytes."""
    said = answer.content_length
    data = bytearray()
    if said is None or said <= most:
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > most:
                break
        else:
            return bytes(data)
    raise errors.TooLarge(f"{what} has more than {most} bytes, which is not read")


def host_of(url: URL) -> str:
    """HOST[:PORT] as references write it."""
    host = url.host_subcomponent or ""
    return host if url.explicit_port is None else f"{host}:{url.explicit_port}"


def _no_tls(url: URL, error: BaseException) -> TlsNotOffered:
    inner = getattr(error, "os_error", error)
    reason = tls.explain(inner) if isinstance(inner, ssl.SSLError) else "the handshake failed"
    return TlsNotOffered(
        f"{host_of(url)} cannot be spoken to with TLS: {reason}. If it speaks plain HTTP and that is meant, "
        "name it in images.insecure"
    )


def _reason(error: OSError) -> str:
    """What the system says; asyncio writes an address there, and a name that is not found is no errno."""
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
