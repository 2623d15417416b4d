"""The lock on moves between cgroups: taken by a move that changes nothing, and never in the way."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest

from skerry.node.cgroups import move_lock
from skerry.node.cgroups.move_lock import MoveLock, group_of
from tests.support.waiting import PATIENCE_S, eventually

MOUNT = "29 23 0:26 / {point} rw,relatime shared:4 - cgroup2 cgroup2 rw\n"


class Machine:
    """A machine whose v2 tree is a folder, with this process in `membership`."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "unified"
        self.membership = folder / "membership"
        self.mountinfo = folder / "mountinfo"
        self.procs = self.tree / "ours" / "cgroup.procs"
        self.procs.parent.mkdir(parents=True)
        self.procs.touch()
        self.membership.write_text("4:memory:/elsewhere\n0::/ours\n")
        self.mountinfo.write_text(MOUNT.format(point=self.tree))

    def lock(self) -> MoveLock:
        return MoveLock(self.membership, self.mountinfo)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_it_is_taken_by_a_move_of_this_process_to_its_own_group(machine: Machine) -> None:
    lock = machine.lock()
    await lock.begin("web")
    await lock.close()
    assert set(machine.procs.read_text()) == {"0"}


async def test_while_it_is_being_taken_another_request_does_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, moves, write = threading.Event(), 0, os.write

    def wait_and_write(descriptor: int, data: bytes) -> int:
        nonlocal moves
        if data == b"0":
            moves += 1
            assert may_end.wait(PATIENCE_S)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", wait_and_write)
    lock = machine.lock()
    await lock.begin("web")
    await lock.begin("other")
    await eventually(lambda: moves == 1)
    may_end.set()
    await lock.close()
    assert machine.procs.read_text() == "0" * moves


async def test_it_is_taken_again_until_every_start_is_over(machine: Machine) -> None:
    lock = machine.lock()

    def moves() -> int:
        return len(machine.procs.read_text())

    await lock.begin("web")
    await lock.begin("other")
    lock.end("web")
    before = moves()
    await eventually(lambda: moves() > before + 1)
    lock.end("other")
    await lock.begin("later")
    await eventually(lambda: moves() > before + 2)
    lock.end("later")
    await lock.close()


async def test_a_start_that_hangs_counts_for_a_while_only(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_lock, "_LONGEST_S", 0.0)
    lock = machine.lock()
    await lock.begin("hangs")
    await eventually(lambda: lock.is_idle)
    await lock.close()


async def test_the_end_of_a_start_that_was_not_begun_changes_nothing(machine: Machine) -> None:
    machine.lock().end("web")


async def test_where_the_group_cannot_be_written_starts_do_without(machine: Machine) -> None:
    machine.procs.unlink()
    lock = machine.lock()
    await lock.begin("web")
    machine.procs.touch()
    await lock.begin("web")  # it was found not to work, and is not tried again
    await lock.close()
    assert machine.procs.read_text() == ""


async def test_a_refused_move_is_no_error(machine: Machine) -> None:
    machine.procs.unlink()
    machine.procs.symlink_to("/dev/full")
    lock = machine.lock()
    await lock.begin("web")
    await lock.close()


async def test_without_a_v2_tree_it_is_not_taken(machine: Machine) -> None:
    machine.mountinfo.write_text("")
    lock = machine.lock()
    await lock.begin("web")
    await lock.close()
    assert machine.procs.read_text() == ""


def test_a_group_outside_of_the_mounted_tree_is_not_used() -> None:
    assert group_of("0::/a/b\n", "/sys/fs/cgroup") == Path("/sys/fs/cgroup/a/b")
    assert group_of("0::/../a\n", "/sys/fs/cgroup") is None
    assert group_of("4:memory:/a\n", "/sys/fs/cgroup") is None


@pytest.mark.root
async def test_on_this_machine_it_is_taken_and_the_process_stays_where_it_is() -> None:
    before = Path("/proc/self/cgroup").read_text()
    lock = MoveLock()
    await lock.begin("web")
    await asyncio.wait_for(lock.close(), 60.0)
    assert Path("/proc/self/cgroup").read_text() == before
