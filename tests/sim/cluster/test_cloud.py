"""Whole clouds in simulated time: the real control plane, two servers at times, and what befalls them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from msgspec.structs import replace

from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.sim import simulated_time
from skerry.sim.cluster.cloud import SimulatedCloud
from skerry.sim.cluster.fault_plan import FaultPlan
from skerry.sim.cluster.fault_schedule import FaultSchedule
from tests.sim.making import cloud_of, settled, spec
from tests.support.simulated import passes

ONE = InstanceId("one")


class Slowest(random.Random):
    """Chance that makes everything take as long as it may."""

    def uniform(self, a: float, b: float) -> float:
        return b


def simulated(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        simulated_time.run(test())

    return run


def node_of(cloud: SimulatedCloud, id: str = "one") -> NodeId:
    node = cloud.checker.instances[InstanceId(id)].node
    assert node is not None
    return node


@simulated
async def test_instances_are_placed_and_run_and_then_nothing_happens_any_more() -> None:
    async with cloud_of(1000, 1000, servers=2) as cloud:
        for number in range(20):
            await cloud.create(f"i{number}", spec(100))
        await settled(cloud)
        assert cloud.checker.counts[InstanceStatus.RUNNING] == 20


@simulated
async def test_who_finds_no_room_waits_and_runs_when_there_is_some() -> None:
    async with cloud_of(100) as cloud:
        await cloud.create("one", spec(100))
        await passes(5)
        await cloud.create("two", spec(100))
        await settled(cloud)
        assert cloud.checker.instances[InstanceId("two")].observed.status is InstanceStatus.SCHEDULING
        await cloud.set_desired(ONE, DesiredStatus.DESTROYED)
        await settled(cloud)
        assert node_of(cloud, "two")


@simulated
async def test_a_lost_node_is_replaced_and_its_stale_copy_is_stopped_when_it_returns() -> None:
    async with cloud_of(1000, 1000) as cloud:
        await cloud.create("one", spec())
        await settled(cloud)
        lost, generation = node_of(cloud), cloud.checker.instances[ONE].generation
        cloud.links.cut(lost, silently=True)
        await passes(10)
        assert node_of(cloud) == lost, "it is only suspected"
        await passes(40)
        assert node_of(cloud) != lost
        assert cloud.servers[0].nodes.liveness(lost) is Liveness.LOST
        stale = cloud.links[lost].machine
        assert [order.generation for order in stale.running()] == [generation], "nobody could tell it"
        cloud.links.reconnect(lost)
        await settled(cloud)
        assert stale.residents == {}
        assert cloud.checker.instances[ONE].generation == generation + 1


@simulated
async def test_a_node_that_returns_in_time_keeps_what_it_has_and_tells_what_happened() -> None:
    def once_badly(run: object) -> FaultPlan:
        return FaultPlan(runs_s=10.0, exit_code=1) if run.number == 1 else FaultPlan()  # type: ignore[attr-defined] # a `Run`

    async with cloud_of(1000, 1000, become=once_badly) as cloud:
        await cloud.create("one", spec())
        await passes(5)
        before = cloud.checker.instances[ONE]
        cloud.links.cut(node_of(cloud), silently=True)
        await passes(12)
        cloud.links.reconnect(node_of(cloud))
        await settled(cloud)
        one = cloud.checker.instances[ONE]
        assert (one.node, one.generation, one.restarts) == (before.node, before.generation, 1)


@simulated
async def test_a_killed_leader_is_followed_and_nothing_is_placed_twice() -> None:
    async with cloud_of(*[1000] * 5, servers=2) as cloud:
        cloud.faults.store_delay_s = 0.2
        wishes = [asyncio.ensure_future(cloud.create(f"i{number}", spec(100))) for number in range(50)]
        while not 5 < cloud.checker.binds < 40:
            await passes(0.01)
        leader = cloud.leader
        assert leader is not None
        await cloud.kill(leader)
        await asyncio.gather(*wishes, return_exceptions=True)
        cloud.faults.clear()
        await settled(cloud)
        assert cloud.leader is not None
        assert cloud.leader is not leader
        assert cloud.checker.binds == len(cloud.checker.instances)


@simulated
async def test_while_no_server_is_there_nodes_go_on_and_are_known_again_after() -> None:
    async with cloud_of(1000) as cloud:
        await cloud.create("one", spec())
        await settled(cloud)
        machine, generation = cloud.links[node_of(cloud)].machine, cloud.checker.instances[ONE].generation
        await cloud.kill(cloud.servers[0])
        machine.reboot(cloud.clock.now())
        cloud.links.node_changed(cloud.links[machine.id])
        await passes(300)
        assert [order.generation for order in machine.running()] == [generation]
        await cloud.add_server()
        await settled(cloud)
        one = cloud.checker.instances[ONE]
        assert (one.generation, one.restarts) == (generation, 1)


@simulated
async def test_a_wish_at_a_server_that_is_behind_is_not_taken_for_granted() -> None:
    """Its mirror still shows what is wished now, though something else was wished in between, elsewhere."""
    async with cloud_of(1000, servers=2) as cloud:
        await cloud.create("one", spec())
        await settled(cloud)
        one, other = cloud.servers
        cloud.stores[other].faults = FaultSchedule(Slowest(), store_delay_s=5.0)
        await one.serve(one.instances.stop(ONE, actor="me"))
        await other.serve(other.instances.start(ONE, actor="me"))
        assert cloud.checker.instances[ONE].desired is DesiredStatus.RUNNING
        await one.serve(one.nodes.cordon("n00000", actor="me"))
        await other.serve(other.nodes.uncordon("n00000", actor="me"))
        assert not cloud.checker.nodes[NodeId("n00000")].is_cordoned


@simulated
async def test_a_node_that_goes_to_a_server_that_is_behind_keeps_what_was_given_to_it_just_before() -> None:
    """A node removes what is not among its orders; those of a while ago would be a reason to."""
    async with cloud_of(1000, servers=2) as cloud:
        link = cloud.links[NodeId("n00000")]
        assert link.connection is not None
        near = link.connection.server
        [behind] = [server for server in cloud.servers if server is not near]
        cloud.stores[behind].faults = FaultSchedule(Slowest(), store_delay_s=20.0)
        await near.serve(near.instances.create(spec(), id="one", actor="me"))
        while not list(link.machine.running()):
            await passes(0.1)
        await cloud.kill(near)
        cloud.stores[behind].faults = cloud.faults
        await settled(cloud)
        assert link.machine.residents[ONE].tries == 1


@simulated
async def test_a_report_that_arrives_after_the_node_has_gone_elsewhere_changes_nothing() -> None:
    async with cloud_of(1000, servers=2) as cloud:
        await cloud.create("one", spec())
        await settled(cloud)
        link = cloud.links[node_of(cloud)]
        old = link.connection
        assert old is not None
        late = link.machine.inventory()
        cloud.links.cut(link.machine.id, silently=True)
        cloud.links.reconnect(link.machine.id)
        await cloud.set_desired(ONE, DesiredStatus.STOPPED)
        await settled(cloud)
        await old.server.instances.reported(link.machine.id, late)
        assert cloud.checker.instances[ONE].observed.status is InstanceStatus.STOPPED


@simulated
async def test_a_machine_that_was_set_up_anew_is_brought_to_what_is_wished() -> None:
    async with cloud_of(1000) as cloud:
        for id in ("one", "two"):
            await cloud.create(id, spec())
        await settled(cloud)
        machine = cloud.links[node_of(cloud)].machine
        cloud.links.cut(machine.id, silently=True)
        machine.wipe()
        await cloud.set_desired(ONE, DesiredStatus.STOPPED)
        cloud.links.reconnect(machine.id)
        await settled(cloud)
        assert cloud.checker.instances[ONE].observed.status is InstanceStatus.STOPPED
        assert [order.instance for order in machine.running()] == ["two"]


@simulated
async def test_an_id_that_is_used_again_is_not_taken_for_what_a_lost_node_still_has_of_it() -> None:
    async with cloud_of(1000) as cloud:
        await cloud.create("one", spec(100))
        await settled(cloud)
        node = node_of(cloud)
        for cpu in (200, 300):
            await cloud.respecify(ONE, lambda old, cpu=cpu: replace(old, resources=spec(cpu).resources))  # type: ignore[misc] # bound early on purpose
            await settled(cloud)
        cloud.links.cut(node, silently=True)
        await passes(60)
        await cloud.set_desired(ONE, DesiredStatus.DESTROYED)
        await passes(5)
        assert cloud.checker.instances == {}, "a lost node is not asked"
        await cloud.create("one", spec(400))
        cloud.links.reconnect(node)
        await settled(cloud)
        assert [order.spec.resources.cpu for order in cloud.links[node].machine.running()] == [400]


@simulated
async def test_replacements_are_as_many_as_the_rate_allows() -> None:
    async with cloud_of(2000, 2000) as cloud:
        for number in range(20):
            await cloud.create(f"i{number}", spec(100))
        await settled(cloud)
        lost = node_of(cloud, "i0")
        on_it = [one.id for one in cloud.checker.instances.values() if one.node == lost]
        cloud.links.cut(lost, silently=False)
        before = cloud.checker.binds
        while cloud.checker.binds == before:
            await passes(0.01)
        await passes(1.5)
        assert 5 <= cloud.checker.binds - before <= 13, "five at once, and five a second"
        cloud.links.reconnect(lost)
        await settled(cloud)
        assert len(on_it) == 20
