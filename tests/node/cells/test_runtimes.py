"""Executables that an OCI runtime starts: the cell's init takes over from it, and the cell's limits hold."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, Executable, RuntimeCommand
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from tests.node.cells.real import Ground, is_alive, needs_root, printed
from tests.support.waiting import eventually

pytestmark = [
    needs_root,
    pytest.mark.root,
    pytest.mark.skipif(shutil.which("runc") is None, reason="runc is not installed"),
]

A, MAIN = CellName("a"), ExecutableName("main")


class Bundle:
    """An OCI bundle of busybox, and the runtime's state of what was made of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "rootfs/bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", folder / "rootfs/bin/sh")
        subprocess.run(["runc", "spec"], cwd=folder, check=True)

    def runs(self, script: str, *flags: str) -> Callable[[str], RuntimeCommand]:
        def make(group: str) -> RuntimeCommand:
            config = json.loads((self.folder / "config.json").read_text())
            config["process"] |= {"terminal": False, "args": ["/bin/sh", "-c", script]}
            config["linux"]["cgroupsPath"] = group
            (self.folder / "config.json").write_text(json.dumps(config))
            pid_file = str(self.folder / "pid")
            command = ("runc", "--root", f"{self.folder}/state", "run", "--detach", "--pid-file", pid_file)
            return RuntimeCommand((*command, "--bundle", str(self.folder), *flags, "box"), pid_file)

        return make

    def exec(self, *arguments: str) -> tuple[str, ...]:
        return ("runc", "--root", f"{self.folder}/state", "exec", "box", *arguments)

    def delete(self) -> None:
        subprocess.run(["runc", "--root", f"{self.folder}/state", "delete", "-f", "box"], check=True)


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Bundle]:
    created = Bundle(tmp_path / "bundle")
    yield created
    created.delete()


async def allocated(cells: Cells, limits: CellLimits | None = None) -> None:
    await cells.allocate(Cell(A, limits or CellLimits(), isolates_processes=False))


def container() -> Executable:
    return Executable(MAIN, A, "a container")


async def test_what_a_runtime_starts_is_the_executable(ground: Ground, bundle: Bundle) -> None:
    async with ground.agent() as cells:
        await allocated(cells, CellLimits(memory=64))
        script = "echo here; echo there >&2; read line < /dev/null; exec sleep 600"
        started = await cells.start_container(container(), bundle.runs(script))
        assert Path(f"/proc/{started.pid}/cwd/bin/sh").exists()
        assert f"{ground.root}/a/" in Path(f"/proc/{started.pid}/cgroup").read_text()
        await eventually(lambda: printed(cells, "a", "main") == b"here\n")
        assert cells.usage(A).memory_bytes > 0
        await eventually(lambda: cells.usage(A).pids == 2, what="its init and the container, and no runtime")
        cells.signal(A, MAIN, signal.SIGKILL)
        assert (await cells.wait(A, MAIN)).signal == signal.SIGKILL
        assert not is_alive(started.pid)
        with pytest.raises(errors.NotFound, match="has ended"):
            cells.signal(A, MAIN, signal.SIGTERM)
        bundle.delete()
        await cells.free(A)
    assert ground.leftovers() == []


async def test_the_end_of_a_container_that_lasts_no_time_is_told(ground: Ground, bundle: Bundle) -> None:
    async with ground.agent() as cells:
        await allocated(cells)
        for code in range(5):
            await cells.start_container(container(), bundle.runs(f"echo {code}; exit {code}"))
            ended = await cells.wait(A, MAIN)
            assert (ended.code, ended.signal) == (code, None)
            assert printed(cells, "a", "main") == f"{code}\n".encode()
            assert await cells.stop(A, MAIN) == ended
            bundle.delete()
        await cells.free(A)
    assert ground.leftovers() == []


async def test_a_container_that_uses_more_memory_than_its_cell_has_is_seen_to_be_killed_for_it(
    ground: Ground, bundle: Bundle
) -> None:
    async with ground.agent() as cells:
        await allocated(cells, CellLimits(memory=32))
        script = "x=0123456789abcdef; while :; do x=$x$x; done"
        await cells.start_container(container(), bundle.runs(script))
        ended = await cells.wait(A, MAIN)
        assert ended.oom
        assert cells.usage(A).oom_kills >= 1
        bundle.delete()
        await cells.free(A)


async def test_a_runtime_that_fails_leaves_nothing_and_says_why(ground: Ground, bundle: Bundle) -> None:
    async with ground.agent() as cells:
        await allocated(cells)
        before = ground.group_folders()
        with pytest.raises(errors.FailedPrecondition, match="flag provided but not defined"):
            await cells.start_container(container(), bundle.runs("true", "--nonsense"))
        with pytest.raises(errors.SkerryError, match="exec"):
            await cells.start_container(
                container(), lambda _: RuntimeCommand(("/nowhere/runc",), "/nowhere/pid")
            )
        # The group of the cell's init is there from the first start on.
        assert [each for each in ground.group_folders() if not each.endswith("/_init")] == before
        assert cells.get(A).executables == ()
        await cells.free(A)
    assert ground.leftovers() == []


async def test_a_container_goes_on_without_an_agent_and_its_end_is_found(
    ground: Ground, bundle: Bundle, tmp_path: Path
) -> None:
    async with ground.agent() as cells:
        await allocated(cells)
        script = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done"
        started = await cells.start_container(container(), bundle.runs(script))
        await eventually(lambda: printed(cells, "a", "main") == b"up\n")
    os.kill(started.pid, signal.SIGTERM)
    await eventually(lambda: not is_alive(started.pid))
    async with ground.agent() as cells:
        ended = await cells.wait(A, MAIN)
        assert (ended.code, ended.signal) == (3, None)
        assert printed(cells, "a", "main") == b"up\nbye\n"
        bundle.delete()
        await cells.free(A)


async def test_killing_ends_all_of_a_container_and_keeps_what_is_known_of_it(
    ground: Ground, bundle: Bundle
) -> None:
    async with ground.agent() as cells:
        await allocated(cells)
        script = "trap '' TERM; echo up; (while :; do sleep 1; done) & while :; do sleep 1; done"
        await cells.start_container(container(), bundle.runs(script))
        await eventually(lambda: printed(cells, "a", "main") == b"up\n")
        assert (await cells.kill(A, MAIN)).signal == signal.SIGKILL
        assert printed(cells, "a", "main") == b"up\n"
        assert cells.executable(A, MAIN).exit is not None
        await eventually(lambda: len(ground.processes()) == 1, what="only the init is left")
        bundle.delete()
        await cells.free(A)


async def test_a_trusted_command_has_the_streams_it_was_given(ground: Ground, bundle: Bundle) -> None:
    async with ground.agent() as cells:
        await allocated(cells)
        await cells.start_container(container(), bundle.runs("exec sleep 600"))
        theirs, ours = os.pipe()
        received, output = os.pipe()
        complained, complaint = os.pipe()
        command = bundle.exec("/bin/sh", "-c", "read word; echo got $word; echo bad >&2; exit 7")
        session = Executable(ExecutableName("exec-1"), A, "exec")
        await cells.start_trusted(session, command, (theirs, output, complaint))
        for descriptor in (theirs, output, complaint):
            os.close(descriptor)
        os.write(ours, b"word\n")
        os.close(ours)
        ended = await cells.wait(A, session.name)
        assert ended.code == 7
        with open(received, "rb") as out, open(complained, "rb") as err:
            assert (out.read(), err.read()) == (b"got word\n", b"bad\n")
        await cells.stop(A, session.name)
        await cells.kill(A, MAIN)
        bundle.delete()
        await cells.free(A)


async def test_a_cell_that_isolates_processes_itself_takes_no_container(
    ground: Ground, bundle: Bundle
) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A))
        with pytest.raises(errors.FailedPrecondition, match="isolates processes itself"):
            await cells.start_container(container(), bundle.runs("true"))
        await cells.free(A)


async def test_a_cell_keeps_no_mount_of_the_data_folder_in_use(ground: Ground, tmp_path: Path) -> None:
    hidden = ground.folder / "not_a_cell"
    hidden.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", hidden], check=True)
    with contextlib.ExitStack() as undo:
        undo.callback(hidden.rmdir)
        undo.callback(subprocess.run, ["umount", hidden], check=True)
        async with ground.agent() as cells:
            await cells.allocate(Cell(A))
            await cells.start(Executable(MAIN, A, "exec sleep 600"))
            pid = cells.executable(A, MAIN).pid
            assert str(hidden) not in Path(f"/proc/{pid}/mountinfo").read_text()
            await cells.free(A)
