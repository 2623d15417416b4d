"""Many callers at once, on a host in memory: one winner each time, and what is known is what is there."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.cells import Cell, Executable
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from tests.node.cells.conftest import Node
from tests.support.waiting import PATIENCE_S

A, B = CellName("a"), CellName("a/b")
X = ExecutableName("x")


def run(cell: CellName, name: str = "x") -> Executable:
    return Executable(ExecutableName(name), cell, "sleep 60")


def strays(node: Node, cells: Cells) -> list[str]:
    """What is on the host and not known, or known and not there."""
    views = {view.cell.name: view for view in cells.list()}
    known = {f"{name}/{e.pid}" for name, view in views.items() for e in view.executables if e.exit is None}
    there = {
        f"{p.place.rpartition('/')[0]}/{p.pid}" for p in node.host.processes.values() if "/_x" in p.place
    }
    folders = {path.name.replace(".", "/") for path in node.folder.iterdir()}
    return [
        *(f"group {name}" for name in views.keys() ^ node.host.groups.keys()),
        *(f"process {name}" for name in known ^ there),
        *(f"folder {name}" for name in views.keys() ^ folders),
    ]


async def test_two_hundred_at_once_leave_nothing(node: Node) -> None:
    node.settings = type(node.settings)(max_cells=200)
    cells = await node.agent()

    async def live(number: int) -> None:
        name = CellName(f"c{number}")
        await cells.allocate(Cell(name))
        await cells.start(run(name))
        await cells.stop(name, X)
        await cells.free(name)

    await asyncio.gather(*(live(number) for number in range(200)))
    assert node.leftovers() == []


async def test_of_many_who_want_one_name_one_gets_it(node: Node) -> None:
    cells = await node.agent()
    created = await asyncio.gather(*(cells.allocate(Cell(A)) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in created if each is not None] == [errors.AlreadyExists] * 19
    begun = await asyncio.gather(*(cells.start(run(A)) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in begun if isinstance(each, Exception)] == [errors.AlreadyExists] * 19
    ended = await asyncio.gather(*(cells.stop(A, X) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in ended if isinstance(each, Exception)] == [errors.NotFound] * 19
    freed = await asyncio.gather(*(cells.free(A) for _ in range(20)), return_exceptions=True)
    assert [type(each) for each in freed if each is not None] == [errors.NotFound] * 19
    assert node.leftovers() == []


async def test_a_parent_that_is_freed_lets_no_child_in(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(run(A))
    node.host.processes[state.pid].stubborn = True
    node.host.time_stands = True
    freeing = asyncio.create_task(cells.free(A))
    for _ in range(10):
        await asyncio.sleep(0)
    late = [asyncio.create_task(cells.start(run(A, f"s{n}"))) for n in range(3)]
    late += [asyncio.create_task(cells.allocate(Cell(B)))]  # type: ignore[list-item]
    for _ in range(10):
        await asyncio.sleep(0)
    node.host.time_stands = False
    await freeing
    results = await asyncio.gather(*late, return_exceptions=True)
    assert {type(result) for result in results} <= {errors.NotFound, errors.FailedPrecondition}
    assert node.leftovers() == []


async def test_a_stop_with_a_long_grace_lets_others_in_the_cell_work(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(run(A))
    node.host.processes[state.pid].stubborn = True
    node.host.time_stands = True
    stopping = asyncio.create_task(cells.stop(A, X))
    for _ in range(10):
        await asyncio.sleep(0)
    await cells.start(run(A, "y"))
    await cells.stop(A, ExecutableName("y"))
    await cells.allocate(Cell(B))
    assert not stopping.done()
    node.host.time_stands = False
    assert (await stopping).signal == 9


async def test_work_that_is_under_way_when_the_agent_closes_is_finished_or_can_be(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(run(A))
    node.host.processes[state.pid].stubborn = True
    freeing = asyncio.create_task(cells.free(A))
    await asyncio.sleep(0)
    await cells.close()
    await freeing
    assert node.leftovers() == []


async def test_work_that_takes_too_long_is_left_to_the_next_agent(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.cells.cells._CLOSE_S", 0.01)
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(run(A))
    node.host.processes[state.pid].stubborn = True
    node.host.time_stands = True
    freeing = asyncio.create_task(cells.free(A))
    await asyncio.sleep(0)
    await cells.close()
    with pytest.raises(asyncio.CancelledError):
        await freeing
    assert list(node.host.groups) == [A]
    node.host.time_stands = False
    again = await node.agent()
    assert again.list() == []
    assert node.leftovers() == []


NAMES = ["a", "b", "a/b", "a/c", "a/b/c"]
CALLS = st.tuples(
    st.sampled_from(["allocate", "free", "start", "stop", "kill", "kill init", "restart"]),
    st.sampled_from(NAMES),
    st.booleans(),
    st.integers(0, 5),
)


@settings(max_examples=80)
@given(st.lists(CALLS, max_size=30), st.integers(0, 2**32))
def test_whatever_callers_do_at_once_what_is_known_is_what_is_there(
    calls: list[tuple[str, str, bool, int]], seed: int
) -> None:
    asyncio.run(_storm(calls, random.Random(seed)))


async def _storm(calls: list[tuple[str, str, bool, int]], chance: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        node = Node(Path(folder))
        cells = await node.agent()
        tasks: list[asyncio.Task[object]] = []
        for verb, cell, gives_up, turns in calls:
            name = CellName(cell)
            match verb:
                case "allocate":
                    work = cells.allocate(Cell(name))
                case "free":
                    work = cells.free(name)
                case "start":
                    work = cells.start(run(name, chance.choice("xy")))  # type: ignore[assignment]
                case "stop":
                    work = cells.stop(name, ExecutableName(chance.choice("xy")))  # type: ignore[assignment]
                case "restart":
                    await cells.close()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    cells = await node.agent()
                    continue
                case _:
                    paths = "/_init" if verb == "kill init" else "/_x"
                    if found := [p.pid for p in node.host.processes.values() if paths in p.place]:
                        node.host.end(chance.choice(found), 9)
                    continue
            tasks.append(asyncio.create_task(work))  # type: ignore[arg-type]
            for _ in range(turns):
                await asyncio.sleep(0)
            if gives_up:
                tasks[-1].cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE_S)
        expected = (errors.SkerryError, asyncio.CancelledError)
        assert [r for r in results if isinstance(r, BaseException) and not isinstance(r, expected)] == []
        assert [r for r in results if isinstance(r, errors.Internal)] == []
        while cells._locks.work:
            await asyncio.wait(cells._locks.work)
        assert strays(node, cells) == []
        assert len(cells._locks) == 0
        for view in reversed(cells.list()):
            await cells.free(view.cell.name)
        assert node.leftovers() == []
        await cells.close()
