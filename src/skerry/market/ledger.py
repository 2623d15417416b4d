"""The ledger: offers, holds and contracts, made durable before anybody is told.

Requests about a flavor queue in memory; all that wait are decided together (`skerry.market.decisions`: no
I/O) and written in one transaction, which expects the flavor's account at the revision that was decided on.
If another server was quicker, its change is read and the same requests are decided again. Answers are given
when the transaction is durable and the mirror has it, so who was answered finds it. Transactions of different
flavors go to the store side by side, which makes them durable together.

Deadlines stand in the records, on the provider's clock; they are judged at every decision, and minded by
`run` of the server that owns them. Limits of a buyer over all flavors are counted by each server on what it
knows.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import structlog
from msgspec.structs import replace

from skerry.kit import ids as fresh_ids
from skerry.kit import jsonio
from skerry.kit.clock import Clock
from skerry.market import desks
from skerry.market.accounts import (
    CONTRACTS,
    FLAVORS,
    PREFIX,
    Account,
    Sale,
    contract_key,
    flavor_key,
    hold_key,
)
from skerry.market.books import Book, Books
from skerry.market.changes import Changed, Changes
from skerry.market.deadlines import Deadlines, SteadyTime
from skerry.market.decisions import Answer, Decision, decide
from skerry.market.desks import Asked, Desk
from skerry.market.drafts import Draft, Means, no_such_contract, no_such_hold
from skerry.market.requests import (
    Cancel,
    Countersign,
    Look,
    Publish,
    Purchase,
    Reclaim,
    Release,
    Renew,
    Request,
    Reserve,
    Update,
    Withdraw,
    once_only,
)
from skerry.model import errors, ids
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId
from skerry.model.market import Contract, Ending, Flavor, Hold, check_cloud
from skerry.model.room import Room
from skerry.model.settings import MarketSettings
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Entry, Expect, Op, Put, Store
from skerry.store.view import Moved, View

log = structlog.get_logger(__name__)

# Trimming waits for this many too many, so that it costs a small share of the writes that made it needed.
_SLACK: Final = 64
# How long after a deadline could not be written, or was another server's to mind, it is looked at again.
_RETRY_S: Final = 1.0


class EventWriter(Protocol):
    """The operation that writes an event, for the transaction of the change it tells of."""

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put: ...


class Kept(NamedTuple):
    """A record as the store holds it."""

    value: Account | Hold | Sale
    revision: int


class Ledger:
    """`run` for ever; requests are taken while it does, and read once it is `ready`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        settings: MarketSettings,
        events: EventWriter,
        *,
        provider: CloudId,
        make_contract: Callable[[Contract], bytes],
        owns_deadlines: Callable[[], bool] = lambda: True,
        new_hold: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """`make_contract` gives the signed document of a contract: the same bytes for the same contract.

        Of several servers on one store, one `owns_deadlines`. What `new_hold` gives cannot be guessed.
        """
        self._store = store
        self._settings = settings
        self._events = events
        self._provider = provider
        self._owns_deadlines = owns_deadlines
        self._time = SteadyTime(clock)
        self._means = Means(
            settings=settings,
            seller=provider,
            new_hold=lambda: HoldId(new_hold()),
            new_contract=lambda now: ContractId(fresh_ids.new_id(now)),
            make_contract=make_contract,
        )
        self._books = Books()
        self._view = View(store, PREFIX, self._read, changed=self._moved)
        self._written: dict[str, tuple[bytes, Account | Hold | Sale]] = {}  # by us, and not come back yet
        self._desks: dict[FlavorId, Desk] = {}
        self._under_way: set[str] = set()  # names of requests that are done once
        self._deadlines = Deadlines()
        self._alarm = asyncio.Event()
        self._group: asyncio.TaskGroup | None = None
        self.changes = Changes(settings.history, self.flavors)

    async def run(self) -> None:
        """Follow the store, take requests and mind deadlines, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._view.run())
                await self.ready()
                self._group = group
                await self._mind_deadlines()
        finally:
            self._group = None
            gone = errors.Unavailable("the market is closing; what was asked last may have happened")
            for desk in self._desks.values():
                desks.tell([(one, gone) for one in (*desk.line, *desk.asked)])
            self._desks.clear()

    async def ready(self) -> None:
        """Wait until the mirror has been read."""
        await self._view.ready()

    # Offers

    async def publish(self, flavor: Flavor, *, actor: str, capacity: Room | None = None) -> Account:
        """Offer it, `capacity` of it if not all; one that was withdrawn may be offered again.

        The same again is no change; `AlreadyExists` if the id is that of another.
        """
        if flavor.provider != self._provider:
            raise errors.Invalid(f"this provider is {self._provider}; it offers nothing of others")
        if len(self._books.flavors) - len(self._books.over_flavors) >= self._settings.max_flavors:
            raise errors.TooLarge(
                f"{self._settings.max_flavors} flavors are offered, the most; withdraw some"
            )
        request = Publish(flavor, flavor.whole if capacity is None else capacity, actor)
        return _account(await self._ask(flavor.id, request))

    async def update(
        self, id: FlavorId, change: Callable[[Flavor], Flavor], *, actor: str, capacity: Room | None = None
    ) -> Account:
        """Change terms or capacity; never below what is held or sold, whose terms stay."""
        return _account(await self._ask(await self._find_flavor(id), Update(change, capacity, actor)))

    async def withdraw(self, id: FlavorId, *, actor: str, reason: str = "", reclaim: bool = False) -> Account:
        """Offer it no longer; with `reclaim`, take its contracts back after the notice of each."""
        request = Withdraw(ids.check_label(reason, "reason"), reclaim, actor)
        return _account(await self._ask(await self._find_flavor(id), request))

    async def reclaim(self, id: ContractId, *, actor: str, reason: str = "") -> Sale:
        """Say that the provider takes one contract back; it ends after its notice."""
        request = Reclaim(id, ids.check_label(reason, "reason"), actor)
        return _sale(await self._ask(await self._flavor_of_contract(id), request))

    # Holds

    async def reserve(
        self,
        buyer: CloudId,
        flavor: FlavorId,
        *,
        room: Room | None = None,
        count: int = 1,
        duration_s: float | None = None,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
    ) -> Hold:
        """Hold `count` times `room`, or all that is free, until the hold's deadline.

        `NoRoom` if it is not free; with `wait_s`, after waiting in line that long. `NotFound` for an unknown
        flavor, `Expired` for one that is withdrawn, `Unprocessable` against its policies, or for another
        request with the same key; `Conflict` while a request with the key is under way; `Overloaded` for a
        buyer that holds too much, or too often without buying.
        """
        settings = self._settings
        check_cloud(buyer, "buyer")
        if type(count) is not int or count < 1:
            raise errors.Invalid("count is a whole number above 0", field="count")
        if room is not None:
            room * count  # raises what no offer could hold, before anybody waits for it
        duration_s = settings.contract_s if duration_s is None else duration_s
        if not 1 <= duration_s <= settings.max_contract_s:
            raise errors.Invalid(
                f"a contract lasts 1 to {settings.max_contract_s:.0f} s, not {duration_s:g}", field="duration"
            )
        if not wait_s >= 0:
            raise errors.Invalid("the time to wait is 0 or more seconds", field="wait")
        once, digest = once_only(idempotency_key, buyer, flavor, room, count, duration_s)
        wait_until = self._time.now() + min(wait_s, settings.max_wait_s) if wait_s else None
        request = Reserve(flavor, buyer, room, count, duration_s, wait_until, once, digest)
        if not once:
            return _hold(await self._ask(await self._find_flavor(flavor), request))
        if once in self._under_way:
            raise errors.Conflict("a request with this Idempotency-Key is under way; wait for its answer")
        self._under_way.add(once)
        try:
            return _hold(await self._ask(await self._find_flavor(flavor), request))
        finally:
            self._under_way.remove(once)

    async def purchase(self, id: HoldId, buyer: CloudId) -> Sale:
        """Turn the hold into its contract, once; again, it is the same contract.

        `NotFound`, `Forbidden` for anybody but its buyer, `Expired` if it was cancelled or its time is over.
        """
        return _sale(await self._ask(await self._flavor_of_hold(id), Purchase(id, buyer)))

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold:
        """Give the hold up; `Conflict` if it was bought."""
        return _hold(await self._ask(await self._flavor_of_hold(id), Cancel(id, buyer)))

    # Contracts

    async def release(self, id: ContractId, buyer: CloudId) -> Sale:
        """Give the contract's room back now."""
        return _sale(await self._ask(await self._flavor_of_contract(id), Release(id, buyer)))

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> Sale:
        """Let the contract last until then, at the price of now for the time that is added.

        No change if it lasts that long already. `Expired` if it, or its flavor, is over.
        """
        return _sale(await self._ask(await self._flavor_of_contract(id), Renew(id, buyer, until)))

    async def countersign(self, id: ContractId, buyer: CloudId, document: bytes) -> Sale:
        """Keep the contract as its buyer signed it, once; whoever calls has verified it."""
        return _sale(await self._ask(await self._flavor_of_contract(id), Countersign(id, buyer, document)))

    # Reading

    def flavors(self) -> Sequence[Account]:
        """All that is offered, in the order of ids, also if nothing of it is free."""
        now = self._time.now()
        accounts = (self._as_of(book, now) for _, book in sorted(self._books.flavors.items()))
        return [account for account in accounts if account is not None and account.withdrawn is None]

    def flavor(self, id: FlavorId) -> Account:
        """Raises `NotFound`; one that was withdrawn is found while it is kept."""
        account = self._as_of(self._books.book(id), self._time.now())
        if account is None:
            raise errors.NotFound("there is no such flavor; list flavors to see what is offered")
        return account

    def hold(self, id: HoldId) -> Hold:
        """Live or ended; raises `NotFound`."""
        if id not in self._books.holds:
            raise no_such_hold()
        return self._hold_as_of(self._books.holds[id], self._time.now())

    def contract(self, id: ContractId) -> Sale:
        """Live or ended; raises `NotFound`."""
        if id not in self._books.sales:
            raise no_such_contract()
        return self._books.sales[id]

    def holds(self, buyer: CloudId | None = None) -> Sequence[Hold]:
        """Holds that are kept, live or ended, of one buyer or of all."""
        now = self._time.now()
        return [
            self._hold_as_of(hold, now)
            for hold in self._books.holds.values()
            if buyer is None or hold.buyer == buyer
        ]

    def contracts(self, buyer: CloudId | None = None) -> Sequence[Sale]:
        """Contracts that are kept, live or ended, of one buyer or of all."""
        sales = self._books.sales.values()
        return [sale for sale in sales if buyer is None or sale.contract.buyer == buyer]

    def audit(self) -> dict[FlavorId, list[str]]:
        """Flavors whose free, held and sold do not add up, and why; empty, unless we have a fault."""
        found = {id: book.audit() for id, book in self._books.flavors.items()}
        return {id: wrong for id, wrong in found.items() if wrong}

    def _as_of(self, book: Book, now: float) -> Account | None:
        """The account with what is due by now ended, though it may not be written yet."""
        if book.next_due is None or book.next_due > now:
            return book.account
        draft = Draft(self._books, book, now, self._means)
        draft.tidy()
        return draft.account

    def _hold_as_of(self, hold: Hold, now: float) -> Hold:
        if hold.ending is None and not hold.is_live(now):
            return replace(hold, ending=Ending.EXPIRED, ended_at=hold.expires_at)
        return hold

    # Deciding

    async def _ask(self, flavor: FlavorId, request: Request) -> Answer:
        if self._group is None:
            raise errors.Unavailable("the market is not open yet; try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        desk = self._desks.setdefault(flavor, Desk())
        desk.asked.append(Asked(request, answer))
        self._wake(flavor, desk)
        return await answer

    def _wake(self, flavor: FlavorId, desk: Desk) -> None:
        if not desk.is_busy and self._group is not None:
            desk.is_busy = True
            self._group.create_task(self._serve(flavor, desk))

    async def _serve(self, flavor: FlavorId, desk: Desk) -> None:
        """Decide on whatever is at the desk until there is nothing more to decide."""
        is_done = False
        while not is_done or desk.asked:
            line, asked = desk.next(MAX_OPS)
            try:
                decision = decide(self._books, flavor, line, asked, self._time.now(), self._means)
            except Exception as error:
                log.exception("ledger.broken", flavor=flavor)
                fault = errors.Internal(
                    "the ledger could not decide; nothing was changed", detail=repr(error)
                )
                desks.tell([(one, fault) for one in desk.asked])
                break
            try:
                if decision.is_change:
                    await self._write(flavor, decision)
            except errors.Conflict:
                try:
                    await self._catch_up(flavor)
                except errors.SkerryError as error:
                    self._fail(flavor, desk, decision, error)
                continue
            except errors.SkerryError as error:
                self._fail(flavor, desk, decision, error)
                is_done = True
                continue
            desks.tell(desk.settle(decision))
            is_done = decision.is_all
            await asyncio.sleep(0)  # those just answered may have something for the next decision
        desk.is_busy = False
        if desk.line:
            waits = [one.request.wait_until for one in desk.line if isinstance(one.request, Reserve)]
            self._arm(flavor, min(until for until in waits if until is not None))
        elif not desk.asked:
            self._desks.pop(flavor, None)
        self._arm(flavor, self._books.book(flavor).next_due)

    def _fail(self, flavor: FlavorId, desk: Desk, decision: Decision, error: errors.SkerryError) -> None:
        """Tell everybody whose answer would have been written; what is due is tried again."""
        desks.tell([(one, error) for one, _ in desk.settle(decision)])
        log.warning("ledger.unwritten", flavor=flavor, error=error.message, detail=error.detail)
        self._arm(flavor, self._time.now() + _RETRY_S)

    async def _write(self, flavor: FlavorId, decision: Decision) -> None:
        """Make a decision durable, and wait until the mirror has it."""
        assert decision.account is not None  # nothing changes without one
        account_key = flavor_key(flavor)
        records: dict[str, Account | Hold | Sale] = {account_key: decision.account}
        records |= {hold_key(id): hold for id, hold in decision.holds.items()}
        records |= {contract_key(id): sale for id, sale in decision.sales.items()}
        ops: list[Op] = [Put(key, jsonio.encode(value)) for key, value in records.items()]
        written = {put.key: (put.value, records[put.key]) for put in ops if isinstance(put, Put)}
        ops += [
            self._events.put(told.kind, told.subject, actor=told.actor, reason=told.reason, **told.data)
            for told in decision.events
        ]
        new = [hold for hold in decision.holds.values() if hold.id not in self._books.holds]
        for hold in new:
            self._books.buyers.promise(hold)
        self._written |= written
        try:
            expect = Expect(account_key, self._books.book(flavor).revision or ABSENT)
            await self._view.seen(await self._store.commit(ops, [expect]))
        finally:
            for hold in new:
                self._books.buyers.forget(hold)
            for key in written:
                self._written.pop(key, None)

    async def _catch_up(self, flavor: FlavorId) -> None:
        """Another server has changed this flavor: wait until the mirror has that."""
        entry = await self._store.get(flavor_key(flavor))
        await self._view.reached(entry.revision if entry is not None else await self._store.revision())

    async def _find_flavor(self, id: FlavorId) -> FlavorId:
        if id not in self._books.flavors:
            await self._look_up(flavor_key(id))
        return id

    async def _flavor_of_hold(self, id: HoldId) -> FlavorId:
        if id not in self._books.holds:
            await self._look_up(hold_key(id))
        if id not in self._books.holds:
            raise no_such_hold()
        return self._books.holds[id].flavor.id

    async def _flavor_of_contract(self, id: ContractId) -> FlavorId:
        if id not in self._books.sales:
            await self._look_up(contract_key(id))
        if id not in self._books.sales:
            raise no_such_contract()
        return self._books.sales[id].contract.flavor.id

    async def _look_up(self, key: str) -> None:
        """Perhaps another server has just written it."""
        try:
            ids.check_id(key.rpartition("/")[2])
        except errors.Invalid:
            return  # there cannot be such a thing
        entry = await self._store.get(key)
        if entry is not None:
            await self._view.reached(entry.revision)

    # Following the store

    def _read(self, entry: Entry) -> Kept:
        ours = self._written.pop(entry.key, None)
        if ours is not None and ours[0] == entry.value:
            return Kept(ours[1], entry.revision)
        value: Account | Hold | Sale
        if entry.key.startswith(FLAVORS):
            value = jsonio.decode(entry.value, Account)
        elif entry.key.startswith(CONTRACTS):
            value = jsonio.decode(entry.value, Sale)
        else:
            value = jsonio.decode(entry.value, Hold)
        return Kept(value, entry.revision)

    def _moved(self, moved: Sequence[Moved[Kept]]) -> None:
        touched: dict[FlavorId, None] = {}
        changed: list[Changed] = []
        is_reset = False
        for _, before, after in moved:
            was = before.value if before is not None else None
            now = after.value if after is not None else None
            if isinstance(was, Account) or isinstance(now, Account):
                assert not isinstance(was, Hold | Sale)
                assert not isinstance(now, Hold | Sale)
                id = _flavor_id(was, now)
                self._books.put_account(id, now, after.revision if after is not None else 0)
                touched[id] = None
                if now is None:
                    # An offer goes only after it was withdrawn, unless the store was put back to a backup.
                    is_reset = is_reset or (was is not None and was.withdrawn is None)
                elif was is None or was.flavor.version != now.flavor.version:
                    changed.append(Changed(was, now))
            elif isinstance(was, Hold) or isinstance(now, Hold):
                assert not isinstance(was, Sale)
                assert not isinstance(now, Sale)
                touched[self._books.put_hold(was, now)] = None
            else:
                touched[self._books.put_sale(was, now)] = None
        newest = max((after.revision for _, _, after in moved if after is not None), default=0)
        if self._view.revision < 0 or is_reset:
            self._books.sort()
            self.changes.start(newest)
        elif changed:
            self.changes.tell(newest, changed)
        for id in touched:
            self._arm(id, self._books.book(id).next_due)
            desk = self._desks.get(id)
            if desk is not None and desk.line:
                self._wake(id, desk)
        if self._is_overfull:
            self._alarm.set()

    # Deadlines

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
            self._look_at_due()
            if self._is_overfull and self._owns_deadlines():
                await self._trim()

    def _look_at_due(self) -> list[asyncio.Future[Answer]]:
        now = self._time.now()
        looks = []
        for flavor in self._deadlines.take(now):
            desk = self._desks.get(flavor)
            if not self._owns_deadlines() and (desk is None or not desk.line):
                self._arm(flavor, now + _RETRY_S)
                continue
            look: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            look.add_done_callback(_ignore)
            desk = self._desks.setdefault(flavor, Desk())
            desk.asked.append(Asked(Look(), look))
            self._wake(flavor, desk)
            looks.append(look)
        return looks

    async def sweep(self) -> None:
        """End what is due. Happens by itself; a test with its own clock calls it."""
        await asyncio.gather(*self._look_at_due())
        if self._is_overfull:
            await self._trim()

    @property
    def _is_overfull(self) -> bool:
        """True if more that is over is kept than need be."""
        most = self._settings.keep_ended + _SLACK
        books = self._books
        return max(len(books.over_holds), len(books.over_sales), len(books.over_flavors)) > most

    async def _trim(self) -> None:
        """Forget the oldest of what is over; nothing changes in such a record any more."""
        books, keep = self._books, self._settings.keep_ended
        keys = [hold_key(id) for id in list(books.over_holds)[: max(0, len(books.over_holds) - keep)]]
        for id in list(books.over_sales)[: max(0, len(books.over_sales) - keep)]:
            keys += [contract_key(id), hold_key(books.sales[id].contract.hold)]
        keys += [flavor_key(id) for id in list(books.over_flavors)[: max(0, len(books.over_flavors) - keep)]]
        for start in range(0, len(keys), MAX_OPS):
            try:
                revision = await self._store.commit([Delete(key) for key in keys[start : start + MAX_OPS]])
                await self._view.seen(revision)
            except errors.Unavailable as error:
                log.warning("ledger.untrimmed", error=error.message)
                return


def _ignore(look: asyncio.Future[Answer]) -> None:
    """Nobody waits for it; what went wrong was logged."""
    if not look.cancelled():
        look.exception()


def _flavor_id(was: Account | None, now: Account | None) -> FlavorId:
    account = now or was
    assert account is not None
    return account.flavor.id


def _account(answer: Answer) -> Account:
    assert isinstance(answer, Account)
    return answer


def _hold(answer: Answer) -> Hold:
    assert isinstance(answer, Hold)
    return answer


def _sale(answer: Answer) -> Sale:
    assert isinstance(answer, Sale)
    return answer
