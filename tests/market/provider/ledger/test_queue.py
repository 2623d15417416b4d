"""Buyers that wait for what others hold: in order, within bounds, and never in vain."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import Hold
from tests.market.markets import ANN, BOB, F, Market, market, outcome, resources

CAT = CloudId("cat")


def waiting(m: Market, buyer: CloudId, cpu: int, wait_s: float = 30.0, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(outcome(m.reserve(buyer, cpu=cpu, wait_s=wait_s, **options)))


async def settle() -> None:
    """Let everybody go as far as they can without time passing."""
    for _ in range(30):
        await asyncio.sleep(0)


async def test_who_waits_gets_what_is_given_up_in_the_order_of_coming() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=8)
        first, second, third = waiting(m, BOB, 6), waiting(m, CAT, 2), waiting(m, ANN, 1)
        await settle()
        assert not any(waiter.done() for waiter in (first, second, third))
        await m.ledger.cancel(held.id, ANN)
        got_first, got_second = await first, await second
        assert (got_first.buyer, got_second.buyer) == (BOB, CAT)
        assert m.split() == (0, 8, 0)
        assert not third.done()
        await m.ledger.cancel(got_second.id, CAT)
        assert isinstance(await third, Hold)


async def test_a_small_request_does_not_overtake_a_large_one_that_waits() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=6)
        large = waiting(m, BOB, 8)
        await settle()
        with pytest.raises(errors.ResourcesExhausted, match="others wait"):
            await m.reserve(CAT, cpu=1)
        small = waiting(m, CAT, 1)
        await settle()
        assert not small.done()
        await m.ledger.cancel(held.id, ANN)
        assert isinstance(await large, Hold)
        assert not small.done()
        small.cancel()


async def test_who_waits_gets_the_room_of_a_hold_that_expires() -> None:
    async with market(hold_s=20.0) as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        waiter = waiting(m, BOB, 8)
        await settle()
        await m.pass_time(20)
        assert (await waiter).created_at == m.clock.now()


async def test_who_waited_long_enough_is_told_so() -> None:
    async with market(max_wait_s=5.0) as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        waiter = asyncio.create_task(m.reserve(BOB, cpu=8, wait_s=1e9))  # as long as is allowed
        await settle()
        await m.pass_time(4.9)
        assert not waiter.done()
        await m.pass_time(0.1)
        with pytest.raises(errors.ResourcesExhausted, match="did not become free"):
            await waiter


async def test_nobody_waits_for_what_is_sold() -> None:
    async with market() as m:
        await m.publish()
        held, other = await m.reserve(ANN, cpu=4), await m.reserve(ANN, cpu=4)
        waiter = waiting(m, BOB, 8)
        await settle()
        await m.ledger.purchase(held.id, ANN)
        assert await waiter is errors.ResourcesExhausted
        with pytest.raises(errors.ResourcesExhausted, match="nothing to wait for"):
            await m.reserve(BOB, cpu=5, wait_s=10)
        last = waiting(m, BOB, 4)
        await settle()
        await m.ledger.purchase(other.id, ANN)
        assert await last is errors.ResourcesExhausted


async def test_the_line_is_bounded() -> None:
    async with market(max_waiting=2) as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        line = [waiting(m, BOB, 1), waiting(m, BOB, 1)]
        await settle()
        with pytest.raises(errors.Overloaded, match="too many buyers wait"):
            await m.reserve(CAT, cpu=1, wait_s=10)
        for waiter in line:
            waiter.cancel()


async def test_who_gave_up_waiting_is_passed_over() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=8)
        first, second = waiting(m, BOB, 8), waiting(m, CAT, 8)
        await settle()
        first.cancel()
        await m.ledger.cancel(held.id, ANN)
        assert (await second).buyer == CAT
        assert m.split() == (0, 8, 0)


async def test_who_gives_up_waiting_lets_those_behind_go_ahead() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=4)
        large, small = waiting(m, BOB, 8), waiting(m, CAT, 1)
        await settle()
        large.cancel()
        assert (await small).buyer == CAT


async def test_who_waited_long_enough_is_told_so_also_behind_one_that_waits_longer() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        first, second, third = waiting(m, BOB, 8, 20.0), waiting(m, CAT, 1, 2.0), waiting(m, CAT, 2, 20.0)
        await settle()
        await m.pass_time(2)
        assert await second is errors.ResourcesExhausted
        assert [waiter.done() for waiter in (first, third)] == [False, False]
        for waiter in (first, third):
            waiter.cancel()


async def test_nobody_waits_for_what_is_sold_also_behind_others() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=4)
        await m.reserve(ANN, cpu=4)
        first, second = waiting(m, BOB, 4), waiting(m, CAT, 5)
        await settle()
        await m.ledger.purchase(held.id, ANN)
        assert await second is errors.ResourcesExhausted
        assert not first.done()
        first.cancel()


async def test_what_another_server_frees_while_we_write_is_given_to_who_waits() -> None:
    """Both changes come back from the store in one step, while the desk is still busy with the first."""
    async with market(prefix="a") as m, market(store=m.store, clock=m.clock, prefix="b") as other:
        await m.publish()
        small = await m.reserve(ANN, cpu=1)
        large = await m.reserve(ANN, cpu=7)
        waiter = waiting(m, BOB, 7)
        await settle()
        seen = m.ledger._cache._table.wait_for_change

        async def both(revision: int) -> None:
            await seen(revision)
            await other.ledger.cancel(large.id, ANN)
            await seen(await m.store.revision())

        m.ledger._cache._table.wait_for_change = both  # type: ignore[method-assign]  # what a slow watch does
        await m.ledger.cancel(small.id, ANN)
        assert (await waiter).buyer == BOB


async def test_who_waits_for_a_flavor_that_is_withdrawn_is_told_at_once() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        waiter = waiting(m, BOB, 8)
        await settle()
        await m.ledger.withdraw(F, actor="ed")
        assert await waiter is errors.Expired


async def test_what_would_be_refused_anyway_does_not_wait() -> None:
    async with market(max_holds=1) as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        waiter = waiting(m, BOB, 8)
        await settle()
        with pytest.raises(errors.Overloaded):
            await m.reserve(ANN, cpu=1, wait_s=10)
        waiter.cancel()


async def test_what_the_policy_forbids_is_refused_at_once_though_there_is_no_room() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(ANN, cpu=8)
        for _ in range(2):  # with nobody in line, and behind somebody
            for ask, count in ((resources(1, 1500), 1), (resources(1, 500), 1), (resources(1, 1000), 2)):
                with pytest.raises(errors.Unprocessable):
                    await m.ledger.reserve(BOB, F, resources=ask, count=count, wait_s=10)
            waiter = waiting(m, CAT, 8)
            await settle()
        waiter.cancel()


async def test_a_request_with_a_key_that_waits_is_under_way_until_it_is_answered() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=8)
        waiter = waiting(m, BOB, 8, idempotency_key="k")
        await settle()
        with pytest.raises(errors.Conflict, match="under way"):
            await m.reserve(BOB, cpu=8, wait_s=30, idempotency_key="k")
        await m.ledger.cancel(held.id, ANN)
        hold = await waiter
        assert await m.reserve(BOB, cpu=8, idempotency_key="k") == hold


async def test_a_key_that_was_served_is_answered_though_others_wait() -> None:
    async with market() as m:
        await m.publish()
        held = await m.reserve(ANN, cpu=8, idempotency_key="k")
        waiter = waiting(m, BOB, 8)
        await settle()
        assert await m.reserve(ANN, cpu=8, idempotency_key="k") == held
        waiter.cancel()


async def test_who_names_no_part_waits_for_whatever_comes() -> None:
    async with market() as m:
        await m.publish()
        await m.buy(ANN, cpu=3)
        held = await m.reserve(ANN, cpu=5)
        waiter = asyncio.create_task(m.ledger.reserve(BOB, F, wait_s=10))
        await settle()
        await m.ledger.cancel(held.id, ANN)
        assert (await waiter).resources == resources(5, 5000)
