"""A decoded copy of one prefix, fed by the watch: what rooms read instead of asking the store.

`run` follows for ever and belongs to a `TaskSupervisor`; after `Compacted` or `Unavailable` it takes a new
snapshot. Reads are of memory and may be a moment behind; who must see its own write waits with `reached`. An
entry that `decode` cannot read stops `run` with `Internal`: a cache that leaves things out would be worse
than none. Who must act on changes gives `changed`, which is called in the same step in which the cache
moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

import structlog

from skerry.kit.backoff import Backoff
from skerry.model import errors
from skerry.store.protocol import Batch, Entry, Store
from skerry.store.tables.sorted_map import SortedMap

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A revision that does not touch the prefix never comes by the watch; after this long `reached` asks.
_PATIENCE_S = 0.25


class RecordChange(NamedTuple, Generic[T]):
    """One key of the cache as it was and as it is; None: it was, or is, not there."""

    key: str
    before: T | None
    after: T | None


class PrefixCache(Generic[T]):
    """`view.get(key)` is the decoded entry under `prefix`, or None.

    `changed` gets what moved, batch by batch, and after a new snapshot whatever is not as it was.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        decode: Callable[[Entry], T],
        *,
        backoff: Backoff | None = None,
        changed: Callable[[Sequence[RecordChange[T]]], None] | None = None,
    ) -> None:
        self._store = store
        self._changed = changed
        self._prefix = prefix
        self._decode = decode
        self._backoff = backoff or Backoff(cap_s=5.0)
        self._mirror: SortedMap[T] = SortedMap()
        self._revisions: dict[str, int] = {}  # of the entries that the cache was read from
        self._revision = -1  # before the first snapshot
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._mirror)

    @property
    def revision(self) -> int:
        """The newest revision that the cache includes, -1 before the first snapshot."""
        return self._revision

    def get(self, key: str) -> T | None:
        return self._mirror.get(key)

    def items(self) -> Iterator[tuple[str, T]]:
        """All of it in key order. Do not await while iterating."""
        return self._mirror.scan(self._prefix)

    async def run(self) -> None:
        """Follow the prefix until cancelled."""
        failures = 0
        while True:
            try:
                await self._refresh()
                failures = 0
                async with self._store.watch(self._prefix, since=self._revision) as batches:
                    async for batch in batches:
                        self._apply(batch)
            except errors.Compacted:
                log.info("view.compacted", prefix=self._prefix, revision=self._revision)
            except errors.Unavailable as error:
                log.warning("view.interrupted", prefix=self._prefix, error=error.message)
                await asyncio.sleep(self._backoff.delay(failures))
                failures += 1

    async def ready(self) -> None:
        """Wait for the first snapshot."""
        await self._wait(0)

    async def reached(self, revision: int) -> None:
        """Wait until the cache includes `revision`: after a commit that returned it, you read your write."""
        while self._revision < revision:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._wait(revision)
            except TimeoutError:
                await self._refresh()

    async def seen(self, revision: int) -> None:
        """`reached` for a revision that is known to touch the prefix: waits for the watch, never asks."""
        await self._wait(revision)

    async def _refresh(self) -> None:
        before = self._revision
        page = await self._store.range(self._prefix)
        if before <= page.revision < self._revision:
            return  # the watch was quicker than the snapshot
        # A store that answers with less than was seen before asking was put back to a backup: so are we.
        old, known = self._mirror, self._revisions
        is_backup = page.revision < before
        values: dict[str, T] = {}
        moved: list[RecordChange[T]] = []
        for entry in page.entries:
            was = old.get(entry.key)
            if was is not None and known[entry.key] == entry.revision and not is_backup:
                values[entry.key] = was
            else:
                values[entry.key] = now = self._read(entry)
                moved.append(RecordChange(entry.key, was, now))
        moved += [RecordChange(key, was, None) for key, was in old.scan(self._prefix) if key not in values]
        self._mirror = SortedMap(values)
        self._revisions = {entry.key: entry.revision for entry in page.entries}
        if self._changed is not None:
            self._changed(moved)
        self._move(page.revision)

    def _apply(self, batch: Batch) -> None:
        if batch.revision <= self._revision:
            return  # a snapshot was quicker than the watch
        moved: list[RecordChange[T]] = []
        for change in batch.changes:
            before = self._mirror.get(change.key)
            after = None if change.entry is None else self._read(change.entry)
            if change.entry is None or after is None:
                self._mirror.remove(change.key)
                self._revisions.pop(change.key, None)
            else:
                self._mirror.put(change.key, after)
                self._revisions[change.key] = change.entry.revision
            moved.append(RecordChange(change.key, before, after))
        if self._changed is not None:
            self._changed(moved)
        self._move(batch.revision)

    def _read(self, entry: Entry) -> T:
        try:
            return self._decode(entry)
        except Exception as error:
            raise errors.Internal(
                f"the record {entry.key!r} cannot be read; was it written by a newer version?",
                detail=repr(error),
            ) from error

    def _move(self, revision: int) -> None:
        self._revision = revision
        if not self._waiting:
            return
        still = []
        for wanted, future in self._waiting:
            if wanted > revision:
                still.append((wanted, future))
            elif not future.done():
                future.set_result(None)
        self._waiting = still

    async def _wait(self, revision: int) -> None:
        if self._revision >= revision:
            return
        waiting = (revision, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await waiting[1]
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
