"""A new process waits just before its program, and an init works outside of the cpu quota of its cell."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from skerry.model import errors
from skerry.model.cells import CellLimits, Sandbox
from skerry.node.launcher.child.messages import LauncherMessage, MessageBody
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import InitSpec
from tests.node.launcher.ground import UID, Ground, LaunchedCell, needs_root
from tests.support.waiting import eventually

pytestmark = needs_root


def descendants(cell: LaunchedCell, key: str = "1") -> list[int]:
    return cell.groups.pids(cell.name, cell.leaf(key))


async def test_the_process_is_confined_when_it_waits_and_its_program_has_not_begun(
    cell: LaunchedCell,
) -> None:
    seen: list[tuple[bytes, str]] = []

    def look() -> None:
        (pid,) = descendants(cell)
        status = Path(f"/proc/{pid}/status").read_text()
        facts = dict(line.split(":\t", 1) for line in status.splitlines())
        seen.append((Path(f"/proc/{pid}/comm").read_bytes(), facts["Uid"].split()[0] + facts["Seccomp"]))

    key, started = await cell.start("exec sleep 600", before_exec=look)
    started.close()
    assert seen == [(b"skerry-init\n", f"{UID}2")]
    assert descendants(cell, key) == [started.pid]


async def test_the_program_has_no_descriptor_of_it(cell: LaunchedCell) -> None:
    key, started = await cell.start("ls /proc/$$/fd", before_exec=lambda: None)
    started.close()
    await cell.ended(key)
    assert cell.printed(key) == b"0\n1\n2\n"


async def test_a_program_that_is_not_there_is_told_as_without_it(cell: LaunchedCell) -> None:
    with pytest.raises(errors.FailedPrecondition):
        await cell.start("", sandbox=Sandbox(arguments=("/no/such/program",)), before_exec=lambda: None)
    assert descendants(cell) == []


async def test_what_the_agent_could_not_do_is_raised_and_the_program_never_begins(
    cell: LaunchedCell,
) -> None:
    def fail() -> None:
        raise errors.Internal("the quota could not be put on")

    with pytest.raises(errors.Internal, match="the quota could not be put on"):
        await cell.start("echo begun", before_exec=fail)
    assert descendants(cell) == []
    assert cell.printed("1") == b""
    assert (await cell.run("echo next")).out == "next\n"


async def test_a_process_that_is_killed_while_it_waits_is_told_as_ended(cell: LaunchedCell) -> None:
    def kill() -> None:
        (pid,) = descendants(cell)
        os.kill(pid, signal.SIGKILL)

    key, started = await cell.start("echo begun", before_exec=kill)
    started.close()
    assert (await cell.ended(key)).signal == signal.SIGKILL
    assert cell.printed(key) == b""


def cpu_group(pid: int) -> str:
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    (place,) = [place for _, controllers, place in lines if "cpu" in controllers.split(",")]
    return place


async def test_an_init_is_in_the_group_of_the_quota_from_its_first_start_on(
    ground: Ground, launcher: LauncherClient
) -> None:
    if not ground.groups.can_leave_cpu_quota:
        pytest.skip("limits are held by the v2 tree here")
    cell = ground.cell(limits=CellLimits(cpu_quota=100))
    init = await cell.open(launcher, outside_quota=True)
    assert not cpu_group(init.pid).endswith(f"/{ground.root}/one")
    for number in range(2):
        _, started = await cell.start("exec sleep 600", outside_quota=bool(number))
        started.close()
        assert cpu_group(started.pid) == f"/{ground.root}/one"
        await eventually(lambda: cpu_group(init.pid) == f"/{ground.root}/one")


async def test_an_init_whose_start_failed_is_in_the_group_of_the_quota(
    ground: Ground, launcher: LauncherClient
) -> None:
    if not ground.groups.can_leave_cpu_quota:
        pytest.skip("limits are held by the v2 tree here")
    cell = ground.cell(limits=CellLimits(cpu_quota=100))
    init = await cell.open(launcher, InitSpec("cell", isolates_network=True), outside_quota=True)
    for number in range(2):
        with pytest.raises(errors.FailedPrecondition):
            await cell.start("", sandbox=Sandbox(folder="/no/such"), outside_quota=bool(number))
        await eventually(lambda: cpu_group(init.pid) == f"/{ground.root}/one")


async def test_the_order_of_what_is_passed_is_right_for_an_init_of_an_earlier_version(
    cell: LaunchedCell,
) -> None:
    """Such an init takes all that it does not know for more of the entrance, and its child writes `0` to each
    in turn: it is out of the group of the quota and in again, and then says that it is at the barrier."""
    if not cell.groups.can_leave_cpu_quota:
        pytest.skip("limits are held by the v2 tree here")
    sent: list[str] = []
    ask = cell.init._channel.request

    async def record(body: MessageBody, descriptors: Sequence[int] = ()) -> LauncherMessage:
        sent.extend(os.readlink(f"/proc/self/fd/{each}") for each in descriptors)
        return await ask(body, descriptors)

    cell.init._channel.request = record  # type: ignore[method-assign]
    _, started = await cell.start("exec sleep 600", before_exec=lambda: None, outside_quota=True)
    started.close()
    outside, cpu, barrier = sent[-3:]
    assert Path(cpu) == Path(outside).parent / cell.name / "tasks"
    assert barrier.startswith("socket:")
