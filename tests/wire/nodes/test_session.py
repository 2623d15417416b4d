"""A node's session over real gRPC, from hello to goodbye."""

from __future__ import annotations

import asyncio

import pytest

from skerry.control.sessions import Sessions
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.orders import Order, Report
from skerry.model.sessions import Acknowledged, Down, Goodbye, Heartbeat, Hello, Orders, Reports
from skerry.model.settings import FleetSettings
from skerry.model.statuses import Status
from tests.support.fleets import FACTS, ROOM, instance_on
from tests.support.waiting import eventually
from tests.wire.nodes.conftest import Listening

HELLO = Hello("edge", FACTS, ROOM)


async def next_of(messages) -> Down:
    """What the server says next that is more than a sign of life."""
    async with asyncio.timeout(10):
        while True:
            if (message := await anext(messages)) != Heartbeat():
                return message


async def test_a_node_is_welcome_ordered_and_acknowledged(served):
    await served.fleet.bind(instance_on("n1", "i1"))
    node = await served.connect("n1")
    welcome = await node.hello(HELLO)
    assert (welcome.node, welcome.subnet) == ("n1", served.fleet.nodes.get("n1").subnet)
    messages = node.messages()
    whole = await next_of(messages)
    assert whole == Orders(1, is_whole=True, orders=(Order.of(instance_on("n1", "i1")),))
    await served.fleet.bind(instance_on(None, "i1", status=Status.SCHEDULING))
    assert await next_of(messages) == Orders(2, is_whole=False, gone=(InstanceId("i1"),))
    report = Report(InstanceId("i1"), 3, Status.CRASHED, 12.5, "exit 1", 1, 2, "10.64.0.7", ROOM)
    await node.report(Reports(1, (report,)))
    assert await next_of(messages) == Acknowledged(1)
    assert served.instances.reports == [("n1", (report,))]


async def test_what_a_node_says_of_itself_arrives_and_may_change(served):
    node = await served.connect("n1")
    await node.hello(Hello("edge", FACTS, ROOM, {"zone": "a"}, "10.70.0.0/24"))
    known = served.fleet.nodes.get("n1")
    assert (known.name, known.facts, known.room) == ("edge", FACTS, ROOM)
    assert (known.labels, known.subnet) == ({"zone": "a"}, "10.70.0.0/24")
    await node.changed(Hello("core", FACTS, ROOM))
    await eventually(lambda: served.fleet.nodes.get("n1").name == "core")


async def test_a_heartbeat_is_a_sign_of_life(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    await eventually(lambda: served.fleet.nodes.alive(NodeId("n1")))
    beats = served.fleet.nodes.pulse._beats
    for _ in range(5):
        served.fleet.clock.advance(4.0)
        await node.heartbeat()
        await eventually(lambda: beats[NodeId("n1")].heard_at == served.fleet.clock.monotonic())
        await served.fleet.nodes.pulse.beat()
    assert served.fleet.nodes.alive(NodeId("n1"))


async def test_a_large_set_of_orders_comes_whole(served):
    for number in range(60):
        instance = instance_on("n1", f"i{number}")
        big = instance.spec.__class__(
            name="web", uri="example.org/web:1", environment=tuple(f"K{n}={'x' * 3000}" for n in range(20))
        )
        await served.fleet.bind(
            instance.__class__(instance.id, big, 0.0, instance.observed, node=NodeId("n1"))
        )
    node = await served.connect("n1")
    await node.hello(HELLO)
    whole = await next_of(node.messages())
    assert isinstance(whole, Orders)
    assert whole.is_whole
    assert whole.orders == tuple(served.instances.orders(NodeId("n1")))
    assert len(whole.orders) == 60


async def test_a_server_with_nothing_to_say_shows_that_it_is_there(served, authority):
    settings = FleetSettings(report_s=0.01)
    lively = Listening(Sessions(served.fleet.nodes, served.instances, settings), authority)
    await lively.start()
    node = await lively.connect("n1")
    welcome = await node.hello(HELLO)
    assert welcome.silence_s == settings.suspect_after_s
    messages = node.messages()
    assert isinstance(await next_of(messages), Orders)
    async with asyncio.timeout(10):
        assert [await anext(messages) for _ in range(3)] == [Heartbeat()] * 3
    await lively.stop()


async def test_a_newer_session_ends_the_older_with_a_goodbye(served):
    old = await served.connect("n1")
    await old.hello(HELLO)
    messages = old.messages()
    assert isinstance(await next_of(messages), Orders)
    new = await served.connect("n1")
    await new.hello(HELLO)
    assert isinstance(await next_of(messages), Goodbye)
    assert isinstance(await next_of(new.messages()), Orders)


async def test_a_server_that_stops_says_goodbye_and_takes_nobody(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    served.sessions.close()
    messages = node.messages()
    assert isinstance(await next_of(messages), Orders)
    assert await next_of(messages) == Goodbye("this server stops")
    again = await served.connect("n1")
    with pytest.raises(errors.Unavailable, match="connect to another"):
        await again.hello(HELLO)


async def test_a_node_that_hangs_up_leaves_no_session(served):
    async with served.dialler("n1").dial() as node:
        await node.hello(HELLO)
        assert served.sessions._sessions
    await eventually(lambda: not served.sessions._sessions)


async def test_a_server_that_is_not_there_is_unavailable(served):
    await served.stop()
    async with served.dialler("n1").dial() as node:
        with pytest.raises(errors.Unavailable):
            await node.hello(HELLO)


async def test_a_server_that_goes_away_ends_what_waits(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    messages = node.messages()
    await next_of(messages)
    waiting = asyncio.ensure_future(next_of(messages))
    stopping = asyncio.ensure_future(served._server.stop(5.0))
    with pytest.raises(errors.Unavailable):
        await waiting
    await stopping


async def test_reports_wait_for_the_store_and_the_node_is_not_taken_for_silent(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    messages = node.messages()
    await next_of(messages)
    served.instances.is_durable.clear()
    await node.report(Reports(1, (Report(InstanceId("i1"), 1, Status.RUNNING, 1.0),)))
    await node.report(Reports(2, (Report(InstanceId("i1"), 1, Status.CRASHED, 2.0),)))
    served.instances.is_durable.set()
    acknowledged = 0
    while acknowledged < 2:
        message = await next_of(messages)
        assert isinstance(message, Acknowledged)
        acknowledged = message.sequence
    assert [batch[0].status for _, batch in served.instances.reports] == [Status.RUNNING, Status.CRASHED]
