"""The real control plane and a node that dials it: from the wish to the status, and back to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skerry.control.events.log import EventLog
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.node_messages import NodeHello, OrderUpdate, ReportAck, ReportBatch
from skerry.model.nodes import NodeFacts
from skerry.model.orders import InstanceReport
from skerry.model.settings import EventSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import InstanceSpec
from skerry.store.local.memory import MemoryStore
from tests.support.controls import ROOM, Control, control_on
from tests.support.waiting import eventually
from tests.transport.links.nodes.conftest import Listening
from tests.transport.links.nodes.test_session import next_of

HELLO = NodeHello("edge", NodeFacts("amd64", "Debian 12"), ROOM)


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    clock = SystemClock()
    store = MemoryStore(clock)
    async with control_on(store, EventLog(store, clock, EventSettings()), clock, leads=True) as made:
        yield made
    await store.close()


@pytest.fixture
async def listening(control, authority) -> AsyncIterator[Listening]:
    server = Listening(control.sessions, authority)
    await server.start()
    yield server
    await server.stop()


async def orders_of(messages) -> OrderUpdate:
    while not isinstance(message := await next_of(messages), OrderUpdate):
        assert isinstance(message, ReportAck)
    return message


async def test_an_instance_is_placed_ordered_reported_and_gone(control, listening):
    node = await listening.connect("n1")
    await node.hello(HELLO)
    messages = node.messages()
    assert (await orders_of(messages)).orders == ()
    instance, _ = await control.instances.create(
        InstanceSpec(name="web", uri="example.org/web:1"), actor="test"
    )
    [order] = (await orders_of(messages)).orders
    assert (order.instance, order.desired) == (instance.id, DesiredStatus.RUNNING)

    def report(status: InstanceStatus) -> InstanceReport:
        return InstanceReport(instance.id, order.generation, status, control.clock.now(), ip="10.64.0.2")

    await node.send(ReportBatch(1, (report(InstanceStatus.STARTING), report(InstanceStatus.RUNNING))))
    await eventually(lambda: control.instances.get(instance.id).observed.status is InstanceStatus.RUNNING)
    assert control.instances.get(instance.id).ip == "10.64.0.2"

    await control.instances.destroy(instance.id, actor="test")
    [order] = (await orders_of(messages)).orders
    assert order.desired is DesiredStatus.DESTROYED
    await node.send(ReportBatch(2, (report(InstanceStatus.TERMINATED),)))
    assert (await orders_of(messages)).removed == (instance.id,)
    with pytest.raises(errors.NotFound):
        control.instances.get(instance.id)


async def test_a_node_cannot_report_what_runs_on_another(control, listening):
    owner, thief = await listening.connect("owner"), await listening.connect("thief")
    await owner.hello(HELLO)
    theirs = owner.messages()
    await orders_of(theirs)
    instance, _ = await control.instances.create(
        InstanceSpec(name="web", uri="example.org/web:1"), actor="test"
    )
    [order] = (await orders_of(theirs)).orders
    await thief.hello(HELLO)
    messages = thief.messages()
    await orders_of(messages)
    lie = InstanceReport(instance.id, order.generation, InstanceStatus.FAILED, control.clock.now(), "a lie")
    await thief.send(ReportBatch(1, (lie,)))
    assert (await orders_of(messages)).removed == (instance.id,)
    assert control.instances.get(instance.id).observed.status is InstanceStatus.SCHEDULED


async def test_a_node_that_comes_back_gets_the_same_set(control, listening):
    async with listening.dialler("n1").dial() as node:
        await node.hello(HELLO)
        messages = node.messages()
        await orders_of(messages)
        made = [
            await control.instances.create(
                InstanceSpec(name=f"web{n}", uri="example.org/web:1"), actor="test"
            )
            for n in range(3)
        ]
        known = set[str]()
        while len(known) < 3:
            known |= {order.instance for order in (await orders_of(messages)).orders}
    assert known == {instance.id for instance, _ in made}
    again = await listening.connect("n1")
    await again.hello(HELLO)
    whole = await orders_of(again.messages())
    assert whole.is_full
    assert {order.instance for order in whole.orders} == known


async def test_many_nodes_are_connected_at_once(control, listening):
    nodes = await asyncio.gather(*(listening.connect(f"n{number}") for number in range(20)))
    welcomes = await asyncio.gather(*(node.hello(HELLO) for node in nodes))
    assert len({welcome.subnet for welcome in welcomes}) == 20
    await eventually(lambda: all(condition.view.is_schedulable for condition in control.nodes.conditions()))
