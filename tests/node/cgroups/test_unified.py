"""The unified back end under the rules of v2: controllers handed down, processes only in leaves."""

from __future__ import annotations

import os

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.node.cgroups import detection
from skerry.node.cgroups.backends import CgroupBackend
from tests.node.cgroups.fake_cgroupfs import FakeCgroupfs

A, AB = CellName("a"), CellName("a/b")
FULL = CellLimits(cpu_weight=50, cpu_quota=Millicores(200), cpus="0-1", memory=Megabytes(32), pids=20)
PID = 4711


def test_every_limit_is_a_file_of_the_cells_group(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    unified.create(A, FULL)
    held = {
        file: fake.read(f"/fake/{root}/a/{file}").strip()
        for file in ("cpu.weight", "cpu.max", "cpuset.cpus", "memory.max", "memory.swap.max", "pids.max")
    }
    assert held == {
        "cpu.weight": "50",
        "cpu.max": "20000 100000",
        "cpuset.cpus": "0-1",
        "memory.max": "33554432",
        "memory.swap.max": "0",
        "pids.max": "20",
    }
    assert unified.read_limits(A) == FULL


def test_shares_become_the_nearest_weight(unified: CgroupBackend, fake: FakeCgroupfs, root: str) -> None:
    unified.create(A, CellLimits(cpu_shares=2))
    assert fake.read(f"/fake/{root}/a/cpu.weight") == "1\n"


def test_controllers_are_handed_down_the_path_and_no_further(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    unified.create(A, FULL)
    everything = "cpu cpuset io memory pids\n"
    for group in ("/fake", f"/fake/{root}"):
        assert fake.read(f"{group}/cgroup.subtree_control") == everything
    assert fake.read(f"/fake/{root}/a/cgroup.subtree_control") == "\n"
    unified.create(AB, CellLimits())
    assert fake.read(f"/fake/{root}/a/cgroup.subtree_control") == everything


def test_a_cell_with_running_processes_can_get_child_cells(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    unified.create(A, FULL)
    unified.add_leaf(A, "_init")
    fake.enter(f"/fake/{root}/a/_init", PID)
    unified.create(AB, FULL)
    assert unified.pids(A) == [PID]


def test_a_cell_with_processes_in_its_own_group_is_refused_children(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    unified.create(A, FULL)
    fake.enter(f"/fake/{root}/a", PID)
    with pytest.raises(errors.FailedPrecondition, match="processes are in the group of cell a itself"):
        unified.create(AB, CellLimits())
    assert unified.cells() == [A]


def test_swap_that_the_kernel_does_not_count_is_no_matter(root: str) -> None:
    fake = FakeCgroupfs(has_swap=False)
    backend = detection.make_unified(fake, fake.mount, root)
    backend.prepare()
    backend.create(A, FULL)
    assert backend.read_limits(A).memory == 32


def test_io_is_welcome_and_not_needed(root: str) -> None:
    fake = FakeCgroupfs(controllers=("cpu", "cpuset", "memory", "pids"))
    backend = detection.make_unified(fake, fake.mount, root)
    backend.prepare()
    backend.create(A, FULL)
    assert backend.usage(A).read_bytes == 0


def test_cpus_that_the_kernel_would_take_and_ignore_are_refused(unified: CgroupBackend) -> None:
    with pytest.raises(errors.Invalid, match=r"cpus 3-4 are not available.*only 0-3"):
        unified.create(A, CellLimits(cpus="3-4"))
    assert unified.cells() == []


def test_a_value_that_the_kernel_did_not_keep_is_an_error(root: str) -> None:
    class Deaf(FakeCgroupfs):
        def write(self, path: str, text: str) -> None:
            if not path.endswith("/memory.max"):
                super().write(path, text)

    fake = Deaf()
    backend = detection.make_unified(fake, fake.mount, root)
    backend.prepare()
    with pytest.raises(errors.Internal, match="did not set memory: 33554432"):
        backend.create(A, FULL)
    assert backend.cells() == []


def test_a_delegated_mount_with_processes_in_it_says_what_to_do(root: str) -> None:
    fake = FakeCgroupfs(is_real_root=False)
    fake.enter("/fake", os.getpid())
    backend = detection.make_unified(fake, fake.mount, root)
    with pytest.raises(errors.Unavailable, match="move them into a group of their own"):
        backend.prepare()
    fake.exit(os.getpid())
    backend.prepare()
    backend.create(A, FULL)


def test_a_root_group_that_others_use_is_left_alone(fake: FakeCgroupfs, root: str) -> None:
    fake.mkdir(f"/fake/{root}")
    fake.enter(f"/fake/{root}", PID)
    with pytest.raises(errors.Unavailable, match=r"not Skerry's.*node\.cgroup_root"):
        detection.make_unified(fake, fake.mount, root).prepare()


def test_a_group_that_somebody_made_threaded_holds_no_cells(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    fake.mkdir(f"/fake/{root}/x")
    fake.write(f"/fake/{root}/x/cgroup.type", "threaded")
    with pytest.raises(errors.Unavailable, match=r"domain invalid.*threaded"):
        unified.create(A, FULL)
    assert unified.cells() == [CellName("x")]
    with pytest.raises(errors.Unavailable, match="threaded"):
        unified.prepare()


async def test_killing_takes_everything_below(unified: CgroupBackend, fake: FakeCgroupfs, root: str) -> None:
    unified.create(A, FULL)
    unified.create(AB, FULL)
    for number, place in enumerate(("a/_init", "a/_x1", "a/b/_init"), 1):
        cell, _, leaf = place.rpartition("/")
        unified.add_leaf(CellName(cell), leaf)
        fake.enter(f"/fake/{root}/{place}", number)
    assert unified.pids(A) == [1, 2, 3]
    assert unified.pids(AB) == [3]
    unified.kill(A, "_x1")
    assert fake.killed == [2]
    assert await unified.emptied(A, "_x1", within_s=1)
    assert not await unified.emptied(A, within_s=0.01)
    with pytest.raises(errors.FailedPrecondition, match="child cell"):
        unified.remove(A)
    with pytest.raises(errors.FailedPrecondition, match="processes are still in a/_init"):
        unified.remove_leaf(A, "_init")
    unified.kill(A)
    assert await unified.emptied(A, within_s=1)
    unified.remove(AB)
    unified.remove(A)


def test_freezing_is_of_the_cell(unified: CgroupBackend, fake: FakeCgroupfs, root: str) -> None:
    unified.create(A, FULL)
    unified.freeze(A)
    assert fake.read(f"/fake/{root}/a/cgroup.freeze") == "1\n"
    unified.thaw(A)
    assert fake.read(f"/fake/{root}/a/cgroup.freeze") == "0\n"


def test_kills_for_memory_are_counted_where_the_kernel_counts_them(
    unified: CgroupBackend, fake: FakeCgroupfs, root: str
) -> None:
    unified.create(A, FULL)
    unified.add_leaf(A, "_x1")
    assert unified.oom_kills(A, "_x1") == 0
    fake.set(f"/fake/{root}/a/memory.events.local", "oom 1\noom_kill 1")
    assert unified.oom_kills(A, "_x1") == 1
    unified.create(AB, FULL)  # from now on leaves of `a` count for themselves
    unified.add_leaf(A, "_x2")
    fake.set(f"/fake/{root}/a/_x1/memory.events.local", "oom 1\noom_kill 2")
    fake.set(f"/fake/{root}/a/b/memory.events.local", "oom 1\noom_kill 9")
    assert unified.oom_kills(A, "_x1") == 3
    assert unified.oom_kills(A, "_x2") == 1
