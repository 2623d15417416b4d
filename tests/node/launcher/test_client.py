"""Launcher and inits as the agent knows them: deaths of every kind, and what is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.kernel import syscalls
from skerry.node.launcher.child import messages
from skerry.node.launcher.client import InitClient, LauncherClient
from skerry.node.launcher.specs import InitSpec, ZygoteSpec
from tests.node.launcher.ground import UID, Ground, LaunchedCell, gone, launching, needs_root
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = needs_root


def opened() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def test_the_launcher_imports_the_standard_library_only() -> None:
    script = (
        "import sys; sys.path.append(sys.argv[1]); import skerry.node.launcher.child.main; "
        "print(*sys.modules)"
    )
    source = str(Path(messages.__file__).parents[4])
    command = [sys.executable, "-I", "-S", "-c", script, source]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    roots = {name.partition(".")[0] for name in names}
    assert roots - set(sys.stdlib_module_names) - {"__main__", "skerry"} == set()
    assert roots.isdisjoint(
        {"asyncio", "threading", "subprocess", "dataclasses", "inspect", "logging", "ssl"}
    )


async def test_the_launcher_has_one_thread_and_few_descriptors(launcher: LauncherClient) -> None:
    assert len(os.listdir(f"/proc/{launcher.pid}/task")) == 1
    # Streams, agent, signals, itself, and the root of cells with its files.
    assert len(os.listdir(f"/proc/{launcher.pid}/fd")) == 3 + 1 + 2 + 1 + 2
    assert os.getsid(launcher.pid) == launcher.pid


async def test_the_launcher_ends_with_its_agent(launcher: LauncherClient) -> None:
    pid = launcher.pid
    await launcher.stop()
    await gone(pid)


async def test_signals_meant_for_the_agent_do_not_end_the_launcher(
    ground: Ground, launcher: LauncherClient
) -> None:
    pid = launcher.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    await ground.cell().open(launcher)
    assert launcher.pid == pid


async def test_a_dead_launcher_is_replaced_and_its_inits_go_on(
    ground: Ground, launcher: LauncherClient
) -> None:
    old, first = ground.cell("old"), launcher.pid
    await old.open(launcher)
    _, started = await old.start("exec sleep 600")
    started.close()
    os.kill(first, signal.SIGKILL)
    await launcher.failed()
    new = ground.cell("new")
    await new.open(launcher)
    assert launcher.pid != first
    assert (await new.run("echo new")).out == "new\n"
    assert (await old.run("echo old")).out == "old\n"
    # The old init is ours now, and is reaped when it ends.
    old.groups.kill(old.name)
    await old.init.ended()
    await gone(old.init.pid)
    await gone(started.pid)


async def test_a_launcher_that_dies_unnoticed_is_replaced_too(
    ground: Ground, launcher: LauncherClient
) -> None:
    os.kill(launcher.pid, signal.SIGKILL)
    cell = ground.cell()
    await cell.open(launcher)
    assert (await cell.run("echo fine")).out == "fine\n"


async def test_a_launcher_that_is_killed_while_it_starts_is_started_again(tmp_path: Path) -> None:
    program, killed = tmp_path / "python", tmp_path / "killed"
    program.write_text(
        f'#!/bin/sh\n[ -e {killed} ] && exec {sys.executable} "$@"\necho x > {killed}\nkill -9 $$\n'
    )
    program.chmod(0o755)
    launcher = await LauncherClient.start(ZygoteSpec(str(program), "json:loads"))
    assert killed.exists()
    assert Path(f"/proc/{launcher.pid}").exists()
    await launcher.stop()


async def test_a_launcher_that_cannot_start_is_not_started_again_and_again(tmp_path: Path) -> None:
    program, starts = tmp_path / "python", tmp_path / "starts"
    for line, count in (("exit 1", 1), ("kill -9 $$", 3)):
        program.write_text(f"#!/bin/sh\necho x >> {starts}\n{line}\n")
        program.chmod(0o755)
        with pytest.raises(errors.Unavailable, match="does not start"):
            await LauncherClient.start(ZygoteSpec(str(program), "json:loads"))
        assert len(starts.read_text().split()) == count
        starts.unlink()


async def test_a_launcher_that_dies_at_work_leaves_no_init_behind(
    ground: Ground, launcher: LauncherClient
) -> None:
    cell = ground.cell()
    os.kill(launcher.pid, signal.SIGSTOP)
    opening = asyncio.create_task(cell.open(launcher))
    await asyncio.sleep(0)
    os.kill(launcher.pid, signal.SIGKILL)
    await opening
    assert cell.groups.pids(cell.name) == [cell.init.pid]


async def test_a_launcher_that_does_not_answer_is_not_waited_for(
    ground: Ground, launcher: LauncherClient
) -> None:
    cell = ground.cell()
    before = opened()
    os.kill(launcher.pid, signal.SIGSTOP)
    try:
        with cell.groups.entry(cell.name, "_init") as entrance, pytest.raises(errors.TimedOut):
            await launcher.make_init(InitSpec("cell"), entrance, within_s=0.05)
    finally:
        os.kill(launcher.pid, signal.SIGCONT)
    # It makes one after all, which finds itself called off.
    await cell.open(launcher)
    assert await eventually(lambda: cell.groups.pids(cell.name) == [cell.init.pid])
    assert len(opened() - before) == 2, "the pidfd and the control socket of the second one"


async def test_an_init_that_is_called_off_half_way_leaves_nothing(
    ground: Ground, launcher: LauncherClient
) -> None:
    cell = ground.cell()
    before = opened()
    for turns in range(12):
        opening = asyncio.create_task(cell.open(launcher))
        for _ in range(turns):
            await asyncio.sleep(0)
        if opening.done():  # a quick machine
            await opening
            break
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    else:
        assert opened() == before
        await cell.open(launcher)  # after all of them: the launcher does one thing after another
    assert await eventually(lambda: cell.groups.pids(cell.name) == [cell.init.pid])


async def test_a_start_that_is_called_off_leaves_no_descriptor(cell: LaunchedCell) -> None:
    before = opened()
    for turns in range(6):
        starting = asyncio.create_task(cell.start("true"))
        for _ in range(turns):
            await asyncio.sleep(0)
        if starting.done():  # a quick machine
            (await starting)[1].close()
            break
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    assert (await cell.run("echo fine")).out == "fine\n"
    assert opened() == before


async def test_a_group_that_is_gone_refuses_the_init(ground: Ground, launcher: LauncherClient) -> None:
    cell = ground.cell()
    entrance = cell.groups.entry(cell.name, "_init")
    cell.groups.remove_leaf(cell.name, "_init")
    with entrance, pytest.raises(errors.Internal, match="set up: clone"):
        await launcher.make_init(InitSpec("cell"), entrance)


async def test_many_cells_are_made_at_once(ground: Ground, launcher: LauncherClient) -> None:
    rooms = [ground.cell(f"cell-{number}") for number in range(20)]
    await asyncio.gather(*(cell.open(launcher, InitSpec(f"h{n}")) for n, cell in enumerate(rooms)))
    ran = await asyncio.gather(*(cell.run("hostname") for cell in rooms))
    assert [one.out.strip() for one in ran] == [f"h{number}" for number in range(20)]


async def test_a_cell_at_its_limit_of_processes_says_so(ground: Ground, launcher: LauncherClient) -> None:
    cell = ground.cell(limits=CellLimits(pids=1))
    await cell.open(launcher)
    with pytest.raises(errors.FailedPrecondition, match="its limit of processes"):
        await cell.start("true")


async def test_an_init_outlives_its_agents_end_and_is_adopted(ground: Ground) -> None:
    cell = ground.cell()
    async with launching() as launcher:
        await cell.open(launcher)
        key, started = await cell.start("mkfifo /tmp/go; echo before; read x < /tmp/go; echo after; exit 9")
        started.close()
    init = cell.init
    init.close()
    adopted = InitClient.adopt(init.pid, init.start_time, init.control_fd)
    assert adopted is not None
    cell.init = adopted
    assert (await cell.run("until echo > /tmp/go; do :; done")).exited.code == 0
    assert (await cell.ended(key)).code == 9
    assert await cell.followed(key, "stdout") == b"before\nafter\n"


async def test_what_ended_while_nobody_looked_is_told_and_on_record(
    ground: Ground, launcher: LauncherClient
) -> None:
    cell = ground.cell()
    await cell.open(launcher)
    key, started = await cell.start("mkfifo /tmp/go; read x < /tmp/go; exit 9")
    started.close()
    helper, again = await cell.start("sleep 0; until echo > /tmp/go; do :; done")
    again.close()
    cell.init.close()
    await eventually(lambda: (cell.place(key) / "exit.json").exists())
    adopted = InitClient.adopt(cell.init.pid, cell.init.start_time, cell.init.control_fd)
    assert adopted is not None
    cell.init = adopted
    assert json.loads((cell.place(key) / "exit.json").read_text())["code"] == 9
    assert (await cell.ended(key)).code == 9
    assert (await cell.ended(helper)).code == 0


async def test_only_the_very_process_is_adopted(cell: LaunchedCell) -> None:
    before = opened()
    assert InitClient.adopt(cell.init.pid, cell.init.start_time + 1, cell.init.control_fd) is None
    assert InitClient.adopt(cell.init.pid, cell.init.start_time, 250) is None
    assert InitClient.adopt(cell.init.pid, cell.init.start_time, 0) is None, "not a socket"
    assert InitClient.adopt(2**22 - 1, 1, cell.init.control_fd) is None
    assert opened() == before


@pytest.fixture
def raw(cell: LaunchedCell) -> Iterator[socket.socket]:
    """The agent's end of the control socket, used by an agent that never reads and then dies."""
    pidfd = os.pidfd_open(cell.init.pid)
    end = socket.socket(fileno=syscalls.descriptor_of(pidfd, cell.init.control_fd))
    os.close(pidfd)
    yield end
    end.close()


def request(cell: LaunchedCell, number: int, entrance: CgroupEntryFds) -> messages.MessageBody:
    return {
        "id": number,
        "key": f"stale-{number}",
        "arguments": ["/bin/true"],
        "environment": {},
        "folder": "/",
        "uid": UID,
        "gid": UID,
        "capabilities": "none",
        "open_files": 64,
        "log_bytes": 65536,
        "clone_into": entrance.clone_into is not None,
        "is_trusted": False,
        "streams": 0,
        "has_socket": False,
        "is_fork": False,
        "has_logs": False,
        "pid_file": "",
        "owner": 0,
    }


async def test_answers_to_a_dead_agent_are_drained(
    cell: LaunchedCell, raw: socket.socket, tmp_path: Path
) -> None:
    cell.init.close()
    cell.groups.add_leaf(cell.name, "_stale")
    folder = os.open(tmp_path, os.O_RDONLY)
    with cell.groups.entry(cell.name, "_stale", from_within=True) as entrance:
        into = [] if entrance.clone_into is None else [entrance.clone_into]
        raw.setblocking(True)
        # More than the socket holds: the init goes on, and keeps for later what it cannot send.
        for number in range(220):
            packet = messages.encode(request(cell, number, entrance))
            messages.send(raw, packet, [folder, *into, *entrance.procs])
    os.close(folder)
    raw.close()
    adopted = InitClient.adopt(cell.init.pid, cell.init.start_time, cell.init.control_fd)
    assert adopted is not None
    cell.init = adopted
    before = opened()
    stale = {f"stale-{number}" for number in range(220)}
    exits = cell.init.exits()
    while stale:
        stale.discard((await anext(exits)).key)
    assert (await cell.run("echo fine")).out == "fine\n"
    assert opened() == before


AGENT = """
import asyncio, json, os, signal, sys
from pathlib import Path
from skerry.model.cells import Sandbox
from skerry.model.ids import CellName
from skerry.node.cgroups.detection import detect
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import InitSpec, StartSpec
async def main(root, folder):
    groups, cell = detect(root), CellName("one")
    launcher = await LauncherClient.start()
    with groups.entry(cell, "_init") as entrance:
        init = await launcher.make_init(InitSpec("cell"), entrance)
    groups.add_leaf(cell, "_xleft")
    command = "mkfifo /tmp/go; echo one; read x < /tmp/go; echo two; exit 5"
    spec = StartSpec("left", command, Sandbox(), 61184, 61184, 65536)
    with groups.entry(cell, "_xleft", from_within=True) as entrance:
        started = await init.start(spec, Path(folder), entrance)
    facts = [launcher.pid, init.pid, init.start_time, init.control_fd, started.pid]
    print(json.dumps(facts), file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_killed_agent_leaves_a_cell_that_the_next_one_takes_over(ground: Ground) -> None:
    cell = ground.cell()
    cell.place("left").mkdir(parents=True)
    command = [sys.executable, "-c", AGENT, ground.root, str(cell.place("left"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    launcher_pid, pid, start_time, control_fd, started = json.loads(done.stderr.splitlines()[-1])
    await gone(launcher_pid)
    assert Path(f"/proc/{started}").exists()
    adopted = InitClient.adopt(pid, start_time, control_fd)
    assert adopted is not None
    cell.init = adopted
    assert (await cell.run("until echo > /tmp/go; do :; done")).exited.code == 0
    assert (await cell.ended("left")).code == 5
    assert await cell.followed("left", "stdout") == b"one\ntwo\n"


def test_all_of_it_works_on_uvloop(tmp_path: Path) -> None:
    async def main() -> str:
        ground = Ground(tmp_path)
        try:
            async with launching() as launcher:
                cell = ground.cell()
                await cell.open(launcher)
                out = (await cell.run("echo fine; exit 2")).out
                await cell.close()
                ground.rooms.clear()
                return out
        finally:
            await ground.close()

    assert uvloop.run(main()) == "fine\n"


async def test_an_agent_is_a_subreaper_only_while_it_has_a_launcher() -> None:
    assert syscalls.set_subreaper(False) is False
    async with launching():
        assert syscalls.set_subreaper(True) is True
    assert syscalls.set_subreaper(False) is False


async def test_an_init_that_cannot_enter_its_group_says_so(ground: Ground, launcher: LauncherClient) -> None:
    cell = ground.cell()
    with (
        open("/proc/self/comm") as not_writable,
        pytest.raises(errors.Internal, match="set up: enter cgroup: Bad file descriptor"),
    ):
        await launcher.make_init(InitSpec("cell"), CgroupEntryFds(None, (not_writable.fileno(),)))
    assert cell.groups.pids(cell.name) == []


@pytest.mark.parametrize(("is_over", "code"), [(True, 1), (False, 0)])
def test_a_spare_ends_also_with_a_launcher_that_ended_before_it_could_ask_for_that(
    is_over: bool, code: int
) -> None:
    program = "import sys; from skerry.node.kernel import syscalls; syscalls.end_with(int(sys.argv[1]))"
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as launcher:
        pidfd = os.pidfd_open(launcher.pid)
        try:
            if is_over:
                launcher.kill()
                launcher.wait()
            done = subprocess.run(
                [sys.executable, "-c", program, str(pidfd)], pass_fds=[pidfd], check=False, timeout=PATIENCE_S
            )
        finally:
            os.close(pidfd)
    assert done.returncode == code
