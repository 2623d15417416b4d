"""Offers that follow the nodes: as large as the nodes allow, and never below what was promised."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.market import offers
from skerry.market.offers import Supply
from skerry.model import errors
from skerry.model.ids import FlavorId, NodeId
from skerry.model.market import Price
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room
from skerry.model.settings import MarketSettings
from tests.market.markets import ANN, BOB, PROVIDER, Market, market, outcome, room

SETTINGS = MarketSettings(
    sell_percent=50, sell_price="0.02", sell_memory_min=1000, sell_memory_step=500, location="harbour"
)
ROOM = room(8, 16_000, 100)
NODE = Supply(NodeId("n1"), ROOM, ROOM, architecture="amd64", labels={"zone": "a"})
ID = FlavorId("node-n1")


def wanted(*supplies: Supply, **changes: Any) -> list[offers.Wanted]:
    return offers.wanted(supplies, replace(SETTINGS, **changes), provider=PROVIDER, now=1.0)


async def follow(m: Market, *supplies: Supply) -> None:
    await offers.follow(m.ledger, wanted(*supplies))


def test_a_share_of_a_node_is_offered_at_the_price_of_its_cores() -> None:
    (offer,) = wanted(NODE)
    assert offer.capacity == offer.flavor.room == room(4, 8000, 50)
    assert offer.flavor.price == Price(Decimal("0.08"), "EUR", "PT1H")
    assert (offer.flavor.id, offer.flavor.worker) == (ID, "n1")
    assert (offer.flavor.architecture, offer.flavor.location) == ("amd64", "harbour")


def test_nothing_is_for_sale_unless_it_is_said() -> None:
    assert wanted(NODE, sell_percent=0) == []
    assert wanted(NODE, sell_nodes=("zone=b",)) == []
    assert len(wanted(NODE, sell_nodes=("zone=a",))) == 1
    assert wanted(replace(NODE, machine=room(1, 1000))) == []  # half a core


def test_a_node_without_a_place_for_more_offers_nothing_but_keeps_its_flavor() -> None:
    (offer,) = wanted(replace(NODE, takes_work=False))
    assert offer.capacity == NOTHING
    (offer,) = wanted(replace(NODE, used=room(6, 14_300, 0)))
    assert offer.capacity == room(2, 1500, 50)
    assert offer.flavor == wanted(NODE)[0].flavor


def test_the_share_is_one_of_the_machine_and_what_there_is_of_it_leaves_the_reserve_alone() -> None:
    small = replace(NODE, machine=room(2, 16_000, 100), room=Room(Millicores(1900), Megabytes(15_200)))
    (offer,) = wanted(small)
    assert offer.flavor.room == room(1, 8000, 50)
    assert offer.capacity == room(1, 8000)
    (offer,) = wanted(small, sell_percent=100)
    assert offer.capacity == room(1, 15_000)


def test_a_price_that_is_no_number_or_no_money_is_said_plainly() -> None:
    with pytest.raises(errors.Invalid, match=r"'XXQ' is no currency of ISO 4217"):
        wanted(NODE, sell_currency="XXQ")
    with pytest.raises(errors.Invalid, match=r"market\.sell_price 'cheap' is no number"):
        wanted(NODE, sell_price="cheap")


sizes = st.builds(
    lambda c, m, d: Room(Millicores(c), Megabytes(m), Gigabytes(d)),
    st.integers(0, 64_000),
    st.integers(0, 10**6),
    st.integers(0, 5000),
)


@given(room=sizes, used=sizes, percent=st.integers(0, 100), takes_work=st.booleans())
def test_what_is_offered_is_there_and_within_the_share(
    room: Room, used: Room, percent: int, takes_work: bool
) -> None:
    for offer in wanted(Supply(NodeId("n"), room, room, used, takes_work), sell_percent=percent):
        assert offer.flavor.room.fits(offer.capacity)
        assert room.fits(offer.flavor.room)
        assert offer.flavor.room.cpu * 100 <= room.cpu * percent
        for (_, _, there), (_, _, busy), (_, _, offered) in zip(
            room.parts(), used.parts(), offer.capacity.parts(), strict=True
        ):
            assert offered <= max(0, there - busy)
        if offer.capacity.cpu and offer.capacity.memory:
            offer.flavor.check_part(offer.capacity, offer.capacity)


async def test_offers_grow_and_shrink_with_their_node_but_not_below_what_is_sold() -> None:
    async with market() as m:
        await follow(m, NODE)
        await m.buy(ANN, cpu=3, flavor=ID)
        await follow(m, replace(NODE, used=room(6, 0, 0)))
        assert m.split(ID) == (0, 0, 3)
        await follow(m, replace(NODE, takes_work=False))
        assert m.ledger.flavor(ID).capacity == room(3, 3000, 0)
        await follow(m, NODE)
        assert m.split(ID) == (1, 0, 3)


async def test_what_ends_on_a_node_that_drains_is_not_offered_again() -> None:
    """Not even to who waits for it, or until the offers are looked at again."""
    async with market() as m:
        await follow(m, NODE)
        held, sale = await m.reserve(ANN, cpu=2, flavor=ID), await m.buy(ANN, cpu=2, flavor=ID)
        waiter = asyncio.create_task(outcome(m.reserve(BOB, cpu=1, flavor=ID, wait_s=10)))
        await asyncio.sleep(0)
        await follow(m, replace(NODE, takes_work=False))
        assert m.split(ID) == (0, 2, 2)
        assert await waiter is errors.NoRoom
        await m.ledger.cancel(held.id, ANN)
        assert m.split(ID) == (0, 0, 2)
        await m.ledger.release(sale.contract.id, ANN)
        assert m.split(ID) == (0, 0, 0)
        await follow(m, NODE)
        assert m.split(ID) == (4, 0, 0)


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with market() as m:
        await follow(m, NODE)
        await m.reserve(flavor=ID)
        before = await m.store.revision()
        await follow(m, NODE)
        assert await m.store.revision() == before


async def test_a_node_that_is_gone_takes_its_contracts_back_after_their_notice() -> None:
    async with market(notice_s=120.0) as m:
        await m.publish()
        await follow(m, NODE)
        sale = await m.buy(flavor=ID)
        await follow(m)
        assert [account.flavor.id for account in m.ledger.flavors()] == ["f"]  # of no node, so none of ours
        assert m.ledger.contract(sale.contract.id).contract.reclaim_at == m.clock.now() + 120
        await follow(m, NODE)
        assert m.split(ID) == (3, 0, 1)


async def test_one_offer_that_cannot_be_made_does_not_keep_others_from_being() -> None:
    async with market() as m:
        await m.publish(id=FlavorId("node-n0"))
        await follow(m, replace(NODE, node=NodeId("n0")), NODE)
        assert [account.flavor.worker for account in m.ledger.flavors()] == ["", "n1"]
