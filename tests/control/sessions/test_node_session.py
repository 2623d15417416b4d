"""Sessions of nodes: what they are told, when, and what becomes of what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances.report_rules import ReportDisposition, ReportOutcome
from skerry.control.sessions import node_session
from skerry.control.sessions.change_feed import MAX_CHANGES
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSession, NodeSessions
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.functions import CUSTOM, Function
from skerry.model.ids import ContractId, FunctionName, InstanceId, NodeId
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import (
    FunctionUpdate,
    MemberList,
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    ServerList,
    ServerMessage,
    SessionClose,
    TunnelRequest,
)
from skerry.model.nodes import borrowed_id
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.resources import Megabytes
from skerry.model.settings import FleetSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus, NodeStatus
from skerry.model.streams import LogStreamRequest
from skerry.model.workloads import Instance
from skerry.store.protocol import Delete
from tests.support.fleets import FACTS, ROOM, Fleet, fleet_on, instance_on
from tests.support.waiting import PATIENCE_S, eventually

HELLO = NodeHello("edge", FACTS, ROOM)


class FakeInstances:
    """Orders out of a real instance_table; what is reported is only noted, when the test lets it."""

    def __init__(self, instance_table: InstanceTable) -> None:
        self._instance_table = instance_table
        self.reports: list[tuple[NodeId | None, tuple[InstanceReport, ...]]] = []
        self.weights: dict[str, ReportDisposition] = {}
        self.is_durable = asyncio.Event()
        self.is_durable.set()

    def orders(self, node: NodeId) -> Sequence[InstanceOrder]:
        return [self.order(known.value) for known in self._instance_table.index.on_node(node)]

    def order(self, instance: Instance) -> InstanceOrder:
        return InstanceOrder.of(instance)

    async def sync(self) -> None:
        await self._instance_table.sync()

    def listen(
        self, changed: Callable[[InstanceRecord | None, InstanceRecord | None], None]
    ) -> Callable[[], None]:
        return self._instance_table.listen(changed)

    async def reported(
        self, node: NodeId | None, reports: Sequence[InstanceReport]
    ) -> Sequence[ReportOutcome]:
        await self.is_durable.wait()
        self.reports.append((node, tuple(reports)))
        return [
            ReportOutcome(report.instance, self.weights.get(report.instance, ReportDisposition.APPLIED))
            for report in reports
        ]


@pytest.fixture
def instances(fleet: Fleet) -> FakeInstances:
    return FakeInstances(fleet.instance_table)


@pytest.fixture
def served(fleet: Fleet, instances: FakeInstances) -> NodeSessions:
    return NodeSessions(fleet.nodes, instances, FleetSettings())


class Told:
    """What a session has to say, one message at a time."""

    def __init__(self, session: NodeSession) -> None:
        self._messages = session.messages()

    async def next(self) -> ServerMessage:
        async with asyncio.timeout(PATIENCE_S):
            return await anext(self._messages)

    async def orders(self) -> OrderUpdate:
        message = await self.next()
        assert isinstance(message, OrderUpdate)
        return message

    async def is_over(self) -> bool:
        async with asyncio.timeout(PATIENCE_S), aclosing(self._messages):
            return [message async for message in self._messages] == []


def report(instance: str, status: InstanceStatus = InstanceStatus.RUNNING) -> InstanceReport:
    return InstanceReport(InstanceId(instance), 1, status, 1.0)


# orders


async def test_a_node_that_says_hello_is_registered_and_welcome(fleet, served):
    async with served.connect("n1", HELLO) as session:
        assert session.config.node == "n1"
        assert session.config.subnet == fleet.nodes.get("n1").subnet
        settings = FleetSettings()
        assert session.config.report_s == settings.report_s
        assert session.config.restart_cap_s == settings.restart_cap_s
        await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")))


async def test_a_node_is_told_all_its_orders_first_and_then_what_changes(fleet, served):
    await fleet.bind(instance_on("n1", "i1"))
    await fleet.bind(instance_on("n2", "other"))
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        whole = await told.orders()
        assert (whole.sequence, whole.is_full) == (1, True)
        assert whole.orders == (InstanceOrder.of(instance_on("n1", "i1")),)
        await fleet.bind(instance_on("n1", "i2"))
        change = await told.orders()
        assert (change.sequence, change.is_full) == (2, False)
        assert [order.instance for order in change.orders] == ["i2"]
        assert change.removed == ()


async def test_a_node_without_instances_is_told_that_it_has_none(served):
    async with served.connect("n1", HELLO) as session:
        whole = await Told(session).orders()
        assert whole.is_full
        assert whole.orders == ()


async def test_an_instance_that_moves_is_gone_at_one_node_and_ordered_at_the_other(fleet, served):
    await fleet.bind(instance_on("n1", "i1"))
    async with served.connect("n1", HELLO) as first, served.connect("n2", HELLO) as second:
        one, two = Told(first), Told(second)
        await one.orders()
        await two.orders()
        moved = instance_on("n2", "i1", generation=2, status=InstanceStatus.SCHEDULED)
        await fleet.bind(moved)
        assert (await one.orders()).removed == ("i1",)
        assert (await two.orders()).orders == (InstanceOrder.of(moved),)


async def test_an_instance_that_is_unbound_or_purged_is_gone(fleet, served):
    await fleet.bind(instance_on("n1", "i1"))
    await fleet.bind(instance_on("n1", "i2"))
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await fleet.bind(instance_on(None, "i1", status=InstanceStatus.SCHEDULING, generation=2))
        assert (await told.orders()).removed == ("i1",)
        await fleet.store.commit([Delete("instance/i2")])
        assert (await told.orders()).removed == ("i2",)


async def test_a_change_that_is_no_news_to_the_node_is_not_told(fleet, served):
    await fleet.bind(instance_on("n1", "i1", status=InstanceStatus.STARTING))
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await fleet.bind(
            instance_on("n1", "i1", status=InstanceStatus.RUNNING)
        )  # what the node itself reported
        await fleet.bind(instance_on("n1", "i2"))
        assert [order.instance for order in (await told.orders()).orders] == ["i2"]


async def test_what_waits_is_what_is_so_now_and_not_all_that_happened(fleet, served):
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        for generation in range(1, 50):
            await fleet.bind(instance_on("n1", "i1", generation=generation))
        await fleet.bind(instance_on("n1", "i2"))
        await fleet.bind(instance_on(None, "i2", status=InstanceStatus.SCHEDULING))
        change = await told.orders()
        assert [order.generation for order in change.orders] == [49]
        assert change.removed == ("i2",)


async def test_a_node_that_is_far_behind_is_told_everything_anew(fleet, served):
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        for number in range(MAX_CHANGES + 20):
            await fleet.bind(instance_on("n1", f"i{number}"))
        assert len(session._orders) <= MAX_CHANGES
        whole = await told.orders()
        assert (whole.sequence, whole.is_full) == (2, True)
        assert len(whole.orders) == MAX_CHANGES + 20


async def test_orders_of_a_wish_and_of_a_copy_that_leaves_are_told(fleet, served):
    await fleet.bind(instance_on("n1", "i1"))
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await fleet.bind(instance_on("n1", "i1", desired=DesiredStatus.STOPPED))
        [order] = (await told.orders()).orders
        assert order.desired is DesiredStatus.STOPPED
        leaving = instance_on("n1", "i1", generation=2)
        await fleet.bind(replace(leaving, leaving=leaving.spec))
        [order] = (await told.orders()).orders
        assert (order.desired, order.generation) == (DesiredStatus.DESTROYED, 2)


# reports


async def test_reports_are_acknowledged_when_they_are_durable_and_not_before(served, instances):
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        instances.is_durable.clear()
        batch = ReportBatch(7, (report("i1"),))
        taking = asyncio.ensure_future(served.reported(session, batch))
        await asyncio.sleep(0)
        assert session._acknowledged == 0
        instances.is_durable.set()
        await taking
        assert await told.next() == ReportAck(7)
        assert instances.reports == [("n1", batch.reports)]


async def test_a_node_is_told_to_remove_what_is_not_its_own(served, instances):
    instances.weights["stale"] = ReportDisposition.STALE
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await served.reported(session, ReportBatch(1, (report("stale"), report("fine"))))
        assert await told.next() == ReportAck(1)
        assert (await told.orders()).removed == ("stale",)


async def test_a_report_that_is_refused_is_acknowledged_all_the_same(served, instances):
    instances.weights["i1"] = ReportDisposition.REFUSED
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await served.reported(session, ReportBatch(1, (report("i1"),)))
        assert await told.next() == ReportAck(1)


async def test_batches_that_go_backwards_or_are_too_large_are_refused(served, instances):
    async with served.connect("n1", HELLO) as session:
        await served.reported(session, ReportBatch(2, ()))
        for sequence in (2, 1, 0):
            with pytest.raises(errors.Invalid):
                await served.reported(session, ReportBatch(sequence, (report("i1"),)))
        with pytest.raises(errors.TooLarge):
            await served.reported(session, ReportBatch(3, (report("i1"),) * (node_session.MAX_REPORTS + 1)))
        assert instances.reports == [("n1", ())]


async def test_a_node_that_has_changed_is_registered_as_it_is(fleet, served):
    async with served.connect("n1", HELLO) as session:
        await served.changed(session, replace(HELLO, name="core"))
        assert fleet.nodes.get("n1").name == "core"


# one session per node


async def test_a_newer_session_of_a_node_ends_the_older(served):
    async with served.connect("n1", HELLO) as old:
        async with served.connect("n1", HELLO) as new:
            told = Told(old)
            await told.orders()
            message = await told.next()
            assert isinstance(message, SessionClose)
            assert "newer" in message.reason
            assert await told.is_over()
            assert not new.is_over
        assert old.is_over


async def test_the_end_of_an_old_session_does_not_end_the_new_one(fleet, served):
    old = served.connect("n1", HELLO)
    await old.__aenter__()
    async with served.connect("n1", HELLO) as new:
        await old.__aexit__(None, None, None)
        told = Told(new)
        await told.orders()
        await fleet.bind(instance_on("n1", "i1"))
        assert (await told.orders()).orders


async def test_an_old_session_is_no_sign_of_life(fleet, served):
    async with served.connect("n1", HELLO) as session:
        await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")))
        session.end("test")
        await fleet.pass_time(7.0)
        served.received(session)
        await fleet.pass_time(1.0)
        await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")) is None)


async def test_a_session_that_speaks_keeps_its_node_alive(fleet, served):
    async with served.connect("n1", HELLO) as session:
        await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")))
        for _ in range(10):
            await fleet.pass_time(4.0)
            served.received(session)
        assert fleet.nodes.heartbeat(NodeId("n1"))
        assert fleet.nodes.get("n1").status is NodeStatus.READY


async def test_a_session_ends_when_its_node_is_unregistered(fleet, served):
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await fleet.nodes.unregister("n1", actor="test")
        assert await told.next() == SessionClose("this node was unregistered")


async def test_a_session_ends_when_its_node_connects_to_another_server(store, clock, fleet, served):
    async with served.connect("n1", HELLO) as session:
        await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")))
        async with fleet_on(store, clock, server="http://two") as two:
            elsewhere = NodeSessions(two.nodes, FakeInstances(two.instance_table), FleetSettings())
            async with elsewhere.connect("n1", HELLO) as new:
                await eventually(lambda: session.is_over)
                assert not new.is_over


async def test_a_server_that_stops_sends_everybody_away_and_takes_nobody(served):
    async with served.connect("n1", HELLO) as first, served.connect("n2", HELLO) as second:
        served.close()
        for session in (first, second):
            told = Told(session)
            await told.orders()
            assert await told.next() == SessionClose("this server stops")
        with pytest.raises(errors.Unavailable, match="connect to another"):
            async with served.connect("n3", HELLO):
                pass


async def test_a_store_that_is_away_lets_nobody_connect(fleet, served, instances, monkeypatch):
    """A whole set of orders that is out of date would make the node remove what is new."""
    await fleet.join("n1", name="edge")

    async def away() -> int:
        raise errors.Unavailable("the store is away")

    monkeypatch.setattr(fleet.store, "revision", away)
    with pytest.raises(errors.Unavailable):
        async with served.connect("n1", HELLO):
            pass


# servers


class FakeServers:
    """The test says where they are."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = addresses
        self.changed: Callable[[], None] = lambda: None

    def listen(self, changed: Callable[[], None]) -> None:
        self.changed = changed


async def test_a_node_is_told_where_all_servers_are_and_again_when_that_changes(fleet, instances):
    servers = FakeServers("one:1", "two:2")
    served = NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=SessionFeeds(servers=servers))
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        assert await told.next() == ServerList(("one:1", "two:2"))
        assert (await told.orders()).is_full
        for servers.addresses in (("one:1",), ("one:1", "three:3")):
            servers.changed()
        assert await told.next() == ServerList(("one:1", "three:3")), "what is so now, not all that happened"


async def test_a_node_is_told_of_no_servers_while_none_are_known(fleet, instances):
    served = NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=SessionFeeds(servers=FakeServers()))
    async with served.connect("n1", HELLO) as session:
        assert (await Told(session).orders()).is_full


# members and functions

HERE = ContinuumMember(NodeId("n1"), "edge", "lab", memory=512, cpus=2.0)
TAKER = replace(HELLO, member=HERE)


def function(name: str, version: int = 1) -> Function:
    return Function(FunctionName(name), CUSTOM, Megabytes(64), 0.0, image="i", version=version)


class FakeMembers:
    """The test says who they are."""

    def __init__(self, *members: ContinuumMember) -> None:
        self.all = members
        self.changed: Callable[[], None] = lambda: None

    def listen(self, changed: Callable[[], None]) -> None:
        self.changed = changed


class FakeCatalogue:
    """The test says which there are, and hears how often it is asked to look again."""

    def __init__(self, *functions: Function) -> None:
        self.known = {each.name: each for each in functions}
        self.sync_count = 0
        self.changed: Callable[[FunctionName, Function | None], None] = lambda name, function: None

    def all(self) -> Sequence[Function]:
        return list(self.known.values())

    async def sync(self) -> None:
        self.sync_count += 1

    def listen(self, changed: Callable[[FunctionName, Function | None], None]) -> None:
        self.changed = changed

    def put(self, name: str, function: Function | None) -> None:
        if function is None:
            del self.known[FunctionName(name)]
        else:
            self.known[function.name] = function
        self.changed(FunctionName(name), function)


@pytest.fixture
def catalogue() -> FakeCatalogue:
    return FakeCatalogue(function("a"))


@pytest.fixture
def members() -> FakeMembers:
    return FakeMembers(HERE)


@pytest.fixture
def sharing(
    fleet: Fleet, instances: FakeInstances, members: FakeMembers, catalogue: FakeCatalogue
) -> NodeSessions:
    return NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=SessionFeeds(None, members, catalogue))


async def test_a_node_that_takes_calls_is_told_who_else_does_and_all_functions(fleet, sharing, catalogue):
    async with sharing.connect("n1", TAKER) as session:
        told = Told(session)
        assert (await told.orders()).is_full
        assert await told.next() == MemberList((HERE,))
        assert await told.next() == FunctionUpdate(is_full=True, functions=(function("a"),))
        assert catalogue.sync_count == 1, "what it does not hear of is gone for it"
    assert fleet.nodes.get("n1").member == HERE


async def test_a_node_that_takes_calls_is_told_what_changes(sharing, members, catalogue):
    async with sharing.connect("n1", TAKER) as session:
        told = Told(session)
        for _ in range(3):
            await told.next()
        for version in range(2, 5):
            catalogue.put("a", function("a", version))
        catalogue.put("b", function("b"))
        catalogue.put("b", None)
        for members.all in ((), (HERE, replace(HERE, node=NodeId("n2")))):
            members.changed()
        assert await told.next() == MemberList(members.all), "what is so now, not all that happened"
        assert await told.next() == FunctionUpdate(False, (function("a", 4),), (FunctionName("b"),))


@pytest.mark.parametrize("features", [(), (NodeFeature.FUNCTION_NAMESPACES,)])
async def test_a_node_that_knows_no_namespaces_of_functions_is_told_of_the_default_one(
    sharing, catalogue, features
):
    catalogue.put("shop:a", function("shop:a"))
    hello = replace(TAKER, facts=replace(TAKER.facts, features=features))
    async with sharing.connect("n1", hello) as session:
        told = Told(session)
        for _ in range(2):
            await told.next()
        assert len((await told.next()).functions) == (2 if features else 1)
        catalogue.put("shop:b", function("shop:b"))
        catalogue.put("c", function("c"))
        catalogue.put("shop:a", None)
        update = await told.next()
    named = {*update.removed, *(each.name for each in update.functions)}
    assert named == ({"shop:a", "shop:b", "c"} if features else {"c"})


async def test_nobody_else_is_told_of_members_and_functions(sharing, members, catalogue):
    async with sharing.connect("n2", HELLO) as session:
        told = Told(session)
        await told.orders()
        members.changed()
        catalogue.put("b", function("b"))
        session.end("test")
        assert await told.next() == SessionClose("test")


async def test_the_node_of_the_same_process_is_told_nothing_that_it_knows(
    fleet, instances, members, catalogue
):
    served = NodeSessions(
        fleet.nodes,
        instances,
        FleetSettings(),
        feeds=SessionFeeds(members=members, functions=catalogue),
        here=NodeId("n1"),
    )
    async with served.connect("n1", TAKER) as session:
        told = Told(session)
        await told.orders()
        members.changed()
        session.end("test")
        assert await told.next() == SessionClose("test")
        assert fleet.nodes.get("n1").member == HERE


async def test_a_node_may_begin_and_cease_to_take_calls(fleet, sharing, members, catalogue):
    async with sharing.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        await sharing.changed(session, TAKER)
        assert isinstance(await told.next(), MemberList)
        assert isinstance(await told.next(), FunctionUpdate)
        await sharing.changed(session, HELLO)
        assert fleet.nodes.get("n1").member is None
        members.changed()
        catalogue.put("b", function("b"))
        await sharing.changed(session, TAKER)
        assert isinstance(await told.next(), MemberList)
        whole = await told.next()
        assert isinstance(whole, FunctionUpdate)
        assert [each.name for each in whole.functions] == ["a", "b"]


async def test_a_node_is_a_member_by_its_own_id_and_never_a_server(fleet, sharing):
    lie = replace(TAKER, member=replace(HERE, node=NodeId("somebody"), is_server=True))
    async with sharing.connect("n1", lie):
        assert fleet.nodes.get("n1").member == HERE


async def test_a_borrowed_node_cannot_take_calls_of_functions(sharing):
    with pytest.raises(errors.Invalid, match="of this cloud"):
        async with sharing.connect(borrowed_id(ContractId("c1")), TAKER):
            pass


# tunnels


async def test_a_tunnel_is_asked_for_on_the_session(served):
    async with served.connect("n1", HELLO) as session:
        told = Told(session)
        await told.orders()
        opening = served.open_tunnel(NodeId("n1"), InstanceId("i1"), LogStreamRequest(follow=True))
        entering = asyncio.ensure_future(opening.__aenter__())
        asked = await told.next()
        assert isinstance(asked, TunnelRequest)
        assert (asked.instance, asked.stream) == ("i1", LogStreamRequest(follow=True))
        async with served.tunnels.dialled(NodeId("n1"), asked.id) as theirs:
            ours = await entering
            await theirs.send(b"hello")
            assert await ours.receive() == b"hello"
            await opening.__aexit__(None, None, None)


async def test_a_tunnel_to_a_node_that_is_not_connected_is_refused(fleet, served):
    with pytest.raises(errors.Unavailable, match="not connected"):
        served.open_tunnel(NodeId("n1"), InstanceId("i1"), LogStreamRequest())


async def test_a_tunnel_to_a_node_of_another_server_names_that_server(store, clock, fleet, served):
    async with fleet_on(store, clock, server="http://two:8080") as two:
        elsewhere = NodeSessions(two.nodes, FakeInstances(two.instance_table), FleetSettings())
        async with elsewhere.connect("n1", HELLO):
            await eventually(lambda: fleet.nodes.heartbeat(NodeId("n1")))
            with pytest.raises(errors.Unavailable, match="http://two:8080; ask there"):
                served.open_tunnel(NodeId("n1"), InstanceId("i1"), LogStreamRequest())
