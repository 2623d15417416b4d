"""Replication of results: the result of an async call is stored on a second member, for when its origin is
lost.

The origin has it first, and can be polled; a moment later the first of `replica_placement.result_holders`
that takes it has a copy, where `async_locator` finds it when the origin does not answer. Which results have
no copy is on disk with them (`skerry.store.sqlite.calls`): a failure or a restart delays a copy and loses
none. Holders are checked from time to time: when one is lost, its results are copied again. A holder of a
copy treats the origin as the other holder, so the loss of the origin is repaired as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from skerry.functions.continuum import replica_placement
from skerry.functions.continuum.member_api import CopyRefused, ReplicationClient, ResultCopy
from skerry.kit import metrics
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import CallState
from skerry.model.members import ContinuumMember
from skerry.store.sqlite.call_rows import CopyAttempt, UncopiedResult
from skerry.store.sqlite.calls import CallStore

log = structlog.get_logger(__name__)

_AT_ONCE: Final = 4
_BATCH: Final = 64  # attempts that are written down together
_CHECK_S: Final = 10.0  # between two checks whether holders still have their copies
_UNREACHABLE_S: Final = 60.0  # a holder that has been away for longer is lost
_BACKOFF: Final = Backoff(first_s=1.0, cap_s=300.0)

_COPIED = metrics.counter("skerry_async_result_copies_total", "CallStore put on a second member", ["outcome"])


class ResultCopies:
    """`run` for ever."""

    def __init__(
        self,
        links: ReplicationClient,
        others: Callable[[], Iterable[ContinuumMember]],
        results: CallStore,
        clock: Clock,
        *,
        check_s: float = _CHECK_S,
        unreachable_s: float = _UNREACHABLE_S,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        """`others` are all members but this one."""
        self._links = links
        self._others = others
        self._results = results
        self._clock = clock
        self._check_s = check_s
        self._unreachable_s = unreachable_s
        self._backoff = backoff
        self._unreachable: dict[str, float] = {}  # holders that could not be reached, and since when
        self._new_results = asyncio.Event()
        self._has_new_members = False

    def check_soon(self) -> None:
        """A call has ended."""
        self._new_results.set()

    def members_changed(self) -> None:
        """A new member may store results that have no copy yet."""
        self._has_new_members = True
        self._new_results.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy_for_ever())
            group.create_task(self._check_for_ever())

    # Copies of results without one

    async def _copy_for_ever(self) -> None:
        failures = 0
        while True:
            self._new_results.clear()
            try:
                tried, copied = await self._copy_some()
            except errors.SkerryError as error:
                log.warning("results.not_copied", error=error.message)
                tried, copied = 1, 0
            if tried and not copied:  # no member takes any: the next ones need not be tried at once
                await asyncio.sleep(min(self._check_s, self._backoff.delay(failures)))
                failures += 1
                continue
            failures = 0
            if not tried:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._check_s):
                        await self._new_results.wait()

    async def _copy_some(self) -> tuple[int, int]:
        """How many were tried, of those that are due, and how many were copied."""
        if not list(self._others()):
            return 0, 0
        if self._has_new_members:
            self._has_new_members = False
            await self._results.retry_copies()
        waiting = await self._results.uncopied(self._clock.now(), _BATCH)
        slots = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            copying = [group.create_task(self._attempt(result, slots)) for result in waiting]
        attempts = [attempt for task in copying if (attempt := task.result()) is not None]
        if attempts:
            await self._results.note_copies(attempts)
        return len(attempts), sum(1 for attempt in attempts if attempt.holder)

    async def _attempt(self, result: UncopiedResult, slots: asyncio.Semaphore) -> CopyAttempt | None:
        """None if it is not known any more."""
        async with slots:
            try:
                row = await self._results.read(result.id)
                if row is None or row.state not in (CallState.DONE, CallState.FAILED):
                    return None
                holder = await self._copy(ResultCopy(result.id, row.state, result.ended_at, row.body))
            except errors.SkerryError as error:
                log.warning("result.not_read", id=result.id, error=error.message)
                holder = ""
        _COPIED.labels("done" if holder else "failed").inc()
        if holder:
            return CopyAttempt(result.id, holder, self._clock.now())
        due = self._clock.now() + self._backoff.delay(result.tries)
        return CopyAttempt(result.id, "", due, result.tries + 1)

    async def _copy(self, copy: ResultCopy) -> str:
        """The member that has it now; empty if none took it."""
        members = replica_placement.result_holders(copy.id, self._others())
        for member in sorted(members, key=lambda member: member.node in self._unreachable):
            try:
                await self._links.store_result(member, copy)
            except errors.SkerryError as error:
                log.debug("result.refused", id=copy.id, node=member.node, error=error.message)
                if not isinstance(error, CopyRefused):
                    self._unreachable.setdefault(member.node, self._clock.monotonic())
            else:
                self._unreachable.pop(member.node, None)
                return member.node
        return ""

    # Holders that are lost

    async def _check_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._check_s)
            try:
                await self.check_holders()
            except errors.SkerryError as error:
                log.warning("results.holders_not_checked", error=error.message)

    async def check_holders(self) -> None:
        """Copy results again whose holders are lost, or have lost them."""
        members = list(self._others())
        if not members:
            return  # no member could take it, and the members may not be known yet
        holders = await self._results.holders()
        for node in self._unreachable.keys() - holders.keys() - {member.node for member in members}:
            del self._unreachable[node]
        for holder, sample in holders.items():
            if not await self._has(replica_placement.find_holder(holder, members), holder, sample):
                released = await self._results.release(holder)
                log.warning("results.holder_lost", holder=holder, results=released)
                self._new_results.set()

    async def _has(self, member: ContinuumMember | None, holder: str, sample: str) -> bool:
        """False if it is lost: it has not been there for too long, or has lost what it took."""
        now = self._clock.monotonic()
        if member is None:
            return now - self._unreachable.setdefault(holder, now) < self._unreachable_s
        try:
            polled = await self._links.poll(member, sample)
        except errors.SkerryError:
            return now - self._unreachable.setdefault(member.node, now) < self._unreachable_s
        self._unreachable.pop(member.node, None)
        self._unreachable.pop(holder, None)
        return polled is not None
