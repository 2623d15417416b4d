"""Clouds that sell, for tests of those that buy: each a real ledger that can be made to fail, hang or lie."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from skerry.control.events import EventLog
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import give_up
from skerry.market import signing
from skerry.market.accounts import Sale
from skerry.market.buying import Buyer
from skerry.market.dealing import Bought, Reserved
from skerry.market.ledger import Ledger
from skerry.market.listing import Lister
from skerry.market.loans import Loans
from skerry.market.peers import Peers
from skerry.market.selecting import Offer
from skerry.market.signing import Notary
from skerry.market.traders import Desk
from skerry.market.trading import Borrowed, Peer, Progress, State, Wish
from skerry.model.ids import ContractId, FlavorId, HoldId
from skerry.model.room import Room
from skerry.model.settings import EventSettings, MarketSettings
from skerry.store.memory import MemoryStore
from skerry.store.protocol import Store
from tests.market.markets import flavor, room
from tests.support.deals import BUYER, key

SETTINGS = MarketSettings(list_timeout_s=0.2, deal_timeout_s=5.0)


class Lender:
    """A provider that one buyer speaks with: `skerry.market.dealing.Provider` over a ledger."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.key = key(name)
        self.ledger = ledger
        self.calls: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None  # may raise, or wait
        self.forge: Callable[[Sale], bytes] | None = None

    @property
    def peer(self) -> Peer:
        return Peer(self.name, f"http://{self.name}.example:1323", self.key.cloud)

    @property
    def name(self) -> str:
        return next(name for name in NAMES if key(name).cloud == self.key.cloud)

    async def sell(self, id: str = "f", **changes: Any) -> None:
        offer = flavor(id=FlavorId(id), provider=self.key.cloud, **changes)
        await self.ledger.publish(offer, actor="ed")

    def split(self, id: str = "f") -> tuple[int, int, int]:
        """Cores that are free, held and sold."""
        account = self.ledger.flavor(FlavorId(id))
        assert self.ledger.audit() == {}
        return account.free.cpu // 1000, account.held.cpu // 1000, account.sold.cpu // 1000

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            await self.before(name)

    async def offers(self, wish: Wish) -> Sequence[Offer]:
        await self._called("offers")
        return [Offer(account.flavor, account.free) for account in self.ledger.flavors()]

    async def reserve(
        self, flavor: FlavorId, room: Room, count: int, duration_s: float | None, *, key: str
    ) -> Reserved:
        await self._called("reserve")
        hold = await self.ledger.reserve(
            BUYER.cloud, flavor, room=room, count=count, duration_s=duration_s, idempotency_key=key
        )
        return Reserved(hold.id, hold.room, hold.count, hold.price)

    async def purchase(self, hold: HoldId) -> Bought:
        await self._called("purchase")
        sale = await self.ledger.purchase(hold, BUYER.cloud)
        document = sale.document if self.forge is None else self.forge(sale)
        return Bought(sale.contract.id, document, f"{sale.contract.id}.secret")

    async def cancel(self, hold: HoldId) -> None:
        await self._called("cancel")
        await self.ledger.cancel(hold, BUYER.cloud)

    async def sign(self, contract: ContractId, document: bytes) -> None:
        await self._called("sign")
        over = self.ledger.contract(contract).current
        signing.check_countersigned(document, over)
        await self.ledger.countersign(contract, BUYER.cloud, document, over=over)

    async def release(self, contract: str) -> None:
        await self._called("release")
        await self.ledger.release(ContractId(contract), BUYER.cloud)

    async def renew(self, contract: ContractId, until: float) -> bytes:
        await self._called("renew")
        return (await self.ledger.renew(contract, BUYER.cloud, until)).current


NAMES = ("north", "south", "east")


@asynccontextmanager
async def lender(name: str, clock: ManualClock) -> AsyncIterator[Lender]:
    store = MemoryStore(clock)
    numbers = itertools.count(1)
    ledger = Ledger(
        store,
        clock,
        MarketSettings(),
        EventLog(store, clock, EventSettings()),
        provider=key(name).cloud,
        make_contract=Notary(key(name)).sign,
        new_hold=lambda: f"{name}-{next(numbers)}",
    )
    running = asyncio.ensure_future(ledger.run())
    try:
        await ledger.ready()
        yield Lender(name, ledger)
    finally:
        await give_up([running])
        await store.close()


class Shop:
    """A cloud that buys of these lenders, over a store that may be another's too."""

    def __init__(
        self, store: Store, clock: ManualClock, lenders: Sequence[Lender], settings: MarketSettings
    ) -> None:
        self.clock = clock
        self.store = store
        self.events = EventLog(store, clock, EventSettings())
        self.is_leading = True
        self.opens = True  # contracts are opened as soon as they are there
        by_cloud = {lender.key.cloud: lender for lender in lenders}
        self.peers = Peers(store, self.events, own=BUYER.cloud)
        self.loans = Loans(store, self.events)
        self.own: list[Offer] = []
        lister = Lister(
            self.peers,
            lambda peer: by_cloud[peer.cloud],
            clock,
            timeout_s=settings.list_timeout_s,
            own=lambda: self.own,
        )
        numbers = itertools.count(1)
        self.buyer = Buyer(
            self.loans,
            self.peers,
            lister,
            lambda peer: by_cloud[peer.cloud],
            BUYER,
            clock,
            settings,
            is_leading=lambda: self.is_leading,
            new_id=lambda: f"deal-{next(numbers)}-of-{id(self)}",
        )
        self.desk = Desk(
            self.loans,
            self.peers,
            lister,
            self.buyer,
            lambda peer: by_cloud[peer.cloud],
            BUYER,
            clock,
            settings,
        )

    @asynccontextmanager
    async def running(self, *known: Peer) -> AsyncIterator[Shop]:
        loops = [asyncio.ensure_future(part.run()) for part in (self.peers, self.loans)]
        loops.append(asyncio.ensure_future(self._open()))
        try:
            await self.peers.ready()
            await self.loans.ready()
            for peer in known:
                await self.desk.set_peer(peer, actor="ed")
            yield self
        finally:
            await give_up(loops)

    async def _open(self) -> None:
        """Be whoever keeps contracts alive."""
        while True:
            moved = self.loans.moved
            for loan in self.loans.all():
                if self.opens and loan.borrowed.state is State.OPENING:
                    opened = replace(loan, borrowed=replace(loan.borrowed, state=State.OPEN))
                    await self.loans.change(loan.borrowed.id, lambda _, after=opened: after, actor="test")
            await moved.wait()

    async def buy(self, cpu: int = 1, **more: Any) -> Borrowed:
        """So many cores, and as many GB of memory."""
        told = await self.steps(cpu, **more)
        assert told[-1].borrowed is not None
        return told[-1].borrowed

    async def steps(self, cpu: int = 1, **more: Any) -> list[Progress]:
        wish = Wish(room(cpu, cpu * 1000), **more)
        return [progress async for progress in self.desk.buy(wish, actor="ann")]

    async def kinds(self) -> list[str]:
        """The events so far."""
        return [told.event.kind for told in await self.events.kept("0")]


@asynccontextmanager
async def shop(*names: str, **changes: Any) -> AsyncIterator[tuple[Any, ...]]:
    """A shop that knows lenders of these names, and each of these."""
    clock = ManualClock()
    async with AsyncExitStack() as stack:
        lenders = [await stack.enter_async_context(lender(name, clock)) for name in names]
        store = MemoryStore(clock)
        stack.push_async_callback(store.close)
        made = Shop(store, clock, lenders, replace(SETTINGS, **changes))
        yield (
            await stack.enter_async_context(made.running(*(lender.peer for lender in lenders))),
            *lenders,
        )
