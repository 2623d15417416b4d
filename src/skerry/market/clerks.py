"""The clerk: takes requests about each flavor, decides on them together, has it written, and answers.

A flavor has one decision under way at a time; what is asked meanwhile waits at its desk for the next.
Decisions on different flavors go to the store side by side, which makes them durable together. The clerk also
minds the deadlines: of holds and contracts if this server owns them, of its own waiting buyers in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final

import structlog

from skerry.market import desks
from skerry.market.changes import Changes
from skerry.market.deadlines import Deadlines, SteadyTime
from skerry.market.decisions import Answer, Decision, decide
from skerry.market.desks import Asked, Desk
from skerry.market.drafts import Means
from skerry.market.mirrors import EventWriter, Mirror
from skerry.market.requests import Look, Request, Reserve
from skerry.model import errors
from skerry.model.ids import FlavorId
from skerry.store.protocol import MAX_OPS, Store

log = structlog.get_logger(__name__)

Listener = Callable[[Collection[FlavorId]], None]

# Trimming waits for this many too many, so that it costs a small share of the writes that made it needed.
_SLACK: Final = 64
# How long after a deadline could not be written, or was another server's to mind, it is looked at again.
_RETRY_S: Final = 1.0


class Clerk:
    """`ask` while it runs. Of several on one store, one `owns_deadlines`."""

    def __init__(
        self,
        store: Store,
        events: EventWriter,
        changes: Changes,
        time: SteadyTime,
        means: Means,
        owns_deadlines: Callable[[], bool],
    ) -> None:
        self.mirror = Mirror(store, events, changes, self._touched)
        self._books = self.mirror.books
        self._time = time
        self._means = means
        self._owns_deadlines = owns_deadlines
        self._desks: dict[FlavorId, Desk] = {}
        self._deadlines = Deadlines()
        self._alarm = asyncio.Event()
        self._opened = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._listeners: list[Listener] = []

    def listen(self, moved: Listener) -> Callable[[], None]:
        """Call `moved` with the flavors whose books have moved, in the step in which they do; the result ends
        that."""
        self._listeners.append(moved)
        return lambda: self._listeners.remove(moved)

    async def ready(self) -> None:
        """Wait until requests are taken."""
        await self._opened.wait()

    async def run(self) -> None:
        """Follow the store, take requests and mind deadlines, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.mirror.run())
                await self.mirror.ready()
                self._group = group
                self._opened.set()
                try:
                    await self._mind_deadlines()
                finally:
                    self._group = None  # one that closes takes nothing more
        finally:
            self._opened.clear()
            gone = errors.Unavailable("the market is closing; what was asked last may have happened")
            for desk in self._desks.values():
                desks.tell([(one, gone) for one in (*desk.line, *desk.asked)])
            self._desks.clear()

    async def ask(self, flavor: FlavorId, request: Request) -> Answer:
        """The answer to a request, durable; raises if it is an error."""
        return await self._put(flavor, request)

    async def sweep(self) -> None:
        """End what is due, and forget what is too much."""
        await asyncio.gather(*self._look_at_due(), return_exceptions=True)
        if self._is_overfull and self._owns_deadlines():
            await self.mirror.trim(self._means.settings.keep_ended)

    def _touched(self, flavors: Collection[FlavorId]) -> None:
        """Their books moved: there may be new deadlines, and room for who waits."""
        for moved in tuple(self._listeners):
            moved(flavors)
        for flavor in flavors:
            self._arm(flavor, self._books.book(flavor).next_due)
            desk = self._desks.get(flavor)
            if desk is not None and desk.line:
                self._wake(flavor, desk)
        if self._is_overfull:
            self._alarm.set()

    def _put(self, flavor: FlavorId, request: Request) -> asyncio.Future[Answer]:
        if self._group is None:
            raise errors.Unavailable("the market is not open yet; try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        desk = self._desks.setdefault(flavor, Desk())
        desk.asked.append(Asked(request, answer))
        if isinstance(request, Reserve) and request.wait_until is not None:
            answer.add_done_callback(lambda answer: self._answered(flavor, answer))
        self._wake(flavor, desk)
        return answer

    def _answered(self, flavor: FlavorId, answer: asyncio.Future[Answer]) -> None:
        """Who gave up waiting is no longer in the way of those behind."""
        desk = self._desks.get(flavor)
        if desk is not None and answer.cancelled():
            self._wake(flavor, desk)

    def _wake(self, flavor: FlavorId, desk: Desk) -> None:
        desk.is_woken = True
        if not desk.is_busy and self._group is not None:
            desk.is_busy = True
            self._group.create_task(self._serve(flavor, desk))

    async def _serve(self, flavor: FlavorId, desk: Desk) -> None:
        """Decide on whatever is at the desk until there is nothing more to decide."""
        is_done = True
        while desk.is_woken or desk.asked or not is_done:
            desk.is_woken = False
            try:
                is_done = await self._decide(flavor, desk)
            except Exception as error:
                log.exception("ledger.broken", flavor=flavor)
                fault = errors.Internal("the ledger failed; ask again", detail=repr(error))
                desks.tell([(one, fault) for one in (*desk.line, *desk.asked)])
                desk.line.clear()
                desk.asked.clear()
                desk.rests_until = self._time.now() + _RETRY_S
                is_done = True
            await asyncio.sleep(0)  # those just answered may have something for the next decision
        desk.is_busy = False
        if not desk.line:
            del self._desks[flavor]
        dues = [at for at in (desk.waits_until, self._books.book(flavor).next_due) if at is not None]
        if dues:
            self._arm(flavor, max(min(dues), desk.rests_until))

    async def _decide(self, flavor: FlavorId, desk: Desk) -> bool:
        """Decide once; True if all that was there is decided."""
        line, asked = desk.next(MAX_OPS)
        decision = decide(self._books, flavor, line, asked, self._time.now(), self._means)
        try:
            if decision.is_change:
                await self._write(flavor, decision)
        except errors.Conflict:
            return False  # the books have moved: decide again
        except errors.SkerryError as error:
            log.warning("ledger.unwritten", flavor=flavor, error=error.message, detail=error.detail)
            desks.tell([(one, error) for one, _ in desk.settle(decision)])
            desk.rests_until = self._time.now() + _RETRY_S  # what was due is due still
            return True
        desks.tell(desk.settle(decision))
        return decision.is_all

    async def _write(self, flavor: FlavorId, decision: Decision) -> None:
        try:
            await self.mirror.write(flavor, decision)
        except errors.Conflict:
            await self.mirror.catch_up(flavor)
            raise

    def _arm(self, flavor: FlavorId, at: float | None) -> None:
        if at is not None and self._deadlines.arm(flavor, at):
            self._alarm.set()

    async def _mind_deadlines(self) -> None:
        while True:
            first = self._deadlines.first()
            try:
                async with asyncio.timeout(None if first is None else max(0.0, first - self._time.now())):
                    await self._alarm.wait()
            except TimeoutError:
                pass
            self._alarm.clear()
            try:
                await self.sweep()
            except errors.Unavailable as error:
                log.warning("ledger.unswept", error=error.message)
                await asyncio.sleep(_RETRY_S)

    def _look_at_due(self) -> list[asyncio.Future[Answer]]:
        now = self._time.now()
        looks = []
        for flavor in self._deadlines.take(now):
            desk = self._desks.get(flavor)
            if self._owns_deadlines() or (desk is not None and desk.line):
                looks.append(self._put(flavor, Look()))
            else:
                self._arm(flavor, now + _RETRY_S)
        return looks

    @property
    def _is_overfull(self) -> bool:
        """True if more that is over is kept than need be."""
        most = self._means.settings.keep_ended + _SLACK
        books = self._books
        return max(len(books.over_holds), len(books.over_sales), len(books.over_flavors)) > most
