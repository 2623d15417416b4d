"""What callers see: names, errors, states. Each fault of the public program that is told apart here has a
test."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellUsage, Executable, ExitStatus, OutputChannel, Sandbox
from skerry.model.ids import CellName, ExecutableName
from tests.node.cells.conftest import Node
from tests.node.cells.fakes import SIGKILL, SIGTERM

A, B, C = CellName("a"), CellName("a/b"), CellName("a/b/c")
SLEEP = ExecutableName("sleep")


def sleep(cell: CellName = A, name: str = SLEEP) -> Executable:
    return Executable(ExecutableName(name), cell, "sleep 60", "sleeps")


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# Allocate


async def test_a_cell_is_allocated_with_its_limits_and_nothing_runs(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A, CellLimits(memory=32, cpu_weight=50)))
    assert node.host.groups == {A: CellLimits(memory=32, cpu_weight=50)}
    assert node.host.processes == {}
    view = cells.get(A)
    assert (view.cell.limits.memory, view.uid, view.executables) == (32, 61184, ())


async def test_a_cell_that_exists_is_not_allocated_again(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    with pytest.raises(errors.AlreadyExists, match="'a'"):
        await cells.allocate(Cell(A))


async def test_a_group_that_is_not_ours_is_left_alone(node: Node) -> None:
    cells = await node.agent()
    node.host.groups["a"] = CellLimits()
    with pytest.raises(errors.FailedPrecondition, match="not ours"):
        await cells.allocate(Cell(A))
    assert list(node.host.groups) == ["a"]
    assert cells.list() == []


async def test_a_missing_ancestor_is_named(node: Node) -> None:
    cells = await node.agent()
    with pytest.raises(errors.NotFound, match="no cell 'a' "):
        await cells.allocate(Cell(C))
    await cells.allocate(Cell(A))
    with pytest.raises(errors.NotFound, match="no cell 'a/b' "):
        await cells.allocate(Cell(C))


async def test_a_failed_allocate_leaves_nothing_and_the_name_is_free(node: Node) -> None:
    cells = await node.agent()
    node.groups.fail_next_create = errors.Internal("no")
    with pytest.raises(errors.Internal):
        await cells.allocate(Cell(A))
    assert node.leftovers() == []
    await cells.allocate(Cell(A))
    assert cells.get(A).uid == 61184


async def test_a_disk_that_refuses_is_told_and_nothing_is_left(node: Node) -> None:
    cells = await node.agent()
    (node.folder / "a").write_text("in the way")
    with pytest.raises(errors.Unavailable, match="cannot store the state"):
        await cells.allocate(Cell(A))
    assert node.host.groups == {}


async def test_there_are_only_so_many_cells(node: Node) -> None:
    cells = await node.agent()
    for number in range(node.settings.max_cells):
        await cells.allocate(Cell(CellName(f"c{number}")))
    with pytest.raises(errors.ResourcesExhausted):
        await cells.allocate(Cell(A))
    await cells.free(CellName("c7"))
    await cells.allocate(Cell(A))
    assert cells.get(A).uid == 61184 + 7


async def test_cells_are_listed_parents_first(node: Node) -> None:
    cells = await node.agent()
    for name in (A, B, CellName("z"), C):
        await cells.allocate(Cell(name))
    assert [view.cell.name for view in cells.list()] == ["a", "a/b", "a/b/c", "z"]


# Free


async def test_an_unknown_cell_is_not_freed(node: Node) -> None:
    cells = await node.agent()
    with pytest.raises(errors.NotFound):
        await cells.free(A)
    await cells.allocate(Cell(A))
    await cells.free(A)
    with pytest.raises(errors.NotFound):
        await cells.free(A)
    assert node.leftovers() == []


async def test_freeing_ends_what_runs_below_children_first(node: Node) -> None:
    cells = await node.agent()
    for name in (A, B, C):
        await cells.allocate(Cell(name))
        await cells.start(sleep(name))
    await cells.free(A)
    assert node.host.order == ["a/b/c", "a/b", "a"]
    assert node.leftovers() == []
    assert cells.list() == []
    assert all(handle.is_closed for handle in node.launcher.handles)


async def test_freeing_a_child_leaves_the_parent_alone(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.allocate(Cell(B))
    await cells.allocate(Cell(CellName("a/bc")))
    await cells.start(sleep(A))
    await cells.free(B)
    assert [view.cell.name for view in cells.list()] == ["a", "a/bc"]
    assert cells.executable(A, SLEEP).exit is None


@pytest.mark.parametrize("name", ["a/bad_child", "a/", "/a", "a//b", "a/../a", "a/b/..", ""])
async def test_a_bad_name_is_never_taken_for_a_good_one(node: Node, name: str) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    with pytest.raises(errors.NotFound):
        await cells.free(CellName(name))
    with pytest.raises(errors.NotFound):
        await cells.stop(CellName(name), SLEEP)
    with pytest.raises(errors.Invalid):
        await cells.allocate(Cell(CellName(name)))
    assert [view.cell.name for view in cells.list()] == ["a"]


async def test_a_cell_whose_group_is_gone_is_forgotten_with_its_children(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.allocate(Cell(B))
    node.host.groups.clear()
    with pytest.raises(errors.NotFound, match="the cell was removed"):
        await cells.free(A)
    assert cells.list() == []
    assert node.leftovers() == []
    await cells.allocate(Cell(A))


async def test_the_deadline_of_free_bounds_the_grace(node: Node) -> None:
    cells = await node.agent()
    for name in (A, B, C):
        await cells.allocate(Cell(name))
        for number in range(3):
            state = await cells.start(sleep(name, f"s{number}"))
            node.host.processes[state.pid].stubborn = True
    before = node.host.clock.monotonic()
    await cells.free(A)
    assert node.host.clock.monotonic() - before <= node.settings.free_timeout_s
    assert node.leftovers() == []


async def test_what_the_kernel_does_not_let_die_is_named_and_free_can_be_repeated(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.allocate(Cell(B))
    stuck = await cells.start(sleep(B))
    await cells.start(sleep(A))
    node.host.processes[stuck.pid].unkillable = True
    with pytest.raises(errors.Unavailable, match=f"do not exit: {stuck.pid}; free it again"):
        await cells.free(A)
    with pytest.raises(errors.FailedPrecondition, match="free it again"):
        await cells.start(sleep(A, "other"))
    with pytest.raises(errors.FailedPrecondition, match="free it again"):
        await cells.allocate(Cell(CellName("a/d")))
    assert [view.is_freeing for view in cells.list()] == [True, True]
    node.host.processes[stuck.pid].unkillable = False
    await cells.free(A)
    assert node.leftovers() == []


async def test_a_slow_free_does_not_stall_another_cell(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.allocate(Cell(CellName("other")))
    state = await cells.start(sleep(A))
    node.host.processes[state.pid].stubborn = True
    node.host.time_stands = True
    freeing = asyncio.create_task(cells.free(A))
    await turns()
    assert not freeing.done()
    await cells.start(sleep(CellName("other")))
    await cells.stop(CellName("other"), SLEEP)
    await cells.free(CellName("other"))
    await cells.allocate(Cell(CellName("third")))
    assert not freeing.done()
    node.host.time_stands = False
    await freeing
    assert [view.cell.name for view in cells.list()] == ["third"]


async def test_a_free_that_cannot_get_hold_of_the_cell_gives_up(node: Node) -> None:
    node.settings = type(node.settings)(free_timeout_s=0.01)
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep())
    node.host.processes[state.pid].stubborn = True
    node.host.time_stands = True
    stopping = asyncio.create_task(cells.stop(A, SLEEP))
    await turns()
    with pytest.raises(errors.Unavailable, match="busy"):
        await cells.free(A)
    node.host.time_stands = False
    await stopping


# Start


async def test_an_executable_runs_in_its_own_group_under_the_cells_own_user(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep(), Sandbox(folder="/tmp"))
    process = node.host.processes[state.pid]
    assert process.place == "a/_x1"
    (request,) = node.launcher.started
    assert (request.uid, request.gid, request.command) == (61184, 61184, "sleep 60")
    assert request.sandbox.folder == "/tmp"
    assert (state.name, state.cell, state.description, state.exit) == (SLEEP, A, "sleeps", None)
    assert state.started_at == node.host.clock.now()
    assert cells.by_pid(state.pid) == cells.executable(A, SLEEP) == state


async def test_the_first_start_makes_the_init_and_later_ones_use_it(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.allocate(Cell(B, isolates_network=True))
    await asyncio.gather(*(cells.start(sleep(B, f"s{n}")) for n in range(10)))
    (init,) = node.host.inits.values()
    assert init.process.place == "a/b/_init"
    assert (init.spec.host_name, init.spec.isolates_network) == ("b", True)
    assert cells.get(A).executables == ()


async def test_a_cell_at_rest_has_no_init_and_knows_what_has_ended_until_the_next_start(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.on_start = lambda init, process, folder: init.exits(process, 3, folder)
    await cells.start(sleep())
    await cells.wait(A, SLEEP)
    before = cells.get(A)
    assert cells.is_idle(Cell(A))
    await cells.end_idle_init(A)
    assert not cells.is_idle(Cell(A))
    assert (node.host.processes, node.host.inits) == ({}, {})
    assert cells.get(A) == before
    assert node.launcher.handles[0].is_closed
    await cells.close()

    later = await node.agent()
    assert later.get(A) == before
    node.launcher.on_start = None
    await later.start(sleep(name="again"))
    assert len(node.host.inits) == 1
    await later.free(A)
    assert node.leftovers() == []


async def test_a_cell_does_not_rest_while_anything_of_it_runs(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    await cells.end_idle_init(A)  # it has no init yet
    state = await cells.start(sleep())
    await cells.end_idle_init(A)
    assert state.pid in node.host.processes
    place = node.host.processes[state.pid].place
    child = node.host.spawn(place)
    node.host.signal(state.pid, SIGKILL)
    await cells.wait(A, SLEEP)
    await cells.end_idle_init(A)
    assert len(node.host.inits) == 1, "somebody must keep what the child writes"
    node.host.signal(child.pid, SIGKILL)
    assert cells.is_idle(Cell(A))
    assert not cells.is_idle(Cell(A, isolates_network=True))
    assert not cells.is_idle(Cell(B))
    await cells.end_idle_init(A)
    assert node.host.inits == {}
    with pytest.raises(errors.NotFound):
        await cells.end_idle_init(B)


async def test_nothing_starts_in_an_unknown_cell(node: Node) -> None:
    cells = await node.agent()
    with pytest.raises(errors.NotFound, match="no cell 'a'"):
        await cells.start(sleep())


async def test_a_known_name_is_taken_also_when_it_has_ended(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep())
    with pytest.raises(errors.AlreadyExists, match="'sleep'"):
        await cells.start(sleep())
    node.host.end(state.pid, SIGKILL)
    await cells.wait(A, SLEEP)
    with pytest.raises(errors.AlreadyExists, match="'sleep'"):
        await cells.start(sleep())
    assert len(cells.get(A).executables) == 1


async def test_two_executables_of_one_cell_do_not_displace_each_other(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    first, second = await cells.start(sleep(A, "one")), await cells.start(sleep(A, "two"))
    assert [e.pid for e in cells.get(A).executables] == [first.pid, second.pid]
    await cells.stop(A, ExecutableName("one"))
    assert cells.executable(A, ExecutableName("two")).exit is None
    assert list(node.host.inside("a/_x2")) != []


async def test_a_start_that_fails_leaves_nothing_and_the_name_is_free(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.fail_next_start = errors.Internal("cannot fork")
    with pytest.raises(errors.Internal, match="cannot fork"):
        await cells.start(sleep())
    assert cells.get(A).executables == ()
    assert node.groups.leaves(A) == ["_init"]
    assert not (node.folder / "a" / "x1").exists()
    await cells.start(sleep())


async def test_an_init_that_cannot_be_made_leaves_nothing(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.fail_next_init = errors.Unavailable("the launcher is away")
    with pytest.raises(errors.Unavailable, match="launcher"):
        await cells.start(sleep())
    assert node.host.processes == {}
    assert not (node.folder / "a" / "init.json").exists()
    await cells.start(sleep())
    await cells.free(A)
    assert node.leftovers() == []


async def test_a_start_whose_record_cannot_be_written_is_undone(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.on_start = lambda init, process, folder: (folder / "started.json").mkdir()
    with pytest.raises(errors.Unavailable, match="cannot store the state"):
        await cells.start(sleep())
    assert node.host.inside("a/_x1") == []
    assert not (node.folder / "a" / "x1").exists()
    node.launcher.on_start = None
    await cells.start(sleep())


async def test_an_executable_that_ends_at_once_is_known_with_its_exit(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.on_start = lambda init, process, folder: init.exits(process, 127, folder)
    state = await cells.start(sleep())
    assert state.exit == ExitStatus(at=node.host.clock.now(), code=127)
    assert await cells.wait(A, SLEEP) == state.exit


# Stop


async def test_stop_asks_and_returns_how_it_ended_and_frees_the_name(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep())
    process = node.host.processes[state.pid]
    assert await cells.stop(A, SLEEP) == ExitStatus(at=node.host.clock.now(), signal=SIGTERM)
    assert process.signals == [SIGTERM]
    assert node.groups.leaves(A) == ["_init"]
    with pytest.raises(errors.NotFound):
        await cells.stop(A, SLEEP)
    with pytest.raises(errors.NotFound):
        cells.by_pid(state.pid)
    await cells.start(sleep())


async def test_what_does_not_end_when_asked_is_killed_after_the_grace(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep())
    process = node.host.processes[state.pid]
    process.stubborn = True
    began = node.host.clock.now()
    outcome = await cells.stop(A, SLEEP, grace_s=7)
    assert (outcome.signal, round(outcome.at - began, 3), outcome.oom) == (SIGKILL, 7, False)
    assert process.signals == [SIGTERM, SIGKILL]


async def test_without_grace_it_is_killed_at_once(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    process = node.host.processes[(await cells.start(sleep())).pid]
    assert (await cells.stop(A, SLEEP, grace_s=0)).signal == SIGKILL
    assert process.signals == [SIGKILL]


async def test_stop_ends_the_children_too_also_when_the_parent_is_gone(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    for name, ends_first in (("one", False), ("two", True)):
        state = await cells.start(sleep(A, name))
        child = node.host.spawn(node.host.processes[state.pid].place)
        child.stubborn = True
        if ends_first:
            node.host.end(state.pid, SIGKILL)
            await cells.wait(A, ExecutableName(name))
        await cells.stop(A, ExecutableName(name))
        assert child.signals == [SIGTERM, SIGKILL]
    assert [p.place for p in node.host.processes.values()] == ["a/_init"]


async def test_stopping_one_that_has_ended_tells_how_and_forgets_it(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    node.launcher.on_start = lambda init, process, folder: init.exits(process, 3, folder)
    await cells.start(sleep())
    assert (await cells.stop(A, SLEEP)).code == 3
    assert cells.get(A).executables == ()


async def test_nothing_unknown_is_stopped(node: Node) -> None:
    cells = await node.agent()
    with pytest.raises(errors.NotFound, match="no cell 'a'"):
        await cells.stop(A, SLEEP)
    await cells.allocate(Cell(A))
    with pytest.raises(errors.NotFound, match="no executable 'sleep'"):
        await cells.stop(A, SLEEP)


async def test_what_cannot_be_killed_stays_known_and_can_be_stopped_later(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    state = await cells.start(sleep())
    node.host.processes[state.pid].unkillable = True
    with pytest.raises(errors.Unavailable, match=f"do not exit: {state.pid}; stop it again"):
        await cells.stop(A, SLEEP)
    assert cells.executable(A, SLEEP).exit is None
    node.host.processes[state.pid].unkillable = False
    assert (await cells.stop(A, SLEEP)).signal == SIGTERM


async def test_who_waits_is_told_by_a_stop_and_by_a_free(node: Node) -> None:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    for end in (cells.stop(A, SLEEP), cells.free(A)):
        await cells.start(sleep())
        waiting = asyncio.create_task(cells.wait(A, SLEEP))
        await turns()
        await end
        assert (await waiting).signal == SIGTERM


# Reading


async def test_usage_and_logs_are_of_known_things_only(node: Node) -> None:
    cells = await node.agent()
    with pytest.raises(errors.NotFound):
        cells.usage(A)
    await cells.allocate(Cell(A))
    with pytest.raises(errors.NotFound):
        cells.logs(A, SLEEP, OutputChannel.STDOUT)
    await cells.start(sleep())
    assert cells.usage(A) == CellUsage(pids=2)
    assert list(cells.logs(A, SLEEP, OutputChannel.STDOUT).read()) == []
    with pytest.raises(errors.NotFound):
        cells.by_pid(1)
    assert not cells.limits_in_v2
