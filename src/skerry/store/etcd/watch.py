"""A watch on etcd that outlives its connection: resumed after the last revision received, without gap or
repeat.

Each watch is one stream of its own, read only on demand; a slow reader is held back by gRPC's flow control,
and etcd reads for it from its history until that is compacted. No task runs here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import groupby
from types import TracebackType
from typing import Any

import structlog

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.store.etcd.client import (
    EtcdClient,
    EtcdEndpoint,
    is_lost,
    lost,
    read,
    request_response,
    rpc,
    translate,
)
from skerry.store.local.watches import closed, compacted
from skerry.store.protocol import Batch, Change, Entry

log = structlog.get_logger(__name__)

# Long enough for an etcd that is restarted or elects a leader; after that the reader should know.
_RESUME_FACTOR = 6
_BACKOFF = Backoff(first_s=0.05, cap_s=1.0)

# A member that is partitioned from the others sends an error instead of nothing.
_REQUIRE_LEADER = (("hasleader", "true"),)


class EtcdWatch:
    """The context manager and the iterator of `Store.watch`, for one reader."""

    def __init__(
        self, links: EtcdClient, key: bytes, range_end: bytes, since: int, to_entry: Callable[[Any], Entry]
    ) -> None:
        self._links = links
        self._key = key
        self._range_end = range_end
        self._received = since  # all up to here was handed out or lies in `_batches`
        self._to_entry = to_entry
        self._batches: deque[Batch] = deque()
        self._parts: list[Any] = []  # events of a response of which more is to come
        self._stream: Any = None
        self._is_open = False

    async def __aenter__(self) -> EtcdWatch:
        if self._links.is_closed:
            raise closed()
        await self._resume(self._links.timeout_s, is_first=True)
        self._is_open = True
        self._links.streams.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._links.streams.discard(self)
        self._close_stream()

    @property
    def position(self) -> int:
        return self._batches[0].revision - 1 if self._batches else self._received

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while True:
            if not self._is_open:
                raise StopAsyncIteration
            if self._links.is_closed:
                raise closed()
            if self._batches:
                return self._batches.popleft()
            if self._stream is None:
                await self._resume(self._links.timeout_s * _RESUME_FACTOR)
            try:
                self._take(await read(self._stream))
            except rpc.AioRpcError as error:
                self._close_stream()
                if not is_lost(error):
                    raise translate(error) from error
                log.info("etcd.watch_lost", revision=self._received, error=error.details())
            except BaseException:
                self._close_stream()
                raise

    def interrupt(self) -> None:
        self._close_stream()

    def _close_stream(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
            self._stream = None
        self._parts.clear()

    async def _resume(self, within_s: float, *, is_first: bool = False) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        failures = 0
        while True:
            link = await self._links.ready(deadline)
            try:
                async with asyncio.timeout(self._links.timeout_s):
                    stream = await self._create(link)
            except (rpc.AioRpcError, TimeoutError) as error:
                if self._links.is_closed:
                    raise closed() from error
                if isinstance(error, rpc.AioRpcError) and not is_lost(error):
                    raise translate(error) from error
                self._links.leave(link)
                if loop.time() >= deadline:
                    raise errors.Unavailable(
                        f"the watch on etcd at {', '.join(self._links.addresses)} was lost"
                        " and could not be resumed; take a new snapshot when etcd is back",
                        detail=repr(error),
                    ) from error
                await asyncio.sleep(_BACKOFF.delay(failures))
                failures += 1
                continue
            self._stream, header_revision = stream
            if not is_first and header_revision < self._received:
                # etcd was put back to an older state: what we saw did not happen, and new revisions repeat.
                self._close_stream()
                raise compacted(self._received, 0)
            return

    async def _create(self, link: EtcdEndpoint) -> tuple[Any, int]:
        stream = link.watches.Watch(metadata=_REQUIRE_LEADER)
        try:
            create = rpc.WatchCreateRequest(
                key=self._key,
                range_end=self._range_end,
                # From `since` itself, though that is dropped: etcd before 3.6 forgets a removal at the very
                # revision of a compaction, and would accept a watch that starts there. 0 would mean "now".
                start_revision=max(self._received, 1),
                progress_notify=True,
                fragment=True,
            )
            response = await request_response(stream, rpc.WatchRequest(create_request=create))
            self._refuse_cancelled(response)
        except BaseException:
            stream.cancel()
            raise
        return stream, response.header.revision

    def _take(self, response: Any) -> None:
        self._refuse_cancelled(response)
        self._parts.extend(event for event in response.events if event.kv.mod_revision > self._received)
        if response.fragment:
            return
        for revision, events in groupby(self._parts, key=lambda event: event.kv.mod_revision):
            self._batches.append(Batch(revision, self._to_changes(events)))
            self._received = revision
        self._parts.clear()
        if not response.events and not response.created:
            # etcd sends the progress of an idle watch from time to time.
            self._received = max(self._received, response.header.revision)

    def _to_changes(self, events: Iterable[Any]) -> tuple[Change, ...]:
        changes = []
        for event in events:
            entry = self._to_entry(event.kv)
            changes.append(Change(entry.key, None if event.type == rpc.Event.DELETE else entry))
        return tuple(sorted(changes, key=lambda change: change.key))

    def _refuse_cancelled(self, response: Any) -> None:
        if response.compact_revision:
            raise compacted(self._received, response.compact_revision)
        if response.canceled:
            raise lost(response.cancel_reason)
