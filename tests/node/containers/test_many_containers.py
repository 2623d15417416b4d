"""Many containers at once: all of them run, and nothing is left of them, with and without a crash."""

from __future__ import annotations

import asyncio

import pytest

from skerry.model.containers import ContainerState
from tests.node.containers.driver import do
from tests.node.containers.real import Ground, needs_runc
from tests.node.containers.test_crashes import drive, observed, strays
from tests.support.drivers import Drivers

pytestmark = [needs_runc, pytest.mark.root]

CROWD = tuple(f"c{number}" for number in range(50))


async def test_fifty_started_at_once_and_removed_at_once_leave_nothing(ground: Ground) -> None:
    async with ground.agent() as agent:
        await do(agent.containers, "create", *CROWD)
        await do(agent.containers, "start", *CROWD)
        assert observed(agent) == dict.fromkeys(CROWD, ContainerState.RUNNING)
        assert len({view.address for view in agent.containers.list()}) == len(CROWD)
        assert strays(ground, agent) == []
        await do(agent.containers, "remove", *CROWD)
        assert agent.containers.list() == []
        assert strays(ground, agent) == []
    assert ground.leftovers() == []


async def test_fifty_with_an_agent_that_is_killed_half_way_leave_nothing(
    drivers: Drivers, ground: Ground
) -> None:
    script = [("create", *CROWD), ("start", *CROWD)]
    assert await asyncio.to_thread(drive, drivers, ground, script, "start.running", "25") == 1
    async with ground.agent() as agent:
        now = observed(agent)
        assert now.keys() == set(CROWD)
        assert set(now.values()) == {ContainerState.RUNNING, ContainerState.CREATED}
        assert strays(ground, agent) == []
        await do(agent.containers, "start", *(name for name in CROWD if now[name] == ContainerState.CREATED))
    assert await asyncio.to_thread(drive, drivers, ground, [("remove", *CROWD)], "remove.freed", "25") == 0
    async with ground.agent() as agent:
        assert len(agent.containers.list()) < len(CROWD)
        assert strays(ground, agent) == []
        await do(agent.containers, "remove", *observed(agent))
    assert ground.leftovers() == []
