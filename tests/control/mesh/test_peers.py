"""What nodes are told of the mesh: only their peers' public data, and every change of it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from skerry.control.mesh.peers import MeshPeers
from skerry.control.mesh.tables import MeshTables
from skerry.kit.clock import ManualClock
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.mesh import MeshEncryption, MeshLink, MeshLinks, MeshNode, MeshPeer
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.store.local.memory import MemoryStore
from tests.control.sessions.test_node_session import HELLO
from tests.support.fleets import Fleet, fleet_on
from tests.support.waiting import eventually

A, B, R = NodeId("a"), NodeId("b"), NodeId("r")


def key(text: str) -> str:
    return base64.b64encode(text.ljust(32).encode()).decode()


def node(id: NodeId, *addresses: str, machine: str = "", next_key: str = "") -> MeshNode:
    return MeshNode(id, key(id), 51825, addresses, machine=machine, next_key=next_key)


def links(id: NodeId, **up: bool) -> MeshLinks:
    found = [MeshLink(NodeId(other), is_up, public_key=key(other)) for other, is_up in up.items()]
    return MeshLinks(id, tuple(found))


@dataclass
class Server:
    """The mesh of a server, with its store."""

    fleet: Fleet
    clock: ManualClock
    tables: MeshTables
    peers: MeshPeers
    told: list[tuple[NodeId | None, NetworkKey, NetworkObject | None]]

    async def join(self, *reports: MeshNode) -> None:
        for report in reports:
            await self.fleet.nodes.register(report.node, replace(HELLO, name=f"node-{report.node}"))
            await self.peers.node_reported(report.node, [report])

    def of(self, id: NodeId) -> dict[str, MeshPeer]:
        return {each.key: each for each in self.peers.objects(id) if isinstance(each, MeshPeer)}


@contextlib.asynccontextmanager
async def serving(encryption: MeshEncryption = MeshEncryption.WIREGUARD) -> AsyncIterator[Server]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with fleet_on(store, clock) as fleet:
        tables = MeshTables(store, clock)
        seen = {A: "198.51.100.7", R: "198.51.100.9"}
        peers = MeshPeers(fleet.nodes, tables, encryption, lambda id: seen.get(id, ""), pause_s=0.0)
        server = Server(fleet, clock, tables, peers, [])
        peers.listen(lambda *change: server.told.append(change))
        tasks = [asyncio.create_task(tables.run()), asyncio.create_task(peers.run())]
        await tables.ready()
        try:
            yield server
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    await store.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


async def test_a_node_is_told_its_peers_with_their_subnets_and_where_to_try(server: Server) -> None:
    await server.join(node(A, "192.168.1.7"), node(B, "192.168.1.8"))
    peer = server.of(B)[A]
    assert server.of(B).keys() == {A}
    assert peer == MeshPeer(
        A,
        "node-a",
        key("a"),
        (server.fleet.nodes.get(A).subnet,),
        ("192.168.1.7:51825", "198.51.100.7:51825"),
    )
    await eventually(lambda: (A, NetworkKey("mesh-peer", B), server.of(A)[B]) in server.told)


async def test_a_pair_without_a_link_is_told_its_relay_and_a_new_link_ends_that(server: Server) -> None:
    await server.join(node(A), node(B), node(R, "198.51.100.9"))
    assert (server.of(A)[B].via, server.of(B)[A].via) == (None, None)  # nobody knows better yet
    for report in (links(A, b=False, r=True), links(B, a=False, r=True), links(R, a=True, b=True)):
        await server.peers.links_reported(report.node, [report])
    assert (server.of(A)[B].via, server.of(B)[A].via) == (R, R)
    assert server.of(R)[A].via is None
    for report in (links(A, b=True, r=True), links(B, a=True, r=True)):
        await server.peers.links_reported(report.node, [report])
    assert (server.of(A)[B].via, server.of(B)[A].via) == (None, None)


async def test_endpoints_that_neighbours_see_are_passed_on(server: Server) -> None:
    await server.join(node(A), node(B), node(R))
    seen = MeshLinks(R, (MeshLink(B, True, "198.51.100.50:40000"), MeshLink(A, False, "198.51.100.60:1")))
    await server.peers.links_reported(R, [seen])
    assert server.of(A)[B].endpoints == ("198.51.100.50:40000",)
    assert "198.51.100.60:1" not in server.of(B)[A].endpoints  # it is not up


async def test_nodes_of_one_machine_are_no_peers(server: Server) -> None:
    await server.join(node(A, machine="m"), node(B, machine="m"), node(R, machine="other"))
    assert server.of(A).keys() == {R}
    assert server.of(R).keys() == {A, B}


async def test_a_node_learns_when_its_peers_accept_its_next_key(server: Server) -> None:
    await server.join(node(A, next_key=key("a2")), node(B))
    assert (server.of(B)[A].next_key, server.of(A)[B].known_key) == (key("a2"), "")
    for next_key, known in (("", key("a")), (key("a2"), key("a2"))):
        link = MeshLink(A, True, public_key=key("a"), next_key=next_key)
        await server.peers.links_reported(B, [MeshLinks(B, (link,))])
        assert server.of(A)[B].known_key == known


async def test_a_node_that_is_unregistered_is_removed_from_its_peers(server: Server) -> None:
    await server.join(node(A), node(B))
    await server.fleet.nodes.unregister(B, actor="test")
    await eventually(lambda: (A, NetworkKey("mesh-peer", B), None) in server.told)
    await eventually(lambda: server.tables.nodes.get(B) is None)


async def test_a_node_cannot_report_another(server: Server) -> None:
    await server.join(node(A), node(B))
    with pytest.raises(errors.Forbidden):
        await server.peers.node_reported(A, [node(B, "192.0.2.1")])
    with pytest.raises(errors.Forbidden):
        await server.peers.links_reported(A, [links(B, a=True)])


async def test_measurements_alone_are_written_now_and_then_and_tell_nobody(server: Server) -> None:
    await server.join(node(A), node(B))
    await server.peers.links_reported(A, [links(A, b=True)])
    server.of(A)
    revision, told = server.tables.links.revision, len(server.told)
    measured = MeshLinks(A, (MeshLink(B, True, public_key=key("b"), round_trip_ms=5.0, received=9),))
    await server.peers.links_reported(A, [measured])
    assert server.tables.links.revision == revision
    server.clock.advance(11)
    await server.peers.links_reported(A, [measured])
    record = server.tables.links.value(A)
    assert record is not None
    assert record.links == measured
    server.of(A)
    assert len(server.told) == told


async def test_without_a_mesh_nobody_has_peers() -> None:
    async with serving(MeshEncryption.NONE) as server:
        await server.join(node(A), node(B))
        assert server.of(A) == {}
        assert server.peers.view.nodes == {}


async def test_nodes_that_have_not_reported_themselves_are_absent(server: Server) -> None:
    await server.join(node(A))
    await server.fleet.nodes.register(B, replace(HELLO, name="silent"))
    assert [each.name for each in server.peers.absent()] == ["silent"]


async def test_a_borrowed_node_dials_and_relays_for_nobody_whatever_it_reports() -> None:
    guest = NodeId("borrowed-1")
    facts = replace(HELLO.facts, features=(*HELLO.facts.features, NodeFeature.NETWORK))
    async with serving() as server:
        await server.join(node(A, "10.0.0.1"), node(B, "10.0.0.2"))
        await server.fleet.nodes.register(guest, replace(HELLO, name="guest", facts=facts, member=None))
        lie = MeshNode(guest, key(guest), 51825, ("10.0.0.9",), ("10.0.0.9:22",), relays=True, machine="m")
        await server.peers.node_reported(guest, [lie])
        seen = MeshLink(A, True, "10.0.0.9:22", public_key=key(A))
        up = MeshLink(B, True, public_key=key(B))
        await server.peers.links_reported(guest, [MeshLinks(guest, (seen, up))])
        for id in (A, B):
            await server.peers.links_reported(id, [MeshLinks(id, (MeshLink(guest, True),))])
        await eventually(lambda: guest in server.of(A) and A in server.of(guest))
        assert server.of(A)[guest].endpoints == ()
        assert "10.0.0.9:22" not in server.of(B)[A].endpoints
        assert server.of(A)[B].via is None, "though both have a link to it"


async def test_a_borrowed_node_that_its_buyer_does_not_want_in_the_mesh_is_in_none() -> None:
    guest = NodeId("borrowed-1")
    async with serving() as server:
        await server.join(node(A))
        facts = replace(HELLO.facts, features=())
        await server.fleet.nodes.register(guest, replace(HELLO, name="guest", facts=facts, member=None))
        await server.peers.node_reported(guest, [node(guest)])
        assert server.of(A) == {}
        assert guest not in [each.id for each in server.peers.absent()]
