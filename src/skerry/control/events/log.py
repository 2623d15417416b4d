"""The durable event log: an event is written with its change, and read as a stream that can be resumed.

An event is an entry `event/<id>` of the store, put in the transaction of the change. Its position in the
stream is that transaction's revision: `812`, or `812.0`, `812.1` if there were several, in key order. Because
events are entries, the stream can be resumed from long before the store's own history. The oldest are
trimmed; a mark in the store has the position, so that a reader that is too late gets an error and never skips
events. A reader that is bound to namespaces gets the events of those, and nothing of the others: ids are
encrypted (`positions`), and errors have no numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from itertools import groupby, islice

import msgspec
import structlog

from skerry.control.events.positions import PositionCipher
from skerry.kit import json_codec, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.events import Event
from skerry.model.namespace_scope import WHOLE_CLOUD, NamespaceScope
from skerry.model.settings import EventSettings
from skerry.store.protocol import ABSENT, MAX_OPS, Batch, Delete, Entry, Expect, Put, Store

log = structlog.get_logger(__name__)

PREFIX = "event/"
_TRIMMED = "event-trimmed"  # the revision of the newest event that was trimmed
# Trimming waits for this many too many, so that it costs a small share of the writes that made it needed.
_SLACK = 64
_PAGE = 1000


class StoredEvent(msgspec.Struct, frozen=True):
    """An event with its position in the stream; `id` resumes after it."""

    id: str
    event: Event


class _StreamPosition(msgspec.Struct, frozen=True):
    """A point in the stream: after event `index` of `revision`, or after all of it if None."""

    revision: int
    index: int | None


class EventLog:
    """Writes, streams and trims events."""

    def __init__(
        self, store: Store, clock: Clock, settings: EventSettings, *, secret: bytes = bytes(32)
    ) -> None:
        """`secret` encrypts positions for bound readers; it is the same at all servers of a cloud."""
        self._store = store
        self._positions = PositionCipher(secret)
        self._clock = clock
        self._keep = settings.keep
        self._last_id = ""

    def put(
        self, kind: str, subject: str, *, actor: str, reason: str = "", request_id: str = "", **data: str
    ) -> Put:
        """The operation that writes the event, for the transaction of its change."""
        now = self._clock.now()
        event = Event(kind, subject, now, actor, reason, data, request_id)
        # Events of one transaction are ordered by their keys, which must be the order of their creation.
        self._last_id = ulid.new_id_after(self._last_id, now)
        return Put(PREFIX + self._last_id, json_codec.encode(event))

    async def record(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> None:
        """Write an event of something that changed nothing in the store."""
        await self._store.commit([self.put(kind, subject, actor=actor, reason=reason, **data)])

    def stream(
        self,
        after: str | None,
        kinds: frozenset[str] = frozenset(),
        scope: NamespaceScope = WHOLE_CLOUD,
        *,
        reader: NamespaceScope = WHOLE_CLOUD,
    ) -> AbstractAsyncContextManager[AsyncIterator[StoredEvent]]:
        """Events after the one with id `after`, then as they happen.

        None starts now, `0` with the oldest that is stored. `kinds` holds nouns (`token`) or whole kinds
        (`token.created`); empty: all. Those of `scope`, as `reader` may know of them. Entering raises
        `Invalid` for an invalid id and `Compacted` if events after it are trimmed; iterating raises
        `Compacted` for a reader that is too slow.
        """
        position = None if after is None else _parse_id(self._positions.read(after, reader))
        return self._stream(position, _EventFilter(kinds, scope), reader)

    async def list_after(
        self,
        after: str,
        kinds: frozenset[str] = frozenset(),
        scope: NamespaceScope = WHOLE_CLOUD,
        *,
        reader: NamespaceScope = WHOLE_CLOUD,
    ) -> list[StoredEvent]:
        """Stored events after the one with id `after`; arguments and errors are those of `stream`."""
        wanted = _EventFilter(kinds, scope)
        with _without_numbers(reader):
            kept, _ = await self._read(_parse_id(self._positions.read(after, reader)))
        return [self._shown(stored, reader) for stored in kept if wanted.matches(stored.event)]

    async def of(self, subject: str, *, reader: NamespaceScope = WHOLE_CLOUD) -> list[StoredEvent]:
        """Stored events of one subject, as `reader` may know of them."""
        mark = json_codec.encode(subject)
        # An event whose bytes do not contain the subject need not be decoded; those of its revision count for
        # its id.
        entries, revisions = await self._containing(mark)
        events = _decode(
            (entry for entry in entries if entry.revision in revisions), lambda entry: mark in entry.value
        )
        return [
            self._shown(one, reader)
            for one in events
            if one.event.subject == subject and reader.admits(one.event.namespace)
        ]

    async def _containing(self, mark: bytes) -> tuple[list[Entry], set[int]]:
        """All stored events, and the revisions of those that contain `mark`. There may be many, so other
        tasks run meanwhile."""
        page = await self._store.range(PREFIX, limit=_PAGE)
        newest = page.revision  # one of a later page may be newer than what was before it
        entries: list[Entry] = []
        revisions: set[int] = set()
        while True:
            entries += (entry for entry in page.entries if entry.revision <= newest)
            revisions.update(entry.revision for entry in page.entries if mark in entry.value)
            if page.cursor is None:
                return entries, revisions
            await asyncio.sleep(0)
            page = await self._store.range(PREFIX, limit=_PAGE, cursor=page.cursor)

    @asynccontextmanager
    async def _stream(
        self, after: _StreamPosition | None, wanted: _EventFilter, reader: NamespaceScope
    ) -> AsyncIterator[AsyncIterator[StoredEvent]]:
        with _without_numbers(reader):
            if after is None:
                kept: list[StoredEvent] = []
                revision = await self._store.revision()
            else:
                kept, revision = await self._read(after)
            async with (
                self._store.watch(PREFIX, since=revision) as batches,
                aclosing(_follow(kept, batches, wanted)) as events,
            ):
                yield events if not reader.is_bound else (self._shown(one, reader) async for one in events)

    def _shown(self, stored: StoredEvent, reader: NamespaceScope) -> StoredEvent:
        return StoredEvent(self._positions.shown(stored.id, reader), stored.event)

    async def _read(self, after: _StreamPosition) -> tuple[list[StoredEvent], int]:
        """Stored events after this position, and the revision of the read."""
        page = await self._store.range(PREFIX)
        # The mark is read after the events: a trim in between makes this refuse too much, not too little.
        _check_stored(after, newest=page.revision, trimmed=await self._trimmed_to())
        # Revisions are read whole or not at all, because an event's id depends on the others of its revision.
        recent = [entry for entry in page.entries if entry.revision >= after.revision]
        return list(_after(after, _decode(recent))), page.revision

    async def run(self) -> None:
        """Trim the log to its length, for ever; it may be a little longer."""
        while True:
            try:
                await self._trim_while_following()
            except errors.Compacted:
                log.info("events.behind", action="reading them anew")

    async def _trim_while_following(self) -> None:
        page = await self._store.range(PREFIX)
        # In the order of the stream: a dict keeps the order of insertion, and revisions only grow.
        kept = {entry.key: entry.revision for entry in sorted(page.entries, key=_order)}
        await self._trim(kept)
        async with self._store.watch(PREFIX, since=page.revision) as batches:
            async for batch in batches:
                for change in batch.changes:
                    if change.entry is None:
                        kept.pop(change.key, None)
                    else:
                        kept[change.key] = change.entry.revision
                if len(kept) >= self._keep + _SLACK:
                    await self._trim(kept)

    async def _trim(self, kept: dict[str, int]) -> None:
        while len(kept) > self._keep:
            oldest = list(islice(kept.items(), min(len(kept) - self._keep, MAX_OPS - 1)))
            mark = await self._store.get(_TRIMMED)
            up_to = max(oldest[-1][1], _revision_in(mark))
            try:
                await self._store.commit(
                    [Put(_TRIMMED, str(up_to).encode()), *(Delete(key) for key, _ in oldest)],
                    expect=[Expect(_TRIMMED, mark.revision if mark else ABSENT)],
                )
            except errors.Conflict:
                continue  # another server trims at the same time; the mark never goes back
            for key, _ in oldest:
                del kept[key]
            log.debug("events.trimmed", count=len(oldest), up_to=up_to)

    async def _trimmed_to(self) -> int:
        return _revision_in(await self._store.get(_TRIMMED))


class _EventFilter(msgspec.Struct, frozen=True):
    """Which events a reader asked for: by noun or whole kind, and by namespace."""

    kinds: frozenset[str]
    scope: NamespaceScope

    def matches(self, event: Event) -> bool:
        kinds = self.kinds
        is_of_kind = not kinds or event.kind in kinds or event.kind.partition(".")[0] in kinds
        return is_of_kind and self.scope.admits(event.namespace)


async def _follow(
    kept: list[StoredEvent], batches: AsyncIterator[Batch], wanted: _EventFilter
) -> AsyncGenerator[StoredEvent]:
    for stored in kept:
        if wanted.matches(stored.event):
            yield stored
    async for batch in batches:
        for stored in _decode(change.entry for change in batch.changes if change.entry is not None):
            if wanted.matches(stored.event):
                yield stored


@contextmanager
def _without_numbers(reader: NamespaceScope) -> Iterator[None]:
    """The errors of a bound reader have no positions of the whole cloud."""
    try:
        yield
    except errors.Compacted:
        if not reader.is_bound:
            raise
        raise errors.Compacted(
            "some events after this one may no longer be stored; read again from `0`, the oldest"
        ) from None


def _order(entry: Entry) -> tuple[int, str]:
    return entry.revision, entry.key


def _decode(entries: Iterable[Entry], matches: Callable[[Entry], bool] = lambda _: True) -> list[StoredEvent]:
    """Entries in the order of the stream, each with its id; events that are left out count for the ids of the
    others."""
    events = []
    for revision, together in groupby(sorted(entries, key=_order), key=lambda entry: entry.revision):
        group = list(together)
        for index, entry in enumerate(group):
            if not matches(entry):
                continue
            name = f"{revision}" if len(group) == 1 else f"{revision}.{index}"
            events.append(StoredEvent(name, json_codec.decode(entry.value, Event)))
    return events


def _parse_id(text: str) -> _StreamPosition:
    revision, dot, index = text.partition(".")
    numbers = (revision, index) if dot else (revision,)
    # Fifteen digits are beyond any revision, and far from the length at which reading a number gets slow.
    if not all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in numbers):
        raise errors.Invalid(
            f"{text[:40]!r} is no event id; send that of the last event (`812`, `812.1`), or `0` for all",
            field="Last-Event-ID",
        )
    return _StreamPosition(int(revision), int(index) if dot else None)


def _after(position: _StreamPosition, events: Iterable[StoredEvent]) -> Iterable[StoredEvent]:
    for one in events:
        at = _parse_id(one.id)
        is_later_in_it = position.index is not None and (at.index or 0) > position.index
        if at.revision > position.revision or (at.revision == position.revision and is_later_in_it):
            yield one


def _check_stored(after: _StreamPosition, *, newest: int, trimmed: int) -> None:
    """Raise `Compacted` if an event after this position is trimmed, or may be."""
    if after == _StreamPosition(0, None):
        return
    if after.revision > newest:
        raise errors.Compacted(
            f"event {after.revision} is not of this log, which ends at {newest}; read anew from `0`"
        )
    # Of the newest trimmed revision, only a reader that had all of it has missed nothing.
    if after.revision < trimmed or (after.revision == trimmed and after.index is not None):
        raise errors.Compacted(
            f"events up to {trimmed} are no longer stored; read again from `0`, the oldest"
        )


def _revision_in(mark: Entry | None) -> int:
    return int(mark.value) if mark is not None else 0
