"""The pool and the batches under it, with links that are made in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest

from skerry.kit.batching import Batcher
from skerry.model import errors
from skerry.node.network import namespace_pool
from skerry.node.network.addresses import AddressAllocator
from skerry.node.network.namespace_pool import NamespacePool
from skerry.node.network.subnets import NodeSubnet
from tests.support.waiting import PATIENCE_S, eventually


class FakeLinks:
    """Makes nothing, and remembers what; waits for `gate` before each batch."""

    def __init__(self) -> None:
        self.created: set[IPv4Address] = set()
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False
        self.is_unprepared = False

    def make(self, addresses: Sequence[IPv4Address]) -> None:
        assert self.gate.wait(PATIENCE_S)
        if self.is_broken:
            raise errors.Unavailable("broken")
        assert self.created.isdisjoint(addresses)
        self.created.update(addresses)
        self.batches.append(len(addresses))

    async def prepare(self, address: IPv4Address) -> None:
        assert address in self.created
        if self.is_unprepared:
            raise errors.Unavailable("no rules")

    def remove(self, addresses: Sequence[IPv4Address]) -> None:
        self.created.difference_update(addresses)


def pool_of(links: FakeLinks, subnet: str, count: int) -> NamespacePool:
    return NamespacePool(links, AddressAllocator(NodeSubnet(subnet)), count, links.prepare)  # type: ignore[arg-type]


async def test_one_that_cannot_be_prepared_is_removed_and_its_address_is_free_again() -> None:
    links = FakeLinks()
    links.is_unprepared = True
    pool = pool_of(links, "10.0.0.0/30", 0)
    with pytest.raises(errors.Unavailable):
        await pool.take()
    assert links.created == set()
    links.is_unprepared = False
    assert {await pool.take()} == links.created
    await pool.close()


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_many_who_come_at_once_are_served_in_batches() -> None:
    links = FakeLinks()
    pool = pool_of(links, "10.0.0.0/24", 0)
    taken = await asyncio.gather(*(pool.take() for _ in range(30)))
    assert links.created == set(taken)
    assert len(set(taken)) == 30
    assert len(links.batches) < 10
    await pool.close()


async def test_whoever_needs_the_last_address_gets_the_one_that_is_being_made_for_the_pool() -> None:
    links = FakeLinks()
    links.gate.clear()
    pool = pool_of(links, "10.0.0.0/30", 4)
    filling = asyncio.create_task(pool.run())
    await eventually(lambda: pool._making)
    first = asyncio.create_task(pool.take())
    second = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    links.gate.set()
    assert await first == IPv4Address("10.0.0.2")
    with pytest.raises(errors.ResourcesExhausted):
        await second
    await stop(filling)
    await pool.remove(IPv4Address("10.0.0.2"))
    pool.release(IPv4Address("10.0.0.2"))
    assert await pool.take() == IPv4Address("10.0.0.2")
    await pool.close()


async def test_one_that_was_made_for_somebody_who_went_is_given_to_the_next() -> None:
    links = FakeLinks()
    links.gate.clear()
    pool = pool_of(links, "10.0.0.0/24", 0)
    gone = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    links.gate.set()
    await eventually(lambda: pool._ready)
    assert await pool.take() == IPv4Address("10.0.0.2")
    assert len(links.created) == 1
    await pool.close()


async def test_what_could_not_be_made_is_told_and_takes_no_address() -> None:
    links = FakeLinks()
    links.is_broken = True
    pool = pool_of(links, "10.0.0.0/30", 0)
    for _ in range(2):
        with pytest.raises(errors.Unavailable, match="broken"):
            await pool.take()
    links.is_broken = False
    await pool.take()
    await pool.close()


async def test_what_waits_is_removed_when_the_agent_ends_and_what_was_taken_is_not() -> None:
    links = FakeLinks()
    pool = pool_of(links, "10.0.0.0/24", 4)
    filling = asyncio.create_task(pool.run())
    await eventually(lambda: len(pool._ready) == 4)
    taken = await pool.take()
    await stop(filling)
    await pool.close()
    assert links.created == {taken}


async def test_work_that_comes_meanwhile_is_done_together_and_in_order() -> None:
    batches: list[list[int]] = []
    gate = threading.Event()

    def work(items: list[int]) -> None:
        assert gate.wait(PATIENCE_S)
        batches.append(items)

    together = Batcher(work, most=3)
    tasks = [asyncio.create_task(together.do(0))]
    await eventually(lambda: together._task and not together._waiting)
    tasks += [asyncio.create_task(together.do(number)) for number in range(1, 6)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*tasks)
    await together.drain()
    assert batches == [[0], [1, 2, 3], [4, 5]]


async def test_a_batch_that_fails_fails_for_all_of_it_and_for_nobody_else() -> None:
    def work(items: list[int]) -> None:
        if 1 in items:
            raise errors.Unavailable("no")

    together = Batcher(work, most=1)
    outcomes = await asyncio.gather(*(together.do(number) for number in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [type(None), errors.Unavailable, type(None)]


async def test_work_whose_caller_goes_is_done_all_the_same() -> None:
    done: list[int] = []
    together = Batcher(lambda items: done.extend(items))
    caller = asyncio.create_task(together.do(7))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    await together.drain()
    assert done == [7]


async def test_as_many_as_are_expected_to_be_taken_at_once_are_ready_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(namespace_pool, "_SURPLUS_S", 0.01)
    links = FakeLinks()
    addresses = AddressAllocator(NodeSubnet("10.0.0.0/24"))
    pool = NamespacePool(links, addresses, 2, links.prepare)  # type: ignore[arg-type]
    filling = asyncio.create_task(pool.run())
    pool.expect(10)
    await eventually(lambda: len(links.created) == 10)
    made = set(links.created)
    taken = await asyncio.gather(*(pool.take() for _ in range(10)))
    assert set(taken) <= made, "nobody waited for one"
    pool.expect(1000)
    await eventually(lambda: len(links.created) == 10 + 64)
    pool.expect(0)  # they were not needed, and two always are
    await eventually(lambda: len(links.created) == 10 + 2)
    assert addresses.free == NodeSubnet("10.0.0.0/24").size - 12
    await stop(filling)
    await pool.close()
