"""The ledger, one buyer and one step at a time: what may be held, bought, given back, and for how long."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, EndReason, Price
from tests.market.markets import ANN, BOB, F, document, flavor, market, outcome, resources
from tests.support.waiting import eventually


async def test_a_hold_takes_room_and_a_purchase_makes_it_a_contract_at_the_price_of_the_hold() -> None:
    async with market(contract_s=7200.0) as m:
        await m.publish()
        hold = await m.reserve(cpu=3)
        assert m.split() == (5, 3, 0)
        assert hold.price == Price(Decimal("0.3"), "EUR", "PT1H")
        assert hold.total == Decimal("0.6")
        await m.ledger.update(F, lambda f: replace(f, price=Price(Decimal(8), "EUR", "PT1H")), actor="ed")
        sale = await m.ledger.purchase(hold.id, ANN)
        assert m.split() == (5, 0, 3)
        contract = sale.contract
        assert (contract.price, contract.total, contract.taken) == (
            hold.price,
            hold.total,
            resources(3, 3000),
        )
        assert contract.flavor == hold.flavor
        assert contract.ends_at - contract.starts_at == 7200.0
        assert sale.document == document(contract)
        assert m.ledger.hold(hold.id).contract == contract.id
        assert await m.kinds() == ["flavor.offered", "flavor.changed", "contract.made"]


async def test_two_buyers_get_two_parts_or_one_of_them_nothing() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=5)
        with pytest.raises(errors.ResourcesExhausted, match="lacks 1 core of cpu"):
            await m.reserve(BOB, cpu=4)
        await m.reserve(BOB, cpu=3)
        assert m.split() == (0, 8, 0)


async def test_a_purchase_is_made_once_however_often_it_is_asked_for() -> None:
    async with market() as m:
        await m.publish()
        hold = await m.reserve()
        first = await m.ledger.purchase(hold.id, ANN)
        m.clock.advance(100_000)
        assert await m.ledger.purchase(hold.id, ANN) is not first
        assert (await m.ledger.purchase(hold.id, ANN)).document == first.document
        assert (await m.kinds()).count("contract.made") == 1


async def test_a_hold_can_be_bought_until_its_deadline_and_not_at_it() -> None:
    async with market(hold_s=60.0) as m:
        await m.publish()
        kept, lost = await m.reserve(), await m.reserve()
        m.clock.advance(59.999)
        await m.ledger.purchase(kept.id, ANN)
        m.clock.advance(0.001)
        with pytest.raises(errors.Expired, match="not bought in time"):
            await m.ledger.purchase(lost.id, ANN)
        assert m.split() == (7, 0, 1)
        assert m.ledger.hold(lost.id).ending is EndReason.EXPIRED


async def test_room_of_a_hold_that_is_over_can_be_had_before_anybody_swept() -> None:
    async with market() as m:
        await m.publish()
        hold = await m.reserve(ANN, cpu=8)
        m.clock.advance(60)
        assert m.split() == (8, 0, 0)
        assert not m.ledger.hold(hold.id).is_live(m.clock.now())
        await m.reserve(BOB, cpu=8)
        assert m.split() == (0, 8, 0)


async def test_setting_the_clock_of_the_machine_neither_ends_nor_lengthens_a_hold() -> None:
    async with market() as m:
        await m.publish()
        hold = await m.reserve()
        m.clock._now += 86400.0
        assert m.ledger.hold(hold.id).ending is None
        m.clock._now -= 2 * 86400.0
        m.clock.advance(60)
        with pytest.raises(errors.Expired):
            await m.ledger.purchase(hold.id, ANN)


async def test_only_the_buyer_buys_or_cancels_its_hold_and_gives_its_contract_back() -> None:
    async with market() as m:
        await m.publish()
        hold, sale = await m.reserve(), await m.buy()
        for attempt in (
            m.ledger.purchase(hold.id, BOB),
            m.ledger.cancel(hold.id, BOB),
            m.ledger.release(sale.contract.id, BOB),
            m.ledger.renew(sale.contract.id, BOB, m.clock.now() + 9999),
            m.ledger.countersign(sale.contract.id, BOB, b"x", over=sale.document),
        ):
            with pytest.raises(errors.Forbidden, match="another buyer's"):
                await attempt
        assert m.split() == (6, 1, 1)


async def test_a_cancelled_hold_gives_its_room_back_once() -> None:
    async with market() as m:
        await m.publish()
        hold = await m.reserve(cpu=2)
        cancelled = await m.ledger.cancel(hold.id, ANN)
        assert cancelled.ending is EndReason.CANCELLED
        assert await m.ledger.cancel(hold.id, ANN) == cancelled
        with pytest.raises(errors.Expired, match="was cancelled"):
            await m.ledger.purchase(hold.id, ANN)
        assert m.split() == (8, 0, 0)
        bought = await m.buy()
        with pytest.raises(errors.Conflict, match="was bought; release contract"):
            await m.ledger.cancel(bought.contract.hold, ANN)


async def test_what_is_not_known_is_not_found() -> None:
    async with market() as m:
        for attempt in (
            m.reserve(flavor=OfferId("none")),
            m.ledger.purchase(HoldId("none"), ANN),
            m.ledger.purchase(HoldId("../flavor/f"), ANN),
            m.ledger.cancel(HoldId("x" * 5000), ANN),
            m.ledger.release(ContractId("none"), ANN),
            m.ledger.withdraw(OfferId("none"), actor="ed"),
        ):
            with pytest.raises(errors.NotFound):
                await attempt
        for read in (m.ledger.flavor, m.ledger.hold, m.ledger.contract):
            with pytest.raises(errors.NotFound):
                read("none")  # type: ignore[operator]  # each takes a kind of id of its own


async def test_a_contract_ends_at_its_time_or_when_its_buyer_gives_it_back() -> None:
    async with market(contract_s=100.0) as m:
        await m.publish()
        first, second = await m.buy(cpu=2), await m.buy(cpu=3)
        released = await m.ledger.release(first.contract.id, ANN)
        assert released.contract.ending is EndReason.RELEASED
        assert await m.ledger.release(first.contract.id, ANN) == released
        assert m.split() == (5, 0, 3)
        await m.pass_time(100)
        ended = m.ledger.contract(second.contract.id).contract
        assert (ended.ending, ended.ended_at) == (EndReason.EXPIRED, second.contract.ends_at)
        assert m.split() == (8, 0, 0)


async def test_a_contract_is_renewed_at_the_price_of_now_and_only_as_far_as_asked() -> None:
    async with market(contract_s=3600.0, max_contract_s=10 * 3600.0) as m:
        await m.publish()
        sale = await m.buy(cpu=4)
        await m.ledger.countersign(sale.contract.id, ANN, b"mine", over=sale.document)
        await m.ledger.update(F, lambda f: replace(f, price=Price(Decimal("1.6"), "EUR", "PT1H")), actor="ed")
        until = sale.contract.ends_at + 3600.0
        renewed = await m.ledger.renew(sale.contract.id, ANN, until)
        assert (renewed.contract.ends_at, renewed.contract.renewals) == (until, 1)
        assert renewed.contract.total == Decimal("0.4") + Decimal("0.8")
        assert renewed.current == document(renewed.contract) != renewed.document
        assert renewed.countersigned == b""
        assert await m.ledger.renew(sale.contract.id, ANN, until) == renewed
        assert (await m.ledger.purchase(sale.contract.hold, ANN)).document == sale.document
        with pytest.raises(errors.Unprocessable, match="at most 36000 s"):
            await m.ledger.renew(sale.contract.id, ANN, until + 9 * 3600.0)
        await m.pass_time(7200)
        with pytest.raises(errors.Expired):
            await m.ledger.renew(sale.contract.id, ANN, until + 1)


async def test_the_signature_of_a_buyer_is_kept_once() -> None:
    async with market() as m:
        await m.publish()
        sale = await m.buy()
        signed = await m.ledger.countersign(sale.contract.id, ANN, b"mine", over=sale.document)
        assert signed.countersigned == b"mine"
        assert await m.ledger.countersign(sale.contract.id, ANN, b"mine", over=sale.document) == signed
        with pytest.raises(errors.Conflict):
            await m.ledger.countersign(sale.contract.id, ANN, b"other", over=sale.document)
        another = await m.buy()
        with pytest.raises(errors.TooLarge):
            await m.ledger.countersign(another.contract.id, ANN, b"x" * 20_000, over=another.document)


async def test_a_signature_of_terms_that_were_renewed_meanwhile_is_not_kept() -> None:
    async with market(max_contract_s=10 * 3600.0) as m:
        await m.publish()
        sale = await m.buy()
        renewed = await m.ledger.renew(sale.contract.id, ANN, sale.contract.ends_at + 60)
        with pytest.raises(errors.Conflict, match="renewed meanwhile"):
            await m.ledger.countersign(sale.contract.id, ANN, b"late", over=sale.document)
        signed = await m.ledger.countersign(sale.contract.id, ANN, b"mine", over=renewed.current)
        assert signed.countersigned == b"mine"


async def test_a_withdrawn_flavor_takes_no_buyers_but_keeps_its_word() -> None:
    async with market() as m:
        await m.publish()
        hold, sale = await m.reserve(), await m.buy()
        await m.ledger.withdraw(F, actor="ed", reason="repair")
        assert m.ledger.flavors() == []
        with pytest.raises(errors.Expired, match="no longer offered: repair"):
            await m.reserve()
        with pytest.raises(errors.Expired):
            await m.ledger.renew(sale.contract.id, ANN, sale.contract.ends_at + 1)
        late = await m.ledger.purchase(hold.id, ANN)
        assert late.contract.reclaim_at is None
        await m.pass_time(3599)
        assert m.split() == (6, 0, 2)


async def test_contracts_of_a_reclaimed_flavor_end_after_their_notice_and_not_before() -> None:
    async with market(notice_s=120.0, contract_s=3600.0) as m:
        await m.publish()
        hold, sale = await m.reserve(), await m.buy()
        short = await m.buy(duration_s=60.0)
        await m.ledger.withdraw(F, actor="ed", reason="repair", reclaim=True)
        told = m.ledger.contract(sale.contract.id).contract
        assert (told.reclaim_at, told.reason) == (m.clock.now() + 120, "repair")
        await m.pass_time(30)
        late = await m.ledger.purchase(hold.id, ANN)  # its notice begins when it does
        await m.pass_time(89.999)
        assert m.ledger.contract(short.contract.id).contract.ending is EndReason.EXPIRED
        assert m.split() == (6, 0, 2)
        await m.pass_time(0.001)
        assert m.ledger.contract(sale.contract.id).contract.ending is EndReason.WITHDRAWN
        assert m.split() == (7, 0, 1)
        await m.pass_time(30)
        assert m.ledger.contract(late.contract.id).contract.ending is EndReason.WITHDRAWN
        assert m.split() == (8, 0, 0)


async def test_more_contracts_are_taken_back_than_one_transaction_holds() -> None:
    async with market(max_holds=1000) as m:
        await m.publish(resources=resources(200, 200_000))
        for _ in range(150):
            await m.buy()
        await m.ledger.withdraw(F, actor="ed", reclaim=True)
        notice = {m.clock.now() + 120}
        await eventually(lambda: {sale.contract.reclaim_at for sale in m.ledger.contracts()} == notice)
        await m.pass_time(120)
        await eventually(lambda: m.split() == (200, 0, 0))  # the last look may be under way still


async def test_one_contract_is_taken_back() -> None:
    async with market(notice_s=10.0) as m:
        await m.publish()
        sale, other = await m.buy(), await m.buy()
        told = await m.ledger.reclaim(sale.contract.id, actor="ed", reason="needed")
        assert await m.ledger.reclaim(sale.contract.id, actor="ed", reason="again") == told
        with pytest.raises(errors.Expired, match="takes this contract back"):
            await m.ledger.renew(sale.contract.id, ANN, sale.contract.ends_at + 1)
        await m.pass_time(10)
        assert m.ledger.contract(sale.contract.id).contract.ending is EndReason.WITHDRAWN
        assert m.ledger.contract(other.contract.id).contract.ending is None


async def test_a_contract_is_taken_back_at_once_from_a_buyer_that_is_gone() -> None:
    async with market(notice_s=120.0) as m:
        await m.publish()
        sale, told, ended = await m.buy(), await m.buy(), await m.buy()
        await m.ledger.reclaim(told.contract.id, actor="ed", reason="needed")
        await m.ledger.release(ended.contract.id, ANN)
        for one in (sale, told, ended):
            await m.ledger.reclaim(one.contract.id, actor="skerry", reason="nobody came", at_once=True)
        assert m.split() == (8, 0, 0)
        after = m.ledger.contract(sale.contract.id).contract
        assert (after.ending, after.ended_at, after.reason) == (
            EndReason.WITHDRAWN,
            m.clock.now(),
            "nobody came",
        )
        assert m.ledger.contract(told.contract.id).contract.ending is EndReason.WITHDRAWN
        assert m.ledger.contract(ended.contract.id).contract.ending is EndReason.RELEASED


async def test_only_buyers_that_are_named_may_hold_if_any_are() -> None:
    async with market(buyers=("ann",)) as m:
        await m.publish()
        await m.buy(ANN)
        with pytest.raises(errors.Forbidden, match=r"closed to .*; ask the provider .* buyers add bob`"):
            await m.reserve(BOB)
        assert m.split() == (7, 0, 1)


async def test_who_listens_hears_of_holds_and_contracts_before_their_buyer_does() -> None:
    async with market() as m:
        await m.publish()
        heard: list[tuple[str, tuple[int, int, int]]] = []
        stop = m.ledger.listen(lambda flavors: heard.extend((one, m.split()) for one in flavors))
        hold = await m.reserve()
        assert heard == [("f", (7, 1, 0))]
        sale = await m.ledger.purchase(hold.id, ANN)
        assert heard[1:] == [("f", (7, 0, 1))]
        assert [one.id for one in m.ledger.live_contracts()] == [sale.contract.id]
        assert m.ledger.live_contracts(OfferId("other")) == []
        stop()
        await m.ledger.release(sale.contract.id, ANN)
        assert len(heard) == 2
        assert m.ledger.live_contracts() == m.ledger.live_contracts(F) == []


async def test_a_contract_that_another_server_has_made_is_found() -> None:
    async with market() as m, market(store=m.store, clock=m.clock, prefix="other") as other:
        await m.publish()
        sale = await m.buy()
        assert (await other.ledger.find_contract(sale.contract.id)).contract == sale.contract
        with pytest.raises(errors.NotFound):
            await other.ledger.find_contract(ContractId("none"))


async def test_a_flavor_may_be_published_again_and_what_was_sold_of_it_stays_sold() -> None:
    async with market() as m:
        first = await m.publish()
        assert await m.publish() == first
        with pytest.raises(errors.AlreadyExists, match="withdraw it first"):
            await m.publish(resources=resources(4, 4000))
        sale = await m.buy(cpu=2)
        withdrawn = await m.ledger.withdraw(F, actor="ed")
        again = await m.publish(resources=resources(1, 1000))
        assert again.flavor.version == withdrawn.flavor.version + 1
        assert m.split() == (0, 0, 2)
        assert await m.publish(resources=resources(1, 1000)) == again
        await m.ledger.release(sale.contract.id, ANN)
        assert m.split() == (1, 0, 0)  # as much as is offered now


async def test_a_flavor_is_sold_for_money_that_there_is() -> None:
    async with market() as m:
        with pytest.raises(errors.Invalid, match="'XXQ' is no currency of ISO 4217"):
            await m.publish(price=Price(Decimal(1), "XXQ", "PT1H"))
        await m.publish(price=Price(Decimal(1), "XTS", "PT1H"))


async def test_a_flavor_never_shrinks_below_what_is_held_and_sold() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(cpu=2)
        await m.buy(cpu=3)
        await m.ledger.update(F, lambda f: f, actor="ed", capacity=resources(1, 7000))
        account = m.ledger.flavor(F)
        assert (account.capacity, account.free) == (resources(5, 7000), resources(0, 2000))
        assert m.ledger.audit() == {}
        with pytest.raises(errors.Invalid, match="keeps its id"):
            await m.ledger.update(F, lambda f: replace(f, kind="vm"), actor="ed")
        with pytest.raises(errors.Invalid, match="needs resources"):
            await m.ledger.update(F, lambda f: replace(f, resources=resources(0, 0)), actor="ed")


async def test_a_flavor_whose_time_is_over_is_offered_no_longer() -> None:
    async with market() as m:
        await m.publish(expires_at=m.clock.now() + 10)
        sale = await m.buy()
        m.clock.advance(10)
        assert m.ledger.flavors() == []
        with pytest.raises(errors.Expired, match="its time is over"):
            await m.reserve()
        assert m.ledger.contract(sale.contract.id).contract.is_live(m.clock.now())
        with pytest.raises(errors.Invalid, match="ends after it begins"):
            await m.publish(expires_at=m.clock.now())


async def test_versions_go_up_by_one_with_every_change_that_buyers_see() -> None:
    async with market() as m:
        seen = [(await m.publish()).flavor.version]
        hold = await m.reserve()
        seen.append(m.ledger.flavor(F).flavor.version)
        await m.ledger.purchase(hold.id, ANN)  # what is free is as before
        seen.append(m.ledger.flavor(F).flavor.version)
        seen.append((await m.ledger.withdraw(F, actor="ed")).flavor.version)
        await m.pass_time(3600)  # the contract ends, and nobody can have what it had
        seen.append(m.ledger.flavor(F).flavor.version)
        assert seen == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("changes", "asks"),
    [
        ({}, {"resources": resources(1, 1500)}),
        ({}, {"resources": resources(8, 7500)}),
        ({}, {"resources": resources(1, 1000), "count": 2}),
        ({"aggregation": Aggregation(2, 3)}, {"resources": resources(1, 1000), "count": 1}),
        ({"aggregation": Aggregation(2, 3)}, {"resources": resources(1, 1000), "count": 4}),
        ({"partition": None}, {"resources": resources(1, 1000)}),
    ],
)
async def test_what_is_against_the_policy_of_a_flavor_is_refused_and_changes_nothing(
    changes: dict[str, Any], asks: dict[str, Any]
) -> None:
    async with market() as m:
        await m.publish(**changes)
        with pytest.raises(errors.Unprocessable):
            await m.ledger.reserve(ANN, F, **asks)
        assert m.split() == (8, 0, 0)
        assert await m.kinds() == ["flavor.offered"]


@pytest.mark.parametrize(
    "asks",
    [
        {"count": 0},
        {"count": -1},
        {"count": 1.5},
        {"count": 2**31, "resources": resources(1, 1000)},
        {"duration_s": 0.0},
        {"duration_s": float("nan")},
        {"duration_s": 1e12},
        {"wait_s": -1.0},
        {"wait_s": float("nan")},
        {"resources": resources(0, 0)},
        {"idempotency_key": ""},
        {"idempotency_key": "x" * 256},
    ],
)
async def test_quantities_that_make_no_sense_are_invalid(asks: dict[str, Any]) -> None:
    async with market() as m:
        await m.publish()
        with pytest.raises(errors.Invalid):
            await m.ledger.reserve(ANN, F, **asks)
        assert m.split() == (8, 0, 0)


async def test_several_equal_parts_are_taken_together() -> None:
    async with market() as m:
        await m.publish(aggregation=Aggregation(1, 4))
        hold = await m.reserve(cpu=2, count=3)
        assert (hold.taken, hold.price.amount) == (resources(6, 6000), Decimal("0.6"))
        with pytest.raises(errors.ResourcesExhausted):
            await m.reserve(cpu=1, count=3)
        assert m.split() == (2, 6, 0)


async def test_whole_ones_are_taken_while_there_are_enough() -> None:
    async with market() as m:
        await m.publish(partition=None, stock=5, aggregation=Aggregation(1, 3))
        hold = await m.ledger.reserve(ANN, F, count=3)
        assert (hold.resources, hold.taken, hold.price.amount) == (
            resources(8, 8000),
            resources(24, 24_000),
            Decimal("2.4"),
        )
        assert m.ledger.flavor(F).free == resources(16, 16_000)
        with pytest.raises(errors.ResourcesExhausted):
            await m.ledger.reserve(BOB, F, count=3)


async def test_who_names_no_part_takes_all_that_is_free() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=3)
        hold = await m.ledger.reserve(BOB, F)
        assert (hold.resources, hold.price.amount) == (resources(5, 5000), Decimal("0.5"))
        with pytest.raises(errors.ResourcesExhausted):
            await m.ledger.reserve(BOB, F)


async def test_who_names_no_part_of_what_is_too_little_to_sell_is_told_that_there_is_no_room() -> None:
    """There is less of it than there was, and memory is left without the cores that it is sold with."""
    async with market() as m:
        await m.publish(resources=resources(8, 8000, 100))
        held = await m.reserve(ANN, cpu=7)
        await m.ledger.update(F, lambda flavor: flavor, actor="ed", capacity=resources(7, 8000, 100))
        with pytest.raises(errors.ResourcesExhausted, match="lacks 8 cores of cpu"):
            await m.ledger.reserve(BOB, F)
        waiter = asyncio.create_task(m.ledger.reserve(BOB, F, wait_s=10))
        await asyncio.sleep(0)
        await m.ledger.cancel(held.id, ANN)
        assert (await waiter).resources == resources(7, 8000, 100)


async def test_a_request_with_a_key_is_done_once() -> None:
    async with market() as m:
        await m.publish()
        hold = await m.reserve(idempotency_key="k")
        assert await m.reserve(idempotency_key="k") == hold
        with pytest.raises(errors.Unprocessable, match="used for another request"):
            await m.reserve(cpu=2, idempotency_key="k")
        other = await m.reserve(BOB, idempotency_key="k")
        assert other.id != hold.id
        assert m.split() == (6, 2, 0)
        await m.ledger.purchase(hold.id, ANN)
        assert (await m.reserve(idempotency_key="k")).contract is not None


async def test_a_buyer_that_has_enough_holds_must_buy_or_cancel_first() -> None:
    async with market(max_holds=2) as m:
        await m.publish()
        await m.publish(id=OfferId("g"))
        hold = await m.reserve()
        await m.reserve(flavor=OfferId("g"))
        with pytest.raises(errors.Overloaded, match="2 holds, the most at once"):
            await m.reserve()
        await m.reserve(BOB)
        await m.ledger.purchase(hold.id, ANN)
        await m.reserve()


async def test_holds_that_are_asked_for_at_once_count_before_they_are_written() -> None:
    async with market(max_holds=2) as m:
        flavors = [OfferId(f"f{number}") for number in range(5)]
        for id in flavors:
            await m.publish(id=id)
        found = await asyncio.gather(*(outcome(m.reserve(flavor=id)) for id in flavors))
        assert found.count(errors.Overloaded) == 3
        assert len(m.ledger.holds(ANN)) == 2


async def test_a_buyer_that_lets_holds_expire_gets_no_more_for_a_while() -> None:
    async with market(max_lapsed=2) as m:
        await m.publish()
        for _ in range(2):
            await m.reserve()
            await m.pass_time(60)
        with pytest.raises(errors.Overloaded, match="let 2 holds expire"):
            await m.reserve()
        await m.reserve(BOB)
        await m.pass_time(3600)
        await m.reserve()
        buyers = m.ledger._state.buyers
        assert (len(buyers.lapsed(ANN, m.clock.now())), len(buyers.lapsed(BOB, m.clock.now()))) == (0, 1)
        await m.pass_time(7200)
        await m.reserve(CloudId("cat"))
        assert not {ANN, BOB} & buyers._lapsed._of.keys()  # who never comes back is not remembered


async def test_who_let_too_many_expire_is_told_when_to_come_back_and_may_then() -> None:
    async with market(max_lapsed=2) as m:
        await m.publish()
        for _ in range(3):
            await m.reserve()
            await m.pass_time(10)
        await m.pass_time(60)
        with pytest.raises(errors.Overloaded, match="try again in 3580 s") as told:
            await m.reserve()
        await m.pass_time(told.value.retry_after_s - 1)
        with pytest.raises(errors.Overloaded, match="try again in 1 s"):
            await m.reserve()
        await m.pass_time(1)
        await m.reserve()


async def test_one_buyer_holds_no_more_than_its_share() -> None:
    async with market(hold_percent=50) as m:
        await m.publish()
        await m.reserve(cpu=3)
        with pytest.raises(errors.Unprocessable, match="at most 50 %"):
            await m.reserve(cpu=2)
        await m.buy(cpu=1)
        await m.reserve(cpu=1)
        await m.reserve(BOB, cpu=3)


async def test_only_offers_of_this_provider_are_published_and_not_more_than_allowed() -> None:
    async with market(max_flavors=1) as m:
        with pytest.raises(errors.Invalid, match="nothing of others"):
            await m.publish(provider=CloudId("south"))
        with pytest.raises(errors.Invalid, match="needs resources"):
            await m.publish(resources=resources(0, 0))
        first = await m.publish()
        assert await m.publish() == first
        with pytest.raises(errors.TooLarge):
            await m.publish(id=OfferId("g"))
        await m.ledger.withdraw(F, actor="ed")
        await m.ledger.publish(flavor(id=OfferId("g")), actor="ed")
