"""Real processes in real groups of this machine: limits bite, kills reach everything, nothing is left."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
import uvloop

from skerry.model import errors
from skerry.model.cells import CellLimits
from skerry.model.ids import CellName
from skerry.model.resources import Megabytes, Millicores
from skerry.node.cgroups.backends import CgroupBackend
from tests.node.cgroups import paths
from tests.node.cgroups.paths import running, stranger
from tests.support.waiting import PATIENCE_S, eventually, eventually_sync

A, AB = CellName("a"), CellName("a/b")
SLEEP = "exec sleep 1000"
BUSY = "while :; do :; done"
# A tree that a signal to the shell, its group or its session would not catch.
SPREAD = "setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000 & wait"
# Shells give up when they cannot fork; this goes on, so that killing races with forking.
BOMB = f"""exec {sys.executable} -I -S -c '
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
'"""
NO_LIMITS = CellLimits()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> asyncio.Runner:
    return asyncio.Runner(loop_factory=request.param)


def prepare_cell(cgroups: CgroupBackend, cell: CellName = A, limits: CellLimits = NO_LIMITS) -> None:
    cgroups.create(cell, limits)
    cgroups.add_leaf(cell, "_init")


@pytest.mark.root(tries=1)
def test_limits_are_visible_in_cgroupfs(hybrid: CgroupBackend, root: str) -> None:
    hybrid.create(
        A,
        CellLimits(cpu_shares=1025, cpu_quota=Millicores(200), cpus="0", memory=Megabytes(32), pids=20),
    )
    held = {
        file: Path(paths.MOUNTED.controllers[file.partition(".")[0]], root, "a", file).read_text().strip()
        for file in (
            "cpu.shares",
            "cpu.cfs_quota_us",
            "cpu.cfs_period_us",
            "cpuset.cpus",
            "memory.limit_in_bytes",
            "pids.max",
        )
    }
    assert held == {
        "cpu.shares": "1025",
        "cpu.cfs_quota_us": "20000",
        "cpu.cfs_period_us": "100000",
        "cpuset.cpus": "0",
        "memory.limit_in_bytes": "33554432",
        "pids.max": "20",
    }
    assert hybrid.read_limits(A).cpu_shares == 1025


async def test_a_process_is_in_every_hierarchy_of_its_cell(real: CgroupBackend, root: str) -> None:
    prepare_cell(real)
    with running(real, A, "_init", SLEEP) as process:
        assert real.pids(A) == real.pids(A, "_init") == [process.pid]
        where = Path(f"/proc/{process.pid}/cgroup").read_text()
        for controller in ("cpu", "cpuset", "memory", "pids"):
            assert f":{controller}:/{root}/a\n" in where
        assert f":/{root}/a/_init\n" in where
        assert not await real.emptied(A, within_s=0.01)
        with pytest.raises(errors.FailedPrecondition, match="processes are still in a/_init"):
            real.remove(A)
        real.kill(A)
        assert await real.emptied(A, within_s=10)
    real.remove(A)
    assert not real.exists(A)


async def test_a_process_forked_within_a_cell_only_enters_its_leaf(real: CgroupBackend) -> None:
    prepare_cell(real)
    real.add_leaf(A, "_x1")
    with real.entry(A, "_init") as whole, real.entry(A, "_x1", from_within=True) as inner:
        assert len(inner.procs) < len(whole.procs)
    with running(real, A, "_x1", SLEEP, from_within=True) as process:
        assert real.pids(A, "_x1") == [process.pid]
        assert real.pids(A, "_init") == []


async def test_a_kill_reaches_the_whole_tree_of_one_leaf_and_no_other(real: CgroupBackend) -> None:
    prepare_cell(real)
    real.add_leaf(A, "_x1")
    with running(real, A, "_init", SLEEP) as other, running(real, A, "_x1", SPREAD):
        await eventually(lambda: len(real.pids(A, "_x1")) >= 5)
        real.kill(A, "_x1")
        assert await real.emptied(A, "_x1", within_s=10)
        real.remove_leaf(A, "_x1")
        assert real.pids(A) == [other.pid]
        assert other.poll() is None


async def test_a_kill_reaches_child_cells(real: CgroupBackend) -> None:
    prepare_cell(real, A)
    prepare_cell(real, AB)
    with running(real, A, "_init", SPREAD), running(real, AB, "_init", SPREAD) as child:
        await eventually(lambda: len(real.pids(AB)) >= 5)
        assert set(real.pids(AB)) < set(real.pids(A))
        real.kill(A)
        assert await real.emptied(A, within_s=10)
        assert child.wait(PATIENCE_S) == -9
    real.remove(AB)
    real.remove(A)


async def test_a_kill_reaches_more_processes_than_there_may_be_descriptors_for_at_once(
    real: CgroupBackend,
) -> None:
    prepare_cell(real)
    with running(real, A, "_init", "for i in $(seq 200); do sleep 1000 & done; wait"):
        await eventually(lambda: len(real.pids(A)) == 201)
        real.kill(A)
        assert await real.emptied(A, within_s=20)


@pytest.mark.root(tries=1)
async def test_a_leaf_that_somebody_made_threaded_is_still_listed_and_killed(
    hybrid: CgroupBackend, root: str
) -> None:
    prepare_cell(hybrid)
    group = Path(paths.MOUNTED.unified or "", root, "a")
    (group / "_init" / "cgroup.type").write_text("threaded")
    with stranger() as process:
        for place in (group, group / "_init"):
            (place / "cgroup.procs").write_text(str(process.pid))
        assert hybrid.pids(A, "_init") == [process.pid]
        with pytest.raises(errors.Unavailable, match="threaded"):
            hybrid.add_leaf(A, "_x1")
        hybrid.kill(A, "_init")
        assert await hybrid.emptied(A, "_init", within_s=10)
    hybrid.remove(A)


async def test_a_fork_bomb_stops_at_its_limit_and_is_killed_whole(real: CgroupBackend) -> None:
    prepare_cell(real, limits=CellLimits(pids=24, cpu_quota=Millicores(300)))
    with running(real, A, "_init", BOMB):
        await eventually(lambda: len(real.pids(A)) >= 20)
        assert real.usage(A).pids <= 24
        real.kill(A)
        assert await real.emptied(A, within_s=20)
    real.remove(A)
    assert real.cells() == []


async def test_a_frozen_cell_uses_no_cpu_and_can_be_killed(real: CgroupBackend, root: str) -> None:
    prepare_cell(real)
    with running(real, A, "_init", BUSY):
        await eventually(lambda: real.usage(A).cpu_ns > 0)
        real.freeze(A)
        await eventually(lambda: is_frozen(real, root))
        used = real.usage(A).cpu_ns
        assert not await real.emptied(A, within_s=0.05)
        assert real.usage(A).cpu_ns == used
        real.thaw(A)
        await eventually(lambda: real.usage(A).cpu_ns > used)
        real.freeze(A)
        real.kill(A)
        assert await real.emptied(A, within_s=10)


def is_frozen(cgroups: CgroupBackend, root: str) -> bool:
    if cgroups.kind == "legacy":
        return (
            Path(paths.MOUNTED.controllers["freezer"], root, "a", "freezer.state").read_text() == "FROZEN\n"
        )
    return "frozen 1\n" in Path(paths.MOUNTED.unified or "", root, "a", "cgroup.events").read_text()


def test_emptiness_is_noticed_on_every_event_loop(real: CgroupBackend, runner: asyncio.Runner) -> None:
    prepare_cell(real)

    async def wait_and_end() -> bool:
        with running(real, A, "_init", SLEEP) as process:
            waiting = asyncio.create_task(real.emptied(A, within_s=60))
            await asyncio.sleep(0)
            assert not waiting.done()
            process.kill()
            return await waiting

    with runner:
        assert runner.run(wait_and_end())


async def test_many_wait_at_once_and_a_wait_that_is_given_up_leaves_nothing(real: CgroupBackend) -> None:
    prepare_cell(real)
    with running(real, A, "_init", SLEEP) as process:
        waits = [asyncio.create_task(real.emptied(A, within_s=60)) for _ in range(20)]
        given_up = asyncio.create_task(real.emptied(A, within_s=60))
        await asyncio.sleep(0)
        given_up.cancel()
        process.kill()
        assert await asyncio.gather(*waits) == [True] * 20
        with pytest.raises(asyncio.CancelledError):
            await given_up


@pytest.mark.root(tries=1)
async def test_usage_moves(hybrid: CgroupBackend) -> None:
    prepare_cell(hybrid, limits=CellLimits(cpu_quota=Millicores(50)))
    assert hybrid.usage(A).cpu_ns == hybrid.usage(A).memory_bytes == 0
    with running(hybrid, A, "_init", BUSY):
        used = await eventually(lambda: (u := hybrid.usage(A)).throttled_ns and u)
        assert used.pids == 1
        assert used.cpu_ns > 0
        assert used.memory_peak_bytes >= used.memory_bytes > 0
        await eventually(lambda: hybrid.usage(A).cpu_ns > used.cpu_ns)
    eventually_sync(lambda: hybrid.usage(A).pids == 0)


async def test_a_kill_for_memory_is_counted_in_its_cell_and_shows_in_the_usage_of_the_parent(
    real: CgroupBackend,
) -> None:
    prepare_cell(real, A)
    prepare_cell(real, AB, CellLimits(memory=Megabytes(16)))
    with running(real, AB, "_init", "exec tail /dev/zero") as hog:
        assert await asyncio.to_thread(hog.wait, 60) == -9
        await eventually(lambda: real.oom_kills(AB, "_init") == 1)
        assert real.oom_kills(A, "_init") == 0
        assert real.usage(AB).oom_kills == real.usage(A).oom_kills == 1
        assert 8 << 20 < real.usage(AB).memory_peak_bytes <= 16 << 20


async def test_a_cell_that_is_only_half_there_is_listed_and_can_be_made_anew(
    real: CgroupBackend, root: str
) -> None:
    leftover = Path(paths.MOUNTED.controllers["memory"], root, "a")
    leftover.mkdir()
    (leftover / "memory.limit_in_bytes").write_text("1048576")
    assert real.cells() == [A]
    assert not real.exists(A)
    real.create(A, CellLimits())
    assert real.read_limits(A) == CellLimits()
    real.remove(A)
    leftover.mkdir()
    real.remove(A)
    assert real.cells() == []


@pytest.mark.root(tries=1)
def test_a_group_that_somebody_else_uses_is_refused_and_left_as_it_is(
    hybrid: CgroupBackend, root: str
) -> None:
    taken = Path(paths.MOUNTED.controllers["memory"], root, "a")
    taken.mkdir()
    with stranger() as other:
        (taken / "cgroup.procs").write_text(str(other.pid))
        with pytest.raises(errors.FailedPrecondition, match="exists on this host and is in use"):
            hybrid.create(A, CellLimits())
        assert not hybrid.exists(A)
        assert (taken / "cgroup.procs").read_text().split() == [str(other.pid)]
    eventually_sync(lambda: not (taken / "cgroup.procs").read_text())
    assert paths.groups_of(root).count(str(taken)) == 1


@pytest.mark.root(tries=1)
def test_a_root_group_with_strangers_in_it_is_not_used(hybrid: CgroupBackend, root: str) -> None:
    home = Path(paths.MOUNTED.unified or "", root)
    with stranger() as other:
        (home / "cgroup.procs").write_text(str(other.pid))
        with pytest.raises(errors.Unavailable, match="not Skerry's"):
            hybrid.prepare()
        assert other.poll() is None
    eventually_sync(lambda: "populated 0" in (home / "cgroup.events").read_text())


@pytest.mark.root(tries=1)
async def test_a_hundred_cells_come_and_go(hybrid: CgroupBackend) -> None:
    cells = [CellName(f"c{number}") for number in range(100)]
    for cell in cells:
        prepare_cell(hybrid, cell, CellLimits(pids=5, memory=Megabytes(8)))
    assert sorted(hybrid.cells()) == sorted(cells)
    for cell in cells:
        hybrid.remove(cell)
    assert hybrid.cells() == []
