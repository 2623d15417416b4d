"""The market: deals in the ledger and over HTTP, lists, and news to subscribers.

Here is how many deals the ledger makes durable: a hold and its purchase, with a signed contract, on SQLite.
Buyers make one deal after the other, all at once, on one flavor or spread over several; events are written
and trimmed as they are in earnest. Signing alone is measured in the same rounds, because every deal needs it,
so that what else the machine does falls on both.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import uvloop

from bench import market_deals, market_lists, market_news
from bench.figures import Figure
from skerry.control.events.log import EventLog
from skerry.kit import logs
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import TaskSupervisor
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.signatures import ContractSigner
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Contract, Offer, Partition, Price
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources
from skerry.model.settings import EventSettings
from skerry.store.sqlite.store import SqliteStore

ROUNDS = 5
ROUND_S = 1.0
BUYERS = 64
FLAVORS = 8
PART = Resources(Millicores(1000), Megabytes(1))


def measure() -> Iterator[Figure]:
    logs.setup("warning")
    with tempfile.TemporaryDirectory() as folder:
        signatures, alone, crowd, spread, times = uvloop.run(_rounds(Path(folder)))
    yield Figure("contracts written down and signed, nothing else", signatures, "a second")
    yield Figure("one buyer: hold and purchase", alone, "durable pairs/s")
    yield Figure(
        f"{BUYERS} buyers, one flavor",
        crowd,
        "durable pairs/s",
        at_least=2000,
        peer=signatures,
        peer_unit="a second",
        peer_name="signing alone",
    )
    yield Figure(f"{BUYERS} buyers, {FLAVORS} flavors", spread, "durable pairs/s")
    yield Figure(f"one pair, {BUYERS} buyers, one flavor: p50", statistics.median(times) * 1e3, "ms")
    yield Figure("the same: p99", statistics.quantiles(times, n=100)[98] * 1e3, "ms")
    yield from market_deals.measure()
    yield from market_lists.measure()
    yield from market_news.measure()


async def _rounds(folder: Path) -> tuple[float, float, float, float, list[float]]:
    key = SigningKey.generate()
    times: list[float] = []
    async with _ledger(folder, key) as ledger:
        ids = [OfferId(f"flavor-{number}") for number in range(FLAVORS)]
        for id in ids:
            await ledger.publish(_flavor(id, key.cloud), actor="bench")
        first = await ledger.reserve(CloudId("first"), ids[0], resources=PART)
        sale = await ledger.purchase(first.id, CloudId("first"))
        rates = [
            (
                _sign(ContractSigner(key), sale.contract),
                await _round(ledger, ids[:1], 1, []),
                await _round(ledger, ids[:1], BUYERS, times),
                await _round(ledger, ids, BUYERS, []),
            )
            for _ in range(ROUNDS)
        ]
        wrong = ledger.audit()
        assert not wrong, wrong
    signatures, alone, crowd, spread = (statistics.median(column) for column in zip(*rates, strict=True))
    return signatures, alone, crowd, spread, times


@asynccontextmanager
async def _ledger(folder: Path, key: SigningKey) -> Any:
    clock = SystemClock()
    store = await SqliteStore.open(folder / "store.db", clock)
    events = EventLog(store, clock, EventSettings())
    ledger = Ledger(store, clock, MarketSettings(), events, signer=ContractSigner(key))
    try:
        async with TaskSupervisor("bench") as keep:
            keep.forever("ledger", ledger.run)
            keep.forever("events", events.run)
            await ledger.ready()
            yield ledger
    finally:
        await store.close()


def _flavor(id: OfferId, provider: CloudId) -> Offer:
    return Offer(
        id=id,
        provider=provider,
        kind="k8slice",
        resources=Resources(
            Millicores(MAX_AMOUNT // 1000 * 1000), Megabytes(MAX_AMOUNT // 1000), Gigabytes(0)
        ),
        price=Price(Decimal("1000.00"), "EUR", "PT1H"),
        created_at=0.0,
        partition=Partition(least=PART, step=PART),
    )


async def _round(ledger: Ledger, ids: Sequence[OfferId], buyers: int, times: list[float]) -> float:
    started = time.perf_counter()
    done = 0

    async def deal(number: int) -> None:
        nonlocal done
        buyer, flavor = CloudId(f"buyer-{number}"), ids[number % len(ids)]
        while (begun := time.perf_counter()) - started < ROUND_S:
            hold = await ledger.reserve(buyer, flavor, resources=PART)
            await ledger.purchase(hold.id, buyer)
            times.append(time.perf_counter() - begun)
            done += 1

    await asyncio.gather(*(deal(number) for number in range(buyers)))
    return done / (time.perf_counter() - started)


def _sign(notary: ContractSigner, contract: Contract) -> float:
    done, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < ROUND_S / 4:
        notary.sign(contract)
        done += 1
    return done / elapsed
