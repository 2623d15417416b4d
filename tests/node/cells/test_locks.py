from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.node.cells.locks import PathLockGuard, PathLocks
from tests.support.waiting import PATIENCE_S


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_two_siblings_do_not_meet() -> None:
    locks = PathLocks("cells")
    first = await locks.lock(["a"], "a/b")
    second = await asyncio.wait_for(locks.lock(["a"], "a/c"), PATIENCE_S)
    first.release()
    second.release()
    assert len(locks) == 0


async def test_who_holds_a_parent_waits_for_work_below_and_keeps_new_work_out() -> None:
    locks = PathLocks("cells")
    below = await locks.lock(["a"], "a/b")
    freeing = asyncio.create_task(locks.lock([], "a"))
    await settle()
    late = asyncio.create_task(locks.lock(["a"], "a/c"))
    await settle()
    assert not freeing.done()
    assert not late.done(), "a later reader went before a writer"
    below.release()
    held = await asyncio.wait_for(freeing, PATIENCE_S)
    await settle()
    assert not late.done()
    held.release()
    (await asyncio.wait_for(late, PATIENCE_S)).release()
    assert len(locks) == 0


async def test_one_who_gives_up_waiting_is_not_in_the_way() -> None:
    locks = PathLocks("cells")
    reading = await locks.lock(["a"], "a/b")
    writer = asyncio.create_task(locks.lock([], "a"))
    await settle()
    reader = asyncio.create_task(locks.lock(["a"], "a/c"))
    await settle()
    writer.cancel()
    (await asyncio.wait_for(reader, PATIENCE_S)).release()
    with pytest.raises(asyncio.CancelledError):
        await writer
    reading.release()
    assert len(locks) == 0


async def test_one_who_gives_up_as_its_turn_comes_passes_it_on() -> None:
    locks = PathLocks("cells")
    holder = await locks.lock([], "a")
    first = asyncio.create_task(locks.lock([], "a"))
    second = asyncio.create_task(locks.lock([], "a"))
    await settle()
    holder.release()  # the turn is given to the first
    first.cancel()  # who never takes it
    (await asyncio.wait_for(second, PATIENCE_S)).release()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(locks) == 0


async def test_releasing_twice_does_nothing_more() -> None:
    locks = PathLocks("cells")
    held = await locks.lock(["a"], "a/b")
    held.release()
    held.release()
    assert len(locks) == 0


NAMES = st.sampled_from(["a", "b", "a/b", "a/c", "a/b/c", "a/b/d", "b/a"])


@settings(max_examples=60)
@given(st.lists(st.tuples(NAMES, st.booleans(), st.integers(0, 4), st.booleans()), max_size=25))
def test_nobody_waits_for_ever_and_a_holder_is_alone_with_its_descendants(
    work: list[tuple[str, bool, int, bool]],
) -> None:
    active: list[tuple[str, bool]] = []

    def excludes(one: tuple[str, bool], other: tuple[str, bool]) -> bool:
        (name, alone), (second, _) = one, other
        return alone and (second == name or second.startswith(f"{name}/"))

    async def job(locks: PathLocks, name: str, alone: bool, turns: int) -> None:
        parts = name.split("/")
        path: list[object] = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        held: PathLockGuard = await locks.lock(path[:-1], name) if alone else await locks.lock(path, object())
        me = (name, alone)
        for other in active:
            assert not excludes(me, other)
            assert not excludes(other, me)
        active.append(me)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        finally:
            active.remove(me)
            held.release()

    async def run() -> None:
        locks = PathLocks("cells")
        jobs = []
        for name, alone, turns, gives_up in work:
            jobs.append(asyncio.create_task(job(locks, name, alone, turns)))
            if gives_up:
                await asyncio.sleep(0)
                jobs[-1].cancel()
        results = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), PATIENCE_S)
        assert [r for r in results if r is not None and not isinstance(r, asyncio.CancelledError)] == []
        assert len(locks) == 0

    asyncio.run(run())
