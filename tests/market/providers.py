"""Clouds that sell, for tests of those that buy: each a real ledger that can be made to fail, hang or lie."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer.acquisition import ContractBuyer
from skerry.market.buyer.contract_table import BorrowedContractTable
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.provider_client import RemoteContract, RemoteHold
from skerry.market.buyer.quotes import (
    BorrowedContract,
    BorrowedContractState,
    BuyProgress,
    CapacityRequest,
    MarketPeer,
)
from skerry.market.buyer.search import OfferSearch
from skerry.market.buyer.service import BuyerService
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.terms import signatures
from skerry.market.terms.selectors import OfferSnapshot
from skerry.market.terms.signatures import ContractSigner
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import Resources
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.market.markets import flavor, resources
from tests.support.deals import BUYER, OPEN, key

SETTINGS = MarketSettings(list_timeout_s=0.2, deal_timeout_s=5.0)


class Lender:
    """A provider that one buyer speaks with: `skerry.market.buyer.provider_client.ProviderClient` over a
    ledger."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.key = key(name)
        self.ledger = ledger
        self.calls: list[str] = []
        self.before: Callable[[str], Awaitable[None]] | None = None  # may raise, or wait
        self.forge: Callable[[ContractRecord], bytes] | None = None

    @property
    def peer(self) -> MarketPeer:
        return MarketPeer(self.name, f"http://{self.name}.example:1323", self.key.cloud)

    @property
    def name(self) -> str:
        return next(name for name in NAMES if key(name).cloud == self.key.cloud)

    async def sell(self, id: str = "f", **changes: Any) -> None:
        offer = flavor(id=OfferId(id), provider=self.key.cloud, **changes)
        await self.ledger.publish(offer, actor="ed")

    def split(self, id: str = "f") -> tuple[int, int, int]:
        """Cores that are free, held and sold."""
        account = self.ledger.flavor(OfferId(id))
        assert self.ledger.audit() == {}
        return account.free.cpu // 1000, account.held.cpu // 1000, account.sold.cpu // 1000

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.before is not None:
            await self.before(name)

    async def check(self) -> None:
        await self._called("check")

    async def offers(self, wish: CapacityRequest) -> Sequence[OfferSnapshot]:
        await self._called("offers")
        return [OfferSnapshot(account.flavor, account.free) for account in self.ledger.flavors()]

    async def reserve(
        self, flavor: OfferId, resources: Resources, count: int, duration_s: float | None, *, key: str
    ) -> RemoteHold:
        await self._called("reserve")
        hold = await self.ledger.reserve(
            BUYER.cloud, flavor, resources=resources, count=count, duration_s=duration_s, idempotency_key=key
        )
        return RemoteHold(hold.id, hold.resources, hold.count, hold.price)

    async def purchase(self, hold: HoldId) -> RemoteContract:
        await self._called("purchase")
        sale = await self.ledger.purchase(hold, BUYER.cloud)
        document = sale.document if self.forge is None else self.forge(sale)
        return RemoteContract(sale.contract.id, document, f"{sale.contract.id}.secret")

    async def cancel(self, hold: HoldId) -> None:
        await self._called("cancel")
        await self.ledger.cancel(hold, BUYER.cloud)

    async def sign(self, contract: ContractId, document: bytes) -> None:
        await self._called("sign")
        over = self.ledger.contract(contract).current
        signatures.check_countersigned(document, over)
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
        OPEN,
        EventLog(store, clock, EventSettings()),
        signer=ContractSigner(key(name)),
        new_hold=lambda: f"{name}-{next(numbers)}",
    )
    running = asyncio.ensure_future(ledger.run())
    try:
        await ledger.ready()
        yield Lender(name, ledger)
    finally:
        await cancel_and_wait([running])
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
        self.peers = MarketPeerTable(store, self.events, own=BUYER.cloud)
        self.contracts = BorrowedContractTable(store, self.events)
        self.own: list[OfferSnapshot] = []
        lister = OfferSearch(
            self.peers,
            lambda peer: by_cloud[peer.cloud],
            clock,
            timeout_s=settings.list_timeout_s,
            own=lambda: self.own,
        )
        numbers = itertools.count(1)
        self.buyer = ContractBuyer(
            self.contracts,
            self.peers,
            lister,
            lambda peer: by_cloud[peer.cloud],
            BUYER,
            clock,
            settings,
            new_id=lambda: f"deal-{next(numbers)}-of-{id(self)}",
        )
        self.desk = BuyerService(
            self.contracts,
            self.peers,
            lister,
            self.buyer,
            lambda peer: by_cloud[peer.cloud],
            BUYER,
            clock,
            settings,
        )

    @asynccontextmanager
    async def running(self, *known: MarketPeer) -> AsyncIterator[Shop]:
        loops = [asyncio.ensure_future(part.run()) for part in (self.peers, self.contracts)]
        loops.append(asyncio.ensure_future(self._open()))
        try:
            await self.peers.ready()
            await self.contracts.ready()
            for peer in known:
                await self.desk.set_peer(peer, actor="ed")
            yield self
        finally:
            await cancel_and_wait(loops)

    async def sweep(self) -> None:
        """What the loops of the buyer do by themselves, once."""
        await self.buyer.undo_left()
        if self.is_leading:
            await self.buyer.undo_overdue()

    async def _open(self) -> None:
        """Be whoever keeps contracts alive."""
        while True:
            moved = self.contracts.moved
            for record in self.contracts.all():
                if self.opens and record.borrowed.state is BorrowedContractState.OPENING:
                    opened = replace(
                        record, borrowed=replace(record.borrowed, state=BorrowedContractState.OPEN)
                    )
                    await self.contracts.change(
                        record.borrowed.id, lambda _, after=opened: after, actor="test"
                    )
            await moved.wait()

    async def buy(self, cpu: int = 1, **more: Any) -> BorrowedContract:
        """So many cores, and as many GB of memory."""
        told = await self.steps(cpu, **more)
        assert told[-1].borrowed is not None
        return told[-1].borrowed

    async def steps(self, cpu: int = 1, **more: Any) -> list[BuyProgress]:
        wish = CapacityRequest(resources(cpu, cpu * 1000), **more)
        return [progress async for progress in self.desk.buy(wish, actor="ann")]

    async def kinds(self) -> list[str]:
        """The events so far."""
        return [told.event.kind for told in await self.events.list_after("0")]


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
