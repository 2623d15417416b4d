"""The way to the store: what fails may have happened, and who is dead is heard no more, or late."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.sim import simulated_time
from skerry.sim.cluster.fault_schedule import FaultSchedule
from skerry.sim.cluster.faulty_store import FaultyStore
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import ABSENT, Expect, Put


def store() -> MemoryStore:
    return MemoryStore(simulated_time.LoopClock(asyncio.get_running_loop()))


def test_in_good_weather_a_line_is_the_store() -> None:
    async def use() -> None:
        line = FaultyStore(store(), FaultSchedule(random.Random(1)))
        revision = await line.commit([Put("a", b"1")])
        assert (await line.get("a")).value == b"1"  # type: ignore[union-attr] # it was just put
        assert [entry.key for entry in (await line.range("")).entries] == ["a"]
        assert await line.revision() == revision
        lease = await line.grant_lease(5)
        await line.renew_lease(lease)
        await line.revoke_lease(lease)
        async with line.watch("", since=0) as batches:
            assert (await anext(batches)).revision == revision
        await line.compact(revision)

    simulated_time.run(use())


def test_of_transactions_that_fail_some_happened_and_some_did_not() -> None:
    async def use() -> tuple[int, int]:
        faults = FaultSchedule(random.Random(1), store_errors=1.0)
        inner = store()
        line, happened = FaultyStore(inner, faults), 0
        for number in range(200):
            with suppress(errors.Unavailable):
                await line.commit([Put(f"k{number}", b"")])
                happened += 1
        return len((await inner.range("")).entries), happened

    there, acknowledged = simulated_time.run(use())
    assert acknowledged < there < 200


def test_what_was_acknowledged_is_there() -> None:
    async def use() -> None:
        faults = FaultSchedule(random.Random(2), store_errors=0.5, store_delay_s=0.1)
        inner = store()
        line = FaultyStore(inner, faults)
        for number in range(100):
            try:
                await line.commit([Put(f"k{number}", b"")])
            except errors.Unavailable:
                continue
            assert await inner.get(f"k{number}") is not None

    simulated_time.run(use())


def test_a_dead_server_gets_nothing_through() -> None:
    async def use() -> None:
        line = FaultyStore(store(), FaultSchedule(random.Random(1)))
        line.cut()
        with pytest.raises(errors.Unavailable):
            await line.commit([Put("a", b"")])
        with pytest.raises(errors.Unavailable):
            await line.get("a")

    simulated_time.run(use())


def test_what_a_dead_server_had_sent_may_arrive_late_and_is_held_to_its_fence() -> None:
    async def use(seed: int, *, is_replaced: bool) -> bool:
        inner = store()
        line = FaultyStore(inner, FaultSchedule(random.Random(seed), store_delay_s=1.0))
        sending = asyncio.ensure_future(line.commit([Put("late", b"")], [Expect("leader", ABSENT)]))
        await asyncio.sleep(0)
        await cancel_and_wait([sending])
        line.cut()
        if is_replaced:
            await inner.commit([Put("leader", b"another")])
        await line.close()
        return await inner.get("late") is not None

    arrived = [simulated_time.run(use(seed, is_replaced=False)) for seed in range(20)]
    assert set(arrived) == {True, False}
    assert not any(simulated_time.run(use(seed, is_replaced=True)) for seed in range(20))


def test_of_transactions_that_fail_some_happen_later() -> None:
    async def use() -> tuple[int, int]:
        inner = store()
        line = FaultyStore(inner, FaultSchedule(random.Random(1), store_errors=1.0))
        for number in range(100):
            with suppress(errors.Unavailable):
                await line.commit([Put(f"k{number}", b"")])
        at_once = len((await inner.range("")).entries)
        await line.arrived()
        return at_once, len((await inner.range("")).entries)

    at_once, in_the_end = simulated_time.run(use())
    assert at_once < in_the_end < 100
