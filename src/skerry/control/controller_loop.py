"""The loops of controllers: passes on the leader, and records that are reconciled when they change.

`PassLoop` makes one pass after another while this server leads, with transactions in flight beside it; the
reconciler of placements uses it as it is. `ControllerLoop` is a pass loop over a `WorkQueue` of keys, for
services, jobs and schedules: a key is reconciled when its record changes, when it is added, or when a time
comes. One key is never reconciled twice at the same time. Nothing is polled, and nothing here knows what
reconciling means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import structlog

from skerry.control.work_queue import WorkQueue
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.fencing import LeadershipLost
from skerry.store.tables.table import RecordChange, Table

log = structlog.get_logger(__name__)

_IN_FLIGHT = 16
# The machine's clock may be set while a loop waits for a time, so it reads the clock this often.
_LONGEST_WAIT_S = 30.0
_FAILED_PAUSE_S = 60.0  # before a record that could not be reconciled is tried again

# When each key is to be reconciled again, None: when it changes. Keys that are left out are due at once.
NextTimes: TypeAlias = Mapping[str, float | None]


async def settled_at_once() -> None:
    """For a store that needs no time to settle."""


class PassLoop:
    """Passes one after the other, and at most `in_flight` transactions beside them.

    No pass begins before `settled` returns, which is called before each.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        in_flight: int = _IN_FLIGHT,
    ) -> None:
        self._clock = clock
        self._settled = settled
        self._in_flight = in_flight
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(in_flight)
        self._group: asyncio.TaskGroup | None = None

    def wake(self) -> None:
        """Make another pass soon."""
        self._woken.set()

    async def run(self, make_pass: Callable[[], Awaitable[float | None]]) -> None:
        """For ever: call `make_pass`, whose result is the time of the next pass, None: after `wake`.

        What it has in flight ends with it. `LeadershipLost`, of a pass or of what is in flight, ends it.
        """
        self._slots = asyncio.Semaphore(self._in_flight)
        lost: LeadershipLost | None = None
        try:
            async with asyncio.TaskGroup() as self._group:
                while True:
                    await self._settled()
                    self._woken.clear()
                    await self._wait(await make_pass())
        except* LeadershipLost as losses:
            lost = LeadershipLost(str(losses.exceptions[0]))
        if lost is not None:  # Python before 3.11.4 wraps what `except*` raises
            raise lost

    async def start(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` beside the passes, as soon as there is a free slot; there is another pass after it."""
        assert self._group is not None, "the loop is not running"
        await self._slots.acquire()
        self._group.create_task(self._finish(work))

    async def _finish(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._slots.release()
            self.wake()

    async def _wait(self, until: float | None) -> None:
        at_most_s = None if until is None else min(until - self._clock.now(), _LONGEST_WAIT_S)
        if at_most_s is not None and at_most_s <= 0:
            await asyncio.sleep(0)  # there is more to do, but not before others had their turn
            return
        try:
            async with asyncio.timeout(at_most_s):
                await self._woken.wait()
        except TimeoutError:
            pass


class ControllerLoop:
    """Reconciles the records of `table`, by key; `others` are tables that it reads too.

    `name` is its name in the log.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        table: Table[Any],
        *others: Table[Any],
        settled: Callable[[], Awaitable[None]] = settled_at_once,
        in_flight: int = _IN_FLIGHT,
    ) -> None:
        self._name = name
        self._clock = clock
        self._table = table
        self._others = others
        self._passes = PassLoop(clock, settled=settled, in_flight=in_flight)
        self._queue = WorkQueue()
        self._backoff = Backoff(cap_s=5.0)
        table.subscribe(self._records_changed)

    def add(self, key: str) -> None:
        """Reconcile it soon."""
        self._queue.add(key)
        self._passes.wake()

    async def ready(self) -> None:
        """Wait for the first snapshot of all tables."""
        for table in (self._table, *self._others):
            await table.ready()

    async def refresh(self) -> None:
        """Wait until the tables have all that is durable now."""
        for table in (self._table, *self._others):
            await table.sync()

    async def run_each(self, reconcile: Callable[[str], Awaitable[float | None]]) -> None:
        """For ever: call `reconcile` with one key at a time, as `run` does with several; its result is when
        to call it again, None: when the key is added."""

        async def reconcile_one(key: str) -> NextTimes:
            return {key: await reconcile(key)}

        async def start(keys: Sequence[str]) -> None:
            for key in keys:
                await self.start([key], partial(reconcile_one, key))

        await self.run(start, keys_per_pass=1)

    async def run(self, reconcile: Callable[[Sequence[str]], Awaitable[None]], *, keys_per_pass: int) -> None:
        """For ever: call `reconcile` with the keys that are due, at first with all.

        It gives each key to `start` or to `finish`.
        """

        async def make_pass() -> float | None:
            now = self._clock.now()
            if not (keys := self._queue.take(now, keys_per_pass)):
                return self._queue.next_at()
            await reconcile(keys)
            return now

        self._queue.clear()
        for key in self._table.ids():
            self._queue.add(key)
        await self._passes.run(make_pass)

    async def start(self, keys: Sequence[str], work: Callable[[], Awaitable[NextTimes]]) -> None:
        """Do `work` about `keys` beside the passes.

        A `Conflict` that it raises says that what it read is outdated: the keys are due again after a
        `refresh`. After another error they are due again later.
        """
        await self._passes.start(partial(self._work, keys, work))

    def finish(self, key: str, again_at: float | None) -> None:
        """Nothing more is to be done about a key before `again_at`, or before it is added."""
        self._queue.done(key)
        self._queue.add_at(key, again_at)

    def fail(self, keys: Sequence[str], error: errors.SkerryError) -> None:
        """Nothing can be done about these keys: reconcile them after a pause, and the others meanwhile."""
        for key in keys:
            log.error(
                "controller.failed", controller=self._name, key=key, error=error.message, exc_info=error
            )
            self.finish(key, self._clock.now() + _FAILED_PAUSE_S)

    async def _work(self, keys: Sequence[str], work: Callable[[], Awaitable[NextTimes]]) -> None:
        times: NextTimes = {}
        unfinished = keys
        try:
            try:
                times = await work()
            except errors.Conflict:
                await self.refresh()
        except errors.Unavailable as error:
            log.warning(
                "controller.interrupted", controller=self._name, key=", ".join(keys), error=error.message
            )
            await asyncio.sleep(self._backoff.delay(0))
        except errors.SkerryError as error:
            self.fail(keys, error)
            unfinished = ()
        finally:
            for key in unfinished:
                self.finish(key, times.get(key))
                if key not in times:
                    self._queue.add(key)

    def _records_changed(self, changes: Sequence[RecordChange[Any]]) -> None:
        for key, _, after in changes:
            if after is not None:
                self._queue.add(key)
        self._passes.wake()
