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
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.ports import parse
from skerry.model.statuses import Desired
from skerry.sim.fates import Mixed
from skerry.sim.times import SimulatedLoop
from tests.sim.making import cloud_of, settled, spec

NODES = [NodeId(f"n{number:05}") for number in range(4)]
INSTANCES = [InstanceId(f"i{number}") for number in range(8)]
MOST_SERVERS = 3
EXAMPLES = 40

nodes = st.sampled_from(NODES)
instances = st.sampled_from(INSTANCES)
sizes = st.sampled_from([0, 100, 300, 600, 1000])
pauses = st.sampled_from([0.0, 0.01, 0.3, 2.0, 11.0, 45.0])


class Cluster(RuleBasedStateMachine):
    """Few nodes and few instances, so that they get in each other's way."""

    @initialize(seed=st.integers(0, 2**16), cpus=st.lists(sizes, min_size=4, max_size=4))
    def begin(self, seed: int, cpus: list[int]) -> None:
        random.seed(seed)
        self.loop = SimulatedLoop()
        asyncio.set_event_loop(self.loop)
        self.stack = AsyncExitStack()
        self.fates = Mixed(seed, refused=0.05, crashed=0.2, ended=0.1)
        entering = self.stack.enter_async_context(
            cloud_of(*(cpu or 2000 for cpu in cpus), seed=seed, servers=2, become=self.fates)
        )
        self.cloud = self.loop.run_until_complete(entering)
        self.links = self.cloud.links

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
        """Do something now; whoever asks may be refused, or find nobody."""

        async def bounded() -> None:
            # A caller waits for ever as little as anybody.
            with suppress(errors.SkerryError, TimeoutError):
                async with asyncio.timeout(30.0):
                    await work

        self.loop.run_until_complete(bounded())

    # Callers

    @rule(id=instances, cpu=sizes, port=st.sampled_from(["", "", "8080:80"]))
    def create(self, id: InstanceId, cpu: int, port: str) -> None:
        wanted = spec(cpu, ports=(parse(port),) if port else ())
        self.do(self.cloud.create(id, wanted))

    @rule(id=instances, desired=st.sampled_from(Desired))
    def wish(self, id: InstanceId, desired: Desired) -> None:
        self.do(self.cloud.wish(id, desired))

    @rule(id=instances, cpu=sizes)
    def respecify(self, id: InstanceId, cpu: int) -> None:
        self.do(self.cloud.respecify(id, lambda old: replace(old, room=spec(cpu).room)))

    # Nodes

    @rule(node=nodes, in_silence=st.booleans())
    def cut(self, node: NodeId, in_silence: bool) -> None:
        self.links.cut(node, in_silence=in_silence)

    @rule(node=nodes)
    def mend(self, node: NodeId) -> None:
        self.links.mend(node)

    @rule(node=nodes)
    def reboot(self, node: NodeId) -> None:
        self.links[node].machine.reboot(self.cloud.clock.now())
        self.links.minded(self.links[node])

    @rule(node=nodes)
    def set_up_anew(self, node: NodeId) -> None:
        self.links.cut(node, in_silence=True)
        self.links[node].machine.wipe()

    # Operators

    @rule(node=nodes)
    def cordon(self, node: NodeId) -> None:
        self.do(self.cloud.ask(lambda server: server.nodes.cordon(node, actor="me")))

    @rule(node=nodes)
    def uncordon(self, node: NodeId) -> None:
        self.do(self.cloud.ask(lambda server: server.nodes.uncordon(node, actor="me")))

    @rule(node=nodes, in_s=st.sampled_from([-1.0, 5.0, 100.0]))
    def drain(self, node: NodeId, in_s: float) -> None:
        by = self.cloud.clock.now() + in_s
        self.do(self.cloud.ask(lambda server: server.nodes.drain(node, actor="me", by=by)))

    @rule(node=nodes)
    def unregister(self, node: NodeId) -> None:
        self.do(self.cloud.ask(lambda server: server.nodes.unregister(node, actor="me", force=True)))

    # Servers, the store and the network

    @precondition(lambda self: self.cloud.servers)
    @rule(whose=st.integers(0, MOST_SERVERS))
    def kill(self, whose: int) -> None:
        leader = self.cloud.leader
        victims = self.cloud.servers if leader is None else [leader, *self.cloud.servers]
        self.do(self.cloud.kill(victims[whose % len(victims)]))

    @precondition(lambda self: len(self.cloud.servers) < MOST_SERVERS)
    @rule()
    def add_server(self) -> None:
        self.cloud.weather.clear_up()  # one that cannot start is none
        self.do(self.cloud.add_server())

    @rule()
    def storm(self) -> None:
        self.cloud.weather.turn_bad()

    @rule()
    def clear_up(self) -> None:
        self.cloud.weather.clear_up()

    # Time

    @rule(seconds=pauses)
    def go_on(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    @rule()
    def settle(self) -> None:
        self.fates.is_calm = True
        self.loop.run_until_complete(self.cloud.calm_down())
        self.loop.run_until_complete(settled(self.cloud, within_s=600.0))
        self.fates.is_calm = False

    @invariant()
    def nothing_happens_that_never_may(self) -> None:
        if hasattr(self, "cloud"):
            assert self.cloud.witness.violations == []


def test_a_cluster_with_faults_in_any_order_never_does_what_it_must_not_and_always_converges() -> None:
    run_state_machine_as_test(
        Cluster,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
