"""Workers of functions whose code is elsewhere: it is fetched by its digest when the first one starts.

A host in front of another. Where code comes from is handed in; what comes is looked at before it is kept.
Whoever needs the same code at the same time waits for one fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from skerry.functions.code import Code, digest_of
from skerry.functions.hosts import Host, Worker
from skerry.model import errors
from skerry.model.functions import Function
from skerry.model.ids import Digest

log = structlog.get_logger(__name__)

# The archive of this digest. Raises `NotFound` if nobody has it, `Unavailable` if nobody answers.
Fetch = Callable[[Digest], Awaitable[bytes]]


class FetchingHost:
    """`host`, for functions whose code may have to be fetched into `code`."""

    def __init__(self, host: Host, code: Code, fetch: Fetch) -> None:
        self._host = host
        self._code = code
        self._fetch = fetch
        self._turns: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()

    async def spawn(self, function: Function, code: Path | None) -> Worker:
        if code is None and function.code is not None:
            code = await self._have(function, function.code)
        return await self._host.spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        if function.code is not None:
            await self._have(function, function.code)
        await self._host.prepare(function, force=force)

    def describe(self, runtime_kind: str) -> str:
        return self._host.describe(runtime_kind)

    async def _have(self, function: Function, digest: Digest) -> Path:
        """Where the code is, fetched if it was not here; it stays while the function does, or a worker."""
        turn = self._turns.setdefault(digest, asyncio.Lock())
        async with turn:
            if (folder := self._code.folder(digest)) is not None:
                return folder
            archive = await self._ask(function, digest)
            async with self._code.keeping(archive, digest) as folder:
                log.info("code.fetched", function=function.name, digest=digest, bytes=len(archive))
                return folder

    async def _ask(self, function: Function, digest: Digest) -> bytes:
        try:
            archive = await self._fetch(digest)
        except errors.NotFound:
            raise errors.Unavailable(
                f"nobody has the code of {function.name} any more; deploy it again"
            ) from None
        except errors.Unavailable as error:
            raise errors.Unavailable(
                f"the code of {function.name} is not on this node and cannot be fetched: {error.message}"
            ) from error
        if await asyncio.to_thread(digest_of, archive) != digest:
            raise errors.Unavailable(f"what came as the code of {function.name} is not that; deploy it again")
        return archive
