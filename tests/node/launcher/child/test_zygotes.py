"""Workers that are forks of a zygote: what they begin with, and what becomes of starts that cannot be."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Sandbox
from skerry.node.kernel import mount_flags, syscalls
from skerry.node.launcher.child.cell_root import HostView
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import InitSpec, StartSpec, ZygoteSpec
from skerry.node.workers import interpreters, worker_frames
from tests.node.launcher.ground import LOG_BYTES, UID, Ground, LaunchedCell

pytestmark = pytest.mark.root

ENTRY = "skerry.node.workers.python_worker:main"
HOME = InitSpec("cell", isolates_network=True)
VIEW = HostView(mount_points=("/home/function",))


async def zygote(entry: str = ENTRY, preload: tuple[str, ...] = ()) -> LauncherClient:
    return await LauncherClient.start(
        ZygoteSpec((await interpreters.find_python()).path, entry, preload), view=VIEW
    )


@pytest.fixture
async def launcher() -> AsyncIterator[LauncherClient]:
    launcher = await zygote(preload=("fractions", "no_such_module"))
    yield launcher
    await launcher.stop()


@pytest.fixture
async def plain() -> AsyncIterator[LauncherClient]:
    launcher = await LauncherClient.start()
    yield launcher
    await launcher.stop()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def fork(cell: LaunchedCell, theirs: socket.socket, sandbox: Sandbox | None = None) -> int:
    folder, logs = cell.folder / "records", cell.folder / "logs"
    for each in (folder, logs):
        each.mkdir(parents=True, exist_ok=True)
    cell.groups.add_leaf(cell.name, "_x1")
    spec = StartSpec(
        "1",
        "",
        sandbox or Sandbox(),
        UID,
        UID,
        LOG_BYTES,
        socket=theirs.fileno(),
        is_fork=True,
        logs=logs,
    )
    with cell.groups.entry(cell.name, "_x1", from_within=True) as entrance:
        started = await cell.init.start(spec, folder, entrance)
    started.close()
    return started.pid


async def test_a_fork_has_what_was_imported_and_its_output_and_its_end_are_kept(
    ground: Ground, launcher: LauncherClient, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir(mode=0o755)
    (code / "main.py").write_text(
        "import sys\nimported = 'fractions' in sys.modules\n"
        "def handle(params):\n    print('hello', flush=True)\n    return imported\n"
    )
    cell = ground.cell()
    init = await cell.open(launcher, HOME)
    detached = syscalls.detached_mount(str(code), mount_flags.MOUNT_ATTR_RDONLY)
    await init.mount(detached, "/home/function")
    os.close(detached)
    ours, theirs = ends
    pid = await fork(cell, theirs)
    theirs.close()
    assert Path(f"/proc/{pid}/comm").read_text() == "skerry-worker\n"
    load = {"handler": "main.handle", "folder": "/home/function", "environment": {}, "context": {}}
    load |= {"max_result_bytes": 1000, "max_output_bytes": 1000, "max_concurrency": 1}
    load |= {"is_program": False, "is_web": False}
    ours.sendall(worker_frames.pack(worker_frames.LOAD, 0, json.dumps(load).encode()))
    ours.sendall(worker_frames.pack(worker_frames.CALL, 1, b"\0null"))
    answers = b""
    while not answers.endswith(b"true"):
        part = await asyncio.to_thread(ours.recv, 4096)
        assert part, answers
        answers += part
    ours.close()
    exited = await cell.ended("1")
    assert (exited.code, exited.signal) == (0, None)
    assert json.loads((cell.folder / "records" / "exit.json").read_text())["code"] == 0
    assert [path.name.partition("-")[0] for path in (cell.folder / "logs").glob("stdout-*")] == ["stdout"]


async def test_a_step_that_fails_is_told_and_leaves_no_process(
    ground: Ground, launcher: LauncherClient, ends: tuple[socket.socket, socket.socket]
) -> None:
    cell = ground.cell()
    init = await cell.open(launcher, HOME)
    with pytest.raises(errors.FailedPrecondition, match="change folder"):
        await fork(cell, ends[1], Sandbox(folder="/nowhere"))
    assert cell.groups.pids(cell.name) == [init.pid]


async def test_the_init_of_another_launcher_forks_no_worker(
    ground: Ground, plain: LauncherClient, ends: tuple[socket.socket, socket.socket]
) -> None:
    cell = ground.cell()
    await cell.open(plain)
    with pytest.raises(errors.Internal, match="fork a worker"):
        await fork(cell, ends[1])


async def test_a_mount_with_no_place_for_it_is_refused(
    ground: Ground, plain: LauncherClient, tmp_path: Path
) -> None:
    cell = ground.cell()
    init = await cell.open(plain, HOME)
    detached = syscalls.detached_mount(str(tmp_path), mount_flags.MOUNT_ATTR_RDONLY)
    with pytest.raises(errors.Internal, match="mount /nowhere"):
        await init.mount(detached, "/nowhere")
    os.close(detached)
    with pytest.raises(syscalls.StepFailed):
        syscalls.detached_mount(str(tmp_path / "nothing"), mount_flags.MOUNT_ATTR_RDONLY)


async def test_a_zygote_without_its_entry_does_not_start() -> None:
    with pytest.raises(errors.Unavailable):
        await zygote(entry="skerry.no_such_module:main")
