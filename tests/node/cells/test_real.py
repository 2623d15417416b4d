"""Real processes in real groups: what a fake cannot show."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, Sandbox
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from tests.node.cells.real import Ground, executable, is_alive, printed
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

A, B, C = CellName("a"), CellName("a/b"), CellName("a/b/c")
X = ExecutableName("x")


async def test_a_command_runs_in_its_cell_and_tells_how_it_ended(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A))
    state = await cells.start(executable("a", "x", "echo out; echo err >&2; id -u; hostname; exit 3"))
    outcome = await cells.wait(A, X)
    assert (outcome.code, outcome.signal, outcome.oom) == (3, None, False)
    assert state.started_at <= outcome.at
    assert printed(cells, "a", "x") == b"out\n%d\na\n" % cells.get(A).uid
    assert (await cells.stop(A, X)) == outcome


async def test_limits_are_in_force_before_anything_runs(ground: Ground, cells: Cells) -> None:
    limits = CellLimits(memory=64, pids=20, cpu_weight=50, cpu_quota=500)
    await cells.allocate(Cell(A, limits))
    assert ground.groups.read_limits(A) == limits
    assert ground.processes() == []


async def test_stop_ends_the_whole_tree_also_what_made_itself_a_session(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A))
    await cells.start(executable("a", "other", "sleep 1000"))
    await cells.start(
        executable("a", "x", "sleep 1000 & setsid sleep 1000 & (sleep 1000 &) ; echo ready; wait")
    )
    await eventually(lambda: printed(cells, "a", "x") == b"ready\n")
    tree = await eventually(lambda: len(pids := ground.groups.pids(A, "_x2")) == 4 and pids)
    await cells.stop(A, X)
    assert [pid for pid in tree if is_alive(pid)] == []
    assert cells.executable(A, ExecutableName("other")).exit is None


async def test_children_that_outlive_their_parent_hold_up_neither_its_exit_nor_its_stop(
    ground: Ground, cells: Cells
) -> None:
    await cells.allocate(Cell(A))
    await cells.start(executable("a", "x", "setsid sleep 1000 & exit 4"))
    assert (await cells.wait(A, X)).code == 4
    assert len(ground.groups.pids(A, "_x1")) == 1
    assert (await cells.stop(A, X)).code == 4
    assert ground.groups.pids(A) == [] or ground.groups.leaves(A) == ["_init"]


async def test_what_ignores_being_asked_is_killed(cells: Cells) -> None:
    await cells.allocate(Cell(A))
    await cells.start(executable("a", "x", "trap '' TERM; echo ready; while :; do sleep 1000; done"))
    await eventually(lambda: printed(cells, "a", "x") == b"ready\n")
    outcome = await cells.stop(A, X, grace_s=0.1)
    assert (outcome.signal, outcome.oom) == (signal.SIGKILL, False)


async def test_what_is_asked_may_end_in_its_own_way(cells: Cells) -> None:
    await cells.allocate(Cell(A))
    await cells.start(executable("a", "x", "trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done"))
    await eventually(lambda: printed(cells, "a", "x") == b"ready\n")
    assert (await cells.stop(A, X, grace_s=20)).code == 7


async def test_a_shell_that_is_just_starting_its_child_is_ended_with_it(cells: Cells) -> None:
    await cells.allocate(Cell(A))
    for _ in range(20):
        await cells.start(executable("a", "x", "sleep 1000; true"))
        assert (await cells.stop(A, X, grace_s=60)).signal == signal.SIGTERM


@pytest.mark.parametrize("way", ["stop", "free"])
async def test_a_stop_that_waits_long_is_cut_short_by_a_later_stop_or_free(ground: Ground, way: str) -> None:
    ground.settings = NodeSettings(stop_grace_s=0.1)
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "trap '' TERM; echo ready; while :; do sleep 1000; done"))
        await eventually(lambda: printed(cells, "a", "x") == b"ready\n")
        patient = asyncio.create_task(cells.stop(A, X, grace_s=1000))
        await eventually(lambda: cells._entries[A].executables[X].kill_at is not None)
        if way == "stop":
            with pytest.raises(errors.NotFound):
                await cells.stop(A, X, grace_s=0)
        await cells.free(A)
        assert (await patient).signal == signal.SIGKILL


async def test_freeing_a_parent_ends_everything_below_it(ground: Ground, cells: Cells) -> None:
    for name in (A, B, C):
        await cells.allocate(Cell(name))
        await cells.start(executable(name, "x", "sleep 1000 & wait"))
    await cells.free(A)
    assert ground.leftovers() == []


async def test_a_fork_bomb_stops_at_its_limit_and_is_freed(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A, CellLimits(pids=30)))
    await cells.allocate(Cell(CellName("calm")))
    await cells.start(executable("a", "x", "trap '' TERM; while :; do sleep 1000 & done"))
    await eventually(lambda: len(ground.groups.pids(A)) >= 25)
    await cells.start(executable("calm", "x", "echo calm"))
    assert (await cells.wait(CellName("calm"), X)).code == 0
    assert cells.usage(A).pids <= 30
    await cells.stop(A, X, grace_s=0)
    assert len(ground.groups.pids(A)) <= 1


async def test_a_hog_is_killed_for_memory_and_reported_as_such(cells: Cells) -> None:
    await cells.allocate(Cell(A, CellLimits(memory=32)))
    await cells.start(executable("a", "calm", "sleep 1000"))
    await cells.start(executable("a", "x", "exec tail /dev/zero"))
    outcome = await cells.wait(A, X)
    assert (outcome.signal, outcome.oom) == (signal.SIGKILL, True)
    state = cells.executable(A, ExecutableName("calm"))
    assert state.exit is None, "a neighbour was killed instead"
    os.kill(state.pid, signal.SIGKILL)
    assert not (await cells.wait(A, ExecutableName("calm"))).oom


async def test_a_cell_whose_init_was_killed_starts_anew(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A))
    state = await cells.start(executable("a", "x", "sleep 1000"))
    (init,) = ground.groups.pids(A, "_init")
    os.kill(init, signal.SIGKILL)
    assert (await cells.wait(A, X)).signal == signal.SIGKILL
    assert not is_alive(state.pid)
    await cells.start(executable("a", "again", "echo again"))
    assert (await cells.wait(A, ExecutableName("again"))).code == 0
    assert (await cells.stop(A, X)).signal == signal.SIGKILL


async def test_without_isolation_a_dead_init_takes_its_executables_too(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A, isolates_processes=False))
    state = await cells.start(executable("a", "x", "sleep 1000"))
    (init,) = ground.groups.pids(A, "_init")
    os.kill(init, signal.SIGKILL)
    assert (await cells.wait(A, X)).signal == signal.SIGKILL
    await eventually(lambda: not is_alive(state.pid))
    await cells.start(executable("a", "again", "true"))


async def test_a_program_that_is_not_there_is_the_shells_127_and_the_start_is_fine(cells: Cells) -> None:
    await cells.allocate(Cell(A))
    await cells.start(executable("a", "x", "no-such-program"))
    assert (await cells.wait(A, X)).code == 127


async def test_a_start_that_is_refused_leaves_nothing(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A))
    for sandbox in (Sandbox(folder="/no/such/folder"), Sandbox(arguments=("/no/such/program",))):
        with pytest.raises(errors.FailedPrecondition):
            await cells.start(executable("a", "x", "true"), sandbox)
    assert cells.get(A).executables == ()
    assert ground.groups.leaves(A) == ["_init"]
    assert [path.name for path in (ground.folder / "a").iterdir() if path.is_dir()] == []


async def test_a_start_and_a_free_at_once_have_one_winner_and_leave_nothing(
    ground: Ground, cells: Cells
) -> None:
    for round_ in range(10):
        await cells.allocate(Cell(A))
        if round_ % 2:
            await cells.start(executable("a", "warm", "sleep 1000"))
        start = asyncio.create_task(cells.start(executable("a", "x", "sleep 1000")))
        free = asyncio.create_task(cells.free(A))
        started, freed = await asyncio.gather(start, free, return_exceptions=True)
        assert freed is None
        assert not isinstance(started, BaseException) or isinstance(started, errors.NotFound)
        assert ground.leftovers() == []


async def test_a_caller_that_goes_away_leaves_no_half_done_work(ground: Ground, cells: Cells) -> None:
    await cells.allocate(Cell(A))
    for turns in range(0, 30, 3):
        call = asyncio.create_task(cells.start(executable("a", "x", "sleep 1000")))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await eventually(lambda: not cells._locks.work)
        if cells.get(A).executables:
            await cells.stop(A, X)
        assert len(ground.groups.pids(A)) <= 1


async def test_cells_of_one_node_work_side_by_side(ground: Ground, cells: Cells) -> None:
    async def live(number: int) -> None:
        name = CellName(f"c{number}")
        await cells.allocate(Cell(name, CellLimits(pids=20)))
        await cells.start(executable(name, "x", "echo $$"))
        assert (await cells.wait(name, X)).code == 0
        await cells.stop(name, X)
        await cells.free(name)

    await asyncio.gather(*(live(number) for number in range(30)))
    assert ground.leftovers() == []
