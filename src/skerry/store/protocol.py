"""The store protocol, modelled on etcd; `local`, `sqlite` and `etcd` implement it.

Keys are text, values are bytes. Every transaction that changes something gets the next **revision**, one
number for the whole store; its changes are seen together or not at all. `range` without a cursor is one
moment's snapshot and names its revision; `watch(prefix, since=that revision)` then misses nothing. A
transaction that returned is durable. The keys of a lease are deleted when it ends. What backends guarantee
beyond the methods:
- transactions are linearizable; watchers see revisions in order, each once, each whole;
- history is bounded: a watch from before what is kept raises `Compacted`, never skips;
- keys are at most `MAX_KEY` bytes, values `MAX_VALUE`, transactions `MAX_OPS` operations, `MAX_OPS`
  expectations and `MAX_TRANSACTION` bytes of keys and values, and one transaction names a key in at most one
  operation; otherwise `Invalid` or `TooLarge`, nothing written (`skerry.store.limits`);
- a backend that cannot be reached, or whose disk is full, raises `Unavailable`. If a transaction may have
  happened all the same, the message says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NewType, Protocol

import msgspec

MAX_KEY = 512
MAX_VALUE = 1024 * 1024
MAX_OPS = 128
MAX_TRANSACTION = 1280 * 1024  # etcd refuses requests above 1.5 MiB; this leaves space for its framing

LeaseId = NewType("LeaseId", int)
NO_LEASE = LeaseId(0)
ABSENT = 0


class Entry(msgspec.Struct, frozen=True):
    """One key: `created` and `revision` are the transactions that created and last wrote it."""

    key: str
    value: bytes
    created: int
    revision: int
    lease: LeaseId = NO_LEASE


class Put(msgspec.Struct, frozen=True):
    """Write a key; with a lease, it is deleted when the lease ends."""

    key: str
    value: bytes
    lease: LeaseId = NO_LEASE


class Delete(msgspec.Struct, frozen=True):
    """Delete a key; deleting an absent one changes nothing."""

    key: str


Op = Put | Delete


class Expect(msgspec.Struct, frozen=True):
    """The transaction happens only if `key` is still at `revision`; `ABSENT` means it must not exist."""

    key: str
    revision: int = ABSENT


class RangePage(msgspec.Struct, frozen=True):
    """A part of a range in key order. `cursor` is None on the last page; `revision` is this page's moment."""

    entries: tuple[Entry, ...]
    revision: int
    cursor: str | None = None


class Change(msgspec.Struct, frozen=True):
    """One key of a transaction: `entry` as it is now, None if it was removed."""

    key: str
    entry: Entry | None


class Batch(msgspec.Struct, frozen=True):
    """All changes of one revision under the watched prefix, in key order."""

    revision: int
    changes: tuple[Change, ...]


class Watch(Protocol):
    """The batches of one prefix, in order."""

    @property
    def position(self) -> int:
        """A revision up to which all batches have been returned: the newest one, or an earlier one if the
        backend does not know at once that a revision does not touch the prefix."""
        ...

    def __aiter__(self) -> AsyncIterator[Batch]: ...

    async def __anext__(self) -> Batch: ...


class Store(Protocol):
    """A linearizable, durable key space with revisions."""

    async def get(self, key: str) -> Entry | None:
        """The key as of all transactions that have returned, or None."""
        ...

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        """Keys that start with `prefix`, in order; at most `limit` (0: all). `cursor` goes on after a page.

        A later page may be of a later moment than the first; watching from the first page's revision
        brings whatever came between. Without a limit, all of it is one moment.
        """
        ...

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        """Do all of `ops` or nothing, if all of `expect` hold; the revision they got, durable.

        Raises `Conflict` naming the first key whose expectation failed, and `NotFound` for an unknown
        lease. If nothing changes (only deletes of absent keys) no revision is made; the current one returns.
        If the caller is cancelled while it waits, the outcome is unknown: the transaction may still happen.
        """
        ...

    def watch(self, prefix: str, *, since: int) -> AbstractAsyncContextManager[Watch]:
        """Every batch after revision `since` that touches `prefix`, for as long as the context is open.

        Raises `Compacted` when entering or iterating if `since` is older than the history, and
        `Unavailable` if the connection to the backend is lost and could not be resumed without a gap.
        A reader that falls too far behind gets `Compacted`, never a gap and never unbounded memory.
        """
        ...

    async def grant_lease(self, ttl_s: int) -> LeaseId:
        """A new lease that ends `ttl_s` seconds after its last `keep`. Restarting the store re-arms it."""
        ...

    async def renew_lease(self, lease: LeaseId) -> None:
        """Renew the lease. Raises `NotFound` if it has ended."""
        ...

    async def revoke_lease(self, lease: LeaseId) -> None:
        """End the lease now and remove its keys. Ending an unknown lease raises `NotFound`."""
        ...

    async def compact(self, before: int) -> None:
        """Forget batches of revisions below `before`; current entries stay."""
        ...

    async def revision(self) -> int:
        """The newest revision."""
        ...

    async def check_writes(self) -> None:
        """Raise `Unavailable` if a transaction would be refused now, as far as is known without one."""
        ...

    async def close(self) -> None:
        """Finish accepted transactions and close. Later calls raise `Unavailable`."""
        ...
