"""What the ledger keeps over time: deadlines, what is over, and everything after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry.kit.clock import ManualClock, SystemClock
from skerry.model import errors
from skerry.model.ids import OfferId
from skerry.model.market import EndReason
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Delete
from tests.market.markets import ANN, BOB, F, market, outcome, resources
from tests.support.waiting import eventually


async def test_what_is_over_is_kept_for_a_while_and_then_forgotten_the_oldest_first() -> None:
    async with market(keep_ended=2, max_holds=1000, contract_s=10.0) as m:
        await m.publish()
        holds = [await m.reserve() for _ in range(3)]
        for hold in holds:
            await m.ledger.cancel(hold.id, ANN)
        assert len(m.ledger.holds(ANN)) == 3
        for _ in range(70):
            last = await m.reserve()
            await m.ledger.cancel(last.id, ANN)
        await m.pass_time(0)
        assert m.ledger.hold(last.id).ending is EndReason.CANCELLED
        assert len(m.ledger.holds()) <= 2 + 64
        with pytest.raises(errors.NotFound):
            await m.ledger.purchase(holds[0].id, ANN)
        sales = [await m.buy() for _ in range(5)]
        await m.pass_time(10)
        for _ in range(67):
            sales.append(sale := await m.buy())
            await m.ledger.release(sale.contract.id, ANN)
        await m.pass_time(0)
        kept = [sale.contract.id for sale in m.ledger.contracts()]
        assert kept == [sale.contract.id for sale in sales][-len(kept) :]
        assert 2 <= len(kept) <= 2 + 64
        assert {hold.contract for hold in m.ledger.holds()} - {None} == set(kept)
        assert m.split() == (8, 0, 0)


async def test_flavors_that_are_over_are_forgotten_but_not_one_that_is_offered_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [OfferId(name) for name in ("z", "a", "f")]
    async with market() as m, market(store=m.store, clock=m.clock, prefix="b") as other:
        for id in names:
            await m.publish(id=id)
            await m.ledger.withdraw(id, actor="ed")
            await m.pass_time(1)
        async with market(store=m.store, clock=m.clock, prefix="c") as again:
            await again.ledger._cache.trim(keep=2, now=m.clock.now())  # the oldest goes also after a restart
            with pytest.raises(errors.NotFound):
                again.ledger.flavor(OfferId("z"))
        commit = m.store.commit

        async def late(ops: Any, expect: Any = ()) -> int:
            if isinstance(ops[0], Delete):
                monkeypatch.undo()
                await other.publish(id=F)
            return await commit(ops, expect)

        monkeypatch.setattr(m.store, "commit", late)
        await m.ledger._cache.trim(keep=0, now=m.clock.now())
        await m.reserve()
        assert m.split() == (7, 1, 0)
        await m.ledger._cache.trim(keep=0, now=m.clock.now())
        assert m.split() == (7, 1, 0)
        with pytest.raises(errors.NotFound):
            m.ledger.flavor(OfferId("a"))


async def test_a_flavor_that_was_forgotten_is_offered_again_with_a_higher_version_at_every_server() -> None:
    async with market() as m, market(store=m.store, clock=m.clock, prefix="b") as other:
        version = 0
        for server in (m, other, m):
            offered = await server.publish()
            assert offered.flavor.version > version
            version = (await server.ledger.withdraw(F, actor="ed")).flavor.version
            await server.ledger._cache.trim(keep=0, now=m.clock.now())
        async with market(store=m.store, clock=m.clock, prefix="c") as again:
            assert (await again.publish()).flavor.version > version


async def test_before_it_runs_and_after_it_ended_a_ledger_takes_no_requests() -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(cpu=8)
        waiter = asyncio.create_task(outcome(m.reserve(BOB, cpu=8, wait_s=10)))
        await asyncio.sleep(0)
        await m.stop()
        assert await waiter is errors.Unavailable
        with pytest.raises(errors.Unavailable, match="not open"):
            await m.reserve()


async def test_deadlines_are_kept_by_themselves() -> None:
    async with market(clock=SystemClock(), hold_s=0.05) as m:
        await m.publish()
        await m.publish(id=OfferId("g"), expires_at=m.clock.now() + 0.1)
        await m.reserve()
        waiter = asyncio.create_task(m.reserve(BOB, cpu=8, wait_s=10))
        sale = await m.ledger.purchase((await waiter).id, BOB)
        assert sale.contract.taken == resources(8, 8000)

        async def is_withdrawn() -> bool:
            return "flavor.withdrawn" in await m.kinds()

        await eventually(is_withdrawn)


@pytest.mark.parametrize("fault", [errors.Unavailable("the disk is full"), ZeroDivisionError()])
async def test_a_deadline_that_cannot_be_written_is_tried_again_but_not_all_the_time(
    monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    async with market() as m:
        await m.publish()
        await m.reserve(cpu=8)
        tries = 0

        async def fail(*_: Any) -> int:
            nonlocal tries
            tries += 1
            raise fault

        monkeypatch.setattr(m.store, "commit", fail)
        m.clock.advance(60)
        m.ledger._service._alarm.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert tries == 1
        assert m.split() == (8, 0, 0)  # as whoever reads sees it
        monkeypatch.undo()
        await m.pass_time(1)
        assert m.ledger.holds()[0].ending is EndReason.EXPIRED
        assert m.ledger._state.flavors[F].account == m.ledger.flavor(F)  # and now it is written


async def test_everything_is_as_it_was_after_a_restart() -> None:
    async with market(keep_ended=10) as m:
        await m.publish()
        held, bought, cancelled = await m.reserve(), await m.buy(), await m.reserve()
        await m.ledger.cancel(cancelled.id, ANN)
        before = (m.ledger.flavor(F), m.ledger.holds(), m.ledger.contracts())
        async with market(store=m.store, clock=m.clock) as again:
            assert again.ledger.flavor(F) == before[0]
            assert sorted(again.ledger.holds(), key=lambda h: h.id) == sorted(before[1], key=lambda h: h.id)
            assert again.ledger.contracts() == before[2]
            assert again.split() == m.split()
            assert (await again.ledger.purchase(bought.contract.hold, ANN)).document == bought.document
            await again.pass_time(60)
            assert again.ledger.hold(held.id).ending is EndReason.EXPIRED


async def test_a_deadline_that_came_while_nobody_was_there_is_kept_at_the_start() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with market(store=store, clock=clock) as m:
        await m.publish()
        hold = await m.reserve(cpu=8)
    clock.advance(60)
    async with market(store=store, clock=clock) as m:
        await eventually(lambda: m.ledger.flavor(F).flavor.version == 3)
        assert m.ledger.hold(hold.id).ended_at == hold.expires_at
    await store.close()
