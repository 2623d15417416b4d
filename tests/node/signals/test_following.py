"""Which signals belong to a cell: of live processes, dead ones, children, threads, and numbers used again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest

from skerry.model import errors
from skerry.model.cells import ExecutableState, ExitStatus
from skerry.model.ids import CellName, ExecutableName
from skerry.node.signals.following import Lineage, SignalSent, SignalSource
from skerry.node.signals.tracing import ForkRecord
from tests.support.signals import FakeKernel

A, B = CellName("a"), CellName("b")
# No process has such a number, so that nothing is found of it in /proc.
MAIN, CHILD, GRANDCHILD, THREAD, STRANGER = range(5_000_001, 5_000_006)


class FakeCells:
    """Cells whose processes a test says."""

    def __init__(self) -> None:
        self.listed: dict[CellName, list[int]] = {A: [], B: []}
        self.started: dict[int, ExecutableState] = {}

    def pids(self, name: CellName) -> list[int]:
        if name not in self.listed:
            raise errors.NotFound(f"there is no cell {name!r}")
        return self.listed[name]

    def by_pid(self, pid: int) -> ExecutableState:
        if pid not in self.started:
            raise errors.NotFound(f"process {pid} is no executable")
        return self.started[pid]

    def start(self, cell: CellName, pid: int) -> None:
        self.started[pid] = ExecutableState(ExecutableName("x"), cell, "true", "", pid, 1.0)

    def end(self, pid: int, at: float) -> None:
        self.started[pid] = msgspec.structs.replace(self.started[pid], exit=ExitStatus(at=at, signal=9))


@pytest.fixture
def cells() -> FakeCells:
    return FakeCells()


@pytest.fixture
def kernel() -> FakeKernel:
    return FakeKernel()


@pytest.fixture
def source(cells, kernel) -> SignalSource:
    return SignalSource(cells, kernel.open, now=lambda: 100.0, most_unread=5, check_s=0.01)


async def reported(follower, count: int) -> list[tuple[int, int]]:
    async with aclosing(follower.__aiter__()) as signals:
        return [(sent.number, sent.pid) for sent in [await anext(signals) for _ in range(count)]]


async def test_a_process_that_was_there_before_is_known_also_when_it_is_gone(cells, kernel, source):
    cells.listed[A] = [MAIN]
    with source.follow(A) as follower:
        cells.listed[A] = []
        kernel.signal(9, STRANGER)
        kernel.signal(9, MAIN)
        assert await reported(follower, 1) == [(9, MAIN)]


async def test_an_executable_that_was_started_since_is_known_with_all_that_it_forked(cells, kernel, source):
    with source.follow(A) as follower:
        kernel.fork(parent=1, pid=MAIN)
        kernel.fork(parent=MAIN, pid=CHILD)
        kernel.fork(parent=CHILD, pid=GRANDCHILD)
        cells.start(A, MAIN)
        kernel.signal(15, GRANDCHILD)
        kernel.signal(15, MAIN)
        assert await reported(follower, 2) == [(15, GRANDCHILD), (15, MAIN)]


async def test_a_process_that_nobody_knows_yet_is_looked_up_in_the_group(cells, kernel, source):
    with source.follow(A) as follower:
        cells.listed[A] = [CHILD]
        kernel.signal(17, CHILD)
        assert await reported(follower, 1) == [(17, CHILD)]


async def test_a_signal_to_a_thread_is_told_of_its_process(cells, kernel, source):
    cells.listed[A] = [MAIN]
    with source.follow(A) as follower:
        kernel.fork(parent=MAIN, pid=MAIN, thread=THREAD)
        kernel.signal(11, THREAD)
        assert await reported(follower, 1) == [(11, MAIN)]


async def test_executables_of_other_cells_are_not_told(cells, kernel, source):
    cells.start(B, MAIN)
    cells.start(A, CHILD)
    with source.follow(A) as follower:
        kernel.signal(9, MAIN)
        kernel.signal(9, CHILD)
        assert await reported(follower, 1) == [(9, CHILD)]


async def test_a_number_that_is_used_again_outside_is_not_taken_for_the_cells(cells, kernel, source):
    cells.listed[A] = [MAIN]
    with source.follow(A) as follower:
        cells.listed[A] = []
        kernel.fork(parent=1, pid=MAIN)
        kernel.signal(9, MAIN)
        cells.listed[A] = [CHILD]
        kernel.signal(1, CHILD)
        assert await reported(follower, 1) == [(1, CHILD)]


async def test_a_number_that_is_used_again_inside_is_the_cells(cells, kernel, source):
    with source.follow(A) as follower:
        kernel.signal(9, MAIN)  # outside
        kernel.fork(parent=1, pid=MAIN)
        cells.start(A, MAIN)
        kernel.signal(15, MAIN)
        assert await reported(follower, 1) == [(15, MAIN)]


async def test_what_killed_an_executable_may_be_heard_after_its_end_but_not_long_after(cells, kernel, source):
    cells.start(A, MAIN)
    cells.end(MAIN, at=99.0)
    cells.start(A, CHILD)
    cells.end(CHILD, at=50.0)  # its number may be another's by now
    with source.follow(A) as follower:
        kernel.signal(9, CHILD)
        kernel.signal(9, MAIN)
        assert await reported(follower, 1) == [(9, MAIN)]


async def test_one_trace_serves_all_followers_and_closes_with_the_last(cells, kernel, source):
    cells.listed[A] = [MAIN]
    with source.follow(A) as one:
        with source.follow() as two:
            kernel.signal(9, STRANGER)
            kernel.signal(9, MAIN)
            assert await reported(one, 1) == [(9, MAIN)]
            assert await reported(two, 2) == [(9, STRANGER), (9, MAIN)]
        assert (kernel.opened, kernel.closed) == (1, 0)
    assert kernel.closed == 1
    with source.follow():
        assert kernel.opened == 2


async def test_a_cell_that_is_not_there_leaves_no_trace_open(kernel, source):
    with pytest.raises(errors.NotFound), source.follow(CellName("no-such")):
        pass
    assert (kernel.opened, kernel.closed) == (1, 1)


async def test_the_signals_of_a_cell_end_with_it(cells, kernel, source):
    cells.listed[A] = [MAIN]
    with source.follow(A) as follower:
        kernel.signal(9, MAIN)
        del cells.listed[A]
        assert [sent async for sent in follower] == [SignalSent(9, MAIN)]


async def test_a_follower_that_is_too_slow_gets_what_is_kept_and_then_an_error(kernel, source):
    with source.follow() as follower:
        for number in range(1, 8):
            kernel.signal(number, STRANGER)
        assert await reported(follower, 5) == [(number, STRANGER) for number in range(1, 6)]
        with pytest.raises(errors.Overloaded, match="some were lost"):
            await reported(follower, 1)


async def test_a_follower_waits_for_what_comes(kernel, source):
    with source.follow() as follower:
        waiting = asyncio.ensure_future(reported(follower, 1))
        await asyncio.sleep(0)
        kernel.signal(1, STRANGER)
        assert await waiting == [(1, STRANGER)]


def test_forks_are_remembered_up_to_a_number_the_oldest_forgotten_first():
    lineage = Lineage(most=2)
    for pid in (MAIN, CHILD, GRANDCHILD):
        lineage.add(ForkRecord(1, thread=pid, pid=pid, parent=pid - 1))
    assert list(lineage.upwards(GRANDCHILD)) == [GRANDCHILD, CHILD, MAIN]
    assert list(lineage.upwards(MAIN)) == [MAIN]


def test_processes_that_seem_to_descend_from_each_other_end_the_search():
    lineage = Lineage()
    lineage.add(ForkRecord(1, thread=MAIN, pid=MAIN, parent=CHILD))
    lineage.add(ForkRecord(2, thread=CHILD, pid=CHILD, parent=MAIN))
    assert list(lineage.upwards(CHILD)) == [CHILD, MAIN]
