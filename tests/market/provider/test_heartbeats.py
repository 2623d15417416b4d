"""Buyers at the doors of their contracts, and what becomes of contracts whose buyer is gone."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.market.provider.heartbeats import PREFIX, BuyerHeartbeats
from skerry.model.ids import ContractId
from skerry.model.market import EndReason
from tests.market.markets import ANN, Market, market


def visits_of(m: Market) -> BuyerHeartbeats:
    return BuyerHeartbeats(m.store, m.ledger, replace(m.settings, buyer_silence_s=100.0))


async def noted(m: Market) -> list[str]:
    return [entry.key.removeprefix(PREFIX) for entry in (await m.store.range(PREFIX)).entries]


def ending(m: Market, id: ContractId) -> EndReason | None:
    return m.ledger.contract(id).contract.ending


async def test_a_contract_whose_buyer_left_and_did_not_come_back_is_taken_back() -> None:
    async with market() as m:
        await m.publish()
        left, never, there = [(await m.buy()).contract.id for _ in range(3)]
        visits = visits_of(m)
        async with visits.connected(left):
            pass
        await visits.check()
        m.clock.advance(99)
        async with visits.connected(there):
            await visits.check()
            assert ending(m, left) is None
            m.clock.advance(1)
            await visits.check()
        assert ending(m, left) is EndReason.WITHDRAWN
        assert m.ledger.contract(left).contract.reason == "its buyer was not connected for 100 s"
        assert (ending(m, there), ending(m, never)) == (None, None)
        assert m.split() == (6, 0, 2)
        await visits.check()
        assert await noted(m) == [there]


async def test_silence_counts_from_when_somebody_began_to_look() -> None:
    async with market() as m:
        await m.publish()
        id = (await m.buy()).contract.id
        async with visits_of(m).connected(id):
            pass
        m.clock.advance(1000)  # nobody was there: no server, and so no door
        later = visits_of(m)
        await later.check()
        assert ending(m, id) is None
        m.clock.advance(100)
        await later.check()
        assert ending(m, id) is EndReason.WITHDRAWN


async def test_what_is_over_is_forgotten() -> None:
    async with market(keep_ended=0) as m:
        await m.publish()
        ids = [(await m.buy()).contract.id for _ in range(2)]
        visits = visits_of(m)
        for id in ids:
            async with visits.connected(id):
                pass
        assert await noted(m) == sorted(ids)
        await m.ledger.release(ids[0], ANN)
        await visits.check()
        assert await noted(m) == ids[1:]
