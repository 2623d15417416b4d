"""Contracts that were bought: renewed, given back, and kept while they are live."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.market.buyer.quotes import BorrowedContractState, CapacityRequest, MarketPeer
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import Price
from tests.market.buyer.test_acquisition import resigned
from tests.market.markets import flavor, resources
from tests.market.providers import SETTINGS, shop
from tests.support.deals import BUYER, STRANGER
from tests.support.waiting import eventually

CHEAP = Price(Decimal("0.40"), "EUR", "PT1H")


async def test_a_contract_is_renewed_and_given_back() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        borrowed = await mine.buy(duration_s=600.0)
        longer = await mine.desk.renew(borrowed.id, 300.0, actor="ann")
        assert longer.ends_at == borrowed.ends_at + 300.0
        assert north.ledger.contract(borrowed.id).countersigned == longer.document.encode()
        dear = Price(Decimal(50), "EUR", "PT1H")
        await north.ledger.update(borrowed.flavor, lambda flavor: replace(flavor, price=dear), actor="ed")
        with pytest.raises(errors.FailedPrecondition, match=r"now costs 6\.25 EUR"):
            await mine.desk.renew(borrowed.id, 300.0, actor="ann")
        assert mine.desk.get(borrowed.id) == longer
        leaving = await mine.desk.release(borrowed.id, actor="ann")
        assert leaving.state is BorrowedContractState.DRAINING
        assert mine.contracts.get(borrowed.id).leave_by == mine.clock.now() + SETTINGS.drain_s
        with pytest.raises(errors.FailedPrecondition, match="ends: given back"):
            await mine.desk.renew(borrowed.id, 300.0, actor="ann")


@pytest.mark.parametrize(
    "lie",
    [
        {"resources": resources(1, 500)},
        {"notice_s": 0.0},
        {"starts_at": 1.0},
        {"hold": HoldId("other")},
        {"total": Decimal(1000)},
        {"count": 2},
        {"longer_s": 86400.0},
        {"longer_s": -200.0},
    ],
    ids=str,
)
async def test_a_renewal_that_changes_more_than_was_asked_for_is_not_signed(lie: dict[str, Any]) -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        borrowed = await mine.buy(duration_s=600.0)
        honest, signed = north.renew, north.calls.count("sign")

        async def renew(contract: ContractId, until: float) -> bytes:
            await honest(contract, until)
            sale = north.ledger.contract(contract)
            later = {"ends_at": sale.contract.ends_at + lie["longer_s"]} if "longer_s" in lie else lie
            return resigned(sale, **later)

        north.renew = renew  # type: ignore[method-assign] # a provider that lies
        with pytest.raises(errors.FailedPrecondition):
            await mine.desk.renew(borrowed.id, 300.0, actor="ann")
        assert (mine.desk.get(borrowed.id), north.calls.count("sign")) == (borrowed, signed)


async def test_a_renewal_whose_answer_was_lost_is_asked_for_again_and_added_once() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        borrowed = await mine.buy(duration_s=600.0)
        honest = north.renew

        async def renew(contract: ContractId, until: float) -> bytes:
            await honest(contract, until)
            raise errors.TimedOut("peer north did not answer")

        north.renew = renew  # type: ignore[method-assign] # a connection that breaks
        with pytest.raises(errors.TimedOut):
            await mine.desk.renew(borrowed.id, 300.0, actor="ann")
        north.renew = honest  # type: ignore[method-assign]
        longer = await mine.desk.renew(borrowed.id, 300.0, actor="ann")
        assert longer.ends_at == borrowed.ends_at + 300.0
        assert north.ledger.contract(borrowed.id).contract.ends_at == longer.ends_at


async def test_a_peer_with_live_contracts_is_neither_removed_nor_made_another() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        await mine.buy()
        with pytest.raises(errors.Conflict, match=r"contract \w+ of peer north is live; release"):
            await mine.desk.remove_peer("north", actor="ed")
        with pytest.raises(errors.Conflict):
            await mine.desk.set_peer(replace(north.peer, cloud=STRANGER.cloud), actor="ed")
        await mine.desk.set_peer(replace(north.peer, url="https://elsewhere.example"), actor="ed")
        assert mine.desk.peers()[0].peer.url == "https://elsewhere.example"


async def test_own_offers_are_shown_beside_those_of_peers_and_never_bought() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        cheap = flavor(id=OfferId("mine"), provider=BUYER.cloud, price=CHEAP)
        mine.own = [OfferSnapshot(cheap, cheap.resources)]
        listing = await mine.desk.offers(CapacityRequest(resources(1, 1000)), own=True)
        assert [(found.peer, found.flavor.id) for found in listing.found] == [("", "mine"), ("north", "f")]
        assert [found.peer for found in (await mine.desk.offers(CapacityRequest())).found] == ["north"]
        assert (await mine.buy()).peer == "north"


async def test_a_wish_for_an_unknown_peer_says_so() -> None:
    async with shop("north") as (mine, _):
        with pytest.raises(errors.NotFound, match="no peer 'west'"):
            await mine.buy(peer="west")
        with pytest.raises(errors.NotFound):
            mine.desk.get("none")
        with pytest.raises(errors.Invalid, match="no peer of its own"):
            await mine.desk.set_peer(MarketPeer("me", "http://me.example", BUYER.cloud), actor="ed")


async def test_contracts_that_are_done_with_are_forgotten_beyond_a_number_the_oldest_first() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        bought = [await mine.buy() for _ in range(4)]
        for number, borrowed in enumerate(bought[:3]):
            over = replace(borrowed, state=BorrowedContractState.ENDED, ended_at=float(3 - number))
            await mine.contracts.change(
                borrowed.id,
                lambda record, over=over: replace(
                    record, borrowed=over, is_provider_notified=over.ended_at != 3.0
                ),
                actor="test",
            )
        await mine.contracts.trim(4)
        assert len(mine.desk.borrowed()) == 4
        await mine.contracts.trim(0)
        await eventually(lambda: len(mine.desk.borrowed()) == 2)
        assert {one.id for one in mine.desk.borrowed()} == {bought[0].id, bought[3].id}
        with pytest.raises(errors.NotFound, match="list them"):
            await mine.contracts.change(bought[1].id, lambda record: record, actor="test")


async def test_of_two_purchases_at_once_with_one_id_the_first_is_kept() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        first = await mine.buy()
        kept = mine.contracts.get(first.id)
        wish = CapacityRequest(resources(1, 1000))
        deal = mine.buyer._deal((await mine.desk.offers(wish)).found[0], wish)
        await mine.contracts.begin(deal)
        with pytest.raises(errors.Conflict):
            await mine.contracts.keep(deal, replace(kept, hold=HoldId("other")))
        assert mine.contracts.get(first.id) == kept
        assert mine.contracts.deals() == [deal]
