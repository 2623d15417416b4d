"""Slots of starts: so many at once, in the order of requests, and none is lost."""

from __future__ import annotations

import asyncio

import pytest

from skerry.node.containers.start_slots import StartSlots
from tests.support.waiting import eventually

LONG_S = 3600.0


class Starts:
    """Starts that go on until they are told to end."""

    def __init__(self, slots: StartSlots) -> None:
        self.slots = slots
        self.running: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}

    async def add(self, number: int) -> None:
        self.ends[number] = asyncio.Event()
        self.tasks[number] = asyncio.create_task(self._start(number))
        await settle()

    async def _start(self, number: int) -> None:
        async with self.slots.hold():
            self.running.append(number)
            try:
                await self.ends[number].wait()
            finally:
                self.running.remove(number)

    async def end(self, number: int) -> None:
        self.ends[number].set()
        await self.tasks[number]
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_as_many_run_as_there_are_slots_and_the_others_in_the_order_of_requests() -> None:
    starts = Starts(StartSlots(2, longest_s=LONG_S))
    for number in range(5):
        await starts.add(number)
    assert starts.running == [0, 1]
    await starts.end(1)
    assert starts.running == [0, 2]
    for number in (0, 2, 3, 4):
        await starts.end(number)
    assert starts.running == []


async def test_a_start_that_fails_and_one_that_is_cancelled_release_their_slots() -> None:
    slots = StartSlots(1, longest_s=LONG_S)
    with pytest.raises(RuntimeError):
        async with slots.hold():
            raise RuntimeError
    starts = Starts(slots)
    for number in range(3):
        await starts.add(number)
    starts.tasks[1].cancel()  # it waits
    starts.tasks[0].cancel()  # it runs
    await asyncio.gather(starts.tasks[0], starts.tasks[1], return_exceptions=True)
    await settle()
    assert starts.running == [2]
    await starts.end(2)


async def test_a_start_that_hangs_does_not_delay_others_for_ever_and_gives_back_one_slot_only() -> None:
    starts = Starts(StartSlots(1, longest_s=0.0))
    await starts.add(0)
    await starts.add(1)
    await eventually(lambda: starts.running == [0, 1])
    starts.slots._longest_s = LONG_S
    await starts.add(2)
    await eventually(lambda: 2 in starts.running)
    await starts.end(0)  # whose slot is another's by now
    await starts.end(1)
    await starts.add(3)
    assert starts.running == [2]
    await starts.end(2)
    await starts.end(3)
