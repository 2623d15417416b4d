"""Cells that belong to containers, contracts and functions: clients look at them, and touch nothing."""

from __future__ import annotations

import pytest

from skerry.model import errors
from skerry.model.cells import (
    Cell,
    CellOwner,
    Executable,
    OutputChannel,
    own_name,
    parse_any_name,
    parse_name,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from skerry.node.cells.records import CellRecord
from tests.node.cells.conftest import Node

OWNED, INSIDE = CellName("owned"), CellName("owned/inside")
MAIN = ExecutableName("main")


async def owned(node: Node, owner: CellOwner) -> Cells:
    """A cell of `owner` in which something runs."""
    cells = await node.agent()
    await cells.allocate(Cell(OWNED, owner=owner))
    await cells.start_trusted(Executable(MAIN, OWNED, "serve"), ("serve",), (0, 1, 2))
    return cells


@pytest.mark.parametrize("owner", CellOwner)
async def test_a_client_starts_stops_frees_and_allocates_nothing_there(node: Node, owner: CellOwner) -> None:
    cells = await owned(node, owner)
    own = Executable(ExecutableName("sh"), OWNED, "sh")
    for refused in (
        cells.start(own),
        cells.stop(OWNED, MAIN),
        cells.free(OWNED),
        cells.allocate(Cell(INSIDE)),
    ):
        with pytest.raises(errors.FailedPrecondition, match=r"cell 'owned' belongs to "):
            await refused
    view = cells.get(OWNED)
    assert [(each.name, each.exit) for each in view.executables] == [(MAIN, None)]
    assert [each.cell.name for each in cells.list()] == [OWNED]


@pytest.mark.parametrize("owner", CellOwner)
async def test_its_owner_does_all_that(node: Node, owner: CellOwner) -> None:
    cells = await owned(node, owner)
    await cells.allocate(Cell(INSIDE, owner=CellOwner.CONTAINER))
    await cells.stop(OWNED, MAIN, owner=owner)
    await cells.free(OWNED, owner=owner)
    assert cells.list() == []


@pytest.mark.parametrize("at", [OWNED, INSIDE])
async def test_what_runs_for_a_contract_writes_for_no_client(node: Node, at: CellName) -> None:
    cells = await owned(node, CellOwner.CONTRACT)
    await cells.allocate(Cell(INSIDE, owner=CellOwner.CONTAINER))
    if at == INSIDE:
        await cells.start_trusted(Executable(MAIN, INSIDE, "serve"), ("serve",), (0, 1, 2))
    with pytest.raises(errors.FailedPrecondition, match="cell 'owned' belongs to a contract"):
        cells.logs(at, MAIN, OutputChannel.STDOUT)
    assert cells.logs(at, MAIN, OutputChannel.STDOUT, owner=CellOwner.CONTAINER) is not None


@pytest.mark.parametrize("owner", [CellOwner.CONTAINER, CellOwner.FUNCTIONS])
async def test_what_others_write_is_for_all_who_may_read(node: Node, owner: CellOwner) -> None:
    assert (await owned(node, owner)).logs(OWNED, MAIN, OutputChannel.STDOUT) is not None


async def test_one_owner_does_not_free_what_another_has(node: Node) -> None:
    cells = await owned(node, CellOwner.CONTRACT)
    with pytest.raises(errors.FailedPrecondition, match="belongs to a contract"):
        await cells.free(OWNED, owner=CellOwner.CONTAINER)


async def test_a_client_does_not_free_its_own_cell_over_somebody_elses(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(OWNED))
    await cells.allocate(Cell(INSIDE, owner=CellOwner.CONTAINER))
    with pytest.raises(errors.FailedPrecondition, match="cell 'owned/inside' belongs to a container"):
        await cells.free(OWNED)
    await cells.free(INSIDE, owner=CellOwner.CONTAINER)
    await cells.free(OWNED)


async def test_a_cell_has_its_owner_also_for_the_next_agent(node: Node) -> None:
    await owned(node, CellOwner.CONTRACT)
    cells = await node.agent()
    with pytest.raises(errors.FailedPrecondition, match="belongs to a contract"):
        await cells.start(Executable(ExecutableName("sh"), OWNED, "sh"))


@pytest.mark.parametrize("name", ["@functions", "@i-web-1", "@functions/w1", "@"])
def test_the_name_of_an_own_cell_is_none_that_a_client_can_say(name: str) -> None:
    with pytest.raises(errors.Invalid, match="begins with '@', as those of Skerry's own cells do"):
        parse_name(name)
    with pytest.raises(errors.Invalid):
        Cell(CellName(name))


@pytest.mark.parametrize("name", ["a@b", "a/@b", "@@a", "@", "@a/@b", "@-a", "@_init"])
def test_the_mark_is_the_first_character_and_only_that(name: str) -> None:
    with pytest.raises(errors.Invalid):
        parse_any_name(name)


async def test_a_client_reaches_no_own_cell_by_its_name_and_has_the_same_without_the_mark(node: Node) -> None:
    cells = await node.agent()
    own, plain = own_name("i-web-1"), CellName("i-web-1")
    await cells.allocate(Cell(own, owner=CellOwner.CONTAINER))
    with pytest.raises(errors.Invalid, match="Skerry's own"):
        await cells.start(Executable(MAIN, own, "sh"))
    await cells.allocate(Cell(plain))  # it is in nobody's way
    await cells.start(Executable(MAIN, plain, "sh"))
    await cells.free(plain)
    assert [view.cell.name for view in cells.list()] == [own]
    assert await node.agent()  # whose records say the same
    assert [view.cell.name for view in node.agents[-1].list()] == [own]


async def test_a_cell_that_an_earlier_version_made_without_a_mark_is_found_and_made_its_owners(
    node: Node,
) -> None:
    cells = await node.agent()
    assert cells.own_cell_name("own") == "@own"
    await cells.allocate(created := Cell(OWNED))
    unmarked(cells, OWNED)
    assert cells.own_cell_name("owned") == "@owned"  # it may be a client's
    cells.claim(created, CellOwner.CONTAINER)
    assert cells.own_cell_name("owned") == OWNED
    for each in (cells, await node.agent()):
        with pytest.raises(errors.FailedPrecondition, match="belongs to a container"):
            await each.free(OWNED)


async def test_a_cell_of_a_client_is_claimed_by_nobody(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(theirs := Cell(OWNED))
    cells.claim(theirs, CellOwner.FUNCTIONS)
    assert cells.get(OWNED).cell.owner is None


def unmarked(cells: Cells, name: CellName) -> None:
    """Have its record as an earlier version wrote it."""
    entry = cells._entry(name)
    record = entry.record
    entry.record = CellRecord(record.cell, record.uid, record.boot, record.at)
    cells._deps.records.change_cell(entry.record)
