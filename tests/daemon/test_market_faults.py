"""Two hundred buyers of one flavor at a server that is killed again and again, on lines that are cut."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from pathlib import Path

from skerry.control.events.log import EventLog
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.model.ids import CloudId, OfferId
from skerry.model.market_settings import MarketSettings
from skerry.model.settings import EventSettings
from skerry.store.sqlite.store import SqliteStore
from tests.daemon.test_node import join_token
from tests.support import linearizability
from tests.support.linearizability import Kind
from tests.support.played_nodes import played_node
from tests.support.shopping import CORE_MB, FLAVOR, Buyer, Shop
from tests.support.skerry import Skerry
from tests.support.waiting import eventually

BUYERS = 200
KILLS = 3
CROWD = 150  # answers, or so, to buyers all at once
CALM = 300  # answers, of which the last were to one buyer after the other
CORES = 240
OFFER = {
    "FlavorID": FLAVOR,
    "Characteristics": {"Cpu": CORES, "Memory": CORES * CORE_MB},
    "Price": {"Amount": "6.00", "Currency": "EUR", "Period": "PT1H"},
    "Policy": {"Partitionable": {"CpuMin": 1, "MemoryMin": CORE_MB, "CpuStep": 1, "MemoryStep": CORE_MB}},
}
FLAGS = ("--set", "market.hold_s=600", "--log-level", "warning")


async def test_two_hundred_buyers_and_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    chance = random.Random(11)
    skerry = Skerry(tmp_path, *FLAGS, role="server")
    node = AsyncExitStack()
    try:
        await asyncio.to_thread(skerry.wait_ready)
        played = played_node(tmp_path / "node", skerry.ready["http"], join_token(skerry))
        await node.enter_async_context(played)
        address = ("--http", skerry.ready["http"].removeprefix("http://"), "--grpc", skerry.ready["grpc"])
        status, offered = skerry.call("POST", "/api/flavors", OFFER)
        assert status == 201, offered
        shop = Shop(CloudId(offered["ProviderID"]), int(skerry.ready["http"].rpartition(":")[2]))
        shop.is_open.set()
        buyers = [
            Buyer(shop, number, random.Random(number), has_key=number % 4 == 0) for number in range(BUYERS)
        ]
        for buyer in buyers[::4]:
            status, allowed = skerry.call("PUT", f"/market/buyers/{buyer.name}", {})
            assert status == 200, allowed
        shopping = asyncio.gather(*(buyer.shop() for buyer in buyers))
        try:
            for _ in range(KILLS):
                await answers(shop, shopping, chance.randint(CROWD // 2, CROWD * 3 // 2))
                shop.is_open.clear()
                skerry.kill()
                skerry = Skerry(tmp_path, *FLAGS, *address, role="server")
                await asyncio.to_thread(skerry.wait_ready)
                shop.is_open.set()
                await answers(shop, shopping, CROWD)
                shop.is_calm = True
                await answers(shop, shopping, CALM)
                shop.is_calm = False
            shop.is_closing = True
            await asyncio.wait_for(shopping, 30)
        finally:
            await cancel_and_wait([shopping])
        skerry.kill()
        skerry = Skerry(tmp_path, *FLAGS, *address, role="server")
        await asyncio.to_thread(skerry.wait_ready)
        await every_contract_is_there_as_it_was_answered(shop)
        nothing_is_lost_or_sold_twice(shop, skerry)
        history = shop.settled(skerry.call("GET", "/api/reservations")[1]["Items"])
        assert await asyncio.to_thread(skerry.stop) == 0
    finally:
        await node.aclose()
        if skerry.process.poll() is None:
            skerry.kill()
    linearizability.check(CORES, history)
    await the_books_add_up(tmp_path / "data" / "store.db", shop)


async def answers(shop: Shop, shopping: asyncio.Future[list[None]], more: int) -> None:
    """Until so many more were given, or a buyer saw something that cannot be."""
    wanted = shop.answers + more
    await eventually(lambda: shop.answers >= wanted or shopping.done(), within=60)
    if shopping.done():
        shopping.result()


async def every_contract_is_there_as_it_was_answered(shop: Shop) -> None:
    assert shop.contracts
    for transaction, (buyer, contract) in shop.contracts.items():
        assert await buyer.purchase(transaction) == contract
    for buyer in {buyer for buyer, _ in shop.contracts.values()}:
        buyer.hang_up()


def nothing_is_lost_or_sold_twice(shop: Shop, skerry: Skerry) -> None:
    held = skerry.call("GET", "/api/reservations")[1]["Items"]
    sold = skerry.call("GET", "/api/contracts")[1]["Items"]
    by_contract = {json.loads(contract)["ContractID"] for _, contract in shop.contracts.values()}
    assert {contract["ContractID"] for contract in sold} == by_contract, "each was answered in the end"
    assert all(signatures.verify(contract["Document"].encode()) for contract in sold)
    counts = {kind: [one for one in shop.history if one.kind is kind] for kind in Kind}
    assert len(by_contract) == len(counts[Kind.BOUGHT])
    unknown = sum(one.answered is None for one in counts[Kind.RESERVED])
    assert 0 <= len(held) - (len(counts[Kind.RESERVED]) - unknown) <= unknown
    taken = sum(one["Partition"]["Cpu"] for one in held if one["State"] == "held")
    taken += sum(one["Partition"]["Cpu"] for one in sold if one["State"] == "live")
    free = skerry.call("GET", f"/api/flavors/{FLAVOR}")[1]["Characteristics"]["Cpu"]
    assert free + taken == CORES


async def the_books_add_up(path: Path, shop: Shop) -> None:
    clock = SystemClock()
    store = await SqliteStore.open(path, clock)
    signer = signatures.ContractSigner(SigningKey.generate())  # signs nothing here
    signer.cloud = shop.provider
    ledger = Ledger(
        store,
        clock,
        MarketSettings(),
        EventLog(store, clock, EventSettings()),
        signer=signer,
        has_leader=True,
    )
    running = asyncio.ensure_future(ledger.run())
    try:
        await ledger.ready()
        assert ledger.audit() == {}
        assert ledger.flavor(OfferId(FLAVOR)).capacity.cpu == CORES * 1000
    finally:
        await cancel_and_wait([running])
        await store.close()
