"""A market for tests: a ledger on a store that forgets, with a clock that stands still, and small offers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.kit import json_codec, tasks
from skerry.kit.clock import Clock, ManualClock
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Contract, Hold, Offer, Partition, Price
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Put, Store

PROVIDER = CloudId("north")
ANN, BOB = CloudId("ann"), CloudId("bob")
F = OfferId("f")


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    """Cores, MB and GB."""
    return Resources(Millicores(cpu * 1000), Megabytes(memory), Gigabytes(disk))


def flavor(**changes: Any) -> Offer:
    """Eight cores and 8 GB, in parts of a core and 1 GB."""
    basics: dict[str, Any] = {
        "id": F,
        "provider": PROVIDER,
        "kind": "k8slice",
        "resources": resources(8, 8000),
        "price": Price(Decimal("0.80"), "EUR", "PT1H"),
        "created_at": 1.0,
        "partition": Partition(least=resources(1, 1000), step=resources(1, 1000)),
    }
    return Offer(**basics | changes)


def document(contract: Contract) -> bytes:
    """Stands for the signed contract: depends on every term, as that does."""
    return b"signed:" + json_codec.encode(contract)


class PlainSigner:
    """Writes documents that tell what was to be signed."""

    cloud = PROVIDER

    def sign(self, contract: Contract) -> bytes:
        return document(contract)


class Market:
    """A ledger that runs, and all around it."""

    def __init__(self, store: Store, clock: Clock, settings: MarketSettings, **options: Any) -> None:
        self.store = store
        self.clock: Any = clock  # moved by hand, unless a test is about time itself
        self.settings = settings
        self.events = EventLog(store, clock, EventSettings())
        numbers = itertools.count(1)
        prefix = options.pop("prefix", "hold")
        self.ledger = Ledger(
            store,
            clock,
            settings,
            self.events,
            signer=PlainSigner(),  # type: ignore[arg-type]
            new_hold=lambda: f"{prefix}-{next(numbers)}",
            **options,
        )
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self.ledger.run())
        await self.ledger.ready()

    async def stop(self) -> None:
        if self._running is not None:
            await tasks.cancel_and_wait([self._running])

    async def publish(self, **changes: Any) -> OfferRecord:
        return await self.ledger.publish(flavor(**changes), actor="ed")

    async def reserve(self, buyer: CloudId = ANN, cpu: int = 1, **options: Any) -> Hold:
        """So many cores, and as many GB of memory."""
        return await self.ledger.reserve(
            buyer, options.pop("flavor", F), resources=resources(cpu, cpu * 1000), **options
        )

    async def buy(self, buyer: CloudId = ANN, cpu: int = 1, **options: Any) -> ContractRecord:
        return await self.ledger.purchase((await self.reserve(buyer, cpu, **options)).id, buyer)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass and have the ledger notice."""
        self.clock.advance(seconds)
        await self.ledger.sweep()

    def split(self, id: OfferId = F) -> tuple[int, int, int]:
        """Cores that are free, held and sold, which make up all there are."""
        account = self.ledger.flavor(id)
        assert account.free + account.held + account.sold == account.capacity
        assert self.ledger.audit() == {}
        return account.free.cpu // 1000, account.held.cpu // 1000, account.sold.cpu // 1000

    async def kinds(self) -> list[str]:
        """The events so far."""
        return [told.event.kind for told in await self.events.list_after("0")]


@asynccontextmanager
async def market(
    *, store: Store | None = None, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[Market]:
    """`changes` are settings, or options of the ledger that are no settings."""
    clock = clock or ManualClock()
    ours = store or MemoryStore(clock)
    names = {"has_leader", "prefix", "is_known"}
    options = {name: changes.pop(name) for name in names & changes.keys()}
    one = Market(ours, clock, replace(MarketSettings(), **changes), **options)
    await one.start()
    try:
        yield one
    finally:
        await one.stop()
        if store is None:
            await ours.close()


async def lead(store: Store) -> Expect:
    """Be the server that leads from now on, whoever did before: the fence of that."""
    return Expect("leader", await store.commit([Put("leader", b"here")]))


async def outcome(work: Any) -> Any:
    """The result, or the class of the error."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - the caller looks at it
        return type(error)
