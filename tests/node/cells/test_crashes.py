"""`kill -9` of the agent after every step of everything it does: nothing is lost and nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterable

import pytest

from skerry.model.cells import Cell, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from skerry.node.logs.readers import LogRecord
from tests.node.cells.real import Ground, executable, is_alive, printed
from tests.support.drivers import Drivers
from tests.support.waiting import eventually, eventually_sync

pytestmark = pytest.mark.root

A, X = CellName("a"), ExecutableName("x")
Call = tuple[str, ...]
State = dict[str, dict[str, int]]  # cells, their executables, their pids

SCRIPT: list[Call] = [
    ("allocate", "a"),
    ("allocate", "a/b"),
    ("start", "a", "one", "exec sleep 1000"),
    ("start", "a/b", "two", "exec sleep 1000"),
    ("start", "a", "three", "exec sleep 1000"),
    ("stop", "a", "one"),
    ("free", "a/b"),
    ("free", "a"),
]
STEPS = [
    *(("allocate." + step, times) for step in ("group", "recorded") for times in (1, 2)),
    *(("init." + step, 1) for step in ("group", "made", "recorded")),
    *(("start." + step, times) for step in ("folder", "group", "running", "recorded") for times in (1, 3)),
    *(("stop." + step, 1) for step in ("ended", "group", "removed")),
    *(
        ("free." + step, times)
        for step in ("marked", "ended", "killed", "group", "removed")
        for times in (1, 2)
    ),
]


def drive(drivers: Drivers, ground: Ground, script: Iterable[Call], *death: str) -> list[int]:
    """Have an agent do `script` until it dies or is done; the answers, one for each call that was done."""
    text = "".join(json.dumps(call) + "\n" for call in script)
    done = drivers.run("tests.node.cells.driver", str(ground.folder), ground.root, *death, text=text)
    assert done.returncode == (-signal.SIGKILL if death else 0)
    launcher, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    # It ends by itself, and only then are its inits somebody else's.
    eventually_sync(lambda: not is_alive(launcher["launcher"]))
    return [answer["pid"] for answer in answers]


def outcome(calls: Iterable[Call], pids: Iterable[int]) -> State:
    """What there is after `calls`."""
    state: State = {}
    for (verb, cell, *rest), pid in zip(calls, pids, strict=True):
        match verb:
            case "allocate":
                state[cell] = {}
            case "free":
                state = {name: runs for name, runs in state.items() if not f"{name}/".startswith(f"{cell}/")}
            case "start":
                state[cell][rest[0]] = pid
            case "stop":
                del state[cell][rest[0]]
    return state


def observed(cells: Cells) -> State:
    return {view.cell.name: {run.name: run.pid for run in view.executables} for view in cells.list()}


def strays(ground: Ground, cells: Cells) -> list[str]:
    """Groups, processes and folders that belong to nothing that is known."""
    known = {view.cell.name: view for view in cells.list()}
    found = [f"group {name}" for name in ground.groups.cells() if name not in known]
    found += [
        f"folder {path}" for path in ground.folder.iterdir() if path.name.replace(".", "/") not in known
    ]
    for name, view in known.items():
        runs = len(view.executables)
        leaves = [leaf for leaf in ground.groups.leaves(name) if leaf != "_init"]
        folders = [path for path in (ground.folder / name.replace("/", ".")).iterdir() if path.is_dir()]
        alive = [run.pid for run in view.executables if run.exit is None]
        inside = {pid for leaf in leaves for pid in ground.groups.pids(name, leaf)}
        found += [f"groups {leaves} for {runs} executables"] if len(leaves) > runs else []
        found += [f"folders {folders} for {runs} executables"] if len(folders) != runs else []
        found += [f"processes {inside} for {alive}"] if inside != set(alive) else []
        found += ["two inits"] if len(ground.groups.pids(name, "_init")) > 1 else []
    return found


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_an_agent_that_dies_after_a_step_leaves_what_the_next_one_puts_right(
    drivers: Drivers, ground: Ground, step: str, times: int
) -> None:
    pids = await asyncio.to_thread(drive, drivers, ground, SCRIPT, step, str(times))
    done, under_way = SCRIPT[: len(pids)], SCRIPT[len(pids)]
    assert under_way[0] == step.partition(".")[0] or step.startswith("init.")
    before = outcome(done, pids)
    async with ground.agent() as cells:
        now = observed(cells)
        after = outcome([*done, under_way], [*pids, now.get("a", {}).get(under_way[-2], 0)])
        assert now in (before, after)
        for view in cells.list():
            for run in view.executables:
                if under_way[0] in ("allocate", "start"):
                    assert run.exit is None
                assert is_alive(run.pid) == (run.exit is None)
        assert strays(ground, cells) == []
        # It is as good as new: what was under way can be done, and so can the rest.
        if now == before:
            await _do(cells, under_way)
        for call in SCRIPT[len(pids) + 1 :]:
            await _do(cells, call)
        assert cells.list() == []


async def _do(cells: Cells, call: Call) -> None:
    from tests.node.cells.driver import do

    await do(cells, *call)


async def test_the_users_of_cells_are_kept(ground: Ground) -> None:
    async with ground.agent() as cells:
        for name in ("a", "b", "c"):
            await cells.allocate(Cell(CellName(name)))
        await cells.free(A)
    async with ground.agent() as cells:
        assert [view.uid for view in cells.list()] == [61185, 61186]
        await cells.allocate(Cell(CellName("d")))
        await cells.allocate(Cell(CellName("e")))
        assert [view.uid for view in cells.list()] == [61185, 61186, 61184, 61187]
        for view in cells.list():
            await cells.free(view.cell.name)


async def test_what_runs_goes_on_without_an_agent_and_is_told_of_by_the_next(
    drivers: Drivers, ground: Ground
) -> None:
    loop = "trap 'echo after; exit 7' TERM; echo before; while :; do sleep 0.01; done"
    script = [("allocate", "a"), ("start", "a", "x", loop), ("start", "a", "y", loop)]
    _, first, second = await asyncio.to_thread(
        drive, drivers, ground, [*script, ("allocate", "b")], "allocate.group", "2"
    )
    await eventually(lambda: (ground.folder / "a" / "x1" / "stdout-0000000000000001").exists())
    assert is_alive(first)
    assert is_alive(second)
    os.kill(first, signal.SIGTERM)  # ends while nobody looks
    await eventually(lambda: (ground.folder / "a" / "x1" / "exit.json").exists())
    async with ground.agent() as cells:
        ended, running = cells.get(A).executables
        assert (ended.pid, running.pid) == (first, second)
        assert ended.exit is not None
        assert (ended.exit.code, running.exit) == (7, None)
        assert printed(cells, "a", "x") == b"before\nafter\n"
        following = asyncio.create_task(_follow(cells, "y"))
        waiting = asyncio.create_task(cells.wait(A, ExecutableName("y")))
        await eventually(lambda: printed(cells, "a", "y") == b"before\n")
        os.kill(second, signal.SIGTERM)
        assert (await waiting).code == 7
        assert await following == b"before\nafter\n"
        assert cells.by_pid(second).name == "y"
        await cells.start(executable("a", "z", "echo new"))
        assert (await cells.wait(A, ExecutableName("z"))).code == 0
        await cells.free(A)


async def _follow(cells: Cells, name: str) -> bytes:
    output = b""
    async for item in cells.logs(A, ExecutableName(name), OutputChannel.STDOUT).follow():
        assert isinstance(item, LogRecord)
        output += item.data
    return output


async def test_an_init_that_died_while_nobody_looked_took_its_executables(ground: Ground) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "exec sleep 1000"))
    (init,) = ground.groups.pids(A, "_init")
    os.kill(init, signal.SIGKILL)
    assert await ground.groups.emptied(A, within_s=10)
    async with ground.agent() as cells:
        (run,) = cells.get(A).executables
        assert run.exit is not None
        assert run.exit.signal == signal.SIGKILL
        await cells.start(executable("a", "again", "true"))
        assert (await cells.wait(A, ExecutableName("again"))).code == 0
        await cells.free(A)


async def test_the_launcher_may_die_at_any_time(ground: Ground) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        await cells.allocate(Cell(CellName("b")))
        before = await cells.start(executable("a", "x", "exec sleep 1000"))
        launcher = cells._deps.launcher
        os.kill(launcher.pid, signal.SIGKILL)
        await launcher.failed()
        await cells.start(executable("a", "y", "exec sleep 1000"))
        await cells.start(executable("b", "x", "exec sleep 1000"))
        assert is_alive(before.pid)
        assert (await cells.stop(A, X)).signal == signal.SIGTERM
        await cells.free(A)
        await cells.free(CellName("b"))


async def test_cells_of_another_boot_go_with_their_output(ground: Ground) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        await cells.start(executable("a", "x", "echo hello"))
        await cells.wait(A, X)
        await cells.free(A)
        await cells.allocate(Cell(A))
    record = ground.folder / "a" / "cell.json"
    document = json.loads(record.read_text())
    record.write_text(json.dumps({**document, "boot": "an earlier one"}))
    (ground.folder / "a" / "x1").mkdir()
    (ground.folder / "a" / "x1" / "stdout-0000000000000001").write_bytes(b"old")
    async with ground.agent() as cells:
        assert cells.list() == []


async def test_groups_that_nobody_knows_are_killed_and_removed(ground: Ground) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        run = await cells.start(executable("a", "x", "exec sleep 1000"))
    (ground.folder / "a" / "cell.json").unlink()
    async with ground.agent() as cells:
        assert cells.list() == []
        assert not is_alive(run.pid)
