"""A client of stores with the API of S3: objects of a bucket, by path-style requests.

Requests that can be repeated are, with back-off, when the store is out of reach, overloaded or has a fault of
its own. Redirects are not followed: a signature is for one host. `skerry.node.volumes.s3_store` keeps
snapshots by it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.snapshots import ObjectStore
from skerry.node.volumes import s3_signing

if TYPE_CHECKING:
    import aiohttp

_TRIES: Final = 5
_REQUEST_S: Final = 300.0
_CONNECT_S: Final = 15.0
_MAX_DOCUMENT: Final = 16 * 1024**2
_AGAIN: Final = (408, 429, 500, 502, 503, 504)
_DENIED: Final = (401, 403)


class Answer(NamedTuple):
    """What the store answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class S3Client:
    """The objects of one bucket. `async with`; the connections are closed with it."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._clock = clock
        self._backoff = backoff or Backoff(first_s=0.5, cap_s=10.0)
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> S3Client:
        import aiohttp

        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_REQUEST_S, sock_connect=_CONNECT_S),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def put(self, key: str, body: bytes) -> None:
        await self._do("PUT", key, body=body)

    async def get(self, key: str, *, first: int | None = None, length: int = 0) -> bytes:
        """The object, or `length` bytes of it from `first` on. `NotFound` if there is none."""
        headers = {} if first is None else {"range": f"bytes={first}-{first + length - 1}"}
        answer = await self._do("GET", key, headers=headers, most=length or _MAX_DOCUMENT)
        return answer.body

    async def size(self, key: str) -> int | None:
        """The length of an object; None if there is none."""
        try:
            answer = await self._do("HEAD", key)
        except errors.NotFound:
            return None
        return int(answer.headers.get("content-length", "0"))

    async def delete(self, key: str) -> None:
        """Delete an object, or one that is not there."""
        try:
            await self._do("DELETE", key)
        except errors.NotFound:
            pass

    async def do(self, method: str, key: str, query: Mapping[str, str], body: bytes = b"") -> Answer:
        """Another request of the API about an object, or with an empty key about the bucket."""
        return await self._do(method, key, query=query, body=body)

    async def _do(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        most: int = _MAX_DOCUMENT,
    ) -> Answer:
        import aiohttp

        failure: errors.SkerryError = errors.Unavailable(f"the store {self._store.endpoint} was not asked")
        for attempt in range(_TRIES):
            try:
                answer = await self._once(method, key, query or {}, headers or {}, body, most)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                failure = errors.Unavailable(
                    f"the store {self._store.endpoint} cannot be reached: {_reason(error)}",
                )
            else:
                if answer.status < 300:
                    return answer
                failure = self._failure(method, key, answer)
                if answer.status not in _AGAIN:
                    raise failure
            if attempt < _TRIES - 1:
                await self._sleep(self._backoff.delay(attempt))
        raise failure

    async def _once(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes,
        most: int,
    ) -> Answer:
        from yarl import URL

        assert self._session is not None, "the client is not entered"
        endpoint = URL(self._store.endpoint)
        name = "/".join(part for part in (self._store.prefix, key) if part) if key else ""
        path = s3_signing.encode_path(*(part for part in (self._store.bucket, name) if part))
        encoded = s3_signing.encode_query(query)
        signed = await asyncio.to_thread(  # it computes the digest of the body
            s3_signing.sign,
            self._store,
            method,
            path,
            encoded,
            {"host": _host(endpoint), **headers},
            body,
            self._clock.now(),
        )
        url = URL(str(endpoint.origin()) + path + (f"?{encoded}" if encoded else ""), encoded=True)
        async with self._session.request(
            method, url, headers=signed, data=io.BytesIO(body) if body else None, allow_redirects=False
        ) as response:
            received = bytearray()
            async for part in response.content.iter_chunked(256 * 1024):
                received += part
                if len(received) > most:
                    raise errors.TooLarge(f"the store {self._store.endpoint} sent more than was requested")
            lower = {name.lower(): value for name, value in response.headers.items()}
            return Answer(response.status, lower, bytes(received))

    def _failure(self, method: str, key: str, answer: Answer) -> errors.SkerryError:
        where = f"bucket {self._store.bucket!r} at {self._store.endpoint}"
        detail = answer.body[:300].decode("utf-8", "replace")
        if answer.status == 404:
            return errors.NotFound(f"{where} has no object {key!r}", detail=detail)
        if answer.status in _DENIED:
            return errors.FailedPrecondition(
                f"{where} refuses the configured credentials; check them, and what they may do",
                detail=detail,
            )
        if answer.status in _AGAIN:
            return errors.Unavailable(f"{where} answers {answer.status}; try again later", detail=detail)
        return errors.FailedPrecondition(
            f"{where} refuses to {method} {key!r}: status {answer.status}", detail=detail
        )


def _host(endpoint: object) -> str:
    from yarl import URL

    assert isinstance(endpoint, URL)
    return endpoint.host_port_subcomponent or ""


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
