"""Buyers with keys that are not on the list: what they may have, each and together, on an open market."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import EndReason
from skerry.store.local.memory import MemoryStore
from tests.market.markets import ANN, F, Market, flavor, market, outcome
from tests.market.provider.ledger.test_crashes import Fuse
from tests.support.waiting import PATIENCE_S

FRIEND = CloudId("key.friend")
EVE = CloudId("key.eve")
HOUR = 3600.0
OPEN: dict[str, Any] = {"unknown_buyers": "buy", "unknown_cpu": 8, "unknown_memory": 8000}
MANY: dict[str, Any] = {**OPEN, "unknown_holds": 100, "unknown_total_holds": 1000}


def fresh(number: int) -> CloudId:
    return CloudId(f"key.fresh-{number}")


async def test_fifty_fresh_keys_cannot_buy_everything_and_the_rest_is_there_for_who_is_on_the_list() -> None:
    async with market(**MANY, unknown_percent=25, is_known=lambda buyer: buyer == FRIEND) as m:
        await m.publish()
        found = await asyncio.gather(*(outcome(m.buy(fresh(number))) for number in range(50)))
        assert [one for one in found if isinstance(one, type)] == [errors.ResourcesExhausted] * 48
        assert m.split() == (6, 0, 2)
        await m.buy(FRIEND, cpu=6)
        assert m.split() == (0, 0, 8)


async def test_the_share_counts_what_is_held_and_bought_and_is_free_again_when_that_ends() -> None:
    async with market(**MANY, unknown_percent=50) as m:
        await m.publish()
        held, sale = await m.reserve(fresh(1), cpu=2), await m.buy(fresh(2), cpu=2)
        with pytest.raises(
            errors.ResourcesExhausted, match=r"50 % of this offer, .* 4 cores .*buyers add key.eve`"
        ):
            await m.reserve(EVE)
        await m.ledger.cancel(held.id, fresh(1))
        await m.reserve(EVE)
        await m.ledger.release(sale.contract.id, fresh(2))
        await m.reserve(EVE, cpu=3)
        assert await outcome(m.reserve(EVE)) is errors.ResourcesExhausted


async def test_one_key_has_so_much_over_all_flavors() -> None:
    other = OfferId("g")
    limits = {**MANY, "unknown_cpu": 2, "unknown_percent": 100}
    async with market(**limits) as m:
        await m.publish()
        await m.publish(id=other)
        await m.buy(EVE)
        await m.reserve(EVE, flavor=other)
        with pytest.raises(errors.Unprocessable, match=r"may have 2 cores .* at once"):
            await m.reserve(EVE)
        await m.pass_time(60)  # the hold is over, and nobody has looked at its flavor
        await m.reserve(EVE)


@pytest.mark.parametrize("ending", [EndReason.BOUGHT, EndReason.CANCELLED, EndReason.EXPIRED, None])
async def test_holds_of_an_hour_are_counted_however_they_end_also_after_a_restart(
    ending: EndReason | None,
) -> None:
    async with market(**OPEN, unknown_holds=2, keep_ended=0) as m:
        await m.publish()
        await m.publish(id=OfferId("g"))
        for _ in range(2):
            hold = await m.reserve(EVE)
            if ending is EndReason.BOUGHT:
                await m.ledger.release((await m.ledger.purchase(hold.id, EVE)).contract.id, EVE)
            elif ending is EndReason.CANCELLED:
                await m.ledger.cancel(hold.id, EVE)
            elif ending is EndReason.EXPIRED:
                await m.pass_time(60)
        for _ in range(70):  # more than is kept of what is over
            await m.ledger.cancel((await m.reserve(ANN)).id, ANN)
        await m.ledger.sweep()
        assert len(m.ledger.holds(ANN)) < 70
        async with market(store=m.store, clock=m.clock, **OPEN, unknown_holds=2, prefix="b") as again:
            for one in (m, again):
                for id in (F, OfferId("g")):
                    with pytest.raises(
                        errors.Overloaded, match=r"2 holds in an hour .*however they end"
                    ) as told:
                        await one.reserve(EVE, flavor=id)
                    assert 0 < told.value.retry_after_s <= HOUR
            await again.reserve(fresh(1), flavor=OfferId("g"))
            await m.pass_time(HOUR)
            await again.reserve(EVE)


async def test_making_a_new_key_for_each_hold_is_of_no_use() -> None:
    async with market(**OPEN, unknown_total_holds=5) as m:
        await m.publish()
        for number in range(5):
            await m.ledger.cancel((await m.reserve(fresh(number))).id, fresh(number))
        with pytest.raises(errors.Overloaded, match=r"5 holds in an hour .* all buyers together"):
            await m.reserve(fresh(6))
        await m.reserve(ANN)


async def test_a_contract_of_an_unknown_buyer_is_short_also_if_it_is_renewed() -> None:
    async with market(**OPEN, unknown_contract_s=600.0) as m:
        await m.publish()
        with pytest.raises(errors.Unprocessable, match="lasts at most 600 s"):
            await m.reserve(EVE, duration_s=601.0)
        contract = (await m.buy(EVE)).contract
        assert contract.ends_at - contract.starts_at == 600.0, "if it names no time"
        with pytest.raises(errors.Unprocessable, match="lasts at most 600 s"):
            await m.ledger.renew(contract.id, EVE, contract.ends_at + 1)
        assert (await m.buy(EVE, duration_s=60.0)).contract.is_unknown


@pytest.mark.parametrize("policy", ["refuse", "list"])
async def test_a_closed_market_sells_nothing_to_unknown_keys_but_to_accounts_and_to_who_is_listed(
    policy: str,
) -> None:
    async with market(unknown_buyers=policy, is_known=lambda buyer: buyer in (ANN, FRIEND)) as m:
        await m.publish()
        with pytest.raises(
            errors.Forbidden, match=r"closed to .*; ask .* `skerry market buyers add key.eve`"
        ):
            await m.reserve(EVE)
        await m.buy(FRIEND)
        await m.buy(ANN)
        for is_read in (True, False):
            m.ledger.check_access(FRIEND, is_read=is_read)
        if policy == "list":
            m.ledger.check_access(EVE, is_read=True)
        else:
            with pytest.raises(errors.Forbidden):
                m.ledger.check_access(EVE, is_read=True)


async def test_the_market_is_closed_unless_it_is_opened() -> None:
    async with market() as m:
        await m.publish()
        assert await outcome(m.reserve(EVE)) is errors.Forbidden
        assert await outcome(m.reserve(EVE, flavor=OfferId("none"))) is errors.Forbidden, "and tells nothing"


async def test_who_is_taken_off_the_list_keeps_its_contract_and_gets_no_more() -> None:
    known = {EVE}
    async with market(is_known=known.__contains__) as m:
        await m.publish()
        hold, contract = await m.reserve(EVE), (await m.buy(EVE)).contract
        known.clear()
        assert await outcome(m.reserve(EVE)) is errors.Forbidden
        assert await outcome(m.ledger.renew(contract.id, EVE, contract.ends_at + 1)) is errors.Forbidden
        assert not (await m.ledger.purchase(hold.id, EVE)).contract.is_unknown
        assert (await m.ledger.release(contract.id, EVE)).contract.ending is EndReason.RELEASED


async def test_an_unknown_buyer_does_not_wait_in_line_and_holds_nobody_up() -> None:
    async with market(**OPEN, unknown_percent=100) as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=8)
        assert (
            await asyncio.wait_for(outcome(m.reserve(EVE, cpu=4, wait_s=600.0)), PATIENCE_S)
            is errors.ResourcesExhausted
        )
        waiting = asyncio.ensure_future(m.reserve(ANN, cpu=2, wait_s=600.0))
        await asyncio.sleep(0)
        await m.ledger.cancel(held.id, ANN)
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).buyer == ANN


async def _shop(m: Market) -> None:
    """Every kind of change, by an unknown buyer; it may be done again after a crash."""
    await m.ledger.publish(flavor(), actor="ed")
    bought = await m.reserve(EVE, idempotency_key="a")
    await m.ledger.purchase(bought.id, EVE)
    await m.ledger.cancel((await m.reserve(EVE, idempotency_key="b")).id, EVE)
    await m.reserve(EVE, idempotency_key="c")


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_crash_at_any_write_keeps_the_counts(is_done: bool) -> None:
    limits = {**OPEN, "unknown_holds": 3, "unknown_percent": 25}
    clock = ManualClock()
    counted = Fuse(MemoryStore(clock))
    async with market(store=counted, clock=clock, **limits) as m:
        await _shop(m)
    await counted.close()
    assert counted.writes >= 6
    for at in range(1, counted.writes + 1):
        clock = ManualClock()
        store = MemoryStore(clock)
        async with market(store=Fuse(store, at, is_done=is_done), clock=clock, prefix="a", **limits) as m:
            assert await outcome(_shop(m)) is errors.Unavailable
        async with market(store=store, clock=clock, prefix="b", **limits) as m:
            await _shop(m)
            assert len(m.ledger.holds(EVE)) == 3
            assert m.split() == (6, 1, 1)
            assert await outcome(m.reserve(EVE)) is errors.Overloaded
            assert await outcome(m.reserve(fresh(1))) is errors.ResourcesExhausted
        await store.close()
