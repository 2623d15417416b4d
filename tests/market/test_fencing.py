"""What a server does because it leads is refused once another leads."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit import tasks
from skerry.market.buyer.contract_table import BorrowedContractTable, PendingContract
from skerry.market.provider.heartbeats import PREFIX, BuyerHeartbeats
from skerry.market.provider.offer_controller import apply_plan
from skerry.model.ids import OfferId
from skerry.model.market import EndReason
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import Put
from tests.market.markets import ANN, F, flavor, lead, market, resources
from tests.support.waiting import eventually


async def test_a_leader_that_was_replaced_offers_and_withdraws_nothing() -> None:
    async with market() as m:
        stale = await lead(m.store)
        await lead(m.store)
        with pytest.raises(LeadershipLost):
            await m.ledger.publish(flavor(), actor="skerry", fence=stale)
        assert m.ledger.flavors() == []
        await m.publish()
        with pytest.raises(LeadershipLost):
            await m.ledger.withdraw(F, actor="skerry", fence=stale)
        with pytest.raises(LeadershipLost):
            await m.ledger.update(
                F, lambda offer: offer, actor="skerry", capacity=resources(4, 4000), fence=stale
            )
        assert m.split() == (8, 0, 0)


async def test_who_asks_beside_a_leader_that_was_replaced_is_answered() -> None:
    async with market() as m:
        await m.publish()
        stale = await lead(m.store)
        await lead(m.store)
        outcomes = await asyncio.gather(
            m.ledger.withdraw(F, actor="skerry", fence=stale),
            m.ledger.reserve(ANN, F, resources=resources(2, 2000)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], LeadershipLost)
        assert not isinstance(outcomes[1], BaseException)
        assert m.split() == (6, 2, 0)


async def test_a_leader_that_still_leads_is_not_held_up_by_its_fence() -> None:
    async with market() as m:
        fence = await lead(m.store)
        await m.ledger.publish(flavor(), actor="skerry", fence=fence)
        await m.ledger.withdraw(F, actor="skerry", fence=fence)
        assert m.ledger.flavors() == []


async def test_a_plan_of_offers_ends_with_the_lead() -> None:
    async with market() as m:
        await m.publish(id=OfferId("node-n1"), worker="n1")
        stale = await lead(m.store)
        await lead(m.store)
        with pytest.raises(LeadershipLost):
            await apply_plan(m.ledger, [], stale)
        assert len(m.ledger.flavors()) == 1


async def test_a_leader_that_was_replaced_ends_no_contract_of_an_absent_buyer() -> None:
    async with market() as m:
        await m.publish()
        sale = await m.buy()
        visits = BuyerHeartbeats(m.store, m.ledger, m.settings)
        await m.store.commit([Put(PREFIX + sale.contract.id, repr(m.ledger.now()).encode())])
        stale = await lead(m.store)
        await visits.check(stale)
        await lead(m.store)
        m.clock.advance(m.settings.buyer_silence_s)
        with pytest.raises(LeadershipLost):
            await visits.check(stale)
        assert m.ledger.contract(sale.contract.id).contract.ended_at is None


async def test_deadlines_are_left_to_another_when_the_lead_is_lost() -> None:
    async with market(has_leader=True) as m:
        await m.publish()
        hold = await m.reserve()
        stale = await lead(m.store)
        leading = asyncio.create_task(m.ledger.lead(stale))
        await eventually(lambda: m.ledger._service._fence == stale)
        await lead(m.store)
        await m.pass_time(60)
        assert m.ledger._state.holds[hold.id].ending is None
        await tasks.cancel_and_wait([leading])
        leading = asyncio.create_task(m.ledger.lead(await lead(m.store)))
        await eventually(lambda: m.ledger._state.holds[hold.id].ending is EndReason.EXPIRED)
        await tasks.cancel_and_wait([leading])


async def test_a_leader_that_was_replaced_drops_no_deal_of_another_server() -> None:
    async with market() as m:
        contracts = BorrowedContractTable(m.store, m.events)
        running = asyncio.create_task(contracts.run())
        await contracts.ready()
        deal = PendingContract("d1", "north", F, resources(1, 1000), 1, 0.0, 20.0)
        await contracts.begin(deal)
        stale = await lead(m.store)
        await lead(m.store)
        with pytest.raises(LeadershipLost):
            await contracts.drop(deal, fence=stale)
        assert [one.id for one in contracts.deals()] == ["d1"]
        await tasks.cancel_and_wait([running])
