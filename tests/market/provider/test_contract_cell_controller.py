"""Lending: exactly what is sold is lent, whatever happens in which order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.kit import tasks
from skerry.market.provider.contract_cell_controller import ContractCellController
from skerry.market.provider.contract_cells import plan
from skerry.model import errors
from skerry.model.ids import ContractId
from skerry.model.market import Contract, EndReason
from skerry.store.protocol import Expect
from tests.market.markets import ANN, Market, lead, market
from tests.support.waiting import eventually
from tests.wire.rear.nouns import CONTRACT, START

NOW = START + 60


def contract(id: str, **changes: Any) -> Contract:
    return replace(CONTRACT, id=ContractId(id), **changes)


def test_what_is_sold_is_lent_and_what_has_ended_is_taken_back() -> None:
    sold = [contract("new"), contract("lent"), contract("over", ended_at=NOW, ending=EndReason.RELEASED)]
    sold.append(contract("broken"))
    leased = {"lent": True, "over": True, "unknown": False, "broken": False}
    todo = plan(sold, {ContractId(id): is_sound for id, is_sound in leased.items()}, NOW)
    assert [one.id for one in todo.create] == ["new", "broken"]
    assert todo.remove == ["over", "unknown"]


def test_what_is_due_is_not_lent_any_more_and_not_taken_back_before_its_end_is_written() -> None:
    due = contract("due", reclaim_at=NOW)
    assert plan([due], {}, NOW).is_nothing
    assert plan([due], {due.id: True}, NOW).is_nothing


names = st.sets(st.sampled_from([ContractId(name) for name in "abcdef"]))


@given(sold=names, leased=names)
def test_after_a_plan_there_is_nothing_to_do(sold: set[ContractId], leased: set[ContractId]) -> None:
    contracts = [contract(id) for id in sorted(sold)]
    todo = plan(contracts, dict.fromkeys(leased, True), NOW)
    after = leased - set(todo.remove) | {one.id for one in todo.create}
    assert after == sold
    assert plan(contracts, dict.fromkeys(after, True), NOW).is_nothing


class Cells:
    """An estate on which a test can do what operators and machines do."""

    def __init__(self) -> None:
        self.there: dict[ContractId, Contract] = {}
        self.refusals = 0
        self.adopted: set[ContractId] = set()
        self._listeners: list[Callable[[], None]] = []

    def leased(self) -> Mapping[ContractId, bool]:
        return dict.fromkeys(self.there, True)

    async def ensure(self, contract: Contract, fence: Expect | None) -> None:
        if self.refusals:
            self.refusals -= 1
            raise errors.Unavailable("the store is away")
        self.there[contract.id] = contract

    async def remove(self, id: ContractId, fence: Expect | None) -> None:
        self.there.pop(id)

    def is_adopted(self, id: ContractId) -> bool:
        return id in self.adopted

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    def destroy(self, id: ContractId) -> None:
        self.there.pop(id)
        for changed in self._listeners:
            changed()


async def test_a_cell_that_was_adopted_stays_though_the_ledger_has_forgotten_its_contract() -> None:
    cells, sold, stray = Cells(), contract("sold"), contract("stray")
    cells.there = {sold.id: sold, stray.id: stray}
    cells.adopted = {sold.id}
    async with market() as m:
        lender = ContractCellController(m.ledger, cells)
        with structlog.testing.capture_logs() as logs:
            while not await lender.reconcile():
                pass
        assert set(cells.there) == {sold.id}
        (entry,) = [entry for entry in logs if entry["event"] == "contract.unknown"]
        assert (entry["contract"], entry["log_level"]) == (sold.id, "warning")


@asynccontextmanager
async def lending(m: Market, cells: Cells) -> AsyncIterator[None]:
    fence = await lead(m.store)
    running = asyncio.ensure_future(ContractCellController(m.ledger, cells).run(fence))
    try:
        yield
    finally:
        await tasks.cancel_and_wait([running])


async def test_a_contract_has_its_cell_from_its_purchase_to_its_end() -> None:
    cells = Cells()
    async with market() as m, lending(m, cells):
        await m.publish()
        first, second = await m.buy(), await m.buy()
        ids = {first.contract.id, second.contract.id}
        await eventually(lambda: cells.there.keys() == ids)
        await m.ledger.release(first.contract.id, ANN)
        await eventually(lambda: cells.there.keys() == {second.contract.id})
        await m.pass_time(second.contract.ends_at - m.clock.now())
        await eventually(lambda: not cells.there)


async def test_what_an_operator_destroyed_is_made_again() -> None:
    cells = Cells()
    async with market() as m, lending(m, cells):
        await m.publish()
        sale = await m.buy()
        await eventually(lambda: sale.contract.id in cells.there)
        cells.destroy(sale.contract.id)
        await eventually(lambda: sale.contract.id in cells.there)


async def test_what_did_not_work_is_tried_again_and_does_not_hold_up_others() -> None:
    cells = Cells()
    async with market() as m:
        await m.publish()
        for _ in range(2):
            await m.buy()
        lender = ContractCellController(m.ledger, cells)
        cells.refusals = 1
        with structlog.testing.capture_logs() as logs:
            assert not await lender.reconcile()
        assert (len(cells.there), logs[0]["event"]) == (1, "contract.not_lent")
        assert not await lender.reconcile()
        assert len(cells.there) == 2
        assert await lender.reconcile()


async def test_a_cell_whose_contract_is_only_not_known_yet_is_left_alone() -> None:
    cells = Cells()
    async with market() as m, market(store=m.store, clock=m.clock, prefix="other") as other:
        await m.publish()
        sale = await m.buy()
        cells.there[sale.contract.id] = sale.contract
        state = other.ledger._state  # as if what was sold had not come by yet
        state.live_sales.pop(sale.contract.id, None)
        await ContractCellController(other.ledger, cells).reconcile()
        assert sale.contract.id in cells.there


async def test_a_server_that_begins_to_lead_lends_what_was_sold_before() -> None:
    cells = Cells()
    async with market() as m:
        await m.publish()
        sale = await m.buy()
        async with lending(m, cells):
            await eventually(lambda: cells.there.keys() == {sale.contract.id})
