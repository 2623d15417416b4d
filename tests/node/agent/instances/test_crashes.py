"""`kill -9` of the agent after every step of an instance's life: it goes on, is told, and leaves nothing."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal

import pytest

from skerry.model.ids import InstanceId
from skerry.model.statuses import InstanceStatus, may_become
from skerry.node.agent.instances.instances import NodeInstances
from tests.node.agent.instances.driver import do, instances_of, reach, real_order, shorten_waits
from tests.node.agent.instances.worlds import ID
from tests.node.cells.real import is_alive
from tests.node.containers.conftest import busybox, ground
from tests.node.containers.real import Ground, needs_runc
from tests.support.drivers import Drivers
from tests.support.waiting import eventually, eventually_sync

__all__ = ["busybox", "ground"]
pytestmark = [needs_runc, pytest.mark.root]

# What is ordered, in which generation, and what it leads to.
SCRIPT = [
    ("RUNNING", 1, "RUNNING"),
    ("STOPPED", 1, "STOPPED"),
    ("RUNNING", 1, "RUNNING"),
    ("RUNNING", 2, "RUNNING"),  # with another port
    ("DESTROYED", 3, "TERMINATED"),
]
STEPS = [
    *(("applied", times) for times in range(1, 7)),
    *(("reported.starting", times) for times in (1, 2, 3)),
    *(("reported.running", times) for times in (1, 2, 3)),
    ("reported.stopping", 1),
    ("reported.stopped", 1),
    ("reported.terminated", 1),
    *(("made", times) for times in (1, 2)),
    *(("done.create", times) for times in (1, 2)),
    *(("done.start", times) for times in (1, 2, 3)),
    ("done.stop", 1),
    *(("done.remove", times) for times in (1, 2)),
    ("forgotten", 1),
]


def drive(drivers: Drivers, ground: Ground, step: str, times: int) -> int:
    """Have an agent do the script until it dies; how many orders were carried out."""
    arguments = (str(ground.folder), str(ground.image), ground.root, step, str(times))
    text = "".join(json.dumps(call) + "\n" for call in SCRIPT)
    done = drivers.run("tests.node.agent.instances.driver", *arguments, text=text)
    assert done.returncode == -signal.SIGKILL
    launcher, *answers = [json.loads(line) for line in done.stdout.splitlines()]
    # It ends by itself, and only then are its inits somebody else's.
    eventually_sync(lambda: not is_alive(launcher["launcher"]))
    return len(answers)


def check_reported(instances: NodeInstances) -> None:
    """What is to be told of the last generation is a way through the state machine, with nothing left out."""
    reported = [each.report for each in instances.reports(0, 1000)]
    generation = max((report.generation for report in reported), default=0)
    path = [
        InstanceStatus.SCHEDULED,
        *(report.status for report in reported if report.generation == generation),
    ]
    if path[-1] is InstanceStatus.TERMINATED:
        path[-1:] = [
            InstanceStatus.DESTROYING,
            InstanceStatus.TERMINATED,
        ]  # which is the control plane's to say
    assert all(may_become(before, after) for before, after in itertools.pairwise(path)), path


@pytest.mark.parametrize(("step", "times"), STEPS)
async def test_an_agent_that_dies_after_a_step_is_followed_by_one_that_goes_on(
    drivers: Drivers, ground: Ground, step: str, times: int
) -> None:
    count = await asyncio.to_thread(drive, drivers, ground, step, times)
    shorten_waits(ground)
    async with ground.agent() as agent, instances_of(ground, agent) as instances:
        # What was under way, as the control plane would say it again, and then the rest.
        for call in SCRIPT[min(count, len(SCRIPT) - 1) :]:
            await do(instances, *call)
            check_reported(instances)
            assert len(agent.containers.list()) == (call[0] != "DESTROYED")
            assert sum(view.pid is not None for view in agent.containers.list()) == (call[2] == "RUNNING")

        def is_forgotten() -> bool:
            instances.acknowledge(2**62)  # again, since what is on its way to the disk is not told yet
            return not instances._controllers

        await eventually(is_forgotten)
        assert list((ground.folder / "instances/copies").iterdir()) == []


async def test_an_end_that_no_agent_saw_is_told_by_the_next_which_starts_it_again(
    drivers: Drivers, ground: Ground
) -> None:
    await asyncio.to_thread(drive, drivers, ground, "applied", 2)
    (pid,) = [pid for name in ground.groups.cells() for pid in ground.groups.pids(name, "_x1")]
    os.kill(pid, signal.SIGKILL)
    eventually_sync(lambda: not is_alive(pid))
    shorten_waits(ground)
    async with ground.agent() as agent, instances_of(ground, agent) as instances:
        await instances.apply([real_order("RUNNING", 1)], is_full=True)
        await eventually(lambda: instances.copy(InstanceId(ID)).history.restarts == 1)
        await reach(instances, "RUNNING", 1)
        check_reported(instances)
        crash = next(each.report for each in instances.reports(0, 99) if each.report.status == "CRASHED")
        assert (crash.exit_code, crash.reason) == (137, "ended by signal 9 (SIGKILL)")
        await instances.apply([], is_full=True)
        await eventually(lambda: not instances._controllers)
