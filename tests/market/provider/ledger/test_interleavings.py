"""Buyers at several servers of one store, in whatever order hypothesis thinks of: each unit is taken once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from skerry.kit import tasks
from skerry.kit.clock import ManualClock
from skerry.market.provider.ledger.records import ContractRecord
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import EndReason, Hold
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Op
from tests.market.markets import ANN, Market, lead, market, outcome
from tests.support.waiting import eventually

SIZE = 8


class Delays:
    """A store whose writes wait for some turns of the loop, before they are done and before that is told."""

    def __init__(self, store: Any, turns: Iterator[int]) -> None:
        self._store = store
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        await wait(next(self._turns))
        try:
            revision: int = await self._store.commit(ops, expect)
        finally:
            await wait(next(self._turns))
        return revision


async def wait(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def deal(m: Market, buyer: CloudId, cpu: int, buys: bool, late: int) -> Any:
    await wait(late)
    hold = await outcome(m.reserve(buyer, cpu))
    if not isinstance(hold, Hold):
        return hold
    if not buys:
        return await m.ledger.cancel(hold.id, buyer)
    return await m.ledger.purchase(hold.id, buyer)


deals = st.tuples(st.integers(1, SIZE), st.booleans(), st.integers(0, 6), st.integers(0, 2))


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(deals, min_size=2, max_size=8), turns=st.lists(st.integers(0, 5), min_size=1, max_size=12)
)
@example(asked=[(8, True, 0, 0), (8, True, 0, 1)], turns=[0])
@example(asked=[(5, True, 0, 0), (5, True, 0, 0), (3, True, 0, 1)], turns=[3, 0])
def test_no_order_of_things_sells_anything_twice(asked: list[Any], turns: list[int]) -> None:
    asyncio.run(run_deals(asked, turns))


async def run_deals(asked: list[tuple[int, bool, int, int]], turns: list[int]) -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    delays = Delays(store, cycle(turns))
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(market(store=delays, clock=clock, prefix=f"server-{n}"))
            for n in range(3)
        ]
        await servers[0].publish()
        found = await asyncio.gather(
            *(
                deal(servers[server], CloudId(f"buyer-{n}"), cpu, buys, late)
                for n, (cpu, buys, late, server) in enumerate(asked)
            )
        )
        sales = [one for one in found if isinstance(one, ContractRecord)]
        sold = sum(sale.contract.resources.cpu for sale in sales) // 1000
        assert sold <= SIZE
        assert len({sale.contract.id for sale in sales}) == len(sales)
        refused = [one for one in found if isinstance(one, type)]
        assert set(refused) <= {errors.ResourcesExhausted}
        # Somebody got something: the first to be decided is never refused.
        assert len(refused) < len(asked)
        for server in servers:
            await server.ledger._cache._table.wait_for_revision(await store.revision())
            assert server.split() == (SIZE - sold, 0, sold)
    await store.close()


async def test_many_buyers_at_three_servers_sell_the_last_core_once() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(market(store=store, clock=clock, prefix=f"server-{n}"))
            for n in range(3)
        ]
        await servers[0].publish()
        found = await asyncio.gather(*(outcome(servers[n % 3].buy(CloudId(f"b{n}"))) for n in range(60)))
        assert sum(isinstance(one, ContractRecord) for one in found) == SIZE
        assert found.count(errors.ResourcesExhausted) == 60 - SIZE
    await store.close()


async def test_a_hold_that_was_made_at_one_server_is_known_at_another_at_once() -> None:
    async with market() as m, market(store=m.store, clock=m.clock, prefix="other") as other:
        await m.publish()
        hold = await other.reserve(ANN)
        sale = await m.ledger.purchase(hold.id, ANN)
        renewed = await other.ledger.renew(sale.contract.id, ANN, sale.contract.ends_at + 10)
        assert renewed.contract.renewals == 1


async def test_the_same_key_at_two_servers_makes_one_hold() -> None:
    async with market() as m, market(store=m.store, clock=m.clock, prefix="other") as other:
        await m.publish()
        first, second = await asyncio.gather(
            m.reserve(ANN, idempotency_key="k"), other.reserve(ANN, idempotency_key="k")
        )
        assert first == second
        assert m.split() == (7, 1, 0)


async def test_who_waits_at_one_server_gets_what_was_given_up_at_another() -> None:
    async with market() as m, market(store=m.store, clock=m.clock, prefix="other") as other:
        await m.publish()
        held = await m.reserve(ANN, cpu=8)
        waiter = asyncio.create_task(other.reserve(CloudId("bob"), cpu=8, wait_s=10))
        await wait(20)
        await m.ledger.cancel(held.id, ANN)
        assert (await waiter).buyer == "bob"


async def test_deadlines_are_minded_by_the_server_that_leads() -> None:
    async with market(has_leader=True) as m:
        await m.publish()
        hold = await m.reserve()
        await m.pass_time(60)
        assert m.ledger._state.holds[hold.id].ending is None
        assert m.split() == (8, 0, 0)  # over all the same
        leading = asyncio.create_task(m.ledger.lead(await lead(m.store)))
        await eventually(lambda: m.ledger._state.holds[hold.id].ending is EndReason.EXPIRED)
        await tasks.cancel_and_wait([leading])
