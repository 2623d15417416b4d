"""Real starts in cells with a small cpu quota, both where an init can leave the group of the quota for its
work and where the quota is lifted."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from skerry.model.cells import Cell, CellLimits
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.backends import CgroupBackend
from tests.node.cells.real import Ground, executable
from tests.node.cells.test_crashes import drive
from tests.support.drivers import Drivers
from tests.support.waiting import eventually

pytestmark = pytest.mark.root

A = CellName("a")
TINY = CellLimits(cpu_quota=10)
LEAST = CellLimits(cpu_quota=1)  # one millisecond in each second: a start takes several
# Static, so that it needs less than that to begin.
NAP = "/bin/busybox sleep 1000"


@pytest.fixture(params=["outside", "lifted"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ground: Ground) -> str:
    """How the work of a start is kept from the quota."""
    if request.param == "lifted":
        monkeypatch.setattr(CgroupBackend, "can_leave_cpu_quota", property(lambda _: False))
    elif not ground.groups.can_leave_cpu_quota:
        pytest.skip("limits are held by the v2 tree here")
    return str(request.param)


def times_throttled(ground: Ground) -> int:
    paths = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").iterdir()]
    stats = [place / ground.root / A / "cpu.stat" for place in paths]
    counts = [line.split() for stat in stats if stat.exists() for line in stat.read_text().splitlines()]
    (count,) = [int(value) for key, value in counts if key == "nr_throttled"]
    return count


async def start(cells: Cells, name: str, *arguments: str) -> None:
    await cells.start(executable("a", name, " ".join(arguments)))


async def test_the_work_of_a_start_is_not_held_to_a_small_quota(ground: Ground, way: str) -> None:
    throttled: dict[str, int] = {}

    def look(step: str) -> None:
        if step.startswith(("init.", "start.")):
            throttled[step] = times_throttled(ground)

    async with ground.agent(look) as cells:
        # Without a spare init: one is made for the start, which takes some more milliseconds.
        await cells.allocate(Cell(A, LEAST, isolates_network=True))
        await start(cells, "x", f"exec {NAP}")
        assert throttled["init.recorded"] == 0
        if way == "lifted":
            assert throttled["start.prepared"] == 0
        else:
            # The program may have used up its first period by the time that we look.
            assert throttled["start.running"] <= 1
        await cells.free(A, grace_s=0)


async def test_a_quota_is_on_when_the_program_begins(ground: Ground, way: str) -> None:
    seen: list[tuple[str, int | None]] = []

    def look(step: str) -> None:
        if step.startswith("start."):
            seen.append((step, ground.groups.read_limits(A).cpu_quota))

    async with ground.agent(look) as cells:
        await cells.allocate(Cell(A, TINY))
        await start(cells, "x", f"exec {NAP}")
        await cells.free(A, grace_s=0)
    off = {"start.folder", "start.group", "start.waits"} if way == "lifted" else set()
    assert {step for step, quota in seen if quota is None} == off
    assert ("start.running", 10) in seen


async def test_starts_again_and_again_free_no_program_of_its_quota(ground: Ground, way: str) -> None:
    lifted = 0
    lift = ground.groups.lift_cpu_quota

    def count(cell: CellName) -> None:
        nonlocal lifted
        lifted += 1
        lift(cell)

    ground.groups.lift_cpu_quota = count  # type: ignore[method-assign]
    async with ground.agent() as cells:
        await cells.allocate(Cell(A, CellLimits(cpu_quota=100)))
        await start(cells, "busy", "while :; do :; done")
        before = cells.usage(A).cpu_ns
        begin = asyncio.get_running_loop().time()
        for number in range(15):
            await start(cells, f"n{number}", "true")
        elapsed = asyncio.get_running_loop().time() - begin
        used = (cells.usage(A).cpu_ns - before) / 1e9
        if way == "outside":
            assert lifted == 0
        else:
            # Each time but the first is paid for: a second at least, and ten for each tenth of one it used.
            assert lifted <= 2 + elapsed
        # The quota, a period of it at either end, the work of the starts, and what was lifted at first.
        most_at_once = 0.05 * (os.cpu_count() or 1)
        assert used <= 0.1 * elapsed + 2 * 0.01 + 15 * 0.01 + lifted * most_at_once
        await cells.free(A, grace_s=0)


async def test_two_starts_at_once_leave_the_quota_on(ground: Ground, way: str) -> None:
    async with ground.agent() as cells:
        await cells.allocate(Cell(A, TINY))
        await asyncio.gather(*(start(cells, name, f"exec {NAP}") for name in ("one", "two", "three")))
        assert ground.groups.read_limits(A) == TINY
        assert len(cells.get(A).executables) == 3
        await cells.free(A, grace_s=0)


@pytest.mark.parametrize("step", ["start.waits", "start.prepared"])
async def test_an_agent_that_dies_with_a_quota_lifted_leaves_no_program_and_the_next_puts_it_on(
    drivers: Drivers, ground: Ground, step: str
) -> None:
    script = [("lift", ""), ("allocate", "a", "10"), ("start", "a", "x", f"exec {NAP}")]
    await asyncio.to_thread(drive, drivers, ground, script, step, "1")
    assert (ground.groups.read_limits(A) == TINY) == (step == "start.prepared")
    # What waited has seen that nobody will answer.
    assert await ground.groups.emptied(A, "_x1", within_s=30)
    async with ground.agent() as cells:
        assert ground.groups.read_limits(A) == TINY
        assert cells.get(A).executables == ()
        await start(cells, "x", f"exec {NAP}")
        assert cells.executable(A, ExecutableName("x")).exit is None
        await cells.free(A, grace_s=0)


async def test_an_agent_that_dies_in_a_start_leaves_the_init_in_the_group_of_the_quota(
    drivers: Drivers,
    ground: Ground,
) -> None:
    if not ground.groups.can_leave_cpu_quota:
        pytest.skip("limits are held by the v2 tree here")
    script = [("allocate", "a", "10"), ("start", "a", "x", f"exec {NAP}")]
    await asyncio.to_thread(drive, drivers, ground, script, "start.running", "1")
    init = json.loads((ground.folder / "a" / "init.json").read_text())["pid"]
    cpu = Path("/proc") / str(init) / "cgroup"
    await eventually(
        lambda: any(
            "cpu" in line.split(":")[1].split(",") and line.endswith(f"/{ground.root}/a")
            for line in cpu.read_text().splitlines()
        )
    )
    assert ground.groups.read_limits(A) == TINY
    async with ground.agent() as cells:
        await cells.free(A, grace_s=0)
