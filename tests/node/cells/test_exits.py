"""How executables end, and who is blamed for it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from pathlib import Path

import pytest

from skerry.kit import tasks
from skerry.model import errors
from skerry.model.cells import Cell, Executable, ExitStatus, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from skerry.node.launcher.specs import ProcessExit
from tests.node.cells.conftest import Node
from tests.node.cells.fakes import SIGKILL
from tests.support.waiting import eventually

A = CellName("a")
ONE, TWO = ExecutableName("one"), ExecutableName("two")


async def start(cells: Cells, name: ExecutableName) -> int:
    return (await cells.start(Executable(name, A, "sleep 60"))).pid


@pytest.fixture
async def cells(node: Node) -> Cells:
    cells = await node.agent()
    await cells.allocate(Cell(A))
    return cells


async def test_a_code_is_kept_until_the_stop(node: Node, cells: Cells) -> None:
    node.launcher.on_start = lambda init, process, folder: init.exits(process, 42, folder)
    await start(cells, ONE)
    node.host.clock.advance(3600)
    assert cells.executable(A, ONE).exit == ExitStatus(at=node.host.clock.now() - 3600, code=42)


async def test_killed_by_the_kernel_for_memory_is_told_apart_from_killed(node: Node, cells: Cells) -> None:
    first, second = await start(cells, ONE), await start(cells, TWO)
    node.host.ooms["a"] = 1
    node.host.end(first, SIGKILL)
    assert (await cells.wait(A, ONE)).oom
    node.host.end(second, SIGKILL)
    assert not (await cells.wait(A, TWO)).oom, "the kill of the first was put down to the second"


async def test_earlier_kills_are_not_put_down_to_a_later_start(node: Node, cells: Cells) -> None:
    node.host.ooms["a"] = 5
    node.host.end(await start(cells, ONE), SIGKILL)
    assert not (await cells.wait(A, ONE)).oom


async def test_a_shell_whose_child_was_killed_for_memory_says_so(node: Node, cells: Cells) -> None:
    def run_out(init: object, process: object, folder: Path) -> None:
        node.host.ooms["a"] = 1
        init.exits(process, 137, folder)  # type: ignore[attr-defined]

    node.launcher.on_start = run_out
    state = await cells.start(Executable(ONE, A, "hog; exit $?"))
    assert state.exit == ExitStatus(at=node.host.clock.now(), code=137, oom=True)


async def test_a_kill_of_ours_is_never_one_for_memory(node: Node, cells: Cells) -> None:
    await start(cells, ONE)
    node.host.ooms["a"] = 1
    assert await cells.stop(A, ONE, grace_s=0) == ExitStatus(at=node.host.clock.now(), signal=SIGKILL)


async def test_the_verdict_survives_the_agent(node: Node, cells: Cells) -> None:
    pids = [await start(cells, ONE), await start(cells, TWO)]
    node.host.end(pids[0], SIGKILL)
    assert not (await cells.wait(A, ONE)).oom
    node.host.ooms["a"] = 1
    node.host.end(pids[1], SIGKILL)
    assert (await cells.wait(A, TWO)).oom
    again = await node.agent()
    assert [e.exit.oom for e in again.get(A).executables if e.exit] == [False, True]


async def test_an_init_that_dies_takes_its_executables_and_the_cell_starts_anew(
    node: Node, cells: Cells
) -> None:
    ended = await start(cells, TWO)
    node.host.end(ended, 15)
    await cells.wait(A, TWO)
    await start(cells, ONE)
    (init,) = node.host.inits.values()
    node.host.end(init.process.pid, SIGKILL)
    assert await cells.wait(A, ONE) == ExitStatus(at=node.host.clock.now(), signal=SIGKILL)
    assert (await cells.wait(A, TWO)).signal == 15
    third = await start(cells, ExecutableName("three"))
    (fresh,) = node.host.inits.values()
    assert fresh is not init
    assert third in fresh.children
    assert (await cells.stop(A, ONE)).signal == SIGKILL
    await cells.free(A)
    assert node.leftovers() == []
    assert all(handle.is_closed for handle in node.launcher.handles)


async def test_an_init_that_was_killed_for_memory_is_blamed_on_memory_for_all(
    node: Node, cells: Cells
) -> None:
    await start(cells, ONE)
    await start(cells, TWO)
    node.host.ooms["a"] = 1
    (init,) = node.host.inits.values()
    node.host.end(init.process.pid, SIGKILL)
    assert [(await cells.wait(A, name)).oom for name in (ONE, TWO)] == [True, True]


async def test_an_exit_that_was_written_and_never_told_is_found_by_the_next_agent(
    node: Node, cells: Cells
) -> None:
    pid = await start(cells, ONE)
    (init,) = node.host.inits.values()
    init.received = asyncio.Queue()  # what is told from now on reaches nobody
    node.host.end(pid, 3)
    assert cells.executable(A, ONE).exit is None
    again = await node.agent()
    assert (await again.wait(A, ONE)).signal == 3


async def test_an_exit_that_the_init_wrote_before_it_died_is_believed(node: Node, cells: Cells) -> None:
    pid = await start(cells, ONE)
    (init,) = node.host.inits.values()
    received, init.received = init.received, asyncio.Queue()
    node.host.end(pid, 3)
    init.received = received
    node.host.end(init.process.pid, SIGKILL)
    assert (await cells.wait(A, ONE)).signal == 3


async def test_a_group_that_somebody_removed_says_nothing_of_memory(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await start(cells, ONE)

    def gone(*_: object) -> int:
        raise errors.NotFound("no cgroup")

    monkeypatch.setattr(node.groups, "oom_kills", gone)
    node.host.end(pid, SIGKILL)
    assert await cells.wait(A, ONE) == ExitStatus(at=node.host.clock.now(), signal=SIGKILL)


async def test_a_start_in_a_cell_whose_init_just_died_is_an_error_and_leaves_nothing(
    node: Node, cells: Cells
) -> None:
    await start(cells, ONE)

    def die(init: object, process: object, folder: Path) -> None:
        raise errors.Unavailable("the init is gone")

    node.launcher.on_start = die
    with pytest.raises(errors.Unavailable):
        await start(cells, TWO)
    node.launcher.on_start = None
    await start(cells, TWO)


async def test_an_executable_that_started_as_its_init_died_is_not_taken_for_running(
    node: Node, cells: Cells
) -> None:
    node.launcher.on_start = lambda init, process, folder: node.host.end(init.process.pid, SIGKILL)
    await start(cells, ONE)
    assert (await cells.wait(A, ONE)).signal == SIGKILL


async def test_what_an_init_does_not_report_can_be_stopped_and_has_ended_nobody_knows_how(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.cells.executables._REPORT_S", 0.01)
    await start(cells, ONE)
    (init,) = node.host.inits.values()
    init.is_mute = True
    waiting = asyncio.create_task(cells.wait(A, ONE))
    await asyncio.sleep(0)
    assert not (await cells.stop(A, ONE)).is_known
    assert not (await waiting).is_known
    await cells.free(A)
    assert node.leftovers() == []


async def test_an_end_that_the_disk_refused_to_record_is_told_and_recorded_by_the_agent(
    node: Node, cells: Cells
) -> None:
    pid = await start(cells, ONE)
    (init,) = node.host.inits.values()
    init.can_write = False
    node.host.end(pid, 15)
    assert (await cells.wait(A, ONE)).signal == 15
    again = await node.agent()
    assert (await again.wait(A, ONE)).signal == 15


async def test_a_disk_that_refuses_the_agents_records_too_takes_nothing_down(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    running = asyncio.create_task(cells.run())
    first, second = await start(cells, ONE), await start(cells, TWO)
    (init,) = node.host.inits.values()
    init.can_write = False
    for write in ("set_exit", "change_started"):
        monkeypatch.setattr(f"skerry.node.cells.records.CellRecords.{write}", refuse)
    node.host.ooms["a"] = 1
    node.host.end(first, SIGKILL)
    assert (await cells.wait(A, ONE)).oom
    node.host.end(second, SIGKILL)
    assert not (await cells.wait(A, TWO)).oom
    assert not cells.is_idle(Cell(A)), "its init has records to write"
    assert not running.done()
    await tasks.cancel_and_wait([running])
    await cells.free(A)
    assert node.leftovers() == []


async def test_an_end_of_an_earlier_executable_with_the_same_number_is_not_taken_for_this_ones(
    node: Node, cells: Cells
) -> None:
    await start(cells, ONE)
    (init,) = node.host.inits.values()
    init.received.put_nowait(ProcessExit("1", node.host.clock.now() - 10, 3, None))
    await eventually(init.received.empty)
    assert cells.executable(A, ONE).exit is None


async def test_an_end_that_nobody_told_of_is_seen_by_the_next_agent_and_completed_when_its_record_comes(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skerry.node.cells.executables._REPORT_S", 0.01)
    pid = await start(cells, ONE)
    await start(cells, TWO)
    (init,) = node.host.inits.values()
    init.is_mute = True
    node.host.end(pid, 15)
    await cells.close()
    again = await node.agent()
    running = asyncio.create_task(again.run())
    assert not (await again.wait(A, ONE)).is_known
    assert again.executable(A, TWO).exit is None
    (node.folder / "a" / "x1" / "exit.json").write_text(json.dumps({"code": 4, "at": 1.0}))
    init.received.put_nowait(ProcessExit("1", node.host.clock.now(), 4, None))
    await eventually(lambda: again.executable(A, ONE).exit == ExitStatus(at=1.0, code=4))
    await tasks.cancel_and_wait([running])


async def test_who_follows_the_output_is_let_go_when_the_init_dies(node: Node, cells: Cells) -> None:
    await start(cells, ONE)
    reader = cells.logs(A, ONE, OutputChannel.STDOUT)
    following = asyncio.create_task(_drain(reader.follow()))
    await asyncio.sleep(0)
    assert not following.done()
    (init,) = node.host.inits.values()
    node.host.end(init.process.pid, SIGKILL)
    assert await following == []


async def _drain(items: object) -> list[object]:
    return [item async for item in items]  # type: ignore[attr-defined]


async def test_a_fault_in_listening_to_an_init_reaches_whoever_runs_the_cells(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.create_task(cells.run())
    pid = await start(cells, ONE)

    def broken(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr("skerry.node.cells.records.CellRecords.exit", broken)
    node.host.end(pid, SIGKILL)
    with pytest.raises(OSError, match="broken"):
        await running


async def test_an_agent_that_cannot_take_over_leaves_everything_running(
    node: Node, cells: Cells, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = await start(cells, ONE)
    await cells.allocate(Cell(CellName("b")))
    await cells.start(Executable(ONE, CellName("b"), "sleep 60"))
    handles = len(node.launcher.handles)

    def adopt(self: object, pid: int, start_time: int, control_fd: int) -> object:
        if len(node.launcher.handles) > handles:
            raise errors.Unavailable("this needs CAP_SYS_PTRACE")
        return node.launcher.handle(node.host.inits[pid])

    monkeypatch.setattr("tests.node.cells.fakes.FakeProcesses.adopt", adopt)
    with pytest.raises(errors.Unavailable):
        await node.agent()
    assert pid in node.host.processes
    assert [handle.is_closed for handle in node.launcher.handles[handles:]] == [True]


async def test_an_init_that_cannot_be_killed_keeps_no_agent_from_starting(node: Node, cells: Cells) -> None:
    await start(cells, ONE)
    (init,) = node.host.inits.values()
    (node.folder / "a" / "init.json").unlink()
    init.process.unkillable = True
    again = await node.agent()
    assert (await again.wait(A, ONE)).signal == SIGKILL
    with pytest.raises(errors.Unavailable, match="does not exit"):
        await start(again, TWO)
    init.process.unkillable = False
    await start(again, TWO)
