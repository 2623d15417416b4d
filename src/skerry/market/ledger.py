"""The ledger: offers, holds and contracts, made durable before anybody is told.

Requests about a flavor are decided together (`skerry.market.decisions`: no I/O) and written in one
transaction, which expects the flavor's account at the revision that was decided on. If another server was
quicker, its change is read and the same requests are decided again. Answers are given when the transaction is
durable and in the books, so who was answered finds it.

Deadlines stand in the records, on the provider's clock; they are judged at every decision and every read, and
minded by `run` of the server that owns them. Limits of a buyer over all flavors are counted by each server on
what it knows. This module is the door: it checks what comes in, and reads; `clerks` does the work.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from skerry.kit import ids as fresh_ids
from skerry.kit.clock import Clock
from skerry.market.accounts import Account, Sale, contract_key, flavor_key, hold_key
from skerry.market.books import Book
from skerry.market.changes import Changes
from skerry.market.clerks import Clerk, Listener
from skerry.market.deadlines import SteadyTime
from skerry.market.decisions import Answer
from skerry.market.drafts import Draft, Means, no_such_contract, no_such_hold
from skerry.market.mirrors import EventWriter
from skerry.market.requests import (
    Cancel,
    Countersign,
    Publish,
    Purchase,
    Reclaim,
    Release,
    Renew,
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
from skerry.store.protocol import Store


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
        self._settings = settings
        self._provider = provider
        self._time = SteadyTime(clock)
        self._means = Means(
            settings=settings,
            seller=provider,
            new_hold=lambda: HoldId(new_hold()),
            new_contract=lambda now: ContractId(fresh_ids.new_id(now)),
            new_version=lambda: self._mirror.revision + 1,
            make_contract=make_contract,
        )
        self.changes = Changes(settings.history, self.flavors)
        self._clerk = Clerk(store, events, self.changes, self._time, self._means, owns_deadlines)
        self._mirror = self._clerk.mirror
        self._books = self._mirror.books
        self._under_way: set[str] = set()  # names of requests that are done once

    async def run(self) -> None:
        """Follow the store, take requests and mind deadlines, for ever."""
        await self._clerk.run()

    async def ready(self) -> None:
        """Wait until the books have been read and requests are taken."""
        await self._clerk.ready()

    async def sweep(self) -> None:
        """End what is due. Happens by itself; a test with its own clock calls it."""
        await self._clerk.sweep()

    def now(self) -> float:
        """The time that deadlines are judged by."""
        return self._time.now()

    def listen(self, moved: Listener) -> Callable[[], None]:
        """Call `moved` with the flavors of which anything has changed, also a hold or a contract, before
        anybody is answered; the result ends that."""
        return self._clerk.listen(moved)

    # Offers

    async def publish(self, flavor: Flavor, *, actor: str, capacity: Room | None = None) -> Account:
        """Offer it, `capacity` of it if not all; one that was withdrawn may be offered again.

        The same again is no change; `AlreadyExists` if the id is that of another.
        """
        if flavor.provider != self._provider:
            raise errors.Invalid(f"this provider is {self._provider}; it offers nothing of others")
        books = self._books
        is_another = flavor.id not in books.flavors or flavor.id in books.over_flavors
        if is_another and len(books.flavors) - len(books.over_flavors) >= self._settings.max_flavors:
            raise errors.TooLarge(
                f"{self._settings.max_flavors} flavors are offered, the most; withdraw some"
            )
        request = Publish(flavor, flavor.whole if capacity is None else capacity, actor)
        return _account(await self._clerk.ask(flavor.id, request))

    async def update(
        self, id: FlavorId, change: Callable[[Flavor], Flavor], *, actor: str, capacity: Room | None = None
    ) -> Account:
        """Change terms or capacity; never below what is held or sold, whose terms stay."""
        return _account(await self._clerk.ask(await self._find_flavor(id), Update(change, capacity, actor)))

    async def withdraw(self, id: FlavorId, *, actor: str, reason: str = "", reclaim: bool = False) -> Account:
        """Offer it no longer; with `reclaim`, take its contracts back after the notice of each."""
        request = Withdraw(ids.check_label(reason, "reason"), reclaim, actor)
        return _account(await self._clerk.ask(await self._find_flavor(id), request))

    async def reclaim(self, id: ContractId, *, actor: str, reason: str = "", at_once: bool = False) -> Sale:
        """Say that the provider takes one contract back; it ends after its notice.

        With `at_once` it ends now: for a buyer that is gone, and whom no notice would reach.
        """
        request = Reclaim(id, ids.check_label(reason, "reason"), actor, at_once)
        return _sale(await self._clerk.ask(await self._flavor_of_contract(id), request))

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
        if settings.buyers and buyer not in settings.buyers:
            raise errors.Forbidden(
                f"this cloud sells only to those it names, and {buyer} is none of them; ask who runs it to "
                "add you to market.buyers (SKERRY_MARKET_BUYERS)"
            )
        if type(count) is not int or count < 1:
            raise errors.Invalid("count is a whole number above 0", field="count")
        if room is not None:
            room * count  # raises what no offer could hold, before anybody waits for it
        duration_s = settings.contract_s if duration_s is None else duration_s
        if not 1 <= duration_s <= settings.max_contract_s:
            raise errors.Invalid(
                f"a contract lasts 1 to {settings.max_contract_s:.0f} s, not {duration_s:.12g}",
                field="duration",
            )
        if not wait_s >= 0:
            raise errors.Invalid("the time to wait is 0 or more seconds", field="wait")
        once, digest = once_only(idempotency_key, buyer, flavor, room, count, duration_s)
        wait_until = self._time.now() + min(wait_s, settings.max_wait_s) if wait_s else None
        request = Reserve(flavor, buyer, room, count, duration_s, wait_until, once, digest)
        if not once:
            return _hold(await self._clerk.ask(await self._find_flavor(flavor), request))
        if once in self._under_way:
            raise errors.Conflict("a request with this Idempotency-Key is under way; wait for its answer")
        self._under_way.add(once)
        try:
            return _hold(await self._clerk.ask(await self._find_flavor(flavor), request))
        finally:
            self._under_way.remove(once)

    async def purchase(self, id: HoldId, buyer: CloudId) -> Sale:
        """Turn the hold into its contract, once; again, it is the same contract.

        `NotFound`, `Forbidden` for anybody but its buyer, `Expired` if it was cancelled or its time is over.
        """
        return _sale(await self._clerk.ask(await self._flavor_of_hold(id), Purchase(id, buyer)))

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold:
        """Give the hold up; `Conflict` if it was bought."""
        return _hold(await self._clerk.ask(await self._flavor_of_hold(id), Cancel(id, buyer)))

    # Contracts

    async def release(self, id: ContractId, buyer: CloudId) -> Sale:
        """Give the contract's room back now."""
        return _sale(await self._clerk.ask(await self._flavor_of_contract(id), Release(id, buyer)))

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> Sale:
        """Let the contract last until then, at the price of now for the time that is added.

        No change if it lasts that long already. `Expired` if it, or its flavor, is over.
        """
        return _sale(await self._clerk.ask(await self._flavor_of_contract(id), Renew(id, buyer, until)))

    async def countersign(self, id: ContractId, buyer: CloudId, document: bytes, *, over: bytes) -> Sale:
        """Keep the contract as its buyer signed it, once; whoever calls has verified that it signed `over`,
        and if that is no longer what holds it is `Conflict`."""
        signed = Countersign(id, buyer, document, over)
        return _sale(await self._clerk.ask(await self._flavor_of_contract(id), signed))

    # Reading

    def flavors(self) -> Sequence[Account]:
        """All that is offered, in the order of ids, also if nothing of it is free."""
        now = self._time.now()
        accounts = (self._as_of(book, now) for _, book in sorted(self._books.flavors.items()))
        return [account for account in accounts if account is not None and account.withdrawn is None]

    def flavors_of_nodes(self) -> Sequence[Account]:
        """All that are carved from a node, also those that were withdrawn and are kept."""
        now = self._time.now()
        accounts = (self._as_of(self._books.flavors[id], now) for id in sorted(self._books.of_nodes))
        return [account for account in accounts if account is not None]

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

    def live_contracts(self, flavor: FlavorId | None = None) -> Sequence[Contract]:
        """Contracts that have not ended, of one flavor or of all."""
        live = self._books.live_sales if flavor is None else self._books.book(flavor).sales
        return [sale.contract for sale in live.values()]

    async def find_hold(self, id: HoldId) -> Hold:
        """As `hold`, but found also if another server has only just made it."""
        await self._flavor_of_hold(id)
        return self.hold(id)

    async def find_contract(self, id: ContractId) -> Sale:
        """As `contract`, but found also if another server has only just made it."""
        await self._flavor_of_contract(id)
        return self.contract(id)

    def audit(self) -> dict[FlavorId, list[str]]:
        """Flavors whose free, held and sold do not add up, and why; empty, unless we have a fault."""
        return {id: wrong for id, wrong in self.audits() if wrong}

    def audits(self) -> Iterator[tuple[FlavorId, list[str]]]:
        """The same flavor by flavor, for whoever lets others go on between them; also those that add up."""
        return ((id, book.audit()) for id, book in list(self._books.flavors.items()))

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

    async def _find_flavor(self, id: FlavorId) -> FlavorId:
        if id not in self._books.flavors:
            await self._mirror.look_up(flavor_key(id))
        return id

    async def _flavor_of_hold(self, id: HoldId) -> FlavorId:
        if id not in self._books.holds:
            await self._mirror.look_up(hold_key(id))
        if id not in self._books.holds:
            raise no_such_hold()
        return self._books.holds[id].flavor.id

    async def _flavor_of_contract(self, id: ContractId) -> FlavorId:
        if id not in self._books.sales:
            await self._mirror.look_up(contract_key(id))
        if id not in self._books.sales:
            raise no_such_contract()
        return self._books.sales[id].contract.flavor.id


def _account(answer: Answer) -> Account:
    assert isinstance(answer, Account)
    return answer


def _hold(answer: Answer) -> Hold:
    assert isinstance(answer, Hold)
    return answer


def _sale(answer: Answer) -> Sale:
    assert isinstance(answer, Sale)
    return answer
