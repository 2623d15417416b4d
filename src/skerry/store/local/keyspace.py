"""The key space itself, in memory: entries in key order, bounded history, leases; transactions as pure steps.

`KeySpace` is what has happened. `WriteSet` is a group of steps evaluated in order on top of it, each seeing
those before it; a draft changes nothing until `KeySpace.merge`, so a backend may first make it durable and
throw it away if that fails. Every step checks all it needs before it records anything, so a step that raises
leaves its draft as it was. No I/O, clock or randomness here: `skerry.store.local.store` has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from skerry.model import errors
from skerry.store.protocol import ABSENT, NO_LEASE, Batch, Change, Entry, Expect, LeaseId, Op, Put, RangePage
from skerry.store.tables.sorted_map import SortedMap

# The count of revisions alone would let history grow to gigabytes if values are large.
MAX_HISTORY_BYTES = 64 * 1024 * 1024


def weight(batch: Batch) -> int:
    """Bytes of keys and values that a batch keeps alive."""
    total = 0
    for change in batch.changes:
        total += len(change.key)
        if change.entry is not None:
            total += len(change.entry.value)
    return total


def missing_lease(lease: LeaseId) -> errors.NotFound:
    return errors.NotFound(f"there is no lease {lease}, or it has ended; grant a new one")


@dataclass(slots=True)
class LeaseState:
    """A lease and the keys that go with it. `deadline` is monotonic time."""

    ttl_s: int
    deadline: float
    keys: set[str] = field(default_factory=set)


class KeySpace:
    """Everything up to `revision`; batches after `floor` are kept for watchers."""

    def __init__(self, *, history: int, revision: int = 0) -> None:
        self.revision = revision
        self.floor = revision
        self.limit = history
        self.leases: dict[LeaseId, LeaseState] = {}
        self.weight = 0  # of all kept batches
        self._entries: SortedMap[Entry] = SortedMap()
        self._history: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def page(self, prefix: str, limit: int, cursor: str | None) -> RangePage:
        """Entries under `prefix` in key order, after `cursor`; at most `limit`, 0 for all."""
        found: list[Entry] = []
        for _, entry in self._entries.scan(prefix, cursor):
            if limit and len(found) == limit:
                return RangePage(tuple(found), self.revision, found[-1].key)
            found.append(entry)
        return RangePage(tuple(found), self.revision)

    def batch(self, revision: int) -> Batch:
        """The batch of one kept revision."""
        return self._history[revision]

    def batches_after(self, revision: int) -> Iterator[Batch]:
        """The batches behind a revision that is not older than `floor`."""
        return map(self._history.__getitem__, range(revision + 1, self.revision + 1))

    def overdue(self, now: float) -> list[LeaseId]:
        return [lease for lease, held in self.leases.items() if held.deadline <= now]

    def next_deadline(self) -> float | None:
        return min((held.deadline for held in self.leases.values()), default=None)

    def renew(self, lease: LeaseId, now: float) -> None:
        """Move the deadline. A lease past its deadline has expired, though its keys may not be deleted
        yet."""
        held = self.leases.get(lease)
        if held is None or held.deadline <= now:
            raise missing_lease(lease)
        held.deadline = now + held.ttl_s

    def restore(
        self,
        entries: Iterable[Entry],
        batches: Iterable[Batch],
        leases: Iterable[tuple[LeaseId, int]],
        now: float,
    ) -> None:
        """Fill an empty tree: the entries of its first revision, the batches since, leases with full time."""
        current = {entry.key: entry for entry in entries}
        for batch in batches:
            assert batch.revision == self.revision + 1, "history has no holes"
            for change in batch.changes:
                if change.entry is None:
                    current.pop(change.key, None)
                else:
                    current[change.key] = change.entry
            self._history[batch.revision] = batch
            self.weight += weight(batch)
            self.revision = batch.revision
        self._entries = SortedMap(current)
        self.leases = {lease: LeaseState(ttl_s, now + ttl_s) for lease, ttl_s in leases}
        for entry in current.values():
            if entry.lease in self.leases:
                self.leases[entry.lease].keys.add(entry.key)

    def merge(self, draft: WriteSet, now: float) -> None:
        """Take over a sealed draft that was made on this very state. Leases start to run `now`."""
        assert draft.is_sealed, "what leaves history is not decided"
        assert draft.base == self.revision, "the draft is of another moment"
        for lease, ttl_s in draft.granted.items():
            self.leases[lease] = LeaseState(ttl_s, now + ttl_s)
        for batch in draft.batches:
            self._history[batch.revision] = batch
            for change in batch.changes:
                self._place(change)
        for lease in draft.ended:
            self.leases.pop(lease, None)
        for batch in draft.departed:
            del self._history[batch.revision]
        self.revision = draft.revision
        self.floor = draft.floor
        self.weight = draft.weight

    def _place(self, change: Change) -> None:
        key, entry = change.key, change.entry
        before = self._entries.get(key)
        if before is not None and before.lease != NO_LEASE and before.lease in self.leases:
            self.leases[before.lease].keys.discard(key)
        if entry is None:
            self._entries.remove(key)
            return
        self._entries.put(key, entry)
        if entry.lease != NO_LEASE:
            self.leases[entry.lease].keys.add(key)


class WriteSet:
    """Steps on top of a key space, not applied yet. Seal it, make it durable, then merge it."""

    def __init__(self, tree: KeySpace) -> None:
        self.base = tree.revision
        self.revision = tree.revision
        self.floor = tree.floor
        self.weight = tree.weight
        self.batches: list[Batch] = []
        self.departed: list[Batch] = []  # what leaves history when this is merged
        self.granted: dict[LeaseId, int] = {}
        self.ended: set[LeaseId] = set()
        self.is_compacting = False
        self.is_sealed = False
        self._tree = tree
        self._changed: dict[str, Entry | None] = {}
        self._requested_floor = tree.floor

    @property
    def is_empty(self) -> bool:
        """Nothing in it needs to be made durable."""
        return not (self.batches or self.granted or self.ended or self.is_compacting)

    def get(self, key: str) -> Entry | None:
        """The key as it is after the steps so far."""
        if key in self._changed:
            return self._changed[key]
        return self._tree.get(key)

    def commit(self, ops: Sequence[Op], expect: Sequence[Expect]) -> int:
        for expectation in expect:
            entry = self.get(expectation.key)
            found = entry.revision if entry is not None else ABSENT
            if found != expectation.revision:
                raise conflict(expectation, found)
        for op in ops:
            if isinstance(op, Put) and op.lease != NO_LEASE and not self._is_held(op.lease):
                raise missing_lease(op.lease)
        revision = self.revision + 1
        changes: list[Change] = []
        for op in ops:
            key = op.key
            before = self.get(key)
            if isinstance(op, Put):
                created = before.created if before is not None else revision
                changes.append(Change(key, Entry(key, op.value, created, revision, op.lease)))
            elif before is not None:
                changes.append(Change(key, None))
        self._record(changes)
        return self.revision

    def grant(self, lease: LeaseId, ttl_s: int) -> None:
        self.granted[lease] = ttl_s

    def drop(self, lease: LeaseId) -> None:
        """End the lease; its keys go in one revision."""
        if not self._is_held(lease):
            raise missing_lease(lease)
        self.ended.add(lease)
        self._record([Change(key, None) for key in self._keys_of(lease)])

    def expire(self, now: float) -> None:
        """End every lease that has expired, unless it was ended already."""
        for lease in self._tree.overdue(now):
            if lease not in self.ended:
                self.drop(lease)

    def compact(self, before: int) -> None:
        floor = min(before - 1, self.revision)
        if floor > self._requested_floor:
            self._requested_floor = floor
            self.is_compacting = True

    def seal(self) -> None:
        """No more steps: decide what leaves history."""
        tree, floor = self._tree, self.floor
        total = tree.weight + sum(map(weight, self.batches))
        while floor < self.revision and (
            floor < self._requested_floor or self.revision - floor > tree.limit or total > MAX_HISTORY_BYTES
        ):
            floor += 1
            batch = tree.batch(floor) if floor <= self.base else self.batches[floor - self.base - 1]
            self.departed.append(batch)
            total -= weight(batch)
        self.floor = floor
        self.weight = total
        self.is_sealed = True

    def _record(self, changes: list[Change]) -> None:
        if not changes:
            return
        if len(changes) > 1:
            changes.sort(key=_key_of)
        self.revision += 1
        for change in changes:
            self._changed[change.key] = change.entry
        self.batches.append(Batch(self.revision, tuple(changes)))

    def _is_held(self, lease: LeaseId) -> bool:
        return lease not in self.ended and (lease in self.granted or lease in self._tree.leases)

    def _keys_of(self, lease: LeaseId) -> Iterator[str]:
        held = self._tree.leases.get(lease)
        if held is not None:
            yield from (key for key in held.keys if key not in self._changed)
        yield from (key for key, entry in self._changed.items() if entry is not None and entry.lease == lease)


def conflict(expectation: Expect, found: int) -> errors.Conflict:
    """The error of a transaction whose expectation does not hold."""
    if expectation.revision == ABSENT:
        return errors.Conflict(f"{expectation.key!r} already exists; read it and decide again")
    is_now = "is gone" if found == ABSENT else f"is at revision {found} now"
    return errors.Conflict(
        f"{expectation.key!r} {is_now}, not at {expectation.revision}; read it and try again"
    )


def _key_of(change: Change) -> str:
    return change.key
