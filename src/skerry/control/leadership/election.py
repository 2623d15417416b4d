"""Leader election: the server that holds the key `leader`, by a lease, leads.

Every transaction of a leader also expects the key at the revision of its election (the fence), so a leader
that does not know yet that it was replaced does no harm. A leader that cannot renew its lease stops at once,
and another follows when the lease expires; one that stops regularly revokes it. The work of a leader is
loops, each of which gets the fence of the term (`run_while_leading`). A server whose store no other process
can open does not wait for a lease to expire: its holder was an earlier process of the same server, which is
dead, or the store would not have opened.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn

import structlog

from skerry.control.events.log import EventLog
from skerry.kit import metrics, tasks
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import ABSENT, Expect, LeaseId, Put, Store
from skerry.store.tables.leases import RENEWALS

log = structlog.get_logger(__name__)

LEADS = metrics.gauge("skerry_leader", "1 if this server leads")
TERMS = metrics.counter("skerry_leader_terms_total", "Elections that this server won")

KEY = "leader"

Loop = Callable[[Expect], Coroutine[Any, Any, None]]


class _Term:
    """The time from one election to the loss of the lead."""

    def __init__(self, fence: Expect) -> None:
        self.fence = fence
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # why
        self.is_over = asyncio.Event()
        self.loops: set[asyncio.Task[None]] = set()

    def lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)


class LeaderElection:
    """One candidate; `name` identifies it in events."""

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
        self._term: _Term | None = None
        self._begun = asyncio.Event()  # set during a term

    @property
    def is_leading(self) -> bool:
        """True if this server leads, as far as it knows."""
        return self._term is not None

    async def run(self) -> None:
        """For ever: wait for the lead, then keep it until it is lost."""
        if self._is_alone:
            await self._end_last_term()
        while True:
            lease, fence = await self._win()
            term = self._term = _Term(fence)
            self._begun.set()
            LEADS.set(1)
            TERMS.inc()
            log.info("leader.won", name=self._name, revision=fence.revision)
            try:
                await self._hold(lease, term)
            except LeadershipLost as lost:
                log.warning("leader.lost", name=self._name, why=str(lost))
            finally:
                self._term = None
                self._begun.clear()
                LEADS.set(0)
                await tasks.cancel_and_wait(term.loops)  # before another may begin
                term.is_over.set()
                with suppress(errors.NotFound, errors.Unavailable):
                    await self._store.revoke_lease(lease)

    async def run_while_leading(self, name: str, loop: Loop, *, is_vital: bool = False) -> None:
        """For ever: whenever this server leads, run `loop(fence)` until it does not, which cancels it.

        The fence goes into every transaction of the loop. A loop may raise `LeadershipLost`, which ends the
        term of all. If it fails otherwise, that is raised; if it `is_vital`, another server gets the lead.
        """
        while True:
            await self._begun.wait()
            if (term := self._term) is None:
                continue  # it was over at once
            task = asyncio.create_task(loop(term.fence), name=name)
            term.loops.add(task)
            try:
                await asyncio.wait([task])
            finally:
                await tasks.cancel_and_wait([task])
                term.loops.discard(task)
            error = None if task.cancelled() else task.exception()
            if isinstance(error, LeadershipLost):
                term.lose(str(error))
            elif self._term is term:  # it ended by itself, which it is not to do
                if is_vital:
                    term.lose(f"{name} ended")
                raise error or RuntimeError(f"{name} ended")
            await term.is_over.wait()

    async def _end_last_term(self) -> None:
        """End the lease that a dead process left, and with it the fence of whatever it wanted to write."""
        entry = await self._store.get(KEY)
        if entry is not None:
            log.info("leader.left", name=entry.value.decode())
            with suppress(errors.NotFound):
                await self._store.revoke_lease(entry.lease)

    async def _win(self) -> tuple[LeaseId, Expect]:
        while True:
            page = await self._store.range(KEY)
            if any(entry.key == KEY for entry in page.entries):
                await self._wait_for_change(page.revision)
                continue
            lease = await self._store.grant_lease(self._lease_s)
            event = self._events.put("server.leads", f"server/{self._name}", actor="skerry")
            try:
                revision = await self._store.commit(
                    [Put(KEY, self._name.encode(), lease), event], [Expect(KEY, ABSENT)]
                )
            except errors.Conflict:
                await self._store.revoke_lease(lease)
                continue
            return lease, Expect(KEY, revision)

    async def _wait_for_change(self, since: int) -> None:
        try:
            async with self._store.watch(KEY, since=since) as batches:
                async for _ in batches:
                    return
        except errors.Compacted:
            return

    async def _hold(self, lease: LeaseId, term: _Term) -> None:
        """Renew the lease until the lead is lost; raises `LeadershipLost`."""
        raise LeadershipLost(await tasks.race(self._renew(lease), asyncio.shield(term.lost)))

    async def _renew(self, lease: LeaseId) -> NoReturn:
        """Keep the lease; raise `LeadershipLost` when it is over, or may be."""
        pause_s = self._lease_s / RENEWALS
        sure_until = self._clock.monotonic() + self._lease_s
        while True:
            await asyncio.sleep(pause_s)
            requested_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(max(0.0, sure_until - requested_at)):
                    await self._store.renew_lease(lease)
            except errors.NotFound as error:
                raise LeadershipLost("the lease is over") from error
            except (errors.Unavailable, TimeoutError) as error:
                if self._clock.monotonic() + pause_s >= sure_until:
                    raise LeadershipLost("the lease could not be renewed") from error
            else:
                sure_until = requested_at + self._lease_s
