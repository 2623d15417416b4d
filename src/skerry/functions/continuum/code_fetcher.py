"""Fetches code of functions by its digest: when the first worker of a function starts, or to store a copy.

`CodeFetcher` makes code available on this node; `CodeFetchingHost` is a worker host in front of another. The
source of code is a parameter; code is verified before it is stored. Concurrent requests for the same code
share one fetch.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol
from weakref import WeakValueDictionary

import structlog

from skerry.functions.ports import FunctionWorker, WorkerHost
from skerry.functions.registry.code_store import CodeStore, digest_of
from skerry.model import errors, ids
from skerry.model.functions import Function
from skerry.model.ids import Digest, NodeId

log = structlog.get_logger(__name__)

# Code that is stored ahead of its function stays this long; the function is registered by then, or never.
_AHEAD_S: Final = 120.0


class FetchArchive(Protocol):
    """The archive of this digest, from `source` if it is named and has it.

    Raises `NotFound` if no member has it, `Unavailable` if none answers.
    """

    async def __call__(self, digest: Digest, source: NodeId | None = None) -> bytes: ...


class CodeFetcher:
    """Brings code into `code`."""

    def __init__(self, code: CodeStore, fetch: FetchArchive) -> None:
        self._code = code
        self._fetch = fetch
        self._turns: WeakValueDictionary[Digest, asyncio.Lock] = WeakValueDictionary()

    async def have(self, function: Function, digest: Digest) -> Path:
        """Where the code is, fetched if it was not here; it stays while the function does, or a worker."""
        turn = self._turns.setdefault(digest, asyncio.Lock())
        async with turn:
            if (folder := self._code.folder(digest)) is not None:
                return folder
            try:
                return await self._bring(digest, None)
            except errors.NotFound:
                raise errors.Unavailable(
                    f"no member has the code of {function.name} any more; deploy it again"
                ) from None
            except errors.Unavailable as error:
                raise errors.Unavailable(
                    f"the code of {function.name} is not on this node and cannot be fetched: {error.message}"
                ) from error

    async def store(self, digest: Digest, source: NodeId) -> None:
        """Have the code here, for others to fetch, whether its function is known here yet or not."""
        ids.check_digest(digest, "digest")
        turn = self._turns.setdefault(digest, asyncio.Lock())
        async with turn:
            self._code.hold_ahead(digest, _AHEAD_S)
            try:
                if not self._code.has_archive(digest):
                    await self._bring(digest, source)
            except BaseException:
                self._code.end_hold_ahead(digest)
                raise

    async def _bring(self, digest: Digest, source: NodeId | None) -> Path:
        """Where it is unpacked, from the archive that is here or else from elsewhere."""
        try:
            archive = await self._code.archive(digest)
        except errors.NotFound:
            archive = await self._fetch(digest, source)
            if await asyncio.to_thread(digest_of, archive) != digest:
                raise errors.Unavailable(f"what came as {digest} is something else") from None
            log.info("code.fetched", digest=digest, bytes=len(archive))
        async with self._code.holding(archive, digest) as folder:
            return folder


class CodeFetchingHost:
    """`host`, for functions whose code may have to be fetched."""

    def __init__(self, host: WorkerHost, fetcher: CodeFetcher) -> None:
        self._host = host
        self._fetcher = fetcher

    async def spawn(self, function: Function, code: Path | None) -> FunctionWorker:
        if code is None and function.code is not None:
            code = await self._fetcher.have(function, function.code)
        return await self._host.spawn(function, code)

    async def prepare(self, function: Function, *, force: bool) -> None:
        if function.code is not None:
            await self._fetcher.have(function, function.code)
        await self._host.prepare(function, force=force)

    def describe(self, runtime_kind: str) -> str:
        return self._host.describe(runtime_kind)
