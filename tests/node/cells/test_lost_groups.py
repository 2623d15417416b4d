"""Cells of Skerry's own whose groups somebody removed: they are noticed, forgotten, and made again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellOwner, Executable, own_name
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from skerry.node.cells.executables import StartOptions
from tests.node.cells.conftest import Node
from tests.node.cells.real import Ground, is_alive
from tests.support.groups import remove_groups
from tests.support.waiting import PATIENCE_S, eventually

OWN, INSIDE, MAIN = own_name("own"), CellName("@own/inside"), ExecutableName("main")
A_CELL = Cell(OWN, CellLimits(memory=64), owner=CellOwner.FUNCTIONS)  # type: ignore[arg-type]


async def started(cells: Cells, cell: CellName, name: ExecutableName = MAIN) -> int:
    state = await cells.start_trusted(Executable(name, cell, "sleep"), ("/bin/sleep", "600"), (0, 1, 2))
    return state.pid


async def test_a_cell_that_is_whole_stays_as_it_is(node: Node) -> None:
    cells = await node.agent()
    assert await cells.ensure(A_CELL) is True
    await started(cells, OWN)
    assert await cells.ensure(A_CELL) is False
    assert [each.exit for each in cells.get(OWN).executables] == [None]


async def test_another_cell_of_that_name_is_not_taken(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(OWN, owner=CellOwner.CONTRACT))
    with pytest.raises(errors.AlreadyExists, match="another cell is called '@own'"):
        await cells.ensure(A_CELL)


async def test_a_cell_whose_free_had_begun_is_made_again(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(A_CELL)
    await started(cells, OWN)
    for process in node.host.processes.values():
        process.unkillable = True
    with pytest.raises(errors.Unavailable):
        await cells.free(OWN, grace_s=0, owner=CellOwner.FUNCTIONS)
    assert not cells.is_whole(OWN)
    for process in node.host.processes.values():
        process.unkillable = False
    assert await cells.ensure(A_CELL) is True
    assert cells.is_whole(OWN)


async def test_of_many_that_want_it_at_once_one_makes_it(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(A_CELL)
    del node.host.groups[OWN]
    created = await asyncio.gather(*(cells.ensure(A_CELL) for _ in range(5)))
    assert sorted(created) == [False] * 4 + [True]


@pytest.mark.root
@pytest.mark.parametrize("kills", [True, False], ids=["killed", "moved out"])
async def test_removed_groups_end_what_runs_and_the_cell_is_made_again(ground: Ground, kills: bool) -> None:
    async with ground.agent() as cells:
        await cells.allocate(A_CELL)
        inside = Cell(INSIDE, owner=CellOwner.FUNCTIONS)
        await cells.allocate(inside)
        pid = await started_alone(cells)
        await remove_groups(ground.root, OWN, kills=kills)
        assert not cells.is_whole(OWN)
        await cells.end_ungrouped()
        how = await asyncio.wait_for(cells.wait(INSIDE, MAIN), PATIENCE_S)
        assert how.signal == 9
        await eventually(lambda: not is_alive(pid))
        assert await cells.ensure(A_CELL) is True
        assert [view.cell for view in cells.list()] == [A_CELL]  # what was inside went with it
        assert ground.groups.read_limits(OWN).memory == 64
        await cells.allocate(inside)
        await started_alone(cells)
        await cells.free(OWN, grace_s=0, owner=CellOwner.FUNCTIONS)


@pytest.mark.root
@pytest.mark.parametrize("kills", [True, False], ids=["killed", "moved out"])
async def test_a_cell_whose_groups_are_gone_can_be_stopped_in_and_freed(ground: Ground, kills: bool) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(OWN, owner=CellOwner.FUNCTIONS))
        await cells.allocate(Cell(INSIDE, owner=CellOwner.FUNCTIONS))
        pid = await started_alone(cells)
        await remove_groups(ground.root, OWN, kills=kills)
        await asyncio.wait_for(cells.stop(INSIDE, MAIN, grace_s=0, owner=CellOwner.FUNCTIONS), PATIENCE_S)
        with pytest.raises(errors.NotFound, match="the cell was removed"):
            await asyncio.wait_for(cells.free(OWN, grace_s=0, owner=CellOwner.FUNCTIONS), PATIENCE_S)
        assert cells.list() == []
        await eventually(lambda: not is_alive(pid))


@pytest.mark.root
async def test_a_cell_that_lost_one_of_its_groups_is_not_whole(ground: Ground) -> None:
    async with ground.agent() as cells:
        await cells.ensure(A_CELL)
        for mount in Path("/sys/fs/cgroup").iterdir():
            group = mount / ground.root / OWN
            if group.is_dir():
                group.rmdir()
                break
        assert not cells.is_whole(OWN)
        assert await cells.ensure(A_CELL) is True
        assert ground.groups.read_limits(OWN).memory == 64
        await cells.free(OWN, owner=CellOwner.FUNCTIONS)


async def started_alone(cells: Cells) -> int:
    """A program of a cell with namespaces of its own, which end with its init."""
    state = await cells._lock_and_start(Executable(MAIN, INSIDE, "sleep 600"), StartOptions())
    return state.pid
