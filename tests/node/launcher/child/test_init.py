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
from skerry.node.launcher.client import InitClient, InitSpec, LauncherClient
from tests.node.launcher.ground import Ground, Room, gone, needs_root
from tests.support.disks import small_disk
from tests.support.waiting import eventually

pytestmark = needs_root


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def open_in(pid: int) -> set[str]:
    return set(os.listdir(f"/proc/{pid}/fd"))


async def test_orphans_are_reaped(room: Room) -> None:
    for _ in range(5):
        await room.run("(setsid sh -c 'sh -c true & exit' &); true")
    await eventually(lambda: children_of(room.init.pid) == [], what="no child, not even a dead one, is left")


async def test_killing_the_leaf_ends_grandchildren_and_their_streams(room: Room) -> None:
    key, started = await room.start("setsid sh -c 'echo $$; exec sleep 600' & wait")
    started.close()
    await eventually(lambda: room.printed(key), what="the grandchild runs")
    assert len(room.groups.pids(room.name, room.leaf(key))) == 2
    room.groups.kill(room.name, room.leaf(key))
    exited = await room.ended(key)
    assert exited.signal == signal.SIGKILL
    assert (await room.followed(key, "stdout")).strip().isdigit()
    assert await room.groups.emptied(room.name, room.leaf(key), within_s=10)


async def test_the_exit_is_the_main_processs_and_output_of_its_children_still_comes(room: Room) -> None:
    key, started = await room.start("mkfifo /tmp/later; (read line < /tmp/later; echo late) & exit 0")
    started.close()
    assert (await room.ended(key)).code == 0
    other, again = await room.start("echo now > /tmp/later")
    again.close()
    assert (await room.ended(other)).code == 0
    assert await room.followed(key, "stdout") == b"late\n"


async def test_binary_output_is_kept_as_it_is(room: Room) -> None:
    key, started = await room.start(r"printf '\377\000\n\300' ; printf '\001' >&2")
    started.close()
    await room.ended(key)
    assert await room.followed(key, "stdout") == b"\xff\x00\n\xc0"
    assert await room.followed(key, "stderr") == b"\x01"


async def test_a_chatty_executable_neither_fills_the_disk_nor_stalls(room: Room) -> None:
    key, started = await room.start("head -c 20000000 /dev/zero")
    started.close()
    assert (await room.ended(key)).code == 0
    assert sum(file.stat().st_size for file in room.place(key).iterdir()) < 1_100_000


async def test_a_folder_that_is_gone_stalls_nothing(room: Room) -> None:
    command = "while [ ! -e /tmp/go ]; do sleep 0.01; done; head -c 500000 /dev/zero; exit 5"
    key, started = await room.start(command, key="lost")
    started.close()
    shutil.rmtree(room.place(key))
    await room.run("touch /tmp/go")
    assert (await room.ended(key)).code == 5
    assert (await room.run("echo fine")).out == "fine\n"


async def test_an_end_that_a_full_disk_refuses_is_told_and_recorded_when_there_is_room(
    tmp_path: Path, ground: Ground, launcher: LauncherClient
) -> None:
    with small_disk(tmp_path, megabytes=8) as disk:
        ground.folder = disk.root
        room = ground.room()
        await room.open(launcher)
        await room.run("true")
        before = open_in(room.init.pid)
        kept, gone = [await room.start("read line < /dev/zero; exit 5") for _ in range(2)]
        disk.fill()
        room.groups.kill(room.name, room.leaf(kept[0]))
        room.groups.kill(room.name, room.leaf(gone[0]))
        for key, started in (kept, gone):
            started.close()
            assert (await room.ended(key)).signal == signal.SIGKILL
            assert not (room.place(key) / "exit.json").exists()
        room.init.close()
        adopted = InitClient.adopt(room.init.pid, room.init.start_time, room.init.control_fd)
        assert adopted is not None
        room.init = adopted
        for key in (kept[0], gone[0]):
            assert (await room.ended(key)).signal == signal.SIGKILL, "who comes later is told too"
        shutil.rmtree(room.place(gone[0]))
        disk.empty()
        record = room.place(kept[0]) / "exit.json"
        await eventually(record.exists, what="the record")
        assert json.loads(record.read_text())["signal"] == signal.SIGKILL
        await eventually(lambda: open_in(room.init.pid) == before, what="nothing is left open")


async def test_nothing_stays_open_after_an_executable_has_ended(room: Room) -> None:
    await room.run("true")
    before = open_in(room.init.pid)
    for _ in range(5):
        await room.run("echo x; echo y >&2")
    assert open_in(room.init.pid) == before


async def test_the_init_holds_nothing_of_the_agents(room: Room) -> None:
    targets = {number: os.readlink(f"/proc/{room.init.pid}/fd/{number}") for number in open_in(room.init.pid)}
    assert [targets.pop(number) for number in ("0", "1", "2")] == ["/dev/null"] * 3
    assert targets.pop(str(messages.AGENT_END)).startswith("socket:")
    assert targets.pop(str(messages.OWN_END)).startswith("socket:")
    assert all(target.startswith("pipe:") for target in targets.values()), "only its own wake-up pipe is left"
    assert len(targets) == 2


async def test_signals_from_outside_do_not_end_an_init(room: Room) -> None:
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGUSR1):
        os.kill(room.init.pid, number)
    assert (await room.run("echo fine")).out == "fine\n"


async def test_executables_run_side_by_side(room: Room) -> None:
    keys = []
    for number in range(10):
        key, started = await room.start(f"echo {number}; exec sleep 600")
        started.close()
        keys.append(key)
    assert len(children_of(room.init.pid)) == 10
    await eventually(lambda: all(room.printed(key) for key in keys), what="all of them run")
    for key in reversed(keys):
        room.groups.kill(room.name, room.leaf(key))
        assert (await room.ended(key)).signal == signal.SIGKILL
    assert [await room.followed(key, "stdout") for key in keys] == [b"%d\n" % n for n in range(10)]


async def test_when_the_init_ends_all_of_the_cell_does(room: Room) -> None:
    _, started = await room.start("exec sleep 600")
    started.close()
    room.init.quit()
    await room.init.ended()
    await gone(started.pid)
    with pytest.raises(errors.Unavailable, match="gone"):
        await room.start("true")
    assert [exited async for exited in room.init.exits()] == []


async def test_an_init_that_does_not_answer_is_not_waited_for(room: Room) -> None:
    os.kill(room.init.pid, signal.SIGSTOP)
    try:
        with pytest.raises(errors.TimedOut):
            await room.start("true", key="slow", within_s=0.05)
    finally:
        os.kill(room.init.pid, signal.SIGCONT)
    # It comes to the request after all; the group it was for is gone by then or is emptied by the caller.
    assert (await room.run("echo fine")).out == "fine\n"


async def test_an_init_that_is_killed_while_it_is_asked_is_noticed(room: Room) -> None:
    os.kill(room.init.pid, signal.SIGSTOP)
    asking = asyncio.create_task(room.start("true"))
    await eventually(lambda: room.groups.leaves(room.name) != ["_init"])
    os.kill(room.init.pid, signal.SIGKILL)
    with pytest.raises(errors.Unavailable, match="gone"):
        await asking


async def test_a_cell_without_namespaces_is_reaped_too(ground: Ground, launcher: LauncherClient) -> None:
    room = ground.room()
    await room.open(launcher, InitSpec("cell", isolates_processes=False))
    key, started = await room.start("(setsid sh -c 'exec sleep 600' &) ; exit 4")
    started.close()
    assert (await room.ended(key)).code == 4
    await eventually(lambda: len(children_of(room.init.pid)) == 1, what="the orphan is the init's now")
    (orphan,) = children_of(room.init.pid)
    room.groups.kill(room.name, room.leaf(key))
    await gone(orphan)


async def test_exit_records_of_many_short_executables_are_all_told(room: Room) -> None:
    codes = {}
    for number in range(30):
        key, started = await room.start(f"exit {number}")
        started.close()
        codes[key] = number
    assert {key: (await room.ended(key)).code for key in codes} == codes
    assert {key: json.loads((room.place(key) / "exit.json").read_text())["code"] for key in codes} == codes
