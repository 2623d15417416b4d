"""Instances over a machine in memory: agents come and go, and time passes only where it is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.containers import ContainerView
from skerry.model.ids import InstanceId
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.node.agent.instances.backends import InstanceBackends
from skerry.node.agent.instances.container_specs import container_name
from skerry.node.agent.instances.instances import InstancePolicy, NodeInstances
from skerry.node.agent.instances.state import LocalInstance
from skerry.node.containers.containers import Containers
from tests.node.agent.instances import worlds
from tests.node.containers.fakes import Process
from tests.node.containers.nodes import Node
from tests.support.waiting import eventually

LATEST = 2**62


class FlyingClock:
    """Sleeps that take no time and move the clock."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)  # whoever gives up a sleep before it began has not slept
        self._clock.advance(seconds)
        self.slept.append(seconds)


class Ground:
    """A node in memory and the folder of its instances."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "instances"
        self.node = Node(folder)
        self.machine = self.node.machine
        self.time = FlyingClock(self.machine.clock)
        self.steps: list[str] = []
        self.containers: Containers
        self.instances: NodeInstances

    async def open(self, *, failpoint: Callable[[str], None] | None = None, **more: Any) -> NodeInstances:
        """An agent begins; the one before it has ended or was killed."""
        self.containers = more.pop("containers", None) or await self.node.agent()
        limits = {name: more.pop(name) for name in ("most", "starts_at_once") if name in more}
        backends = InstanceBackends(self.containers, self.node.images, more.pop("cells", None))
        self.instances = await NodeInstances(
            self.folder,
            backends,
            self.machine.clock,
            InstancePolicy(**limits),
            **(
                {"sleep": self.time.sleep, "chance": lambda: 0.5, "failpoint": failpoint or self.steps.append}
                | more
            ),
        ).open()
        return self.instances

    async def leave(self) -> None:
        """The agent ends, and the machine goes on."""
        await self.instances.close()
        await self.node.leave()

    async def apply(self, *orders: InstanceOrder, whole: bool = False, removed: tuple[str, ...] = ()) -> None:
        await self.instances.apply(orders, is_full=whole, removed=tuple(map(InstanceId, removed)))

    def copy(self, id: str = worlds.ID) -> LocalInstance:
        return self.instances.copy(InstanceId(id))

    def status(self, id: str = worlds.ID) -> str:
        try:
            return str(self.copy(id).history.status)
        except errors.NotFound:
            return ""

    async def until(self, status: str, id: str = worlds.ID) -> LocalInstance:
        """Wait until the instance is that; it has to come to rest there."""
        await eventually(lambda: self.status(id) == status, what=f"{id} is {status}, not {self.status(id)}")
        return self.copy(id)

    async def until_gone(self, id: str = worlds.ID) -> None:
        await eventually(lambda: id not in self.instances._controllers, what=f"{id} is gone")

    def view(self, id: str = worlds.ID) -> ContainerView | None:
        try:
            return self.containers.get(container_name(InstanceId(id)))
        except errors.NotFound:
            return None

    def process(self, id: str = worlds.ID) -> Process:
        return self.machine.main(container_name(InstanceId(id)))

    def reports(self, id: str | None = None) -> list[InstanceReport]:
        """All that is to be told."""
        reported = [each.report for each in self.instances.reports(0, LATEST)]
        return [report for report in reported if id in (None, report.instance)]

    def statuses(self, id: str | None = None) -> list[str]:
        return [str(report.status) for report in self.reports(id)]

    def acknowledge(self) -> None:
        self.instances.acknowledge(LATEST)

    def records(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "copies").iterdir())
