"""Which of several servers leads: the one that holds the key `leader`, by a lease.

Leading is a licence to decide, not to write: every transaction of a leader also expects the key at the
revision at which it got it, so one that does not know yet that it was replaced does no harm. One that cannot
renew its lease stops at once, and another follows within the time of the lease; one that ends in good order
drops it.

A server whose store nobody else can open does not wait for a lease to end: who held it was an earlier process
of this same server, which is dead, or the store would not have opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from skerry.control.events import EventLog
from skerry.kit import tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.protocol import ABSENT, Expect, LeaseId, Put, Store

log = structlog.get_logger(__name__)

KEY = "leader"
_RENEWALS = 3  # in the time of a lease


class LostLead(Exception):
    """Another leads now, or may."""


class Leader:
    """One candidate, under a name that tells it from others in events."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        name: str,
        lease_s: int,
        is_alone: bool = False,
    ) -> None:
        """`is_alone` if there can be no other candidate while we are here, in this process or another."""
        self._store = store
        self._events = events
        self._clock = clock
        self._name = name
        self._lease_s = lease_s
        self._is_alone = is_alone
        self._is_leading = False

    @property
    def is_leading(self) -> bool:
        """True if this server leads, as far as it knows."""
        return self._is_leading

    async def run(self, lead: Callable[[Expect], Awaitable[None]]) -> None:
        """For ever: wait for the lead, then `lead(fence)` until it is lost, which cancels it.

        `fence` goes into every transaction of the leader. `lead` may raise `LostLead`, and is not to return.
        """
        if self._is_alone:
            await self._end_last_term()
        while True:
            lease, fence = await self._win()
            self._is_leading = True
            log.info("leader.won", name=self._name, revision=fence.revision)
            try:
                await self._lead(lease, lead(fence))
            except LostLead as lost:
                log.warning("leader.lost", name=self._name, why=str(lost))
            finally:
                self._is_leading = False
                with suppress(errors.NotFound, errors.Unavailable):
                    await self._store.drop(lease)

    async def _end_last_term(self) -> None:
        """End the lease that a dead process left, and with it the fence of whatever it wanted to write."""
        held = await self._store.get(KEY)
        if held is not None:
            log.info("leader.left", name=held.value.decode())
            with suppress(errors.NotFound):
                await self._store.drop(held.lease)

    async def _win(self) -> tuple[LeaseId, Expect]:
        while True:
            page = await self._store.range(KEY)
            if any(entry.key == KEY for entry in page.entries):
                await self._wait_for_change(page.revision)
                continue
            lease = await self._store.grant(self._lease_s)
            told = self._events.put("server.leads", f"server/{self._name}", actor="skerry")
            try:
                revision = await self._store.commit(
                    [Put(KEY, self._name.encode(), lease), told], [Expect(KEY, ABSENT)]
                )
            except errors.Conflict:
                await self._store.drop(lease)
                continue
            return lease, Expect(KEY, revision)

    async def _wait_for_change(self, since: int) -> None:
        try:
            async with self._store.watch(KEY, since=since) as batches:
                async for _ in batches:
                    return
        except errors.Compacted:
            return

    async def _lead(self, lease: LeaseId, leading: Awaitable[None]) -> None:
        both = [asyncio.ensure_future(leading), asyncio.ensure_future(self._renew(lease))]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            raise LostLead("it was given up")
        finally:
            await tasks.give_up(both)

    async def _renew(self, lease: LeaseId) -> None:
        """Keep the lease; raise `LostLead` when it is over, or may be."""
        pause_s = self._lease_s / _RENEWALS
        sure_until = self._clock.monotonic() + self._lease_s
        while True:
            await asyncio.sleep(pause_s)
            asked_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(0.0, sure_until - asked_at)):
                    await self._store.keep(lease)
            except errors.NotFound as error:
                raise LostLead("the lease is over") from error
            except (errors.Unavailable, TimeoutError) as error:
                if self._clock.monotonic() + pause_s >= sure_until:
                    raise LostLead("the lease could not be renewed") from error
            else:
                sure_until = asked_at + self._lease_s
