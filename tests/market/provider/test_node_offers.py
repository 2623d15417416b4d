"""Offers that follow the nodes: as large as the nodes allow, and never below what was promised."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.market.provider import node_offers, offer_controller
from skerry.market.provider.ledger.change import UnplacedDemand
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.provider.node_offers import NodeSupply
from skerry.model import errors
from skerry.model.ids import NodeId, OfferId
from skerry.model.market import Offer, Price
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources
from tests.market.markets import ANN, BOB, PROVIDER, Market, flavor, market, outcome, resources

SETTINGS = MarketSettings(
    sell_percent=50, sell_price="0.02", sell_memory_min=1000, sell_memory_step=500, location="harbour"
)
ROOM = resources(8, 16_000, 100)
NODE = NodeSupply(NodeId("n1"), ROOM, ROOM, architecture="amd64", labels={"zone": "a"})
ID = OfferId("node-n1")


def wanted(*supplies: NodeSupply, **changes: Any) -> list[node_offers.DesiredOffer]:
    return node_offers.desired_offers(supplies, replace(SETTINGS, **changes), provider=PROVIDER, now=1.0)


async def follow(m: Market, *supplies: NodeSupply) -> None:
    await offer_controller.apply_plan(m.ledger, wanted(*supplies))


def test_a_share_of_a_node_is_offered_at_the_price_of_its_cores() -> None:
    (offer,) = wanted(NODE)
    assert offer.capacity == offer.flavor.resources == resources(4, 8000, 50)
    assert offer.flavor.price == Price(Decimal("0.08"), "EUR", "PT1H")
    assert (offer.flavor.id, offer.flavor.worker) == (ID, "n1")
    assert (offer.flavor.architecture, offer.flavor.location) == ("amd64", "harbour")


def test_nothing_is_for_sale_unless_it_is_said() -> None:
    assert wanted(NODE, sell_percent=0) == []
    assert wanted(NODE, sell_nodes=("zone=b",)) == []
    assert len(wanted(NODE, sell_nodes=("zone=a",))) == 1
    assert wanted(replace(NODE, machine=resources(1, 1000))) == []  # half a core


def test_a_node_without_a_place_for_more_offers_nothing_but_keeps_its_flavor() -> None:
    (offer,) = wanted(replace(NODE, is_schedulable=False))
    assert offer.capacity == NO_RESOURCES
    (offer,) = wanted(replace(NODE, used=resources(6, 14_300, 0)))
    assert offer.capacity == resources(2, 1500, 50)
    assert offer.flavor == wanted(NODE)[0].flavor


def test_the_share_is_one_of_the_machine_and_what_there_is_of_it_leaves_the_reserve_alone() -> None:
    small = replace(
        NODE, machine=resources(2, 16_000, 100), resources=Resources(Millicores(1900), Megabytes(15_200))
    )
    (offer,) = wanted(small)
    assert offer.flavor.resources == resources(1, 8000, 50)
    assert offer.capacity == resources(1, 8000)
    (offer,) = wanted(small, sell_percent=100)
    assert offer.capacity == resources(1, 15_000)


def test_a_price_that_is_no_number_or_no_money_is_said_plainly() -> None:
    with pytest.raises(errors.Invalid, match=r"'XXQ' is no currency of ISO 4217"):
        wanted(NODE, sell_currency="XXQ")
    with pytest.raises(errors.Invalid, match=r"market\.sell_price 'cheap' is no number"):
        wanted(NODE, sell_price="cheap")


sizes = st.builds(
    lambda c, m, d: Resources(Millicores(c), Megabytes(m), Gigabytes(d)),
    st.integers(0, 64_000),
    st.integers(0, 10**6),
    st.integers(0, 5000),
)


@given(resources=sizes, used=sizes, percent=st.integers(0, 100), is_schedulable=st.booleans())
def test_what_is_offered_is_there_and_within_the_share(
    resources: Resources, used: Resources, percent: int, is_schedulable: bool
) -> None:
    for offer in wanted(
        NodeSupply(NodeId("n"), resources, resources, used, is_schedulable), sell_percent=percent
    ):
        assert offer.flavor.resources.fits(offer.capacity)
        assert resources.fits(offer.flavor.resources)
        assert offer.flavor.resources.cpu * 100 <= resources.cpu * percent
        for (_, _, there), (_, _, busy), (_, _, offered) in zip(
            resources.parts(), used.parts(), offer.capacity.parts(), strict=True
        ):
            assert offered <= max(0, there - busy)
        if offer.capacity.cpu and offer.capacity.memory:
            offer.flavor.check_part(offer.capacity, offer.capacity)


async def test_offers_grow_and_shrink_with_their_node_but_not_below_what_is_sold() -> None:
    async with market() as m:
        await follow(m, NODE)
        await m.buy(ANN, cpu=3, flavor=ID)
        await follow(m, replace(NODE, used=resources(6, 0, 0)))
        assert m.split(ID) == (0, 0, 3)
        await follow(m, replace(NODE, is_schedulable=False))
        assert m.ledger.flavor(ID).capacity == resources(3, 3000, 0)
        await follow(m, NODE)
        assert m.split(ID) == (1, 0, 3)


async def test_what_ends_on_a_node_that_drains_is_not_offered_again() -> None:
    """Not even to who waits for it, or until the offers are looked at again."""
    async with market() as m:
        await follow(m, NODE)
        held, sale = await m.reserve(ANN, cpu=2, flavor=ID), await m.buy(ANN, cpu=1, flavor=ID)
        waiter = asyncio.create_task(outcome(m.reserve(BOB, cpu=2, flavor=ID, wait_s=10)))
        await asyncio.sleep(0)
        await follow(m, replace(NODE, is_schedulable=False))
        assert m.split(ID) == (0, 2, 1)
        assert await waiter is errors.ResourcesExhausted
        await m.ledger.cancel(held.id, ANN)
        assert m.split(ID) == (0, 0, 1)
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
        await m.publish(id=OfferId("node-n0"))
        await follow(m, replace(NODE, node=NodeId("n0")), NODE)
        assert [account.flavor.worker for account in m.ledger.flavors()] == ["", "n1"]


def test_what_no_node_that_takes_work_has_free_cannot_be_placed() -> None:
    busy = replace(NODE, used=resources(7, 13_000, 0))
    away = replace(NODE, is_schedulable=False)
    assert node_offers.can_place([busy], resources(1, 3000))
    assert not node_offers.can_place([busy, away], resources(2, 1000))
    assert not node_offers.can_place([busy], resources(1, 3001))
    assert not node_offers.can_place([away], resources(2, 1000))
    assert not node_offers.can_place([], resources(2, 1000))


@pytest.mark.parametrize(
    ("asked", "others", "has_place"),
    [
        (4, [6, 6], False),  # two nodes with two cores each would be left
        (2, [6, 6], True),
        (8, [4, 4], True),
        (8, [4, 4, 1], False),
        (5, [3, 5, 3], True),
        (1, [8] * 2, False),
        (1, [], True),
    ],
)
def test_what_others_hold_and_wait_for_is_given_out_too(
    asked: int, others: list[int], has_place: bool
) -> None:
    nodes = [NODE, replace(NODE, node=NodeId("n2"))]
    demand = UnplacedDemand([resources(cores, 1) for cores in others])
    assert node_offers.can_place(nodes, resources(asked, 1), demand) is has_place


def test_of_very_many_others_the_sum_is_looked_at() -> None:
    small = Resources(Millicores(1), Megabytes(1))
    assert node_offers.can_place([NODE], resources(7, 1), UnplacedDemand([small] * 1000))
    assert not node_offers.can_place([NODE], resources(7, 1), UnplacedDemand([small] * 1001))
    assert node_offers.can_place([NODE], resources(7, 1), UnplacedDemand([small] * 10, (990, 990, 0)))
    assert not node_offers.can_place([NODE], resources(7, 1), UnplacedDemand([small] * 10, (991, 990, 0)))


async def test_what_is_held_and_sold_and_on_no_node_yet_is_told_to_who_knows_the_nodes() -> None:
    seen: list[list[int]] = []

    def check(offer: Offer, asked: Resources, unplaced: Callable[[], UnplacedDemand]) -> None:
        seen.append(sorted(one.cpu for one in unplaced().parts))

    async with market() as m:
        await m.publish()
        await m.publish(id=OfferId("g"))
        m.ledger.follow_nodes(check)
        await m.reserve(ANN, cpu=2)
        sale = await m.buy(BOB, cpu=3, flavor=OfferId("g"))
        await m.reserve(ANN, cpu=1)
        m.ledger.set_placed(sale.contract.id, is_placed=True)
        await m.reserve(ANN, cpu=1)
        m.ledger.set_placed(sale.contract.id, is_placed=False)
        await m.pass_time(60)
        await m.reserve(ANN, cpu=1)
        # The purchase asks nobody: its hold is honoured, whatever has become of the nodes.
        assert seen == [[], [2000], [2000, 3000], [1000, 2000], [3000]]
        both = await asyncio.gather(
            m.reserve(ANN, cpu=1), m.reserve(BOB, cpu=2, flavor=OfferId("g")), m.reserve(ANN, cpu=1)
        )
        assert len(both) == 3
        assert sorted(len(parts) for parts in seen[-3:]) == [2, 3, 4], "also what is not durable yet"
        await m.ledger.release(sale.contract.id, BOB)
        await m.reserve(ANN, cpu=1)
        assert 3000 not in seen[-1]


async def test_of_very_many_contracts_on_no_node_yet_the_sum_is_told() -> None:
    seen: list[UnplacedDemand] = []
    async with market(max_holds=1000) as m:
        await m.publish(resources=resources(600, 600_000))
        m.ledger.follow_nodes(lambda offer, asked, unplaced: seen.append(unplaced()))
        sales = [await m.buy(ANN, cpu=1) for _ in range(501)]
        await m.reserve(ANN, cpu=2)
        assert seen[-1] == UnplacedDemand([], (501_000, 501_000, 0))
        m.ledger.set_placed(sales[0].contract.id, is_placed=True)
        await m.reserve(ANN, cpu=1)
        assert (len(seen[-1].parts), seen[-1].more) == (501, (0, 0, 0))


@pytest.mark.parametrize(
    ("nodes", "error", "why"),
    [
        ([], errors.ResourcesExhausted, "no node of this provider has 1 core of cpu free now, as it has no"),
        ([replace(NODE, is_schedulable=False)], errors.ResourcesExhausted, "as none of its nodes takes work"),
        (
            [replace(NODE, is_schedulable=False, is_silent=True)],
            errors.Unavailable,
            "silent; try again in a mom",
        ),
        ([replace(NODE, used=ROOM)], errors.ResourcesExhausted, "though it offers that; request less"),
    ],
)
def test_a_buyer_is_told_why_no_node_can_take_it(
    nodes: list[NodeSupply], error: type[errors.SkerryError], why: str
) -> None:
    with pytest.raises(error, match=why):
        node_offers.check_placement(nodes, Resources(Millicores(1000)), UnplacedDemand(()))


def test_offers_and_nodes_that_are_too_large_to_add_up_are_no_fault() -> None:
    most = Resources(Millicores(MAX_AMOUNT), Megabytes(MAX_AMOUNT))
    offer = flavor(resources=most)
    accounts = [OfferRecord(flavor=replace(offer, id=OfferId(id)), capacity=most) for id in "ab"]
    assert node_offers.shortage(accounts, offer, [most, most]) == ""
    assert "all nodes together lack" in node_offers.shortage(accounts, offer, [most])
