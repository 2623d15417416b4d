"""What the memory and the SQLite store share: reads, watches, leases, and steps that wait for their backend.

A backend gives `_submit`, which evaluates a step on a draft, makes the draft durable, calls `_merge` and
returns what the step returned. The tree is touched on the event loop's thread only.
"""

from __future__ import annotations

import abc
import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store import limits
from skerry.store.local.keyspace import KeySpace, WriteSet
from skerry.store.local.watches import KeySpaceWatch, WatchSet, closed
from skerry.store.protocol import Entry, Expect, LeaseId, Op, RangePage

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Leases are counted in seconds; looking more often than this would only cost.
_LEASE_GRAIN_S = 0.1
# How long after a failure to remove the keys of an ended lease it is tried again.
_LEASE_RETRY_S = 1.0


class LocalStore(abc.ABC):
    """A `Store` whose state is a tree in this process."""

    def __init__(
        self, tree: KeySpace, clock: Clock, entropy: Callable[[int], int] = secrets.randbits
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._entropy = entropy
        self._watchers = WatchSet(tree)
        self._is_closed = False
        self._lease_timer: asyncio.TimerHandle | None = None
        self._expiry: asyncio.Task[None] | None = None

    @abc.abstractmethod
    async def _submit(self, step: Callable[[WriteSet], T]) -> T:
        """Apply `step` after all earlier ones; return or raise its result once it is durable."""

    async def get(self, key: str) -> Entry | None:
        self._require_open()
        limits.check_key(key)
        return self._tree.get(key)

    async def range(self, prefix: str, *, limit: int = 0, cursor: str | None = None) -> RangePage:
        self._require_open()
        limits.check_page(prefix, limit, cursor)
        return self._tree.page(prefix, limit, cursor)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        # The caller may go on changing its lists while the transaction waits.
        ops, expect = tuple(ops), tuple(expect)
        limits.check_transaction(ops, expect)
        return await self._submit(lambda draft: draft.commit(ops, expect))

    def watch(self, prefix: str, *, since: int) -> KeySpaceWatch:
        limits.check_prefix(prefix)
        return KeySpaceWatch(self._watchers, prefix, since)

    async def grant_lease(self, ttl_s: int) -> LeaseId:
        limits.check_ttl(ttl_s)
        lease = LeaseId(self._entropy(62) + 1)
        await self._submit(lambda draft: draft.grant(lease, ttl_s))
        return lease

    async def renew_lease(self, lease: LeaseId) -> None:
        # Not made durable: a restart gives every lease its full time again.
        self._require_open()
        self._tree.renew(lease, self._clock.monotonic())

    async def revoke_lease(self, lease: LeaseId) -> None:
        await self._submit(lambda draft: draft.drop(lease))

    async def compact(self, before: int) -> None:
        await self._submit(lambda draft: draft.compact(before))

    async def revision(self) -> int:
        self._require_open()
        return self._tree.revision

    async def check_writes(self) -> None:
        self._require_open()

    async def expire(self) -> None:
        """End expired leases. Also happens by itself; tests with their own clock call it."""
        now = self._clock.monotonic()
        await self._submit(lambda draft: draft.expire(now))

    async def close(self) -> None:
        self._is_closed = True
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        if self._expiry is not None:
            await asyncio.wait([self._expiry])
        self._watchers.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise closed()

    def _merge(self, draft: WriteSet) -> None:
        """The draft is durable: make it visible and notify the watches."""
        before = self._tree.revision
        self._tree.merge(draft, self._clock.monotonic())
        if draft.batches:
            self._watchers.publish(before, draft.batches)
        if draft.granted:
            self._arm_leases()

    def _arm_leases(self, at_least_s: float = _LEASE_GRAIN_S) -> None:
        """Look at the leases again when the first of them may be over."""
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
        deadline = self._tree.next_deadline()
        if deadline is None or self._is_closed:
            return
        wait_s = max(at_least_s, deadline - self._clock.monotonic())
        self._lease_timer = asyncio.get_running_loop().call_later(wait_s, self._check_leases)

    def _check_leases(self) -> None:
        self._lease_timer = None
        if not self._tree.overdue(self._clock.monotonic()):
            self._arm_leases()  # they were kept
        elif self._expiry is None:
            self._expiry = asyncio.get_running_loop().create_task(self._expire_and_arm())

    async def _expire_and_arm(self) -> None:
        at_least_s = _LEASE_GRAIN_S
        try:
            await self.expire()
        except errors.Unavailable as error:
            at_least_s = _LEASE_RETRY_S
            log.warning("lease.expiry_failed", error=error.message, detail=error.detail)
        finally:
            self._expiry = None
            self._arm_leases(at_least_s)
