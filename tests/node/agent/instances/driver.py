"""An agent with instances in a process of its own: takes orders, line by line, and says when each is done.

Its arguments are FOLDER IMAGE ROOT [STEP TIMES]. See `tests.support.drivers`.

With STEP it kills itself, as `kill -9` would, when that step is reached for the TIMESth time.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from msgspec.structs import replace

from skerry.kit.clock import SystemClock
from skerry.model.ids import InstanceId
from skerry.model.node_messages import SessionConfig
from skerry.model.orders import InstanceOrder
from skerry.model.ports import PortMapping
from skerry.model.statuses import DesiredStatus
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.instances import NodeInstances
from tests.node.agent.instances import worlds
from tests.node.cells.driver import send
from tests.node.containers.real import Agent, Ground
from tests.support.drivers import Death
from tests.support.waiting import eventually

TERMS = SessionConfig(worlds.TERMS.node, "", 2, restart_base_s=0.01, restart_cap_s=0.05, restart_reset_s=600)
# A status, and the generation in which it is to be reached.
Goal = tuple[str, int]


def real_order(desired: str, generation: int, *arguments: str, id: str = worlds.ID) -> InstanceOrder:
    """Of the image that the last ground was made for, with a port of its own in each generation."""
    spec = worlds.spec(
        uri=Ground.reference,
        arguments=arguments or ("sleep", "1000"),
        ports=(PortMapping(20_000 + generation, 80),),
    )
    return InstanceOrder(InstanceId(id), generation, spec, DesiredStatus(desired))


@contextlib.asynccontextmanager
async def instances_of(
    ground: Ground, agent: Agent, failpoint: Callable[[str], None] = lambda step: None
) -> AsyncIterator[NodeInstances]:
    instances = await NodeInstances(
        ground.folder / "instances",
        InstanceBackends(agent.containers, agent.images),
        SystemClock(),
        failpoint=failpoint,
    ).open()
    try:
        await instances.set_config(TERMS)
        yield instances
    finally:
        await instances.close()


async def reach(instances: NodeInstances, status: str, generation: int, id: str = worlds.ID) -> None:
    def is_there() -> bool:
        copy = instances.copy(InstanceId(id))
        return (str(copy.history.status), copy.order.generation) == (status, generation)

    await eventually(is_there, what=f"{id} is {status}")


async def do(instances: NodeInstances, desired: str, generation: int, status: str) -> None:
    """Order it, and wait for what it leads to."""
    await instances.apply([real_order(desired, generation)], is_full=True)
    await reach(instances, status, generation)


def shorten_waits(ground: Ground) -> None:
    """What the tests run does not listen to signals."""
    ground.settings = replace(ground.settings, stop_grace_s=0.05)


async def main(folder: str, image: str, root: str, step: str = "", times: str = "0") -> None:
    ground = Ground(Path(folder), Path(image), root)
    shorten_waits(ground)
    death = Death(step, int(times))
    async with ground.agent() as agent, instances_of(ground, agent, death) as instances:
        send(launcher=agent.launcher)
        for line in sys.stdin:
            await do(instances, *json.loads(line))
            send(done=True)
        await instances.apply([], is_full=True)
        await eventually(lambda: not instances._controllers)
        send(done=True)
