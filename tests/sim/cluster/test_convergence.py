"""A simulated cluster with faults in any order: what must never happen does not, and it always converges.

Every rule happens to a cloud that goes on meanwhile, in simulated time. The witness looks at every
transaction and at every run that begins; `settle` ends the faults and demands that all be as it was wished,
within a bounded time, and that nothing happen after that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import parse
from skerry.model.statuses import DesiredStatus
from skerry.sim.cluster.fault_plan import RandomFaultPlanner
from skerry.sim.simulated_time import SimulatedLoop
from tests.sim.making import cloud_of, settled, spec
from tests.support.simulated import passes

NODES = [NodeId(f"n{number:05}") for number in range(4)]
INSTANCES = [InstanceId(f"i{number}") for number in range(8)]
MOST_SERVERS = 3

DESIRED = {"start": DesiredStatus.RUNNING, "stop": DesiredStatus.STOPPED, "destroy": DesiredStatus.DESTROYED}

nodes = st.sampled_from(NODES)
sizes = st.sampled_from([0, 100, 300, 600, 900])
pauses = st.sampled_from([0.0, 0.01, 0.3, 2.0, 11.0, 45.0])
ports = st.sampled_from(["", "", "", "8080:80"])

# What callers wish: an instance, and what is to become of it.
wishes = st.lists(
    st.tuples(
        st.sampled_from(INSTANCES),
        st.sampled_from(["create", "create", "respecify", *DESIRED]),
        sizes,
        ports,
    ),
    min_size=1,
    max_size=6,
)


class Cluster(RuleBasedStateMachine):
    """Few nodes and few instances, so that they get in each other's way."""

    @initialize(
        seed=st.integers(0, 2**16),
        rooms=st.lists(st.sampled_from([600, 1000, 2000]), min_size=4, max_size=4),
        asks=st.lists(sizes, min_size=4, max_size=8),
    )
    def begin(self, seed: int, rooms: list[int], asks: list[int]) -> None:
        random.seed(seed)
        self.loop = SimulatedLoop()
        asyncio.set_event_loop(self.loop)
        self.stack = AsyncExitStack()
        self.fates = RandomFaultPlanner(seed, refused=0.05, crashed=0.2, ended=0.1)
        self.cloud = self.loop.run_until_complete(
            self.stack.enter_async_context(cloud_of(*rooms, seed=seed, servers=2, become=self.fates))
        )
        self.links = self.cloud.links
        self.callers: set[asyncio.Task[None]] = set()
        # Of two wishes at once nobody could say which is to stand: each instance has one caller.
        self.health_changes = {id: asyncio.Lock() for id in INSTANCES}
        for id, cpu in zip(INSTANCES, asks, strict=False):
            self.do(self.cloud.create(id, spec(cpu)))

    def teardown(self) -> None:
        """Every story ends well."""
        if not hasattr(self, "stack"):
            return
        try:
            self.settle()
        finally:
            self.loop.run_until_complete(self.stack.aclose())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            self.loop.close()

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(_patiently(work))

    @rule(wished=wishes, is_awaited=st.booleans())
    def call(self, wished: list[tuple[InstanceId, str, int, str]], is_awaited: bool) -> None:
        """Callers wish something, all at once; other things may happen before they are answered."""
        for one in wished:
            task = self.loop.create_task(_patiently(self._wish(*one)))
            self.callers.add(task)
            task.add_done_callback(self.callers.discard)
        self.advance(0.0)
        if is_awaited:
            self._await_callers()

    async def _wish(self, id: InstanceId, what: str, cpu: int, port: str) -> None:
        wanted = spec(cpu, ports=(parse(port),) if port else ())
        async with self.health_changes[id]:
            match what:
                case "create":
                    await self.cloud.create(id, wanted)
                case "respecify":
                    changed = {"resources": wanted.resources, "ports": wanted.ports}
                    await self.cloud.respecify(id, lambda old: replace(old, **changed))
                case _:
                    await self.cloud.set_desired(id, DESIRED[what])

    @rule(node=nodes, what=st.sampled_from(["cut", "vanish", "mend", "reboot", "set up anew"]))
    def befall(self, node: NodeId, what: str) -> None:
        """Something happens to a machine."""
        link = self.links[node]
        match what:
            case "mend":
                self.links.reconnect(node)
            case "reboot":
                link.machine.reboot(self.cloud.clock.now())
                self.links.node_changed(link)
            case _:
                self.links.cut(node, silently=what != "cut")
                if what == "set up anew":
                    link.machine.wipe()

    @rule(node=nodes, what=st.sampled_from(["cordon", "uncordon", "unregister", "drain"]), in_s=pauses)
    def operate(self, node: NodeId, what: str, in_s: float) -> None:
        """Somebody does something to a node; drains have a deadline."""
        more: dict[str, Any] = {}
        if what == "drain":
            more = {"by": self.cloud.clock.now() + in_s}
        elif what == "unregister":
            more = {"force": True}
        self.do(self.cloud.request(lambda server: getattr(server.nodes, what)(node, actor="me", **more)))

    @rule(what=st.sampled_from(["storm", "clear up", "kill the leader", "kill any", "add a server"]))
    def disturb(self, what: str) -> None:
        """Something happens that concerns everybody."""
        match what:
            case "storm":
                self.cloud.faults.add_faults()
            case "clear up":
                self.cloud.faults.clear()
            case "add a server" if len(self.cloud.servers) < MOST_SERVERS:
                self.do(self.cloud.add_server())
            case "kill the leader" if self.cloud.leader is not None:
                self.do(self.cloud.kill(self.cloud.leader))
            case "kill any" if self.cloud.servers:
                self.do(self.cloud.kill(self.cloud.servers[-1]))

    @rule(seconds=pauses)
    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(passes(seconds))

    @rule()
    def settle(self) -> None:
        self.fates.is_calm = True
        self.loop.run_until_complete(self.cloud.end_faults())
        self._await_callers()
        self.loop.run_until_complete(settled(self.cloud, within_s=600.0))
        self.fates.is_calm = False

    def _await_callers(self) -> None:
        async def answered() -> None:
            await asyncio.gather(*self.callers)

        self.loop.run_until_complete(answered())

    @invariant()
    def nothing_happens_that_never_may(self) -> None:
        if hasattr(self, "cloud"):
            assert self.cloud.checker.violations == []


async def _patiently(work: Coroutine[Any, Any, Any]) -> None:
    """Do it; whoever asks may be refused or find nobody, and does not wait for ever."""
    with suppress(errors.SkerryError, TimeoutError):
        async with asyncio.timeout(30.0):
            await work


def test_a_cluster_with_faults_in_any_order_never_does_what_it_must_not_and_always_converges() -> None:
    run_state_machine_as_test(
        Cluster,
        settings=settings(
            max_examples=40,
            stateful_step_count=30,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
