"""Bad days: what can befall a cloud, done to it at moments that a seed chooses.

Each fault is something that happens in earnest: machines vanish and come back, lose their memory or their
power, servers are killed, the network and the store turn bad, operators drain and unregister, and callers
change their minds all the while. What must hold nevertheless is `skerry.sim.cluster.invariants`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.statuses import DesiredStatus
from skerry.model.workloads import InstanceSpec
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.job_users import JobUsers
from skerry.sim.cluster.service_users import FaultAction, ServiceUsers

_GREAT_S = 15.0  # between two deeds that concern everybody


class FaultInjector:
    """`deeds` counts what was done."""

    def __init__(self, cloud: SimulatedCloud, chance: random.Random) -> None:
        self.deeds: Counter[str] = Counter()
        self.users = ServiceUsers(cloud, chance, self._soon)
        self.job_users = JobUsers(cloud, chance, self._soon)
        self._cloud = cloud
        self._chance = chance
        self._later: set[asyncio.Task[None]] = set()
        self._made = 0

    async def go_on(self, for_s: float, *, every_s: float) -> None:
        """Do something to nodes and instances about every `every_s`, and to all at once more seldom."""
        small: dict[FaultAction, int] = {
            self.cut_a_node: 6,
            self.reboot_a_node: 2,
            self.wipe_a_node: 1,
            self.cordon_a_node: 1,
            self.drain_a_node: 2,
            self.unregister_a_node: 1,
            self.change_a_mind: 20,
            self.change_a_spec: 2,
            **self.users.actions(),
            **self.job_users.actions(),
        }
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_doing(small, for_s, every_s))
                group.create_task(
                    self._keep_doing({self.kill_a_server: 1, self.storm: 1}, for_s, max(every_s, _GREAT_S))
                )
        finally:
            await cancel_and_wait(list(self._later))

    async def _keep_doing(self, deeds: dict[FaultAction, int], for_s: float, every_s: float) -> None:
        end = self._cloud.clock.monotonic() + for_s
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / every_s))
            if self._cloud.clock.monotonic() > end:
                return
            [deed] = self._chance.choices(list(deeds), list(deeds.values()))
            self.deeds[deed.__name__.replace("_", " ")] += 1
            # Who is refused, or finds nobody, has had bad luck: that is part of the day.
            with suppress(errors.SkerryError):
                await deed()

    async def cut_a_node(self) -> None:
        """A node cannot be reached, for a moment or until long after it is lost."""
        node = self._a_node()
        self._cloud.links.cut(node, in_silence=self._chance.random() < 0.5)

        async def back() -> None:
            self._cloud.links.mend(node)

        self._soon(back, self._chance.choice([2.0, 15.0, 90.0]))

    async def reboot_a_node(self) -> None:
        link = self._cloud.links[self._a_node()]
        link.machine.reboot(self._cloud.clock.now())
        self._cloud.links.minded(link)

    async def wipe_a_node(self) -> None:
        """A machine is set up anew under its old id."""
        node = self._a_node()
        self._cloud.links.cut(node, in_silence=False)
        self._cloud.links[node].machine.wipe()
        self._cloud.links.mend(node)

    async def kill_a_server(self) -> None:
        """The leader, most of the time; another server comes up somewhat later."""
        cloud = self._cloud
        if not cloud.servers:
            return
        victim = (cloud.leader if self._chance.random() < 0.7 else None) or self._chance.choice(cloud.servers)
        await cloud.kill(victim)

        async def replaced() -> None:
            await cloud.add_server()

        self._soon(replaced, 10.0)

    async def storm(self) -> None:
        """The network and the store are bad for a while."""
        self._cloud.faults.turn_bad()

        async def over() -> None:
            self._cloud.faults.clear_up()

        self._soon(over, 20.0)

    async def cordon_a_node(self) -> None:
        await self._operate(lambda nodes, node: nodes.cordon(node, actor="sim"), again_after_s=30.0)

    async def drain_a_node(self) -> None:
        by = self._cloud.clock.now() + self._chance.choice([5.0, 60.0])
        await self._operate(lambda nodes, node: nodes.drain(node, actor="sim", by=by), again_after_s=80.0)

    async def unregister_a_node(self) -> None:
        """Gone by force; the machine comes back by itself, since it still runs."""
        node = self._a_node()
        await self._cloud.ask(lambda server: server.nodes.unregister(node, actor="sim", force=True))

    async def change_a_mind(self) -> None:
        """Somebody wishes something: another instance, or an end, a stop or a start of one there is."""
        id = self._an_instance()
        desired = self._chance.choice(list(DesiredStatus))
        if id is None or desired is DesiredStatus.DESTROYED:
            self._made += 1
            await self._cloud.create(f"late-{self._made}", self._a_spec())
        if id is not None:
            await self._cloud.set_desired(id, desired)

    async def change_a_spec(self) -> None:
        id = self._an_instance()
        if id is not None:
            cpu = self._a_spec().resources
            await self._cloud.respecify(
                id, lambda spec: replace(spec, resources=cpu, uri=f"{spec.uri[:40]}1")
            )

    async def _operate(
        self, do: Callable[[Any, NodeId], Coroutine[Any, Any, Any]], again_after_s: float
    ) -> None:
        """What an operator does to a node, and takes back later."""
        node = self._a_node()
        await self._cloud.ask(lambda server: do(server.nodes, node))

        async def taken_back() -> None:
            await self._cloud.ask(lambda server: server.nodes.uncordon(node, actor="sim"))

        self._soon(taken_back, again_after_s)

    def _soon(self, deed: FaultAction, about_s: float) -> None:
        async def wait_and_do() -> None:
            await asyncio.sleep(self._chance.expovariate(1 / about_s))
            with suppress(errors.SkerryError):
                await deed()

        task = asyncio.ensure_future(wait_and_do())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _a_node(self) -> NodeId:
        return self._chance.choice(self._cloud.machines()).id

    def _an_instance(self) -> InstanceId | None:
        ids = [id for id, one in self._cloud.witness.instances.items() if one.owner is None]
        return self._chance.choice(ids) if ids else None

    def _a_spec(self) -> InstanceSpec:
        known = [one for one in self._cloud.witness.instances.values() if one.owner is None]
        if known:
            return self._chance.choice(known).spec
        return InstanceSpec(name="late", uri="example.org/late:1")
