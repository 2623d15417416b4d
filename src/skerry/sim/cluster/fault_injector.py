"""Fault injection: what can happen to a cloud, done to it at times that are drawn from a seed.

Each fault is one that happens in production: machines disconnect and come back, lose their disk or their
power, servers are killed, the network and the store fail, operators drain and unregister, and users change
their requests all the while. What must hold nevertheless: `skerry.sim.cluster.invariants`.
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
from skerry.sim.cluster.service_users import ServiceUsers
from skerry.sim.cluster.users import Action

_GLOBAL_EVERY_S = 15.0  # between two faults of the whole cloud, at least


class FaultInjector:
    """`actions` counts what was done."""

    def __init__(self, cloud: SimulatedCloud, chance: random.Random) -> None:
        self.actions: Counter[str] = Counter()
        self.service_users = ServiceUsers(cloud, chance, self._do_later)
        self.job_users = JobUsers(cloud, chance, self._do_later)
        self._cloud = cloud
        self._chance = chance
        self._later: set[asyncio.Task[None]] = set()
        self._created = 0

    async def run_faults(self, for_s: float, *, every_s: float) -> None:
        """Do an action about every `every_s`, and a fault of the whole cloud less often."""
        actions: dict[Action, int] = {
            self.cut_a_node: 6,
            self.reboot_a_node: 2,
            self.wipe_a_node: 1,
            self.cordon_a_node: 1,
            self.drain_a_node: 2,
            self.unregister_a_node: 1,
            self.change_an_instance: 20,
            self.change_a_spec: 2,
            **self.service_users.actions(),
            **self.job_users.actions(),
        }
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._repeat(actions, for_s, every_s))
                of_cloud: dict[Action, int] = {self.kill_a_server: 1, self.inject_network_faults: 1}
                group.create_task(self._repeat(of_cloud, for_s, max(every_s, _GLOBAL_EVERY_S)))
        finally:
            await cancel_and_wait(list(self._later))

    async def _repeat(self, actions: dict[Action, int], for_s: float, every_s: float) -> None:
        end = self._cloud.clock.monotonic() + for_s
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / every_s))
            if self._cloud.clock.monotonic() > end:
                return
            [action] = self._chance.choices(list(actions), list(actions.values()))
            self.actions[action.__name__.replace("_", " ")] += 1
            # A request that is refused or reaches no server is part of the simulation.
            with suppress(errors.SkerryError):
                await action()

    async def cut_a_node(self) -> None:
        """Disconnect a node, for a moment or until long after it is lost."""
        node = self._a_node()
        self._cloud.links.cut(node, silently=self._chance.random() < 0.5)

        async def back() -> None:
            self._cloud.links.reconnect(node)

        self._do_later(back, self._chance.choice([2.0, 15.0, 90.0]))

    async def reboot_a_node(self) -> None:
        link = self._cloud.links[self._a_node()]
        link.machine.reboot(self._cloud.clock.now())
        self._cloud.links.node_changed(link)

    async def wipe_a_node(self) -> None:
        """Set up a machine anew under its old id."""
        node = self._a_node()
        self._cloud.links.cut(node, silently=False)
        self._cloud.links[node].machine.wipe()
        self._cloud.links.reconnect(node)

    async def kill_a_server(self) -> None:
        """Kill a server, most often the leader; another one starts somewhat later."""
        cloud = self._cloud
        if not cloud.servers:
            return
        victim = (cloud.leader if self._chance.random() < 0.7 else None) or self._chance.choice(cloud.servers)
        await cloud.kill(victim)

        async def replaced() -> None:
            await cloud.add_server()

        self._do_later(replaced, 10.0)

    async def inject_network_faults(self) -> None:
        """Faults of the network and of the store for a while."""
        self._cloud.faults.add_faults()

        async def end() -> None:
            self._cloud.faults.clear()

        self._do_later(end, 20.0)

    async def cordon_a_node(self) -> None:
        await self._operate(lambda nodes, node: nodes.cordon(node, actor="sim"), again_after_s=30.0)

    async def drain_a_node(self) -> None:
        by = self._cloud.clock.now() + self._chance.choice([5.0, 60.0])
        await self._operate(lambda nodes, node: nodes.drain(node, actor="sim", by=by), again_after_s=80.0)

    async def unregister_a_node(self) -> None:
        """Unregister a node by force; it registers again, since its agent still runs."""
        node = self._a_node()
        await self._cloud.request(lambda server: server.nodes.unregister(node, actor="sim", force=True))

    async def change_an_instance(self) -> None:
        """A user starts, stops or destroys an instance, or creates another one."""
        id = self._an_instance()
        desired = self._chance.choice(list(DesiredStatus))
        if id is None or desired is DesiredStatus.DESTROYED:
            self._created += 1
            await self._cloud.create(f"late-{self._created}", self._a_spec())
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
        """An operator cordons or drains a node, and uncordons it later."""
        node = self._a_node()
        await self._cloud.request(lambda server: do(server.nodes, node))

        async def uncordon() -> None:
            await self._cloud.request(lambda server: server.nodes.uncordon(node, actor="sim"))

        self._do_later(uncordon, again_after_s)

    def _do_later(self, action: Action, mean_s: float) -> None:
        async def wait_and_do() -> None:
            await asyncio.sleep(self._chance.expovariate(1 / mean_s))
            with suppress(errors.SkerryError):
                await action()

        task = asyncio.ensure_future(wait_and_do())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _a_node(self) -> NodeId:
        return self._chance.choice(self._cloud.machines()).id

    def _an_instance(self) -> InstanceId | None:
        ids = [id for id, one in self._cloud.checker.instances.items() if one.owner is None]
        return self._chance.choice(ids) if ids else None

    def _a_spec(self) -> InstanceSpec:
        known = [one for one in self._cloud.checker.instances.values() if one.owner is None]
        if known:
            return self._chance.choice(known).spec
        return InstanceSpec(name="late", uri="example.org/late:1")
