"""Devices: each is one instance's at a time, by its name, whoever leads and whatever is restarted."""

from __future__ import annotations

from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition
from skerry.model.devices import DeviceRequest
from skerry.model.ids import InstanceId
from skerry.model.orders import InstanceOrder
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec
from tests.control.worlds import Server, Standings, alone, condition, spec
from tests.support.waiting import eventually


def with_devices(name: str, *devices: str) -> NodeCondition:
    made = condition(name)
    return replace(made, view=replace(made.view, devices=devices, features=("devices",)))


def gpu(*requests: str, name: str = "web") -> InstanceSpec:
    return spec(name, devices=tuple(map(DeviceRequest.parse, requests or ("example.com/gpu",))))


async def placed(server: Server, what: InstanceSpec) -> Instance:
    made, _ = await server.instances.create(what, actor="me")
    found = await server.becomes(made.id, InstanceStatus.SCHEDULED)
    assert found is not None
    return found


async def waiting_reason(server: Server, id: InstanceId) -> str:
    await eventually(lambda: server.instances.get(id).observed.reason not in ("", "waits for a node"))
    return server.instances.get(id).observed.reason


async def test_each_device_is_given_to_one_instance_and_free_again_when_that_is_gone() -> None:
    node = with_devices("n1", "example.com/gpu=0", "example.com/gpu=1")
    async with alone(node, condition("n2")) as (server, _):
        first, second = [await placed(server, gpu()) for _ in range(2)]
        assert (first.devices, second.devices) == (("example.com/gpu=0",), ("example.com/gpu=1",))
        order = InstanceOrder.of(first)
        assert list(map(str, order.spec.devices)) == ["example.com/gpu=0"]
        third, _ = await server.instances.create(gpu(), actor="me")
        assert await waiting_reason(server, third.id) == (
            "1 node: gives no devices to containers; upgrade Skerry there; "
            "1 node: has 0 free example.com/gpu of 2, 1 is wanted"
        )
        await server.instances.destroy(first.id, actor="me")
        await server.obey("n1")
        found = await server.becomes(third.id, InstanceStatus.SCHEDULED)
        assert found is not None
        assert found.devices == ("example.com/gpu=0",)


async def test_a_pending_instance_says_that_no_node_has_one_free() -> None:
    nodes = [with_devices(f"n{number}") for number in range(3)]
    async with alone(*nodes) as (server, _):
        made, _ = await server.instances.create(gpu("nvidia.com/gpu"), actor="me")
        assert await waiting_reason(server, made.id) == "0 of 3 nodes have a free nvidia.com/gpu"
        many, _ = await server.instances.create(gpu("gpu:4"), actor="me")
        assert await waiting_reason(server, many.id) == "0 of 3 nodes have 4 free gpu"


async def test_another_leader_knows_who_holds_which_device() -> None:
    node = with_devices("n1", "example.com/gpu=0", "example.com/gpu=1")
    async with alone(node) as (server, _):
        held = await placed(server, gpu("example.com/gpu=1"))
        assert held.devices == ("example.com/gpu=1",)
        # As after a restart: a server that has only what is in the store.
        other = Server(server.store, Standings([node]), server.clock, name="b")
        async with other.running(leads=False):
            assert other.instances.get(held.id).devices == ("example.com/gpu=1",)
            other.reconciler._planner.begin()
            other.reconciler._planner.node_changed(node.view.id, node)
            [verdict] = other.reconciler.explain(replace(held, id=InstanceId("x"), node=None, devices=()))
            assert [type(rejection).__name__ for rejection in verdict.rejections] == ["DevicesUnavailable"]


async def test_what_leaves_a_node_gives_its_devices_back_and_gets_others() -> None:
    first = with_devices("n1", "example.com/gpu=0")
    async with alone(first) as (server, conditions):
        held = await placed(server, gpu())
        conditions.put(with_devices("n2", "example.com/gpu=7"))
        conditions.remove("n1")
        await eventually(lambda: server.instances.get(held.id).node == "n2")
        assert server.instances.get(held.id).devices == ("example.com/gpu=7",)


async def test_a_spec_without_devices_gets_none_and_its_order_is_as_it_was() -> None:
    async with alone(with_devices("n1", "example.com/gpu=0")) as (server, _):
        plain = await placed(server, spec())
        assert plain.devices == ()
        assert InstanceOrder.of(plain).spec is plain.spec
