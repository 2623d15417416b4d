"""The ledger service: takes requests about each flavor, decides them together, writes, and answers.

A flavor has one decision in progress at a time; new requests wait in its queue for the next. Decisions on
different flavors go to the store concurrently, which makes them durable together. The service also checks the
deadlines: of holds and contracts if this server leads, of its own waiting requests in any case.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

import structlog

from skerry.control.events.log import EventLog
from skerry.kit.callbacks import CallbackList
from skerry.market.provider.ledger import queue
from skerry.market.provider.ledger.cache import LedgerCache
from skerry.market.provider.ledger.change import LedgerContext
from skerry.market.provider.ledger.changelog import OfferChangeLog
from skerry.market.provider.ledger.deadlines import OfferDeadlines, SteadyClock
from skerry.market.provider.ledger.decisions import LedgerAnswer, LedgerDecision, decide
from skerry.market.provider.ledger.queue import OfferQueue, PendingRequest
from skerry.market.provider.ledger.requests import CreateHold, ExpireDue, LedgerRequest
from skerry.model import errors
from skerry.model.ids import OfferId
from skerry.store import fencing
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import MAX_OPS, Expect, Store

log = structlog.get_logger(__name__)

OfferListener = Callable[[Collection[OfferId]], None]

# Trimming waits for this many too many, so that it costs a small share of the writes that made it needed.
_SLACK: Final = 64
# How long after a deadline could not be written it is tried again.
_RETRY_S: Final = 1.0


class LedgerService:
    """`submit` while it runs. Of several on one store, the leader checks deadlines."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        changes: OfferChangeLog,
        time: SteadyClock,
        deps: LedgerContext,
        *,
        has_leader: bool,
    ) -> None:
        self.cache = LedgerCache(store, events, changes, self._touched)
        self._state = self.cache.state
        self._time = time
        self._deps = deps
        self._store = store
        self._has_leader = has_leader
        self._fence: Expect | None = None  # while this server leads
        self._queues: dict[OfferId, OfferQueue] = {}
        self._deadlines = OfferDeadlines()
        self._alarm = asyncio.Event()
        self._opened = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self._listeners: CallbackList[[Collection[OfferId]]] = CallbackList()

    def listen(self, moved: OfferListener) -> Callable[[], None]:
        """Call `moved` with flavors whose account changed, at once; the result ends that."""
        return self._listeners.add(moved)

    async def ready(self) -> None:
        """Wait until requests are taken."""
        await self._opened.wait()

    async def run(self) -> None:
        """Follow the store, take requests and check deadlines, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.cache.run())
                await self.cache.ready()
                self._group = group
                self._opened.set()
                try:
                    await self._check_deadlines()
                finally:
                    self._group = None  # one that closes takes nothing more
        finally:
            self._opened.clear()
            gone = errors.Unavailable("the market is closing; the last request may have been done")
            for offer_queue in self._queues.values():
                queue.resolve_requests([(one, gone) for one in (*offer_queue.line, *offer_queue.requests)])
            self._queues.clear()

    async def lead(self, fence: Expect) -> None:
        """Mind the deadlines of holds and contracts until this is cancelled."""
        self._fence = fence
        try:
            for flavor in list(self._state.flavors):
                self._arm(flavor, self._state.account_of(flavor).next_due)
            self._alarm.set()
            await asyncio.Event().wait()
        finally:
            self._fence = None

    def submit(
        self, flavor: OfferId, request: LedgerRequest, fence: Expect | None = None
    ) -> asyncio.Future[LedgerAnswer]:
        """The durable answer to a request, or its error. With a `fence` it is the leader's, and raises
        `LeadershipLost` if another leads."""
        if self._group is None:
            raise errors.Unavailable("the market is not open yet; try again")
        answer: asyncio.Future[LedgerAnswer] = asyncio.get_running_loop().create_future()
        offer_queue = self._queues.setdefault(flavor, OfferQueue())
        offer_queue.requests.append(PendingRequest(request, answer, fence))
        if isinstance(request, CreateHold) and request.wait_until is not None:
            answer.add_done_callback(lambda answer: self._is_answered(flavor, answer))
        self._wake(flavor, offer_queue)
        return answer

    async def sweep(self) -> None:
        """End what has expired, and remove old records."""
        await asyncio.gather(*self._expire_due(), return_exceptions=True)
        if self._has_excess and self._owns_deadlines:
            with suppress(LeadershipLost):
                await self.cache.trim(self._deps.settings.keep_ended, self._time.now(), self._fence)

    @property
    def _owns_deadlines(self) -> bool:
        return self._fence is not None or not self._has_leader

    def _touched(self, flavors: Collection[OfferId]) -> None:
        """Their accounts changed: there may be new deadlines, and free resources for buyers that wait."""
        self._listeners.notify(flavors)
        for flavor in flavors:
            self._arm(flavor, self._state.account_of(flavor).next_due)
            offer_queue = self._queues.get(flavor)
            if offer_queue is not None and offer_queue.line:
                self._wake(flavor, offer_queue)
        if self._has_excess:
            self._alarm.set()

    def _is_answered(self, flavor: OfferId, answer: asyncio.Future[LedgerAnswer]) -> None:
        """Who gave up waiting is no longer in the way of those behind."""
        offer_queue = self._queues.get(flavor)
        if offer_queue is not None and answer.cancelled():
            self._wake(flavor, offer_queue)

    def _wake(self, flavor: OfferId, offer_queue: OfferQueue) -> None:
        offer_queue.is_woken = True
        if not offer_queue.is_busy and self._group is not None:
            offer_queue.is_busy = True
            self._group.create_task(self._serve(flavor, offer_queue))

    async def _serve(self, flavor: OfferId, offer_queue: OfferQueue) -> None:
        """Decide about the requests in the queue until there are none."""
        is_done = True
        while offer_queue.is_woken or offer_queue.requests or not is_done:
            offer_queue.is_woken = False
            try:
                is_done = await self._decide(flavor, offer_queue)
            except Exception as error:
                log.exception("ledger.broken", flavor=flavor)
                fault = errors.Internal("the ledger failed; try again", detail=repr(error))
                queue.resolve_requests([(one, fault) for one in (*offer_queue.line, *offer_queue.requests)])
                offer_queue.line.clear()
                offer_queue.requests.clear()
                offer_queue.paused_until = self._time.now() + _RETRY_S
                is_done = True
            await asyncio.sleep(0)  # those just answered may have something for the next decision
        offer_queue.is_busy = False
        if not offer_queue.line:
            del self._queues[flavor]
        due_times = [
            at for at in (offer_queue.waits_until, self._state.account_of(flavor).next_due) if at is not None
        ]
        if due_times:
            self._arm(flavor, max(min(due_times), offer_queue.paused_until))

    async def _decide(self, flavor: OfferId, offer_queue: OfferQueue) -> bool:
        """Decide once; True if all requests in the queue were decided."""
        line, requests = offer_queue.next(MAX_OPS)
        fences = offer_queue.fences(MAX_OPS)
        decision = decide(self._state, flavor, line, requests, self._time.now(), self._deps)
        try:
            if decision.is_change:
                await self._write(flavor, decision, fences)
        except errors.Conflict:
            for fence in fences:
                try:
                    await fencing.check(self._store, fence)
                except LeadershipLost as lost:
                    offer_queue.refuse(fence, lost)
            return False  # the account changed, or the caller no longer leads: decide again
        except errors.SkerryError as error:
            log.warning("ledger.unwritten", flavor=flavor, error=error.message, detail=error.detail)
            queue.resolve_requests([(one, error) for one, _ in offer_queue.apply(decision)])
            offer_queue.paused_until = self._time.now() + _RETRY_S  # what was due is due still
            return True
        queue.resolve_requests(offer_queue.apply(decision))
        return decision.is_all

    async def _write(self, flavor: OfferId, decision: LedgerDecision, fences: Collection[Expect]) -> None:
        try:
            await self.cache.write(flavor, decision, fences)
        except errors.Conflict:
            await self.cache.catch_up(flavor)
            raise

    def _arm(self, flavor: OfferId, at: float | None) -> None:
        if at is not None and self._deadlines.arm(flavor, at):
            self._alarm.set()

    async def _check_deadlines(self) -> None:
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

    def _expire_due(self) -> list[asyncio.Future[LedgerAnswer]]:
        now = self._time.now()
        looks = []
        for flavor in self._deadlines.take(now):
            offer_queue = self._queues.get(flavor)
            if self._owns_deadlines or (offer_queue is not None and offer_queue.line):
                looks.append(self.submit(flavor, ExpireDue(), self._fence))
        return looks

    @property
    def _has_excess(self) -> bool:
        """True if more that is over is kept than need be."""
        most = self._deps.settings.keep_ended + _SLACK
        state = self._state
        return max(len(state.over_holds), len(state.over_sales), len(state.over_flavors)) > most
