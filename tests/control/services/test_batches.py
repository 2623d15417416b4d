"""Plans of several services in one transaction: few are written, and none is held up by another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from skerry.control.services.plan_writer import ServiceTransaction, batches
from skerry.control.services.requests import ServiceSpec
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import ServiceId
from skerry.model.workloads import Instance
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import MAX_OPS, Expect, Op, Put
from tests.control.services.test_controller import QUICK, ServiceServer, fleet
from tests.control.worlds import spec
from tests.support.waiting import eventually


def transaction(name: str, ops: int, expect: int = 1) -> ServiceTransaction:
    puts: list[Op] = [Put(f"{name}/{number}", b"") for number in range(ops)]
    return ServiceTransaction(
        ServiceId(name), (), puts, [Expect(f"{name}/{number}", 1) for number in range(expect)]
    )


def test_small_transactions_are_put_together_and_none_is_too_large() -> None:
    made = [transaction(f"s{number}", 10, 3) for number in range(30)]
    found = list(batches(made))
    assert [one for batch in found for one in batch] == made
    assert len(found) == 3
    assert all(sum(len(one.ops) for one in batch) < MAX_OPS for batch in found)
    [whole, alone] = batches([transaction("a", 1, MAX_OPS - 9), transaction("b", 1, 5)])
    assert [len(whole), len(alone)] == [1, 1]
    assert list(batches([])) == []


class RefusingStore:
    """Counts the leader's transactions about services, and refuses those about one of them."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.sizes: list[int] = []  # services in each transaction that was written
        self.refused = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        keys = [one.key for one in expect]
        if "leader" in keys and self.refused and self.refused in keys:
            raise errors.Conflict("somebody was quicker")
        revision = await self._store.commit(ops, expect)
        if "leader" in keys and (services := [key for key in keys if key.startswith("service/")]):
            self.sizes.append(len(services))
        return revision


def _copies_of(one: ServiceServer, name: str) -> list[Instance]:
    return [copy for copy in one.copies() if copy.owner is not None and copy.owner.name == name]


async def test_services_that_are_decided_together_are_written_together() -> None:
    store = MemoryStore(SystemClock())
    counting: Any = RefusingStore(store)
    try:
        async with ServiceServer(counting, fleet()).serving() as one:
            await _create(one, 20)
            await eventually(lambda: len([copy for copy in one.copies() if copy.is_ready]) == 20)
            assert max(counting.sizes) > 1
    finally:
        await store.close()


async def test_a_service_that_somebody_else_changes_does_not_hold_up_others() -> None:
    store = MemoryStore(SystemClock())
    counting: Any = RefusingStore(store)
    counting.refused = "service/default/web3"
    try:
        async with ServiceServer(counting, fleet()).serving() as one:
            await _create(one, 5)
            await eventually(lambda: len([copy for copy in one.copies() if copy.is_ready]) == 4)
            assert _copies_of(one, "web3") == []
            counting.refused = ""
            await eventually(lambda: len(_copies_of(one, "web3")) == 1)
    finally:
        await store.close()


async def _create(one: ServiceServer, count: int) -> None:
    template = spec("web")
    made = [
        ServiceSpec(replace(template, name=f"web{number}"), replicas=1, update=QUICK)
        for number in range(count)
    ]
    await asyncio.gather(*(one.registry.create(wanted, actor="test") for wanted in made))
