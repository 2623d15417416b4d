"""Calls of functions in the whole cloud: the counters of all members, added up when somebody reads them.

Every member counts the calls that ended in its workers (`skerry.functions.invocation.metrics`). A reader is
answered with totals that only grow, so that the difference of two readings is what happened between them: a
member that restarted counts from zero again, and one that is reached for the first time later than the others
adds what happens from then on. Members that cannot be reached are named. Nothing is stored, and nothing is
sent while nobody reads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from skerry.functions.continuum.member_api import CallsClient, FunctionCalls
from skerry.functions.continuum.member_table import MemberTable
from skerry.functions.invocation.worker_pool import FunctionWorkers
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import FunctionName, NodeId
from skerry.model.members import ContinuumMember

MAX_COUNTED: Final = 1000  # functions that a member reports, those with the most calls
_FRESH_S: Final = 0.5  # readings within this time share one round of requests
_AT_ONCE: Final = 32

_Counters = Mapping[FunctionName, FunctionCalls]


class CloudCallCounts(NamedTuple):
    """One reading: `at` is its time, `missing` says why members are not in it."""

    at: float
    functions: Sequence[FunctionCalls]
    members: int  # that were read, this one included
    missing: Sequence[str]


def count_calls(groups: Iterable[FunctionWorkers]) -> tuple[FunctionCalls, ...]:
    """The counters of this member, of at most `MAX_COUNTED` functions."""
    found = [
        FunctionCalls(group.name, group.succeeded, sum(group.failed.values()), group.cold, group.run_total_s)
        for group in groups
    ]
    found.sort(key=lambda one: (-one.ended, one.function))
    return tuple(found[:MAX_COUNTED])


class CloudCalls:
    """The totals; `own` are the counters of this member."""

    def __init__(
        self,
        own: Callable[[], Sequence[FunctionCalls]],
        links: CallsClient,
        places: MemberTable,
        clock: Clock,
    ) -> None:
        self._own = own
        self._links = links
        self._places = places
        self._clock = clock
        self._lock = asyncio.Lock()
        self._read_at = -math.inf
        self._last: dict[NodeId, _Counters] = {}
        self._totals: dict[FunctionName, FunctionCalls] = {}
        self._counts = CloudCallCounts(0.0, (), 0, ())

    async def read(self) -> CloudCallCounts:
        """The totals now, or those of a moment ago. A member that does not answer costs one timeout."""
        async with self._lock:
            if self._clock.monotonic() >= self._read_at + _FRESH_S:
                await self._read_all()
                self._read_at = self._clock.monotonic()
            return self._counts

    async def _read_all(self) -> None:
        members = [peer.member for peer in self._places.peers.values() if peer.member.memory]
        slots = asyncio.Semaphore(_AT_ONCE)

        async def read_one(member: ContinuumMember) -> Sequence[FunctionCalls] | str:
            async with slots:
                try:
                    return await self._links.read_calls(member)
                except errors.SkerryError as error:
                    return f"{member.name}: {error.message}"

        answers = await asyncio.gather(*map(read_one, members))
        readings: dict[NodeId, _Counters] = {self._places.me.node: _by_name(self._own())}
        missing = []
        for member, answer in zip(members, answers, strict=True):
            if isinstance(answer, str):
                missing.append(answer)
            else:
                readings[member.node] = _by_name(answer)
        self._add(readings, {self._places.me.node, *(member.node for member in members)})
        functions = sorted(self._totals.values(), key=lambda one: one.function)
        self._counts = CloudCallCounts(self._clock.now(), functions, len(readings), missing)

    def _add(self, readings: Mapping[NodeId, _Counters], members: set[NodeId]) -> None:
        """Add what happened since the last reading; members and functions that are gone are forgotten."""
        is_first = not self._last
        for node, counters in readings.items():
            before = self._last.get(node)
            for name, after in counters.items():
                earlier = after if before is None and not is_first else (before or {}).get(name)
                total = self._totals.get(name, FunctionCalls(name))
                self._totals[name] = _plus(total, after, earlier)
            self._last[node] = counters
        self._last = {node: counters for node, counters in self._last.items() if node in members}
        known = {name for counters in self._last.values() for name in counters}
        self._totals = {name: total for name, total in self._totals.items() if name in known}


def _by_name(counted: Sequence[FunctionCalls]) -> _Counters:
    return {one.function: one for one in counted[:MAX_COUNTED] if math.isfinite(one.run_s)}


def _plus(total: FunctionCalls, after: FunctionCalls, before: FunctionCalls | None) -> FunctionCalls:
    """`total`, and what a member counted after `before`; all of it if it has restarted since."""
    if before is None or before.ended > after.ended or before.run_s > after.run_s:
        before = FunctionCalls(after.function)
    return FunctionCalls(
        total.function,
        total.succeeded + max(0, after.succeeded - before.succeeded),
        total.failed + max(0, after.failed - before.failed),
        total.cold_starts + max(0, after.cold_starts - before.cold_starts),
        total.run_s + after.run_s - before.run_s,
    )
