"""`kill -9` of the agent in the middle of a cold start: the next agent leaves nothing of it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from skerry.node.workers.process_workers import CELL
from tests.node.cells.real import is_alive
from tests.node.network import machines
from tests.node.workers.ground import Ground, answered
from tests.support.drivers import Drivers
from tests.support.waiting import eventually

pytestmark = pytest.mark.root


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    with machines.machine(tmp_path):
        ground = Ground(tmp_path / "data", has_network=True)
        ground.folder.mkdir(mode=0o700)
        yield ground
        leftovers = ground.leftovers()
        await ground.clear()
        assert leftovers == []


@pytest.mark.parametrize(
    "step", ["blank.attached", "init.group", "init.made", "blank.started", "spawn.loaded"]
)
async def test_the_next_agent_removes_what_a_killed_one_has_begun(
    drivers: Drivers, ground: Ground, step: str
) -> None:
    ground.settings = msgspec.structs.replace(ground.settings, spare_workers=0)
    code = ground.code(main="def handle(params):\n    return params\n")
    done = drivers.run("tests.node.workers.driver", str(ground.folder), ground.root, step)
    assert done.returncode == -signal.SIGKILL
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) == 2  # its launchers
    await eventually(lambda: not any(map(is_alive, children)))
    if step == "spawn.loaded":  # its socket is closed: nobody has to end it
        inits = ground.groups.pids(CELL)
        await eventually(lambda: len(ground.groups.pids(CELL)) == 1, what=f"only the init of {inits}")
    async with ground.agent() as agent:
        assert [view.cell.name for view in agent.cells.list()] == [CELL]
        assert agent.network is not None
        assert agent.network.attachments() == {}
        worker = await agent.workers.spawn(ground.function(), code)
        assert (await answered(worker, b"1")).result == b"1"
