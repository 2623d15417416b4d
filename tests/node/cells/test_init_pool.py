"""Inits made ahead of time: taken by a first start, never left over, gone with the launcher."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, Sandbox
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.protocol import INIT_LEAF
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import InitSpec, StartSpec
from tests.node.cells.real import Ground, executable, is_alive, printed
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

A, B = CellName("a"), CellName("a/b")
X = ExecutableName("x")


def spares(ground: Ground) -> set[int]:
    """Inits that wait, or that went from there into a cell."""
    entrance = ground.groups.pool_entry()
    if entrance is None:
        pytest.skip("limits are held by cgroup v2 here, where inits are made when they are needed")
    with entrance:
        assert entrance.clone_into is not None
        members = os.open("cgroup.procs", os.O_RDONLY, dir_fd=entrance.clone_into)
        with open(members) as file:
            return {int(line) for line in file}


@asynccontextmanager
async def stocked(ground: Ground) -> AsyncIterator[Cells]:
    """An agent whose stock of spares is full."""
    async with ground.agent() as cells:
        running = asyncio.create_task(cells.run())
        try:
            await eventually(lambda: cells.prestarted_inits() == ground.settings.spare_inits)
            yield cells
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def init_of(ground: Ground, cell: CellName) -> int:
    (pid,) = ground.groups.pids(cell, INIT_LEAF)
    return pid


async def test_a_first_start_takes_a_spare_which_is_then_the_cells_init(ground: Ground) -> None:
    async with stocked(ground) as cells:
        waiting = spares(ground)
        await cells.allocate(Cell(A, CellLimits(memory=64)))
        await cells.start(executable("a", "x", "hostname; exec sleep 60"))
        assert init_of(ground, A) in waiting
        assert init_of(ground, A) in ground.groups.pids(A)
        await eventually(lambda: printed(cells, "a", "x") == b"a\n")
        # It is held to the cell's limits: what it uses is the cell's.
        assert cells.usage(A).pids >= 2
        await eventually(lambda: len(spares(ground) - waiting) == 1, what="another spare")
        await cells.free(A)
        await eventually(lambda: len(spares(ground)) == ground.settings.spare_inits)
    await eventually(lambda: ground.processes() == [])


async def test_freeing_a_parent_ends_the_inits_of_the_cells_below(ground: Ground) -> None:
    async with stocked(ground) as cells:
        await cells.allocate(Cell(A))
        await cells.allocate(Cell(B))
        for cell in ("a", "a/b"):
            await cells.start(executable(cell, "x", "exec sleep 60"))
        inits = [init_of(ground, A), init_of(ground, B)]
        assert len(set(inits)) == 2
        await cells.free(A)
        assert not any(is_alive(pid) for pid in inits)


async def test_spares_end_with_the_launcher_and_cells_made_from_them_do_not(ground: Ground) -> None:
    async with stocked(ground) as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "exec sleep 60"))
        init = init_of(ground, A)
        launcher = int(Path(f"/proc/{init}/stat").read_text().rpartition(")")[2].split()[1])
        waiting = spares(ground) - {init}
        os.kill(launcher, signal.SIGKILL)
        await eventually(lambda: not any(is_alive(pid) for pid in waiting))
        assert is_alive(init)
        # The next cell gets an init all the same, and the stock is filled again.
        await cells.allocate(Cell(CellName("c")))
        await cells.start(executable("c", "x", "exec sleep 60"))
        await eventually(lambda: len(spares(ground) - waiting - {init}) >= ground.settings.spare_inits)
        await cells.free(A)
        await cells.free(CellName("c"))


async def test_a_cell_made_from_a_spare_is_taken_over_by_the_next_agent(ground: Ground) -> None:
    async with stocked(ground) as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "read line < /tmp/never 2>/dev/null; exec sleep 60"))
        init = init_of(ground, A)
    assert spares(ground) == {init}, "spares outlived the agent"
    async with ground.agent() as cells:
        assert init_of(ground, A) == init
        assert cells.executable(A, X).exit is None
        assert (await cells.stop(A, X)).signal == signal.SIGTERM
        await cells.free(A)
    assert ground.processes() == []


async def test_a_cell_with_a_network_of_its_own_takes_no_spare(ground: Ground) -> None:
    async with stocked(ground) as cells:
        waiting = spares(ground)
        await cells.allocate(Cell(A, isolates_network=True))
        await cells.start(executable("a", "x", "exec sleep 60"))
        assert init_of(ground, A) not in waiting
        await cells.free(A)


async def test_without_spares_a_start_makes_its_init(ground: Ground) -> None:
    ground.settings = NodeSettings(spare_inits=0)
    async with stocked(ground) as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "exec sleep 60"))
        assert is_alive(init_of(ground, A))
        await cells.free(A)


async def test_a_spare_that_has_entered_no_cell_starts_nothing(ground: Ground, tmp_path: Path) -> None:
    launcher = await LauncherClient.start()
    entrance = ground.groups.pool_entry()
    assert entrance is not None
    with entrance:
        init = await launcher.make_init(InitSpec("spare", is_spare=True), entrance)
        spec = StartSpec("1", "true", Sandbox(), uid=61184, gid=61184, log_bytes=65536)
        with pytest.raises(errors.Internal, match="enter cell"):
            await init.start(spec, tmp_path, entrance)
    init.kill()
    await init.ended()
    init.close()
    await launcher.stop()


async def test_a_cell_for_a_container_takes_a_spare_once_there_was_one_before(ground: Ground) -> None:
    async with stocked(ground) as cells:
        before = spares(ground)
        await cells.allocate(Cell(CellName("first"), isolates_processes=False))
        await cells.start(executable("first", "x", "exec sleep 1000"))
        await eventually(lambda: cells.prestarted_inits(isolating=False) == ground.settings.spare_inits)
        waiting, name = spares(ground) - before, socket.gethostname()
        await cells.allocate(Cell(CellName("second"), isolates_processes=False))
        await cells.start(executable("second", "x", "exec sleep 1000"))
        assert init_of(ground, CellName("second")) in waiting
        assert socket.gethostname() == name, "it has the host's name, and did not change that"
        await cells.free(CellName("first"))
        await cells.free(CellName("second"))
