"""HTTP as pulls need it: one exchange at a time, with every way in which it can fail put into words.

On aiohttp, which is imported with the first pull and not before. Follows redirects itself, so that what
proves who we are goes to the host it is meant for and to no other. Decides nothing about trying again:
`Passing` says that it may help.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import skerry
from skerry.kit import tls
from skerry.model import errors
from skerry.node.images import references
from skerry.node.images.reach import Reach

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


class Passing(Exception):
    """It did not work and may work later; `error` is what to say if it does not."""

    def __init__(self, error: errors.SkerryError, after_s: float | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.after_s = after_s  # the server's wish


class NoTls(errors.Refused):
    """The other side cannot be spoken to with TLS."""


class Transport:
    """Connections of one pull, made as they are needed."""

    def __init__(
        self, *, insecure: Collection[str], ca: str, timeout_s: float, reach: Reach | None = None
    ) -> None:
        """`reach`: nobody else is connected to; None: anybody may be."""
        self._insecure = frozenset(host.lower() for host in insecure)
        self._ca = ca
        self._timeout_s = timeout_s
        self._reach = reach
        self._session: aiohttp.ClientSession | None = None
        self._context: ssl.SSLContext | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def may_be_plain(self, host: str) -> bool:
        """True if HOST[:PORT] may be spoken to without TLS."""
        return host.lower() in self._insecure or references.is_loopback(host)

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        return aiohttp.ClientSession(
            connector=self._connector(self._reach) if self._reach is not None else None,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._timeout_s, sock_read=self._timeout_s
            ),
            auto_decompress=False,  # digests are of what is sent
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"skerry/{skerry.__version__}", "Accept-Encoding": "identity"},
            read_bufsize=_READ_BUFFER,
        )

    def _connector(self, reach: Reach) -> aiohttp.TCPConnector:
        import aiohttp

        from skerry.node.images.resolving import GuardedResolver

        return aiohttp.TCPConnector(resolver=GuardedResolver(reach))

    @asynccontextmanager
    async def exchange(
        self, method: str, url: URL, headers: Mapping[str, str], *, data: Mapping[str, str] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send one request and have its answer, whatever its status but for those that pass.

        The body is read inside the context; what goes wrong there is put into words here, too.
        """
        import aiohttp

        try:
            async with await self._follow(method, url, headers, data) as answer:
                self._raise_if_passing(answer)
                yield answer
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(error.host, error.port, error.certificate_error) from None
        except (aiohttp.ClientSSLError, ssl.SSLError) as error:
            raise _no_tls(url, error) from None
        except TimeoutError:
            raise Passing(
                errors.TimedOut(f"{host_of(url)} was silent for {self._timeout_s:g} s; see images.timeout_s")
            ) from None
        except aiohttp.ClientConnectorError as error:
            raise Passing(
                errors.Unavailable(f"{host_of(url)} cannot be reached: {_reason(error.os_error)}")
            ) from None
        except (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise Passing(
                errors.Unavailable(f"the connection to {host_of(url)} broke", detail=repr(error))
            ) from None
        except aiohttp.ClientResponseError as error:
            raise errors.Unavailable(
                f"{host_of(url)} does not speak HTTP: {error.message[:100]!r}", detail=repr(error)
            ) from None
        except aiohttp.ClientError as error:
            raise errors.Unavailable(f"asking {host_of(url)} failed", detail=repr(error)) from None

    async def _follow(
        self, method: str, url: URL, headers: Mapping[str, str], data: Mapping[str, str] | None
    ) -> aiohttp.ClientResponse:
        from yarl import URL

        if self._session is None:
            self._session = self._open()
        first, shown = url, dict(headers)
        for _ in range(_MAX_REDIRECTS + 1):
            if self._reach is not None:
                self._reach.check_url(url.host or "", url.port or 0)
            context = await self._tls(url) if url.scheme == "https" else False
            answer = await self._session.request(
                method, url, headers=shown, data=data, ssl=context, allow_redirects=False
            )
            place = answer.headers.get("Location", "")
            if answer.status not in _REDIRECTS or not place or data is not None:
                return answer
            answer.release()
            try:
                # As it was sent: such addresses are often signed.
                url = url.join(URL(place, encoded=True))
                host = url.host
            except ValueError:
                host = None
            if not host or url.scheme not in ("http", "https"):
                raise errors.Unavailable(f"{host_of(first)} sends us to {place[:120]!r}, which is no address")
            if url.scheme == "http" and not self._may_lead_to_plain(first, url):
                raise errors.Refused(
                    f"{host_of(first)} sends us to {host_of(url)} without TLS; if that is meant, name the "
                    "latter in images.insecure"
                )
            if url.origin() != first.origin():
                shown.pop("Authorization", None)
        raise errors.Unavailable(f"{host_of(first)} redirects more than {_MAX_REDIRECTS} times")

    def _may_lead_to_plain(self, first: URL, url: URL) -> bool:
        """A stranger may not lead us to the loopback, unless it is there itself."""
        return host_of(url).lower() in self._insecure or (
            self.may_be_plain(host_of(first)) and references.is_loopback(host_of(url))
        )

    async def _tls(self, url: URL) -> ssl.SSLContext:
        if self._context is None:
            self._context = await asyncio.to_thread(trusting, self._ca)
        return self._context

    def _untrusted(self, host: str, port: int | None, error: Exception) -> errors.Refused:
        reason = tls.explain(error) if isinstance(error, ssl.SSLError) else str(error)
        return errors.Refused(
            f"{host}:{port} is not trusted: {reason}. If its CA is your own, name it in images.ca"
        )

    def _raise_if_passing(self, answer: aiohttp.ClientResponse) -> None:
        host = host_of(answer.url)
        wish = answer.headers.get("Retry-After", "")
        after_s = min(float(wish), _MAX_RETRY_AFTER_S) if wish.isdecimal() and len(wish) < 10 else None
        if answer.status == _TOO_MUCH:
            raise Passing(
                errors.Overloaded(
                    f"{host} says that we ask too often; wait, or log in if you have not",
                    retry_after_s=after_s or 1.0,
                ),
                after_s,
            )
        if answer.status in _PASSING:
            raise Passing(errors.Unavailable(f"{host} answers {answer.status} {answer.reason}"), after_s)


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
        raise errors.Refused(
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


def _no_tls(url: URL, error: BaseException) -> NoTls:
    inner = getattr(error, "os_error", error)
    reason = tls.explain(inner) if isinstance(inner, ssl.SSLError) else "the handshake failed"
    return NoTls(
        f"{host_of(url)} cannot be spoken to with TLS: {reason}. If it speaks plain HTTP and that is meant, "
        "name it in images.insecure"
    )


def _reason(error: OSError) -> str:
    """What the system says; asyncio writes an address there, and a name that is not found is no errno."""
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
