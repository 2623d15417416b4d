"""Network objects in sessions: which nodes get which, and who takes their reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkObject, NodeLocation
from skerry.model.node_messages import NetworkReportBatch, NetworkUpdate, OrderUpdate, SessionClose
from skerry.model.nodes import NodeFacts
from skerry.model.settings import FleetSettings
from skerry.store.local.memory import MemoryStore
from tests.control.sessions.test_node_session import HELLO, FakeInstances, Told
from tests.support.fleets import Fleet, fleet_on

KNOWING = replace(HELLO, facts=NodeFacts(features=(NodeFeature.NETWORK,)))


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with fleet_on(store, clock) as made:
        yield made
    await store.close()


@pytest.fixture
def feed(fleet: Fleet) -> NetworkObjects:
    feed = NetworkObjects()
    feed.add(NodeLocations(fleet.nodes))
    return feed


@pytest.fixture
def sessions(fleet: Fleet, feed: NetworkObjects) -> NodeSessions:
    instances = FakeInstances(fleet.instance_table)
    return NodeSessions(fleet.nodes, instances, FleetSettings(), feeds=SessionFeeds(network=feed))


async def locations(told: Told) -> dict[str, str]:
    while not isinstance(message := await told.next(), NetworkUpdate):
        assert isinstance(message, OrderUpdate)
    return {each.node: each.subnets[0] for each in message.objects if isinstance(each, NodeLocation)}


async def test_a_node_gets_the_locations_of_all_nodes_and_then_changes(fleet, sessions) -> None:
    async with sessions.connect("n1", KNOWING) as first:
        told = Told(first)
        assert await locations(told) == {"n1": first.config.subnet}
        async with sessions.connect("n2", KNOWING) as second:
            assert await locations(told) == {"n2": second.config.subnet}
        await fleet.nodes.unregister("n2", actor="test")
        while not isinstance(message := await told.next(), NetworkUpdate) or not message.removed:
            pass
        assert [each.key for each in message.removed] == ["n2"]


async def test_a_node_that_does_not_know_network_objects_gets_none(sessions) -> None:
    async with sessions.connect("n1", replace(HELLO, facts=NodeFacts())) as session:
        told = Told(session)
        assert (await told.orders()).is_full
        session.end("test")
        assert await told.next() == SessionClose("test")


async def test_reports_go_to_the_handler_of_their_kind(fleet, feed, sessions) -> None:
    taken: list[tuple[str, Sequence[NetworkObject]]] = []

    async def take(node: NodeId, objects: Sequence[NetworkObject]) -> None:
        taken.append((node, objects))

    feed.handle(NodeLocation, take)
    location = NodeLocation(NodeId("n1"), "one")
    async with sessions.connect("n1", KNOWING) as session:
        await sessions.network_reported(session, NetworkReportBatch((location,)))
    assert taken == [("n1", [location])]
    bare = NodeSessions(fleet.nodes, FakeInstances(fleet.instance_table), FleetSettings())
    async with bare.connect("n2", KNOWING) as session:
        with pytest.raises(errors.Invalid):
            await bare.network_reported(session, NetworkReportBatch((location,)))
