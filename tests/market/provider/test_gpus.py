"""GPUs of offers: a contract's cell gets them, and no more are sold than the nodes have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition
from skerry.market.buyer import ranking
from skerry.market.buyer.quotes import CapacityRequest
from skerry.market.provider import contract_cells, node_capacity, node_offers
from skerry.market.provider.ledger.change import UnplacedDemand
from skerry.market.provider.node_offers import NodeSupply
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors
from skerry.model.devices import DeviceRequest
from skerry.model.ids import NodeId
from skerry.model.statuses import InstanceStatus
from skerry.schedule.requests import NodeView
from tests.control.worlds import held, instance
from tests.market.markets import ANN, BOB, flavor, market, resources
from tests.wire.rear.nouns import CONTRACT

WITH_GPUS = flavor(resources=resources(2, 2000), gpus=2, stock=4, partition=None)
BIG = resources(16, 64_000)


def supply(name: str, gpus: int, *, is_schedulable: bool = True) -> NodeSupply:
    return NodeSupply(NodeId(name), BIG, BIG, is_schedulable=is_schedulable, gpus=gpus)


def test_the_cell_of_a_contract_requests_the_gpus_of_its_whole_offers() -> None:
    sold = replace(CONTRACT, flavor=WITH_GPUS, resources=WITH_GPUS.resources, count=3)
    assert contract_cells.cell_spec_for(sold).devices == (DeviceRequest("gpu", 6),)
    plain = replace(sold, flavor=replace(WITH_GPUS, gpus=0))
    assert contract_cells.cell_spec_for(plain).devices == ()
    in_parts = replace(sold, flavor=replace(CONTRACT.flavor, gpus=2))
    assert in_parts.flavor.partition is not None
    assert in_parts.gpus == 0


def test_free_gpus_are_those_of_one_kind_that_no_instance_has() -> None:
    devices = ("a.com/gpu=0", "a.com/gpu=1", "b.com/gpu=0", "a.com/nic=0")
    condition = NodeCondition(NodeView(NodeId("n1"), BIG, devices=devices), machine=BIG)
    running = held(instance("i1", InstanceStatus.RUNNING, node="n1", devices=("a.com/gpu=1",)))
    ended = held(instance("i2", InstanceStatus.FAILED, node="n1", devices=("a.com/gpu=0",)))
    assert node_capacity.supply_of(condition, [], ()).gpus == 2
    assert node_capacity.supply_of(condition, [running, ended], ()).gpus == 1


def test_a_request_is_refused_if_no_node_has_the_gpus_free_besides_what_is_reserved() -> None:
    nodes = [supply("n1", 2), supply("n2", 0), supply("n3", 4, is_schedulable=False)]
    small = resources(1, 100)
    node_offers.check_placement(nodes, small, UnplacedDemand(()), 2)
    for gpus, others in ((3, 0), (2, 1), (1, 2)):
        with pytest.raises(errors.ResourcesExhausted, match=rf"no node .* has {gpus} GPUs? free now"):
            node_offers.check_placement(nodes, small, UnplacedDemand((), gpus=others), gpus)
    node_offers.check_placement(nodes, small, UnplacedDemand((), gpus=9))  # it needs none


def test_the_seller_is_warned_of_gpus_that_cannot_be_delivered() -> None:
    assert node_offers.shortage([], WITH_GPUS, [BIG], [2]) == ""
    assert "no node has 2 GPUs of one kind" in node_offers.shortage([], WITH_GPUS, [BIG], [1])
    assert "no node has 2 GPUs of one kind" in node_offers.shortage([], WITH_GPUS, [BIG])
    in_parts = replace(CONTRACT.flavor, gpus=1, stock=1)
    assert "sold with whole offers only" in node_offers.shortage([], in_parts, [BIG], [8])


def test_a_buyer_who_needs_gpus_is_offered_only_those_that_have_them() -> None:
    plain = OfferSnapshot(replace(WITH_GPUS, gpus=0), WITH_GPUS.whole)
    with_gpus = OfferSnapshot(WITH_GPUS, WITH_GPUS.whole)
    for gpus, count, is_met in ((1, 1, True), (2, 1, True), (3, 1, False)):
        request = CapacityRequest(resources(1, 1000), count=count, gpus=gpus)
        assert ranking.quote_for("peer", plain, request) is None
        assert (ranking.quote_for("peer", with_gpus, request) is not None) is is_met


async def test_of_two_buyers_of_the_last_gpus_one_is_refused() -> None:
    async with market() as m:
        await m.ledger.publish(WITH_GPUS, actor="admin")
        nodes = [supply("n1", 3)]
        m.ledger.follow_nodes(
            lambda offer, taken, unplaced: node_offers.check_placement(
                nodes, taken, unplaced(), offer.gpus_in(taken)
            )
        )
        hold = await m.reserve(ANN, 2)
        assert hold.gpus == 2
        with pytest.raises(errors.ResourcesExhausted, match="has 2 GPUs free now, besides those"):
            await m.reserve(BOB, 2)
