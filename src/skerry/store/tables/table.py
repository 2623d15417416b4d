"""Records of one kind under one prefix of the store: read from memory, written by compare-and-set.

A `Table` holds the decoded records of its prefix, filled by a snapshot and fed by the watch. `run` follows
for ever and belongs to a `TaskSupervisor`; after `Compacted` or `Unavailable` it takes a new snapshot. Reads
are from memory and may be a moment behind: `read` reads the store, `sync` waits. What was written through the
table is recognized when the watch brings it, and is not decoded again. A record that cannot be decoded stops
`run` with `Internal`: an incomplete table would be worse than none. Subscribers are called in the same step
in which the table changes. Transactions over several tables are made of `put`, `delete`, `expect`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Generic, NamedTuple, TypeVar

import structlog

from skerry.kit import json_codec
from skerry.kit.backoff import Backoff
from skerry.kit.callbacks import CallbackList
from skerry.model import errors
from skerry.store import fencing
from skerry.store.protocol import (
    ABSENT,
    NO_LEASE,
    Batch,
    Delete,
    Entry,
    Expect,
    LeaseId,
    Op,
    Put,
    Store,
    Watch,
)
from skerry.store.tables.sorted_map import SortedMap

log = structlog.get_logger(__name__)

T = TypeVar("T")

# A revision that does not touch the prefix never comes by the watch. If the watch does not know that it has
# passed it, the store is read after this long.
_PATIENCE_S = 0.25
# Writes on their way to the table are at most as many as the transactions under way can hold.
_MAX_WRITTEN = 16_384


class Record(NamedTuple, Generic[T]):
    """A record as the store holds it."""

    value: T
    revision: int
    lease: LeaseId = NO_LEASE


class RecordChange(NamedTuple, Generic[T]):
    """One record before and after; None: it did or does not exist."""

    id: str
    before: Record[T] | None
    after: Record[T] | None


class Write(NamedTuple, Generic[T]):
    """What an update makes of a record, and what else is written in the same transaction: its events."""

    value: T
    ops: Sequence[Op] = ()
    is_delete: bool = False


def json_of(as_type: type[T]) -> Callable[[Entry], T]:
    """How to decode a table whose records are all of one type."""
    return lambda entry: json_codec.decode(entry.value, as_type)


class Table(Generic[T]):
    """Records by id; the key of each is `prefix` and its id."""

    def __init__(
        self, store: Store, prefix: str, decode: Callable[[Entry], T], *, backoff: Backoff | None = None
    ) -> None:
        self.prefix = prefix
        self._store = store
        self._decode = decode
        self._backoff = backoff or Backoff(cap_s=5.0)
        self._records: SortedMap[Record[T]] = SortedMap()
        self._revision = -1  # before the first snapshot
        self._watch: Watch | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._written: dict[str, tuple[bytes, T]] = {}  # by us, and not seen by the watch yet
        self._subscribers: CallbackList[[Sequence[RecordChange[T]]]] = CallbackList()
        self._turns = count()
        self._served = -1  # callers with a lower number are in sync
        self._syncing = asyncio.Lock()

    # Memory

    def __len__(self) -> int:
        return len(self._records)

    @property
    def revision(self) -> int:
        """The newest revision that the table includes, -1 before the first snapshot."""
        return self._revision

    def get(self, id: str) -> Record[T] | None:
        return self._records.get(id)

    def value(self, id: str) -> T | None:
        record = self._records.get(id)
        return None if record is None else record.value

    def items(self, prefix: str = "", after: str | None = None) -> Iterator[tuple[str, Record[T]]]:
        """Ids that begin with `prefix`, behind `after`, in order. Do not await while iterating."""
        return self._records.scan(prefix, after)

    def ids(self) -> list[str]:
        return [id for id, _ in self.items()]

    def values(self) -> list[T]:
        """All records, in the order of ids."""
        return [record.value for _, record in self.items()]

    def subscribe(self, changed: Callable[[Sequence[RecordChange[T]]], object]) -> Callable[[], None]:
        """Call `changed` with what changes, batch by batch, and after a new snapshot with whatever is not as
        it was; the result ends that."""
        return self._subscribers.add(changed)

    def listen(self, changed: Callable[[Record[T] | None, Record[T] | None], object]) -> Callable[[], None]:
        """Call `changed(before, after)` with every change of a record; the result ends that."""

        def each(changes: Sequence[RecordChange[T]]) -> None:
            for _, before, after in changes:
                changed(before, after)

        return self.subscribe(each)

    # Transactions

    def key(self, id: str) -> str:
        return self.prefix + id

    def put(self, id: str, value: T, lease: LeaseId = NO_LEASE) -> Put:
        key, data = self.prefix + id, json_codec.encode(value)
        if len(self._written) >= _MAX_WRITTEN:
            self._written.clear()
        self._written[key] = data, value
        return Put(key, data, lease)

    def value_of(self, put: Put) -> T:
        """The record that an operation writes."""
        written = self._written.get(put.key)
        if written is not None and written[0] is put.value:
            return written[1]
        return self._decode(Entry(put.key, put.value, 0, 0))

    def delete(self, id: str) -> Delete:
        return Delete(self.prefix + id)

    def ops(self, id: str, write: Write[T]) -> list[Op]:
        """The operations of a write: the record, and its others."""
        return [self.delete(id) if write.is_delete else self.put(id, write.value), *write.ops]

    def expect(self, id: str, record: Record[T] | None) -> Expect:
        """The expectation that the record has not changed since it was read; None: that it does not exist."""
        return Expect(self.prefix + id, ABSENT if record is None else record.revision)

    async def commit(
        self, ops: Sequence[Op], expect: Sequence[Expect] = (), fence: Expect | None = None
    ) -> int:
        """Do all of `ops`, which change this table, or nothing; returns when reads of this table have it.

        With a `fence`, raises `LeadershipLost` if another server leads now.
        """
        revision = await fencing.commit(self._store, ops, expect, fence)
        await self.wait_for_change(revision)
        return revision

    async def update(
        self,
        id: str,
        decide: Callable[[Record[T]], Write[T] | None],
        *,
        missing: errors.SkerryError,
        fence: Expect | None = None,
    ) -> T:
        """Write what `decide` returns for the record, with retries on conflicts; None: nothing. Returns the
        record after it, or the last one if it was deleted, and raises `missing` if it does not exist."""
        record = self.get(id) or await self.read(id)  # perhaps another server has just made it
        while record is not None:
            write = decide(record)
            if write is None:
                # That nothing is to be done must hold for the store, not only for the cache.
                fresh = await self.read(id)
                if fresh == record:
                    return record.value
                record = fresh
                continue
            try:
                await self.commit(self.ops(id, write), [self.expect(id, record)], fence)
            except errors.Conflict:
                record = await self.read(id)
            else:
                return write.value
        raise missing

    async def read(self, id: str) -> Record[T] | None:
        """The record as it is in the store, however far behind memory is."""
        entry = await self._store.get(self.prefix + id)
        return None if entry is None else self._read(entry)

    # Following

    async def run(self) -> None:
        """Follow the prefix until cancelled."""
        failures = 0
        while True:
            try:
                await self._refresh()
                failures = 0
                async with self._store.watch(self.prefix, since=self._revision) as self._watch:
                    async for batch in self._watch:
                        self._apply(batch)
                        self._reach(self._watch.position)
            except errors.Compacted:
                log.info("view.compacted", prefix=self.prefix, revision=self._revision)
            except errors.Unavailable as error:
                log.warning("view.interrupted", prefix=self.prefix, error=error.message)
                await asyncio.sleep(self._backoff.delay(failures))
                failures += 1
            finally:
                self._watch = None

    async def ready(self) -> None:
        """Wait for the first snapshot."""
        await self._wait(0)

    async def sync(self) -> None:
        """Wait for everything that was durable when this was called; concurrent calls share one read."""
        turn = next(self._turns)
        async with self._syncing:
            if turn < self._served:
                return
            served = next(self._turns)
            await self.wait_for_revision(await self._store.revision())
            self._served = served

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until the table includes `revision`, whether or not that touches the prefix."""
        while self._revision < revision:
            if self._watch is not None and self._watch.position >= revision:
                self._reach(self._watch.position)
                continue
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._wait(revision)
            except TimeoutError:
                await self._refresh()

    async def wait_for_change(self, revision: int) -> None:
        """Wait for `revision`, which is known to touch the prefix: for the watch, without asking."""
        await self._wait(revision)

    async def _refresh(self) -> None:
        before = self._revision
        page = await self._store.range(self.prefix)
        if before <= page.revision < self._revision:
            return  # the watch was quicker than the snapshot
        # A store that answers with less than was seen before asking was put back to a backup: so are we.
        is_backup = page.revision < before
        old, records = self._records, dict[str, Record[T]]()
        changes: list[RecordChange[T]] = []
        for entry in page.entries:
            id = entry.key[len(self.prefix) :]
            was = old.get(id)
            if was is not None and was.revision == entry.revision and not is_backup:
                records[id] = was
                continue
            records[id] = now = self._read(entry)
            if was != now:
                changes.append(RecordChange(id, was, now))
        changes += [RecordChange(id, was, None) for id, was in old.scan("") if id not in records]
        self._records = SortedMap(records)
        self._move(page.revision, changes)

    def _apply(self, batch: Batch) -> None:
        if batch.revision <= self._revision:
            return  # a snapshot was quicker than the watch
        changes: list[RecordChange[T]] = []
        for key, entry in ((change.key, change.entry) for change in batch.changes):
            id = key[len(self.prefix) :]
            before, after = self._records.get(id), None
            if entry is None:
                self._records.remove(id)
            else:
                after = self._read(entry)
                self._records.put(id, after)
            changes.append(RecordChange(id, before, after))
        self._move(batch.revision, changes)

    def _read(self, entry: Entry) -> Record[T]:
        written = self._written.get(entry.key)
        if written is not None and written[0] == entry.value:
            del self._written[entry.key]
            return Record(written[1], entry.revision, entry.lease)
        try:
            return Record(self._decode(entry), entry.revision, entry.lease)
        except Exception as error:
            raise errors.Internal(
                f"the record {entry.key!r} cannot be read; was it written by a newer version?",
                detail=repr(error),
            ) from error

    def _move(self, revision: int, changes: Sequence[RecordChange[T]]) -> None:
        self._subscribers.notify(changes)
        self._set_revision(revision)

    def _reach(self, revision: int) -> None:
        """The watch has returned everything up to `revision`."""
        if revision > self._revision:
            self._set_revision(revision)

    def _set_revision(self, revision: int) -> None:
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
