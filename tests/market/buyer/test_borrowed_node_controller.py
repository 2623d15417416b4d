"""Borrowed contracts kept alive: a door that opens, a node behind it, and every way in which it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.network.feed import NetworkObjects
from skerry.control.sessions.feeds import SessionFeeds
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.sessions.tunnels import TunnelBroker, TunnelEndpoint
from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer import node_decisions
from skerry.market.buyer.borrowed_node_controller import BorrowedNodeController
from skerry.market.buyer.borrowed_node_session import PEER_LOSS_S
from skerry.market.buyer.contract_table import BorrowedContractRecord, BorrowedContractTable, PendingContract
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.provider_client import RemoteContract, RemoteContractStatus
from skerry.market.buyer.quotes import BorrowedContractState, MarketPeer
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import ContractId, HoldId, InstanceId, NodeId, OfferId
from skerry.model.market_settings import MarketSettings
from skerry.model.members import ContinuumMember
from skerry.model.node_messages import (
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    ServerList,
    ServerMessage,
    SessionConfig,
    TunnelRequest,
)
from skerry.model.resources import Resources
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import NodeStatus
from skerry.model.streams import LogStreamRequest
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Delete, Expect
from skerry.transport.links.nodes.borrowed_session import BorrowedNodeConversations
from skerry.transport.links.nodes.tunnel_connection import TunnelConnection
from tests.control.sessions.test_node_session import FakeInstances
from tests.market.buyer.test_node_decisions import RECORD
from tests.market.markets import lead
from tests.support.deals import BUYER, SELLER
from tests.support.fleets import FACTS, Fleet, fleet_on, instance_on
from tests.support.waiting import eventually

SETTINGS = MarketSettings(drain_s=60.0, peer_silence_s=120.0)
NODE = NodeId("borrowed-c1")
BACK = NodeId("behind the door")
OUTSIDE = replace(
    FACTS,
    features=tuple(
        each for each in FACTS.features if each not in (NodeFeature.NETWORK, NodeFeature.POLICIES)
    ),
)
MEMBER = ContinuumMember(NODE, "boaster", "everywhere", address="198.51.100.7:1326", memory=10**6, cpus=10**6)
QUICK = Backoff(first_s=0.001, cap_s=0.01)
SOON_S = 15.0  # before the borrower would look without being woken


class FakeLandlord:
    """A provider with one contract, and a guest behind its door."""

    def __init__(self, ends_at: float) -> None:
        self.now = RemoteContractStatus(ends_at, cell="running")
        self.is_down = False
        self.refusal: errors.SkerryError | None = None
        self.released: list[str] = []
        self.doors = 0
        self.credentials: set[str] = set()
        self.tunnels: list[TunnelRequest] = []
        self.play: Callable[[TunnelEndpoint], Any] | None = None
        self.guest: TunnelConnection | None = None
        self.welcome: SessionConfig | None = None
        self.heard: list[ServerMessage] = []
        self._told: Callable[[RemoteContractStatus], None] | None = None
        self._guests: list[asyncio.Future[None]] = []

    def _check(self) -> None:
        if self.is_down:
            raise errors.Unavailable("peer north cannot be reached")

    async def purchase(self, hold: HoldId) -> RemoteContract:
        self._check()
        return RemoteContract("c1", b"", f"{hold}.secret")

    async def contract_state(self, contract: ContractId) -> RemoteContractStatus:
        self._check()
        return self.now

    async def release(self, contract: str) -> None:
        self._check()
        self.released.append(contract)

    @asynccontextmanager
    async def contract_tunnel(
        self, contract: ContractId, credential: str, told: Callable[[RemoteContractStatus], None]
    ) -> AsyncIterator[TunnelEndpoint]:
        self._check()
        if self.refusal is not None:
            raise self.refusal
        self.credentials.add(credential)
        behind = TunnelBroker()
        async with behind.open(BACK, lambda id: self._come(behind, id)) as end:
            self.doors += 1
            self._told = told
            told(self.now)
            yield end

    @asynccontextmanager
    async def tunnel(
        self, contract: ContractId, credential: str, tunnel: TunnelRequest
    ) -> AsyncIterator[TunnelEndpoint]:
        self.tunnels.append(tunnel)
        self._check()
        far = TunnelBroker()
        async with far.open(BACK, lambda id: self._guests.append(self._dial(far, id))) as end:
            yield end

    def _dial(self, far: TunnelBroker, id: str) -> asyncio.Future[None]:
        async def dial() -> None:
            async with far.dialled(BACK, id) as end:
                assert self.play is not None
                await self.play(end)

        return asyncio.ensure_future(dial())

    def _come(self, behind: TunnelBroker, id: str) -> None:
        self._guests.append(asyncio.ensure_future(self._live(behind, id)))

    async def _live(self, behind: TunnelBroker, id: str) -> None:
        """Be a guest: a node that says more of itself than it should."""
        async with behind.dialled(BACK, id) as end:
            guest = TunnelConnection(end)
            boast = NodeHello(
                "boaster", FACTS, Resources(10**6, 10**6, 10**6), {"zone": "gold"}, "10.9.9.0/24", MEMBER
            )
            self.welcome = await guest.hello(boast)
            self.guest = guest
            async for message in guest.messages():
                self.heard.append(message)

    def tell(self, **changes: Any) -> None:
        """The contract stands differently."""
        self.now = replace(self.now, **changes)
        assert self._told is not None
        self._told(self.now)

    async def hang_up(self) -> None:
        guests, self._guests = self._guests, []
        await cancel_and_wait(guests)


class World:
    """A server that borrows one contract."""

    def __init__(self, fleet: Fleet, landlord: FakeLandlord) -> None:
        self.fleet = fleet
        self.clock = fleet.clock
        self.landlord = landlord
        self.instances = FakeInstances(fleet.instance_table)
        self.network = NetworkObjects()
        feeds = SessionFeeds(network=self.network)
        self.sessions = NodeSessions(fleet.nodes, self.instances, FleetSettings(), feeds=feeds)
        events = EventLog(fleet.store, fleet.clock, EventSettings())
        self.contracts = BorrowedContractTable(fleet.store, events)
        self.peers = MarketPeerTable(fleet.store, events, own=BUYER.cloud)
        self.borrower = BorrowedNodeController(
            self.contracts,
            self.peers,
            lambda peer: landlord,
            self.sessions,
            fleet.nodes,
            fleet.clock,
            SETTINGS,
            converse=BorrowedNodeConversations(self.sessions, fleet.clock, has_mesh=True),
        )
        self.borrower.backoff = QUICK

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        loops = [asyncio.ensure_future(part.run()) for part in (self.contracts, self.peers)]
        try:
            await self.contracts.ready()
            await self.peers.ready()
            yield self
        finally:
            await self.borrower.close_session()
            await self.landlord.hang_up()
            await cancel_and_wait(loops)

    async def borrow(self, *, mesh: bool = False) -> None:
        now = self.clock.now()
        await self.set_peer(mesh=mesh)
        deal = PendingContract("d1", "north", OfferId("f"), RECORD.borrowed.resources, 1, now, now + 20)
        await self.contracts.begin(deal)
        await self.contracts.keep(deal, RECORD)

    async def set_peer(self, *, mesh: bool) -> None:
        peer = MarketPeer("north", "http://north.example", SELLER.cloud, mesh=mesh)
        await self.peers.put(peer, actor="ed")

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Look again and again, as the borrower does by itself, until this is so."""

        async def look() -> Any:
            await self.borrower.reconcile()
            return condition()

        return await eventually(look, what="the borrower to come to it")

    async def opened(self) -> None:
        await self.until(lambda: self.record.borrowed.state is BorrowedContractState.OPEN)

    @property
    def record(self) -> BorrowedContractRecord:
        return self.contracts.get("c1")

    @property
    def is_registered(self) -> bool:
        return self.fleet.nodes.condition(NODE) is not None

    def told(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.landlord.heard if isinstance(message, kind)]


@asynccontextmanager
async def world(*, mesh: bool = False) -> AsyncIterator[World]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with (
        fleet_on(store, clock) as fleet,
        World(fleet, FakeLandlord(RECORD.borrowed.ends_at)).running() as made,
    ):
        await made.borrow(mesh=mesh)
        yield made
    await store.close()


async def test_a_contract_becomes_a_node_that_is_what_we_say_and_not_what_it_says() -> None:
    async with world() as made:
        await made.opened()
        node = made.fleet.nodes.get(NODE)
        assert (node.name, node.resources, node.facts) == ("north-c1", RECORD.borrowed.taken, OUTSIDE)
        assert node.labels == {"skerry.borrowed": "north", "skerry.contract": "c1"}
        assert node.subnet != "10.9.9.0/24"
        assert node.member is None
        assert made.landlord.credentials == {"h1.secret"}
        contract_state = made.fleet.nodes.condition(NODE)
        assert contract_state is not None
        assert contract_state.view.is_borrowed
        assert (
            contract_state.view.resources == RECORD.borrowed.taken
        )  # nothing is kept back for a machine that is not ours
        assert made.landlord.guest is not None
        await made.landlord.guest.send(
            NodeHello("again", FACTS, Resources(10**6, 10**6, 10**6), member=MEMBER)
        )
        await made.landlord.guest.send(ReportBatch(1))
        await eventually(lambda: made.told(ReportAck))
        assert made.fleet.nodes.get(NODE) == node


async def test_orders_arrive_and_the_whereabouts_of_servers_do_not() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        await eventually(
            lambda: any(
                order.instance == "one" for orders in made.told(OrderUpdate) for order in orders.orders
            )
        )
        made.sessions._sessions[NODE].send_servers(("192.0.2.1:1324",))
        await made.fleet.bind(instance_on(NODE, "two"))
        await eventually(
            lambda: any(
                order.instance == "two" for orders in made.told(OrderUpdate) for order in orders.orders
            )
        )
        assert made.told(ServerList) == []


async def test_tunnels_go_to_the_provider_and_not_to_the_node() -> None:
    async with world() as made:
        await made.opened()

        async def echo(end: TunnelEndpoint) -> None:
            while (frame := await end.receive()) is not None:
                await end.send(frame.upper())
            await end.end()

        made.landlord.play = echo
        async with made.sessions.open_tunnel(NODE, InstanceId("one"), LogStreamRequest(tail=3)) as near:
            await near.send(b"hello")
            assert await near.receive() == b"HELLO"
            await near.end()
            assert await near.receive() is None
        (asked,) = made.landlord.tunnels
        assert (asked.instance, asked.stream) == ("one", LogStreamRequest(tail=3))
        assert made.told(TunnelRequest) == []

        async def fail(end: TunnelEndpoint) -> None:
            await end.fail(errors.NotFound("there is no such instance"))

        made.landlord.play = fail
        async with made.sessions.open_tunnel(NODE, InstanceId("none"), LogStreamRequest()) as near:
            with pytest.raises(errors.NotFound, match="no such instance"):
                await near.receive()
        made.landlord.is_down = True
        async with made.sessions.open_tunnel(NODE, InstanceId("one"), LogStreamRequest()) as near:
            with pytest.raises(errors.Unavailable, match="cannot be reached"):
                await near.receive()


async def test_a_door_that_is_shut_is_opened_again_and_it_is_the_same_node() -> None:
    async with world() as made:
        await made.opened()
        await made.landlord.hang_up()
        await made.until(lambda: made.landlord.doors >= 2)
        await eventually(lambda: NODE in made.sessions._sessions)
        assert made.record.borrowed.state is BorrowedContractState.OPEN
        assert len(await made.fleet.events("node.registered")) == 1


async def test_what_is_taken_back_is_drained_and_released_when_it_is_empty() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        notice = made.clock.now() + 120
        made.landlord.tell(reclaim_at=notice, reason="repairs")
        await made.until(lambda: made.fleet.nodes.get(NODE).drain_by == notice)
        assert made.record.borrowed.state is BorrowedContractState.DRAINING
        assert made.landlord.released == []
        await remove(made.fleet, "one")
        await made.until(lambda: made.record.is_done)
        assert made.landlord.released == ["c1"]
        assert made.record.borrowed.reason == "taken back: repairs"
        assert not made.is_registered


async def remove(fleet: Fleet, id: str) -> None:
    revision = await fleet.store.commit([Delete(f"instance/{id}")])
    await fleet.instance_table.wait_for_change(revision)


async def test_what_we_give_back_is_drained_and_released() -> None:
    async with world() as made:
        await made.opened()
        by = made.clock.now() + 60
        await made.contracts.change(
            ContractId("c1"), lambda record: node_decisions.request_release(record, by), actor="ann"
        )
        await made.until(lambda: made.record.is_done)
        assert (made.landlord.released, made.is_registered) == (["c1"], False)
        assert made.record.borrowed.reason == "given back"
        assert made.borrower._open_sessions == {}  # or its node would register again


async def test_a_silent_provider_is_given_up_with_its_work_and_told_when_it_is_back() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: NODE not in made.sessions._sessions)
        made.clock.advance(119 - PEER_LOSS_S)
        await made.borrower.reconcile()
        assert not made.record.is_over
        made.clock.advance(2 + PEER_LOSS_S)
        await made.until(lambda: made.record.is_over)
        await made.until(lambda: not made.is_registered)
        assert made.record.borrowed.reason == "its provider was unreachable for 120 s"
        assert not made.record.is_done
        made.landlord.is_down = False
        await made.until(lambda: made.record.is_done)
        assert made.landlord.released == ["c1"]


async def test_silence_counts_from_the_last_word_and_not_from_when_it_was_noticed() -> None:
    async with world() as made:
        await made.opened()
        opened, _ = made.borrower._open_sessions[ContractId("c1")]
        made.clock.advance(100)
        assert opened.silent_s == 0
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: opened.silent_s)
        assert opened.silent_s == PEER_LOSS_S
        made.clock.advance(120 - PEER_LOSS_S)
        await made.until(lambda: made.record.is_over)


async def test_a_release_that_could_not_be_told_is_forgotten_at_the_contracts_end() -> None:
    async with world() as made:
        await made.opened()
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: NODE not in made.sessions._sessions)
        made.clock.advance(200)
        await made.until(lambda: made.record.is_over)
        made.clock.advance(3600)
        await made.until(lambda: made.record.is_done)
        assert made.landlord.released == []


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_contract_that_ended_while_nobody_was_at_the_door_is_over(is_forgotten: bool) -> None:
    async with world() as made:
        made.landlord.refusal = errors.Expired("this contract has been released")
        made.landlord.now = replace(made.landlord.now, ended="released")
        if is_forgotten:

            async def forgotten(contract: ContractId) -> RemoteContractStatus:
                raise errors.NotFound("there is no such contract")

            made.landlord.contract_state = forgotten
        await made.until(lambda: made.record.is_done)
        assert (made.landlord.released, made.is_registered) == ([], False)


async def test_a_cell_that_is_not_made_in_time_is_given_back_with_the_reason() -> None:
    async with world() as made:
        made.landlord.refusal = errors.Unavailable("peer north: its cell is scheduling (no node has room)")
        await made.borrower.reconcile()
        await eventually(lambda: made.borrower._open_sessions[ContractId("c1")][0].last_error)
        made.clock.advance(21)
        await made.until(lambda: made.record.is_done)
        assert "did not open in time: peer north: its cell is scheduling" in made.record.borrowed.reason
        assert made.landlord.released == ["c1"]


async def test_another_server_that_leads_takes_over() -> None:
    async with world() as made:
        await made.opened()
        async with (
            fleet_on(made.fleet.store, made.clock, server="http://two:8080") as fleet,
            World(fleet, made.landlord).running() as other,
        ):
            await made.borrower.close_session()
            await eventually(lambda: NODE not in made.sessions._sessions)
            await other.until(lambda: NODE in other.sessions._sessions)
            assert other.record.borrowed.state is BorrowedContractState.OPEN
            assert len(await fleet.events("node.registered")) == 1
            by = made.clock.now()
            await other.contracts.change(
                ContractId("c1"), lambda record: node_decisions.request_release(record, by), actor="ann"
            )
            await other.until(lambda: other.record.is_done)


async def test_a_server_that_no_longer_leads_neither_drains_nor_ends_anything() -> None:
    async with world() as made:
        await made.opened()
        stale = await lead(made.fleet.store)
        await lead(made.fleet.store)
        made.landlord.tell(ended="withdrawn", reason="repairs")
        with pytest.raises(LeadershipLost):
            await made.borrower.reconcile(stale)
        assert made.record.borrowed.state is BorrowedContractState.OPEN
        for late in (
            made.fleet.nodes.drain(NODE, actor="market", fence=stale),
            made.fleet.nodes.unregister(NODE, actor="market", force=True, fence=stale),
        ):
            with pytest.raises(LeadershipLost):
                await late
        assert made.fleet.nodes.get(NODE).status is NodeStatus.READY


async def test_it_runs_by_itself() -> None:
    async with world() as made:
        running = asyncio.ensure_future(made.borrower.run(await lead(made.fleet.store)))
        await eventually(lambda: made.record.borrowed.state is BorrowedContractState.OPEN)
        assert made.fleet.nodes.get(NODE).status is NodeStatus.READY
        made.landlord.tell(ended="withdrawn", reason="repairs")
        await eventually(lambda: made.record.is_done and not made.is_registered)
        await cancel_and_wait([running])


@asynccontextmanager
async def left_alone() -> AsyncIterator[World]:
    """A world whose borrower runs, with its contract open: it is called by what changes, and by no test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skerry.market.buyer.borrowed_node_controller._PAUSE_S", 0.0)
        async with running_world() as made:
            yield made


@asynccontextmanager
async def running_world() -> AsyncIterator[World]:
    async with world() as made:
        running = asyncio.ensure_future(made.borrower.run(await lead(made.fleet.store)))
        try:
            await eventually(lambda: made.record.borrowed.state is BorrowedContractState.OPEN)
            await come_to_rest()
            yield made
        finally:
            await cancel_and_wait([running])


async def come_to_rest() -> None:
    """Everything is in this loop: once all have had their turns, the borrower waits to be woken."""
    for _ in range(500):
        await asyncio.sleep(0)


async def test_a_node_that_becomes_empty_is_noticed() -> None:
    async with left_alone() as made:
        await made.fleet.bind(instance_on(NODE, "one"))
        made.landlord.tell(reclaim_at=made.clock.now() + 120, reason="repairs")
        await eventually(lambda: made.fleet.nodes.get(NODE).status is NodeStatus.DRAINING, within=SOON_S)
        await come_to_rest()
        await remove(made.fleet, "one")
        await eventually(lambda: made.record.is_done and not made.is_registered, within=SOON_S)


async def test_a_node_that_somebody_lets_take_work_again_is_drained_again() -> None:
    async with left_alone() as made:
        await made.fleet.bind(instance_on(NODE, "one"))
        made.landlord.tell(reclaim_at=made.clock.now() + 120, reason="repairs")
        await eventually(lambda: made.fleet.nodes.get(NODE).status is NodeStatus.DRAINING, within=SOON_S)
        await come_to_rest()
        uncordoned = await made.fleet.nodes.uncordon(NODE, actor="ann")
        assert uncordoned.status is NodeStatus.READY
        await eventually(lambda: made.fleet.nodes.get(NODE).status is NodeStatus.DRAINING, within=SOON_S)


async def test_the_time_to_drain_is_noticed() -> None:
    async with left_alone() as made:
        await made.fleet.bind(instance_on(NODE, "one"))
        begun = RECORD.borrowed.starts_at
        # A short contract is drained for half of its time, which begins when the clock is advanced.
        end = begun + 2 * (made.clock.now() - begun + 0.2)
        made.landlord.tell(ends_at=end)
        await eventually(lambda: made.record.borrowed.ends_at == end)
        await come_to_rest()
        made.clock.advance(0.3)
        await eventually(lambda: made.fleet.nodes.get(NODE).status is NodeStatus.DRAINING, within=SOON_S)


async def test_a_release_that_cannot_be_written_down_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with left_alone() as made:
        change, refused = made.contracts.change, 0

        async def refuse_what_was_told(id: ContractId, decide: Any, **more: Any) -> BorrowedContractRecord:
            nonlocal refused
            if decide(made.record).is_provider_notified and refused < 2:
                refused += 1
                raise errors.Unavailable("the store is away")
            return await change(id, decide, **more)

        monkeypatch.setattr(made.contracts, "change", refuse_what_was_told)
        by = made.clock.now() + 60
        await change(ContractId("c1"), lambda record: node_decisions.request_release(record, by), actor="ann")
        await eventually(lambda: made.record.is_done, within=SOON_S)
        assert refused == 2


async def test_a_provider_that_has_news_without_end_is_listened_to_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.market.buyer.borrowed_node_controller._PAUSE_S", 0.1)
    looks: list[float] = []
    async with world() as made:
        running = asyncio.ensure_future(made.borrower.run(await lead(made.fleet.store)))
        await eventually(lambda: made.record.borrowed.state is BorrowedContractState.OPEN)
        trim = made.contracts.trim

        async def look(most: int, *, fence: Expect | None) -> None:
            looks.append(asyncio.get_running_loop().time())
            await trim(most, fence=fence)

        monkeypatch.setattr(made.contracts, "trim", look)
        numbers = iter(range(10**9))

        def nag() -> bool:
            made.landlord.tell(reason=f"repairs {next(numbers)}")
            return len(looks) >= 4

        await eventually(nag)
        await cancel_and_wait([running])
    assert all(later - before >= 0.1 for before, later in itertools.pairwise(looks))
