"""A crash at every write, before it or after it: nothing is sold twice or lost, and all may ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId
from skerry.model.market import EndReason
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Op
from skerry.store.sqlite.store import SqliteStore
from tests.market.markets import ANN, BOB, F, Market, flavor, market, outcome
from tests.support.waiting import eventually


class Fuse:
    """A store that breaks at its write number `at`: before it is done, or after it is and nobody is told."""

    def __init__(self, store: Any, at: int = 0, *, is_done: bool = False) -> None:
        self._store = store
        self.writes = 0
        self._at = at
        self._is_done = is_done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        self.writes += 1
        if self.writes == self._at:
            if self._is_done:
                await self._store.commit(ops, expect)
            raise errors.Unavailable("the store broke; it may have happened all the same")
        revision: int = await self._store.commit(ops, expect)
        return revision


class Diary:
    """What the buyer knows: answers that it got. A step that is taken again does what was not done."""

    def __init__(self) -> None:
        self.holds: dict[str, HoldId] = {}
        self.documents: dict[str, bytes] = {}
        self.contracts: dict[str, ContractId] = {}
        self.done: set[int] = set()

    def steps(self, m: Market) -> list[Callable[[], Awaitable[Any]]]:
        async def reserve(name: str, cpu: int) -> None:
            self.holds[name] = (await m.reserve(ANN, cpu, idempotency_key=name)).id

        async def purchase(name: str) -> None:
            sale = await m.ledger.purchase(self.holds[name], ANN)
            self.documents[name], self.contracts[name] = sale.document, sale.contract.id

        return [
            lambda: m.ledger.publish(flavor(), actor="ed"),
            lambda: reserve("a", 3),
            lambda: purchase("a"),
            lambda: reserve("b", 2),
            lambda: m.ledger.cancel(self.holds["b"], ANN),
            lambda: reserve("c", 1),
            lambda: purchase("c"),
            lambda: m.ledger.renew(self.contracts["c"], ANN, m.clock.now() + 4000),
            lambda: m.ledger.countersign(self.contracts["a"], ANN, b"mine", over=self.documents["a"]),
            lambda: m.ledger.release(self.contracts["a"], ANN),
            lambda: reserve("d", 4),
            lambda: m.ledger.withdraw(F, actor="ed", reclaim=True),
        ]

    async def go_on(self, m: Market) -> None:
        for number, step in enumerate(self.steps(m)):
            if number not in self.done:
                await step()
                self.done.add(number)


async def count_writes() -> int:
    async with market() as m:
        fuse = Fuse(m.store)
        async with market(store=fuse, clock=m.clock) as counted:
            await Diary().go_on(counted)
        return fuse.writes


@pytest.mark.parametrize("is_done", [False, True])
async def test_a_crash_at_any_write_leaves_books_that_add_up_and_a_deal_that_can_be_finished(
    is_done: bool,
) -> None:
    writes = await count_writes()
    assert writes >= 11
    for at in range(1, writes + 1):
        clock = ManualClock()
        store = MemoryStore(clock)
        diary = Diary()
        async with market(store=Fuse(store, at, is_done=is_done), clock=clock, prefix="first") as m:
            assert await outcome(diary.go_on(m)) is errors.Unavailable
        async with market(store=store, clock=clock, prefix="second") as m:
            assert m.ledger.audit() == {}
            for name, document in diary.documents.items():
                assert (await m.ledger.purchase(diary.holds[name], ANN)).document == document
            await diary.go_on(m)
            assert m.split() == (3, 4, 1)
            assert len(m.ledger.holds()) == 4
            assert len(m.ledger.contracts()) == 2
            assert {hold.ending for hold in m.ledger.holds()} == {None, EndReason.BOUGHT, EndReason.CANCELLED}
            await m.pass_time(5000)
            assert m.split() == (8, 0, 0)
        await store.close()


async def test_a_store_that_fails_once_does_not_stop_the_ledger_nor_its_deadlines() -> None:
    async with market() as m:
        await m.publish()
        fuse = Fuse(m.store, 2)
        async with market(store=fuse, clock=m.clock, prefix="second") as broken:
            hold = await broken.reserve()
            m.clock.advance(60)
            await broken.ledger.sweep()
            assert fuse.writes == 2
            assert broken.split() == (8, 0, 0)  # it is over, though it is not written
            m.clock.advance(1)
            await broken.ledger.sweep()
            assert broken.ledger.flavor(F).held.cpu == 0
            assert broken.ledger.hold(hold.id).ending is EndReason.EXPIRED
            assert fuse.writes == 3
            await broken.reserve()


async def test_what_was_answered_is_on_the_disk(tmp_path: Path) -> None:
    clock = ManualClock()
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    async with market(store=store, clock=clock) as m:
        await m.publish()
        held, sale = await m.reserve(BOB), await m.buy(ANN, cpu=3)
    await store.close()
    store = await SqliteStore.open(tmp_path / "store.db", clock)
    async with market(store=store, clock=clock) as m:
        assert m.split() == (4, 1, 3)
        assert (await m.ledger.purchase(sale.contract.hold, ANN)).document == sale.document
        clock.advance(60)
        await m.ledger.sweep()
        await eventually(lambda: m.ledger.hold(held.id).ending is EndReason.EXPIRED)
        assert m.split() == (5, 0, 3)
    await store.close()


async def test_a_buyer_that_hangs_up_in_the_middle_of_a_write_finds_its_hold_by_the_key() -> None:
    async with market() as m:
        await m.publish()
        asking = asyncio.create_task(m.reserve(idempotency_key="k"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        again = await m.reserve(idempotency_key="k")
        assert m.split() == (7, 1, 0)
        assert again.buyer == ANN
