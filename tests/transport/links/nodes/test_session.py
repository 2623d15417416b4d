"""A node's session over real gRPC, from hello to goodbye."""

from __future__ import annotations

import asyncio

import pytest

from skerry.control.sessions.node_session import NodeSessions
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import (
    ClaimBatch,
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    ServerMessage,
    SessionClose,
    SessionHeartbeat,
)
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.settings import FleetSettings
from skerry.model.statuses import InstanceStatus
from tests.support.fleets import FACTS, ROOM, advance, instance_on
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.links.nodes.conftest import Listening

HELLO = NodeHello("edge", FACTS, ROOM)


async def next_of(messages) -> ServerMessage:
    """What the server says next that is more than a sign of life."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (message := await anext(messages)) != SessionHeartbeat():
                return message


async def test_a_node_is_welcome_ordered_and_acknowledged(served):
    await served.fleet.bind(instance_on("n1", "i1"))
    node = await served.connect("n1")
    welcome = await node.hello(HELLO)
    assert (welcome.node, welcome.subnet) == ("n1", served.fleet.nodes.get("n1").subnet)
    messages = node.messages()
    whole = await next_of(messages)
    assert whole == OrderUpdate(1, is_full=True, orders=(InstanceOrder.of(instance_on("n1", "i1")),))
    await served.fleet.bind(instance_on(None, "i1", status=InstanceStatus.SCHEDULING))
    assert await next_of(messages) == OrderUpdate(2, is_full=False, removed=(InstanceId("i1"),))
    report = InstanceReport(
        InstanceId("i1"), 3, InstanceStatus.CRASHED, 12.5, "exit 1", 1, 2, "10.64.0.7", ROOM
    )
    await node.send(ReportBatch(1, (report,)))
    assert await next_of(messages) == ReportAck(1)
    assert served.instances.reports == [("n1", (report,))]


async def test_what_a_node_says_of_itself_arrives_and_may_change(served):
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM, {"zone": "a"}, "10.70.0.0/24"))
    known = served.fleet.nodes.get("n1")
    assert (known.name, known.facts, known.resources) == ("edge", FACTS, ROOM)
    assert (known.labels, known.subnet) == ({"zone": "a"}, "10.70.0.0/24")
    await node.send(NodeHello("core", FACTS, ROOM))
    await eventually(lambda: served.fleet.nodes.get("n1").name == "core")


async def test_a_heartbeat_is_a_sign_of_life(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    await eventually(lambda: served.fleet.nodes.heartbeat(NodeId("n1")))
    beats = served.fleet.nodes.heartbeats._heartbeats
    for _ in range(5):
        advance(4.0, served.fleet)
        await node.send(SessionHeartbeat())
        await eventually(
            lambda: beats[NodeId("n1")].received_at == served.fleet.nodes.heartbeat_clock.monotonic()
        )
        await served.fleet.nodes.heartbeats.publish()
    assert served.fleet.nodes.heartbeat(NodeId("n1"))


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
    assert isinstance(whole, OrderUpdate)
    assert whole.is_full
    assert whole.orders == tuple(served.instances.orders(NodeId("n1")))
    assert len(whole.orders) == 60


async def test_a_server_with_nothing_to_say_shows_that_it_is_there(served, authority):
    settings = FleetSettings(report_s=0.01)
    lively = Listening(NodeSessions(served.fleet.nodes, served.instances, settings), authority)
    await lively.start()
    node = await lively.connect("n1")
    welcome = await node.hello(HELLO)
    assert welcome.silence_s == settings.suspect_after_s
    messages = node.messages()
    assert isinstance(await next_of(messages), OrderUpdate)
    async with asyncio.timeout(PATIENCE_S):
        assert [await anext(messages) for _ in range(3)] == [SessionHeartbeat()] * 3
    await lively.stop()


async def test_a_newer_session_ends_the_older_with_a_goodbye(served):
    old = await served.connect("n1")
    await old.hello(HELLO)
    messages = old.messages()
    assert isinstance(await next_of(messages), OrderUpdate)
    new = await served.connect("n1")
    await new.hello(HELLO)
    assert isinstance(await next_of(messages), SessionClose)
    assert isinstance(await next_of(new.messages()), OrderUpdate)


async def test_a_server_that_stops_says_goodbye_and_takes_nobody(served):
    node = await served.connect("n1")
    await node.hello(HELLO)
    served.sessions.close()
    messages = node.messages()
    assert isinstance(await next_of(messages), OrderUpdate)
    assert await next_of(messages) == SessionClose("this server stops")
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
    await node.send(ReportBatch(1, (InstanceReport(InstanceId("i1"), 1, InstanceStatus.RUNNING, 1.0),)))
    await node.send(ReportBatch(2, (InstanceReport(InstanceId("i1"), 1, InstanceStatus.CRASHED, 2.0),)))
    served.instances.is_durable.set()
    acknowledged = 0
    while acknowledged < 2:
        message = await next_of(messages)
        assert isinstance(message, ReportAck)
        acknowledged = message.sequence
    assert [batch[0].status for _, batch in served.instances.reports] == [
        InstanceStatus.RUNNING,
        InstanceStatus.CRASHED,
    ]


@pytest.mark.parametrize(
    ("word", "taken_by"),
    [("reports", "reported"), ("claims", "claimed"), ("hello", "changed")],
)
async def test_a_node_whose_word_is_worked_on_is_not_taken_for_silent(served, monkeypatch, word, taken_by):
    node = await served.connect("n1")
    await node.hello(HELLO)
    is_done, begun = asyncio.Event(), []

    async def work(session, message):
        begun.append(session.node)
        await is_done.wait()

    monkeypatch.setattr(served.sessions, taken_by, work)
    match word:
        case "reports":
            await node.send(ReportBatch(1))
        case "claims":
            await node.send(ClaimBatch())
        case "hello":
            await node.send(HELLO)
    await eventually(lambda: begun)
    busy_with = served.sessions._nodes.heartbeats._busy_with
    assert list(busy_with) == begun
    is_done.set()
    await eventually(lambda: not busy_with)
