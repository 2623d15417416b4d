"""The init of a cell: what it reaps, keeps, survives, and lets go of."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.node.launcher.child import messages
from skerry.node.launcher.client import InitClient, LauncherClient
from skerry.node.launcher.specs import InitSpec
from tests.node.launcher.ground import Ground, LaunchedCell, gone, needs_root
from tests.support.disks import small_disk
from tests.support.waiting import eventually

pytestmark = needs_root


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_in(pid: int) -> set[str]:
    return set(os.listdir(f"/proc/{pid}/fd"))


async def test_orphans_are_reaped(cell: LaunchedCell) -> None:
    for _ in range(5):
        await cell.run("(setsid sh -c 'sh -c true & exit' &); true")
    await eventually(lambda: children_of(cell.init.pid) == [], what="no child, not even a dead one, is left")


async def test_killing_the_leaf_ends_grandchildren_and_their_streams(cell: LaunchedCell) -> None:
    key, started = await cell.start("setsid sh -c 'echo $$; exec sleep 600' & wait")
    started.close()
    await eventually(lambda: cell.printed(key), what="the grandchild runs")
    assert len(cell.groups.pids(cell.name, cell.leaf(key))) == 2
    cell.groups.kill(cell.name, cell.leaf(key))
    exited = await cell.ended(key)
    assert exited.signal == signal.SIGKILL
    assert (await cell.followed(key, "stdout")).strip().isdigit()
    assert await cell.groups.emptied(cell.name, cell.leaf(key), within_s=10)


async def test_the_exit_is_the_main_processs_and_output_of_its_children_still_comes(
    cell: LaunchedCell,
) -> None:
    key, started = await cell.start("mkfifo /tmp/later; (read line < /tmp/later; echo late) & exit 0")
    started.close()
    assert (await cell.ended(key)).code == 0
    other, again = await cell.start("echo now > /tmp/later")
    again.close()
    assert (await cell.ended(other)).code == 0
    assert await cell.followed(key, "stdout") == b"late\n"


async def test_binary_output_is_kept_as_it_is(cell: LaunchedCell) -> None:
    key, started = await cell.start(r"printf '\377\000\n\300' ; printf '\001' >&2")
    started.close()
    await cell.ended(key)
    assert await cell.followed(key, "stdout") == b"\xff\x00\n\xc0"
    assert await cell.followed(key, "stderr") == b"\x01"


async def test_a_chatty_executable_neither_fills_the_disk_nor_stalls(cell: LaunchedCell) -> None:
    key, started = await cell.start("head -c 20000000 /dev/zero")
    started.close()
    assert (await cell.ended(key)).code == 0
    assert sum(file.stat().st_size for file in cell.place(key).iterdir()) < 1_100_000


async def test_a_folder_that_is_gone_stalls_nothing(cell: LaunchedCell) -> None:
    command = "while [ ! -e /tmp/go ]; do sleep 0.01; done; head -c 500000 /dev/zero; exit 5"
    key, started = await cell.start(command, key="lost")
    started.close()
    shutil.rmtree(cell.place(key))
    await cell.run("touch /tmp/go")
    assert (await cell.ended(key)).code == 5
    assert (await cell.run("echo fine")).out == "fine\n"


async def test_an_end_that_a_full_disk_refuses_is_told_and_recorded_when_there_is_room(
    tmp_path: Path, ground: Ground, launcher: LauncherClient
) -> None:
    with small_disk(tmp_path, megabytes=8) as disk:
        ground.folder = disk.root
        cell = ground.cell()
        await cell.open(launcher)
        await cell.run("true")
        before = open_in(cell.init.pid)
        stored, gone = [await cell.start("read line < /dev/zero; exit 5") for _ in range(2)]
        disk.fill()
        cell.groups.kill(cell.name, cell.leaf(stored[0]))
        cell.groups.kill(cell.name, cell.leaf(gone[0]))
        for key, started in (stored, gone):
            started.close()
            assert (await cell.ended(key)).signal == signal.SIGKILL
            assert not (cell.place(key) / "exit.json").exists()
        cell.init.close()
        adopted = InitClient.adopt(cell.init.pid, cell.init.start_time, cell.init.control_fd)
        assert adopted is not None
        cell.init = adopted
        for key in (stored[0], gone[0]):
            assert (await cell.ended(key)).signal == signal.SIGKILL, "who comes later is told too"
        shutil.rmtree(cell.place(gone[0]))
        disk.empty()
        record = cell.place(stored[0]) / "exit.json"
        await eventually(record.exists, what="the record")
        assert json.loads(record.read_text())["signal"] == signal.SIGKILL
        await eventually(lambda: open_in(cell.init.pid) == before, what="nothing is left open")


async def test_nothing_stays_open_after_an_executable_has_ended(cell: LaunchedCell) -> None:
    await cell.run("true")
    before = open_in(cell.init.pid)
    for _ in range(5):
        await cell.run("echo x; echo y >&2")
    assert open_in(cell.init.pid) == before


async def test_the_init_holds_nothing_of_the_agents(cell: LaunchedCell) -> None:
    targets = {number: os.readlink(f"/proc/{cell.init.pid}/fd/{number}") for number in open_in(cell.init.pid)}
    assert [targets.pop(number) for number in ("0", "1", "2")] == ["/dev/null"] * 3
    assert targets.pop(str(messages.AGENT_END)).startswith("socket:")
    assert targets.pop(str(messages.OWN_END)).startswith("socket:")
    assert all(target.startswith("pipe:") for target in targets.values()), "only its own wake-up pipe is left"
    assert len(targets) == 2


async def test_signals_from_outside_do_not_end_an_init(cell: LaunchedCell) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR1):
        os.kill(cell.init.pid, number)
    assert (await cell.run("echo fine")).out == "fine\n"


async def test_executables_run_side_by_side(cell: LaunchedCell) -> None:
    keys = []
    for number in range(10):
        key, started = await cell.start(f"echo {number}; exec sleep 600")
        started.close()
        keys.append(key)
    assert len(children_of(cell.init.pid)) == 10
    await eventually(lambda: all(cell.printed(key) for key in keys), what="all of them run")
    for key in reversed(keys):
        cell.groups.kill(cell.name, cell.leaf(key))
        assert (await cell.ended(key)).signal == signal.SIGKILL
    assert [await cell.followed(key, "stdout") for key in keys] == [b"%d\n" % n for n in range(10)]


async def test_when_the_init_ends_all_of_the_cell_does(cell: LaunchedCell) -> None:
    _, started = await cell.start("exec sleep 600")
    started.close()
    cell.init.quit()
    await cell.init.ended()
    await gone(started.pid)
    with pytest.raises(errors.Unavailable, match="gone"):
        await cell.start("true")
    assert [exited async for exited in cell.init.exits()] == []


async def test_an_init_that_does_not_answer_is_not_waited_for(cell: LaunchedCell) -> None:
    os.kill(cell.init.pid, signal.SIGSTOP)
    try:
        with pytest.raises(errors.TimedOut):
            await cell.start("true", key="slow", within_s=0.05)
    finally:
        os.kill(cell.init.pid, signal.SIGCONT)
    # It comes to the request after all; the group it was for is gone by then or is emptied by the caller.
    assert (await cell.run("echo fine")).out == "fine\n"


async def test_an_init_that_is_killed_while_it_is_asked_is_noticed(cell: LaunchedCell) -> None:
    os.kill(cell.init.pid, signal.SIGSTOP)
    requesting = asyncio.create_task(cell.start("true"))
    await eventually(lambda: cell.groups.leaves(cell.name) != ["_init"])
    os.kill(cell.init.pid, signal.SIGKILL)
    with pytest.raises(errors.Unavailable, match="gone"):
        await requesting


async def test_a_cell_without_namespaces_is_reaped_too(ground: Ground, launcher: LauncherClient) -> None:
    cell = ground.cell()
    await cell.open(launcher, InitSpec("cell", isolates_processes=False))
    key, started = await cell.start("(setsid sh -c 'exec sleep 600' &) ; exit 4")
    started.close()
    assert (await cell.ended(key)).code == 4
    await eventually(lambda: len(children_of(cell.init.pid)) == 1, what="the orphan is the init's now")
    (orphan,) = children_of(cell.init.pid)
    cell.groups.kill(cell.name, cell.leaf(key))
    await gone(orphan)


async def test_exit_records_of_many_short_executables_are_all_told(cell: LaunchedCell) -> None:
    codes = {}
    for number in range(30):
        key, started = await cell.start(f"exit {number}")
        started.close()
        codes[key] = number
    assert {key: (await cell.ended(key)).code for key in codes} == codes
    assert {key: json.loads((cell.place(key) / "exit.json").read_text())["code"] for key in codes} == codes
