"""Buying of peers: the best offer, honest or not, and nothing left behind when it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from skerry.kit.clock import ManualClock
from skerry.market.buyer.quotes import BorrowedContractState, CapacityRequest
from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.terms import signatures
from skerry.market.terms.signatures import ContractSigner
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Partition, Price
from skerry.store.local.memory import MemoryStore
from tests.market.markets import resources
from tests.market.provider.ledger.test_crashes import Fuse
from tests.market.providers import SETTINGS, Lender, Shop, lender, shop
from tests.support.deals import BUYER, STRANGER, forged, key
from tests.support.waiting import eventually

CHEAP = Price(Decimal("0.40"), "EUR", "PT1H")


async def test_the_cheapest_offer_is_held_bought_signed_and_kept() -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell()
        await south.sell(price=CHEAP)
        told = await mine.steps(2, duration_s=600.0)
        steps = [progress.step for progress in told]
        assert steps == ["listing", "listing", "reserving", "buying", "signing", "opening", "done"]
        borrowed = told[-1].borrowed
        assert (borrowed.peer, borrowed.cloud, borrowed.state) == (
            "south",
            south.key.cloud,
            BorrowedContractState.OPEN,
        )
        assert borrowed.node == f"borrowed-{borrowed.id}"
        assert (borrowed.taken, borrowed.price.amount) == (resources(2, 2000), Decimal("0.1"))
        assert borrowed.ends_at - borrowed.starts_at == 600.0
        assert (south.split(), north.split()) == ((6, 0, 2), (8, 0, 0))
        both = signatures.verify(borrowed.document.encode(), seller=south.key.cloud, buyer=BUYER.cloud)
        assert both.buyer is not None
        assert south.ledger.contract(borrowed.id).countersigned == borrowed.document.encode()
        assert mine.contracts.deals() == []
        assert mine.desk.borrowed() == [borrowed]
        assert {"peer.set", "borrowed.bought", "borrowed.open"} <= set(await mine.kinds())


async def test_the_price_of_an_hour_counts_whatever_the_period() -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell(price=Price(Decimal("0.001"), "EUR", "PT1S"))
        await south.sell(price=Price(Decimal(10), "EUR", "P1D"))
        assert (await mine.buy()).peer == "south"
        with pytest.raises(errors.ResourcesExhausted, match="no peer offers"):
            await mine.buy(max_price=Decimal("0.05"))
        assert (await mine.buy(max_price=Decimal("0.06"))).peer == "south"


async def test_only_one_currency_is_compared_and_that_is_said() -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell("a")
        await north.sell("b")
        await south.sell(price=Price(Decimal("0.01"), "NOK", "PT1H"))
        told = await mine.steps()
        assert (
            told[1].message == "2 offers in EUR, the best of north; not compared with 1 in other currencies"
        )
        assert (await mine.buy(currency="NOK")).peer == "south"
        with pytest.raises(errors.ResourcesExhausted):
            await mine.buy(currency="USD")


async def test_a_wish_is_for_at_least_so_much_in_steps_or_whole() -> None:
    async with shop("north") as (mine, north):
        await north.sell("parts")
        borrowed = (await mine.steps(1, currency="EUR"))[-1].borrowed
        assert borrowed.resources == resources(1, 1000)
        wish = CapacityRequest(replace(resources(1, 1500), cpu=1500))
        (found,) = (await mine.desk.offers(wish)).found
        assert found.resources == resources(2, 2000)
        await north.sell("whole", partition=None, price=Price(Decimal("0.01"), "EUR", "PT1H"))
        best, other = (await mine.desk.offers(wish)).found
        assert (best.flavor.id, best.resources, other.flavor.id) == ("whole", resources(8, 8000), "parts")
        (all_left,) = (await mine.desk.offers(CapacityRequest(resources(7, 6500), count=1))).found[1:]
        assert all_left.resources == resources(7, 7000)


async def test_nothing_is_bought_that_nothing_could_run_on() -> None:
    async with shop("north") as (mine, north):
        await north.sell(
            "cores", resources=resources(8, 0), partition=None, price=Price(Decimal("0.01"), "EUR", "PT1H")
        )
        await north.sell("parts", partition=Partition(resources(0, 0), resources(1, 500)))
        for wished, had in ((resources(1, 0), resources(1, 500)), (resources(0, 700), resources(1, 1000))):
            (found,) = (await mine.desk.offers(CapacityRequest(wished))).found
            assert (found.flavor.id, found.resources) == ("parts", had)


async def test_a_peer_that_hangs_is_named_and_holds_nobody_up() -> None:
    async with shop("north", "south", list_timeout_s=0.05) as (mine, north, south):
        await south.sell()

        async def hang(call: str) -> None:
            await asyncio.Event().wait()

        north.before = hang
        listing = await mine.desk.offers(CapacityRequest())
        assert [found.peer for found in listing.found] == ["south"]
        assert [failure.peer for failure in listing.failures] == ["north"]
        only = await mine.desk.offers(CapacityRequest(peer="south"))
        assert ([found.peer for found in only.found], only.failures) == (["south"], [])
        told = await mine.steps()
        assert "no answer of north" in told[1].message
        states = {state.peer.name: state.is_reached for state in mine.desk.peers()}
        assert states == {"north": False, "south": True}


async def test_a_peer_that_hangs_in_the_middle_is_left_for_the_next_and_undone_when_it_is_back() -> None:
    async with shop("north", "south", deal_timeout_s=0.1) as (mine, north, south):
        await north.sell(price=CHEAP)
        await south.sell()
        is_back = asyncio.Event()

        async def hang(call: str) -> None:
            if call == "purchase":
                await is_back.wait()

        north.before = hang
        assert (await mine.buy()).peer == "south"
        assert north.split() == (7, 1, 0)
        is_back.set()
        await mine.sweep()
        assert (north.split(), mine.contracts.deals()) == ((8, 0, 0), [])


async def test_a_peer_that_hangs_is_not_asked_for_each_of_its_offers_and_is_named_once() -> None:
    async with shop("north", "south", deal_timeout_s=0.5) as (mine, north, south):
        for number in range(20):
            await north.sell(f"f{number}", price=CHEAP)

        async def hang(call: str) -> None:
            if call == "reserve":
                await asyncio.Event().wait()

        north.before = hang
        with pytest.raises(
            errors.Unavailable, match=r"^nothing could be bought; peer north: it did not"
        ) as told:
            await mine.buy()
        assert told.value.message.count("north") == 1
        assert north.calls.count("reserve") == 1
        await south.sell()
        assert (await mine.buy()).peer == "south"


async def test_a_peer_has_the_time_for_a_deal_once_however_many_offers_it_has() -> None:
    async with shop("north", "south", deal_timeout_s=0.5) as (mine, north, south):
        for number in range(20):
            await north.sell(f"f{number}", price=CHEAP)
        await south.sell()
        north.forge = LIES["less room"]

        async def hang(call: str) -> None:
            if call == "cancel":
                await asyncio.Event().wait()

        north.before = hang
        assert (await mine.buy()).peer == "south"
        assert north.calls.count("purchase") == 1


async def test_of_a_peer_without_room_every_offer_is_tried_and_the_last_word_told() -> None:
    async with shop("north") as (mine, north):
        for id in ("a", "b", "c"):
            await north.sell(id)

        async def refuse(call: str) -> None:
            if call == "reserve":
                raise errors.ResourcesExhausted("peer north: it is sold")

        north.before = refuse
        with pytest.raises(errors.Unavailable, match=r"^nothing could be bought; peer north: it is sold$"):
            await mine.buy()
        assert north.calls.count("reserve") == 6  # each once more, to see whether there is anything to undo


async def test_who_has_no_peers_learns_how_to_name_one() -> None:
    async with shop() as (mine,):
        with pytest.raises(errors.ResourcesExhausted, match="skerry market peers add"):
            await mine.buy()


async def test_a_peer_that_is_full_by_then_falls_to_the_next() -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell(price=CHEAP)
        await south.sell()

        async def be_quicker(call: str) -> None:
            if call == "reserve" and north.split()[0]:
                await north.ledger.reserve(
                    CloudId("bob"), (await north.offers(CapacityRequest()))[0].flavor.id
                )

        north.before = be_quicker
        assert (await mine.buy()).peer == "south"
        assert (north.split(), mine.contracts.deals()) == ((0, 8, 0), [])


def resigned(sale: ContractRecord, signer: str = "north", **changes: Any) -> bytes:
    """The contract with other terms, signed for what it says."""
    return ContractSigner(key(signer)).sign(replace(sale.contract, **changes))


LIES: dict[str, Callable[[ContractRecord], bytes]] = {
    "signed by another": lambda sale: resigned(sale, "east", seller=key("east").cloud),
    "signed by a stranger in the seller's name": lambda sale: forged(
        "stranger", signatures.PayloadSigner(STRANGER, signatures.CONTRACT)._start[:-1], b"{}"
    ),
    "not signed": lambda sale: b"eyJhbGciOiJub25lIn0." + sale.document.split(b".")[1] + b".",
    "for another buyer": lambda sale: resigned(sale, buyer=STRANGER.cloud),
    "less room": lambda sale: resigned(sale, resources=resources(1, 500)),
    "more of it": lambda sale: resigned(sale, count=2),
    "a higher price": lambda sale: resigned(sale, price=Price(Decimal(9), "EUR", "PT1H")),
    "another currency": lambda sale: resigned(sale, price=Price(Decimal("0.01"), "USD", "PT1H")),
    "a higher total": lambda sale: resigned(sale, total=Decimal(1000)),
    "another hold": lambda sale: resigned(sale, hold=HoldId("other")),
    "over already": lambda sale: resigned(sale, starts_at=1.0, ends_at=2.0),
    "shorter": lambda sale: resigned(sale, ends_at=sale.contract.starts_at + 5.0),
    "longer, and dearer": lambda sale: resigned(
        sale, ends_at=sale.contract.starts_at + 6000.0, total=sale.contract.total * 10
    ),
    "another offer": lambda sale: resigned(sale, flavor=replace(sale.contract.flavor, id=OfferId("other"))),
    "elsewhere": lambda sale: resigned(sale, flavor=replace(sale.contract.flavor, location="moon")),
    "of another kind of machine": lambda sale: resigned(
        sale, flavor=replace(sale.contract.flavor, architecture="s390x")
    ),
    "a name that no node can have": lambda sale: resigned(sale, id=ContractId("x" * 128)),
    "nothing": lambda sale: b"",
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_provider_that_lies_gets_nothing_and_its_contract_back(lie: str) -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell(price=CHEAP)
        await south.sell()
        north.forge = LIES[lie]
        assert (await mine.buy(duration_s=600.0)).peer == "south"
        assert (north.split(), mine.contracts.deals()) == ((8, 0, 0), [])
        assert "sign" not in north.calls
        assert "release" in north.calls
        with pytest.raises(errors.Unavailable, match="nothing could be bought; peer north: "):
            await mine.buy(duration_s=600.0, peer="north")


async def test_a_provider_that_asks_for_more_than_it_offered_gets_nothing() -> None:
    async with shop("north") as (mine, north):
        await north.sell()

        async def raise_price(call: str) -> None:
            if call == "reserve":
                dear = Price(Decimal(50), "EUR", "PT1H")
                await north.ledger.update(
                    north.ledger.flavors()[0].flavor.id,
                    lambda flavor: replace(flavor, price=dear),
                    actor="ed",
                )

        north.before = raise_price
        with pytest.raises(errors.Unavailable, match=r"offered this for 0.1 EUR for PT1H and now costs 6.25"):
            await mine.buy()
        assert north.split() == (8, 0, 0)


async def test_a_contract_with_the_id_of_another_is_refused() -> None:
    async with shop("north", "south") as (mine, north, south):
        await north.sell()
        await south.sell(price=CHEAP)
        first = await mine.buy(peer="north")
        south.forge = lambda sale: resigned(sale, "south", id=first.id)
        with pytest.raises(errors.Unavailable, match="an id that another one has"):
            await mine.buy(peer="south")
        assert mine.desk.get(first.id) == first


async def test_who_hangs_up_before_it_is_bought_has_nothing() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        for last in ("reserving", "buying", "signing"):
            async with aclosing(mine.desk.buy(CapacityRequest(resources(1, 1000)), actor="ann")) as told:
                async for progress in told:
                    if progress.step == last:
                        break
            await mine.sweep()
            assert (north.split(), mine.contracts.deals(), mine.desk.borrowed()) == ((8, 0, 0), [], [])


async def test_who_hangs_up_afterwards_keeps_it() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        async with aclosing(mine.desk.buy(CapacityRequest(resources(1, 1000)), actor="ann")) as told:
            async for progress in told:
                if progress.step == "opening":
                    break
        (kept,) = mine.desk.borrowed()
        await mine.sweep()
        await eventually(lambda: mine.desk.get(kept.id).state is BorrowedContractState.OPEN)
        assert north.split() == (7, 0, 1)


async def test_a_contract_that_does_not_open_fails_with_its_reason() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        mine.opens = False
        buying = asyncio.ensure_future(mine.buy())
        record = await eventually(lambda: next(iter(mine.contracts.all()), None))
        over = replace(
            record.borrowed, state=BorrowedContractState.ENDED, reason="it did not open in time: no room"
        )
        await mine.contracts.change(record.borrowed.id, lambda now: replace(now, borrowed=over), actor="test")
        with pytest.raises(errors.Unavailable, match="did not open in time: no room"):
            await buying


async def test_deals_of_others_are_undone_by_who_leads_when_they_are_overdue() -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        deal = mine.buyer._deal(
            (await mine.desk.offers(CapacityRequest(resources(1, 1000)))).found[0],
            CapacityRequest(resources(1, 1000)),
        )
        await mine.contracts.begin(deal)
        held = await north.reserve(deal.flavor, deal.resources, 1, None, key=deal.id)
        await mine.contracts.note(replace(deal, hold=held.id))
        await mine.sweep()
        assert north.split() == (7, 1, 0)
        mine.clock.advance(SETTINGS.deal_timeout_s + 5)
        mine.is_leading = False
        await mine.sweep()
        assert north.split() == (7, 1, 0)
        mine.is_leading = True
        await mine.sweep()
        assert (north.split(), mine.contracts.deals()) == ((8, 0, 0), [])


async def test_what_a_peer_that_hangs_holds_keeps_nobody_else_s_from_being_undone() -> None:
    async with shop("north", "south", deal_timeout_s=40.0) as (mine, north, south):
        wish = CapacityRequest(resources(1, 1000))
        for one in (north, south):
            await one.sell()
        for found in (await mine.desk.offers(wish)).found:
            deal = mine.buyer._deal(found, wish)
            await mine.contracts.begin(deal)
            await {"north": north, "south": south}[found.peer].reserve(
                deal.flavor, deal.resources, 1, None, key=deal.id
            )
        is_back = asyncio.Event()

        async def hang(call: str) -> None:
            await is_back.wait()

        north.before = hang
        mine.clock.advance(45)
        sweeping = asyncio.ensure_future(mine.sweep())
        await eventually(lambda: south.split() == (8, 0, 0))
        assert north.split() == (7, 1, 0)
        is_back.set()
        await sweeping
        assert (north.split(), mine.contracts.deals()) == ((8, 0, 0), [])


async def test_a_peer_that_is_gone_is_asked_less_and_less_often_and_once_more_when_it_is_back() -> None:
    async with shop("north") as (mine, north):
        await north.sell()

        async def be_gone(call: str) -> None:
            if call != "offers":
                raise errors.Unavailable("gone")

        north.before = be_gone
        with pytest.raises(errors.Unavailable):
            await mine.buy()
        north.calls.clear()
        with capture_logs() as logs:
            for _ in range(600):
                await mine.sweep()
                mine.clock.advance(2)
        assert 8 <= len(north.calls) <= 16
        assert [line["log_level"] for line in logs] == ["warning"] * len(north.calls)
        north.before = None
        mine.clock.advance(400)
        await mine.sweep()
        assert mine.contracts.deals() == []
        await mine.sweep()
        assert mine.buyer._failed == {}


async def count_writes() -> int:
    async with shop("north") as (mine, north):
        await north.sell()
        fuse = Fuse(mine.store)
        async with Shop(fuse, mine.clock, [north], SETTINGS).running() as counted:
            counted.opens = False
            await buy_until_kept(counted)
        return fuse.writes


async def buy_until_kept(mine: Shop) -> None:
    async with aclosing(mine.desk.buy(CapacityRequest(resources(1, 1000)), actor="ann")) as told:
        async for progress in told:
            if progress.step == "opening":
                return


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_crash_at_any_write_leaves_a_contract_that_is_kept_or_nothing(is_done: bool) -> None:
    writes = await count_writes()
    assert writes >= 3
    for at in range(1, writes + 1):
        clock = ManualClock()
        store = MemoryStore(clock)
        async with lender("north", clock) as north:
            await north.sell()
            async with Shop(store, clock, [north], SETTINGS).running(north.peer):
                pass
            fuse = Fuse(store, at, is_done=is_done)
            async with Shop(fuse, clock, [north], SETTINGS).running() as broken:
                broken.opens = False
                with pytest.raises(errors.Unavailable):
                    await buy_until_kept(broken)
            clock.advance(SETTINGS.deal_timeout_s + 5)
            async with Shop(store, clock, [north], SETTINGS).running() as after:
                await after.sweep()
                assert after.contracts.deals() == []
                live = [record for record in after.contracts.all() if not record.is_over]
                assert north.split() == ((7, 0, 1) if live else (8, 0, 0))
                assert (await after.buy()).state is BorrowedContractState.OPEN
        await store.close()


@pytest.mark.parametrize("lost", ["reserve", "purchase", "sign"])
async def test_an_answer_that_is_lost_is_found_again_and_undone(lost: str) -> None:
    async with shop("north") as (mine, north):
        await north.sell()
        real = getattr(Lender, lost)

        async def lose(self: Lender, *given: Any, **named: Any) -> None:
            await real(self, *given, **named)
            raise errors.Unavailable("the connection broke")

        setattr(north, lost, lose.__get__(north))
        with pytest.raises(errors.Unavailable, match="the connection broke"):
            await mine.buy()
        delattr(north, lost)
        assert north.split() != (8, 0, 0)
        await mine.sweep()
        assert (north.split(), mine.contracts.deals()) == ((8, 0, 0), [])
