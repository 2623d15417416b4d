"""What nodes are told of services and instances: which copies are ready, one object for each change."""

from __future__ import annotations

from asyncio import TaskGroup
from collections.abc import Sequence

from msgspec.structs import replace

from skerry.control.network import service_endpoints
from skerry.control.network.service_endpoints import (
    MAX_ENDPOINTS,
    ServiceAddressSource,
    instance_address,
    service_address,
)
from skerry.control.services import requests
from skerry.control.services.requests import ServiceSpec
from skerry.control.services.tables import ServiceTables
from skerry.kit.clock import ManualClock
from skerry.model.ids import MARKET_NAMESPACE, InstanceId, Namespace, NodeId, ServiceId
from skerry.model.network_objects import (
    EndpointState,
    InstanceAddress,
    NetworkKey,
    NetworkObject,
    ServiceAddress,
    ServicePort,
    ServiceSubnet,
)
from skerry.model.nodes import Liveness
from skerry.model.services import Service
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceOwner, ObservedState, OwnerKind
from skerry.store.local.memory import MemoryStore
from tests.control.worlds import spec
from tests.support.controls import Control
from tests.support.fleets import fleet_on
from tests.support.waiting import eventually

READY, DRAINING, NOT_READY = EndpointState.READY, EndpointState.DRAINING, EndpointState.NOT_READY


def copy(index: int, node: str = "n1", *, status: InstanceStatus = InstanceStatus.RUNNING) -> Instance:
    return Instance(
        InstanceId(f"i{index:05}"),
        spec(f"web-{index}"),
        0.0,
        ObservedState(status, 0.0),
        node=NodeId(node),
        ip=f"10.64.{index // 250}.{index % 250 + 2}",
        owner=InstanceOwner(OwnerKind.SERVICE, "s1", "web", 1, index),
    )


def live(node: NodeId) -> Liveness | None:
    return {"silent": Liveness.SUSPECT, "lost": Liveness.LOST, "foreign": None}.get(node, Liveness.LIVE)


def states(*copies: Instance) -> list[tuple[int | None, EndpointState]]:
    made = service_address(SERVICE, copies, live)
    return [(each.index, each.state) for each in made.endpoints]


def _service() -> Service:
    return requests.create(
        ServiceId("s1"),
        ServiceSpec(spec("web"), ports=(ServicePort(80, 8080),), affinity_s=60),
        namespace=Namespace("shop"),
        now=0.0,
        actor="test",
    )


SERVICE = replace(_service(), address="10.63.0.9")


def test_a_copy_is_ready_draining_or_not_as_it_is_for_its_service() -> None:
    waiting = replace(copy(1), observed=ObservedState(InstanceStatus.RUNNING, 0.0, has_passed=False))
    assert states(
        copy(0),
        waiting,
        replace(copy(2), retiring_at=1.0),
        replace(copy(3), desired=DesiredStatus.DESTROYED),
        replace(waiting, id=InstanceId("i4"), retiring_at=1.0),
        copy(5, status=InstanceStatus.STARTING),
    ) == [(0, READY), (1, NOT_READY), (1, NOT_READY), (2, DRAINING), (3, DRAINING), (5, NOT_READY)]


def test_copies_without_an_address_or_on_nodes_that_are_not_ours_are_left_out() -> None:
    assert (
        states(
            replace(copy(0), ip=""),
            replace(copy(1), node=None),
            copy(2, status=InstanceStatus.TERMINATED),
            copy(3, status=InstanceStatus.CRASHED),
            copy(4, node="foreign"),
        )
        == []
    )


def test_a_copy_on_a_silent_node_is_used_only_while_there_is_no_other() -> None:
    assert states(copy(0, "silent"), copy(1)) == [(0, NOT_READY), (1, READY)]
    assert states(copy(0, "silent"), copy(1, "lost")) == [(0, READY), (1, NOT_READY)]


def test_an_object_has_the_address_ports_and_affinity_of_its_service() -> None:
    made = service_address(SERVICE, [copy(0)], live)
    assert (made.key, made.name, made.namespace) == ("s1", "web", "shop")
    assert (made.address, made.ports, made.affinity_s) == ("10.63.0.9", (ServicePort(80, 8080),), 60)
    (endpoint,) = made.endpoints
    assert (endpoint.address, endpoint.node, endpoint.name) == ("10.64.0.2", "n1", "web-0")


def test_a_service_has_an_ipv6_address_if_all_of_its_copies_do() -> None:
    with_one = replace(copy(0), ip6="fda8:5e7c:f8fa::a40:2")
    made = service_address(SERVICE, [with_one], live)
    assert made.address6 == "fda8:5e7c:f8fa::a3f:9"
    assert made.endpoints[0].address6 == with_one.ip6
    assert service_address(SERVICE, [with_one, copy(1)], live).address6 == ""
    assert service_address(SERVICE, [], live).address6 == ""
    assert service_address(replace(SERVICE, address=""), [with_one], live).address6 == ""


def test_of_too_many_copies_the_ready_ones_are_told() -> None:
    count = MAX_ENDPOINTS + 10
    unready = [replace(copy(index), desired=DesiredStatus.STOPPED) for index in range(100)]
    found = states(*unready, *map(copy, range(100, count)))
    assert len(found) == MAX_ENDPOINTS
    assert sum(state is READY for _, state in found) == count - 100


def test_single_instances_are_told_but_not_those_of_jobs_and_contracts() -> None:
    single = replace(copy(0), owner=None)
    made = instance_address(single, live)
    assert made is not None
    assert (made.key, made.endpoint.state, made.endpoint.index) == ("i00000", READY, None)
    assert instance_address(replace(single, namespace=MARKET_NAMESPACE), live) is None
    job = InstanceOwner(OwnerKind.JOB, "j1", "sums")
    assert instance_address(replace(single, owner=job), live) is None
    assert instance_address(replace(single, node=NodeId("foreign")), live) is None


class Follower:
    """What a source said."""

    def __init__(self, control: Control) -> None:
        self.said: list[tuple[NetworkKey, NetworkObject | None]] = []
        self.source = ServiceAddressSource(
            control.services.tables, control.instance_table, control.nodes, "10.63.0.0/16"
        )
        self.source.listen(self._changed)

    def _changed(self, node: NodeId | None, key: NetworkKey, value: NetworkObject | None) -> None:
        assert node is None
        self.said.append((key, value))

    def take(self) -> Sequence[tuple[NetworkKey, NetworkObject | None]]:
        said, self.said = self.said, []
        return said


async def test_a_change_of_one_copy_is_one_object(control: Control) -> None:
    follower = Follower(control)
    await control.join("n1")
    service, _ = await control.services.create(ServiceSpec(spec("web")), actor="test")
    ((key, value),) = follower.take()
    assert isinstance(value, ServiceAddress)
    assert (key, value.endpoints) == (("service", service.id), ())
    copies = [
        replace(copy(index), owner=InstanceOwner(OwnerKind.SERVICE, service.id, "web", 1, index))
        for index in range(3)
    ]
    table = control.instance_table
    await table.commit([table.put(each.id, each) for each in copies])
    follower.take()
    await table.commit([table.put(copies[1].id, replace(copies[1], retiring_at=5.0))])
    ((key, value),) = follower.take()
    assert isinstance(value, ServiceAddress)
    assert [each.state for each in value.endpoints] == [READY, DRAINING, READY]
    # What is nobody's concern is not said.
    await table.commit([table.put(copies[0].id, replace(copies[0], restarts=7))])
    assert follower.take() == []
    assert list(follower.source.objects(NodeId("n1"))) == [ServiceSubnet("10.63.0.0/16"), value]
    assert list(follower.source.objects(NodeId("unknown"))) == []
    services = control.services.tables.services
    await services.commit([services.delete("default/web")])
    assert follower.take() == [(key, None)]


async def test_many_changes_of_a_large_service_are_sent_together(control: Control) -> None:
    follower = Follower(control)
    await control.join("n1")
    service, _ = await control.services.create(ServiceSpec(spec("web")), actor="test")
    copies = [
        replace(copy(index), owner=InstanceOwner(OwnerKind.SERVICE, service.id, "web", 1, index))
        for index in range(200)
    ]
    table = control.instance_table
    for each in copies:
        await table.commit([table.put(each.id, each)])

    def told() -> int:
        (value,) = [
            each for each in follower.source.objects(NodeId("n1")) if isinstance(each, ServiceAddress)
        ]
        return len(value.endpoints)

    await eventually(lambda: told() == 200)
    assert len(follower.take()) < 150


async def test_after_a_start_of_the_server_copies_are_ready_until_their_nodes_should_have_connected() -> None:
    """Nodes connect one after the other: the copies on the first would get the connections of all."""
    clock = ManualClock()
    store = MemoryStore(clock)
    tables = ServiceTables(store)
    async with fleet_on(store, clock) as before:
        for node in ("n0", "n1"):
            await before.join(node)
            await before.bind(copy(int(node[1]), node))
    await store.commit([tables.services.put("shop/web", SERVICE)])
    clock.advance(1000.0)
    await store.expire()
    async with TaskGroup() as group, fleet_on(store, clock) as fleet:
        run = group.create_task(tables.run())
        await tables.ready()
        source = ServiceAddressSource(tables, fleet.instance_table, fleet.nodes, "10.63.0.0/16")

        def ready() -> list[NodeId]:
            (value,) = [each for each in source.objects(NodeId("n0")) if isinstance(each, ServiceAddress)]
            return [each.node for each in value.endpoints if each.state is READY]

        await fleet.hear("n0")
        assert ready() == ["n0", "n1"]
        for _ in range(4):
            await fleet.pass_time(1.4)
            await fleet.hear("n0")
        assert ready() == ["n0", "n1"]
        await fleet.pass_time(0.5)
        assert ready() == ["n0"]
        run.cancel()
    await store.close()


async def test_a_single_instance_comes_and_goes(control: Control) -> None:
    follower = Follower(control)
    await control.join("n1")
    table = control.instance_table
    single = replace(copy(0), owner=None)
    await table.commit([table.put(single.id, single)])
    ((_, value),) = follower.take()
    assert isinstance(value, InstanceAddress)
    await table.commit([table.delete(single.id)])
    assert follower.take() == [(NetworkKey("instance", single.id), None)]


async def test_an_instance_is_told_when_its_node_is_known(control: Control) -> None:
    follower = Follower(control)
    table = control.instance_table
    single = replace(copy(0), owner=None)
    await table.commit([table.put(single.id, single)])
    assert follower.take() == []
    await control.join("n1")
    ((_, value),) = follower.take()
    assert isinstance(value, InstanceAddress)
    assert service_endpoints.endpoint_of(single) == value.endpoint
