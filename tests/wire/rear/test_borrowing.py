"""Borrowed contracts kept alive: a door that opens, a node behind it, and every way in which it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.control.events import EventLog
from skerry.control.sessions import Sessions
from skerry.control.tunnels import End, Tunnels
from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import give_up
from skerry.market import borrowing
from skerry.market.dealing import Bought, Standing
from skerry.market.loans import Deal, Loan, Loans
from skerry.market.peers import Peers
from skerry.market.trading import Peer, State
from skerry.model import errors
from skerry.model.ids import ContractId, FlavorId, HoldId, InstanceId, NodeId
from skerry.model.members import Member
from skerry.model.room import Room
from skerry.model.sessions import Acknowledged, Down, Hello, OpenTunnel, Orders, Reports, Servers, Welcome
from skerry.model.settings import EventSettings, FleetSettings, MarketSettings
from skerry.model.statuses import NodeStatus
from skerry.model.tunnels import LogsAsk
from skerry.store.memory import MemoryStore
from skerry.store.protocol import Delete
from skerry.wire.nodes.links import LinkConnection
from skerry.wire.rear.borrowing import Borrower
from skerry.wire.rear.ends import UNNOTICED_S
from tests.control.test_sessions import FakeInstances
from tests.market.test_borrowing import LOAN
from tests.support.deals import BUYER, SELLER
from tests.support.fleets import FACTS, Fleet, fleet_on, instance_on
from tests.support.waiting import eventually

SETTINGS = MarketSettings(drain_s=60.0, peer_silence_s=120.0)
NODE = NodeId("borrowed-c1")
BACK = NodeId("behind the door")
MEMBER = Member(NODE, "boaster", "everywhere", address="198.51.100.7:1326", memory=10**6, cpus=10**6)
QUICK = Backoff(first_s=0.001, cap_s=0.01)


class FakeLandlord:
    """A provider with one contract, and a guest behind its door."""

    def __init__(self, ends_at: float) -> None:
        self.now = Standing(ends_at, cell="running")
        self.is_down = False
        self.refusal: errors.SkerryError | None = None
        self.released: list[str] = []
        self.doors = 0
        self.credentials: set[str] = set()
        self.tunnels: list[OpenTunnel] = []
        self.play: Callable[[End], Any] | None = None
        self.guest: LinkConnection | None = None
        self.welcome: Welcome | None = None
        self.heard: list[Down] = []
        self._told: Callable[[Standing], None] | None = None
        self._guests: list[asyncio.Future[None]] = []

    def _check(self) -> None:
        if self.is_down:
            raise errors.Unavailable("peer north cannot be reached")

    async def purchase(self, hold: HoldId) -> Bought:
        self._check()
        return Bought("c1", b"", f"{hold}.secret")

    async def standing(self, contract: ContractId) -> Standing:
        self._check()
        return self.now

    async def release(self, contract: str) -> None:
        self._check()
        self.released.append(contract)

    @asynccontextmanager
    async def door(
        self, contract: ContractId, credential: str, told: Callable[[Standing], None]
    ) -> AsyncIterator[End]:
        self._check()
        if self.refusal is not None:
            raise self.refusal
        self.credentials.add(credential)
        behind = Tunnels()
        async with behind.open(BACK, lambda id: self._come(behind, id)) as end:
            self.doors += 1
            self._told = told
            told(self.now)
            yield end

    @asynccontextmanager
    async def tunnel(self, contract: ContractId, credential: str, tunnel: OpenTunnel) -> AsyncIterator[End]:
        self.tunnels.append(tunnel)
        self._check()
        far = Tunnels()
        async with far.open(BACK, lambda id: self._guests.append(self._dial(far, id))) as end:
            yield end

    def _dial(self, far: Tunnels, id: str) -> asyncio.Future[None]:
        async def dial() -> None:
            async with far.dialled(BACK, id) as end:
                assert self.play is not None
                await self.play(end)

        return asyncio.ensure_future(dial())

    def _come(self, behind: Tunnels, id: str) -> None:
        self._guests.append(asyncio.ensure_future(self._live(behind, id)))

    async def _live(self, behind: Tunnels, id: str) -> None:
        """Be a guest: a node that says more of itself than it should."""
        async with behind.dialled(BACK, id) as end:
            guest = LinkConnection(end)
            boast = Hello(
                "boaster", FACTS, Room(10**6, 10**6, 10**6), {"zone": "gold"}, "10.9.9.0/24", MEMBER
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
        await give_up(guests)


class World:
    """A server that borrows one contract."""

    def __init__(self, fleet: Fleet, landlord: FakeLandlord) -> None:
        self.fleet = fleet
        self.clock = fleet.clock
        self.landlord = landlord
        self.instances = FakeInstances(fleet.mirror)
        self.sessions = Sessions(fleet.nodes, self.instances, FleetSettings())
        events = EventLog(fleet.store, fleet.clock, EventSettings())
        self.loans = Loans(fleet.store, events)
        self.peers = Peers(fleet.store, events, own=BUYER.cloud)
        self.is_leading = True
        self.borrower = Borrower(
            self.loans,
            self.peers,
            lambda peer: landlord,
            self.sessions,
            fleet.nodes,
            fleet.clock,
            SETTINGS,
            is_leading=lambda: self.is_leading,
            backoff=QUICK,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        loops = [asyncio.ensure_future(part.run()) for part in (self.loans, self.peers)]
        try:
            await self.loans.ready()
            await self.peers.ready()
            yield self
        finally:
            await self.borrower.let_go()
            await self.landlord.hang_up()
            await give_up(loops)

    async def borrow(self) -> None:
        now = self.clock.now()
        await self.peers.put(Peer("north", "http://north.example", SELLER.cloud), actor="ed")
        deal = Deal("d1", "north", FlavorId("f"), LOAN.borrowed.room, 1, now, now + 20)
        await self.loans.begin(deal)
        await self.loans.keep(deal, LOAN)

    async def until(self, condition: Callable[[], Any]) -> Any:
        """Look again and again, as the borrower does by itself, until this is so."""

        async def look() -> Any:
            await self.borrower.tend()
            return condition()

        return await eventually(look, what="the borrower to come to it")

    async def opened(self) -> None:
        await self.until(lambda: self.loan.borrowed.state is State.OPEN)

    @property
    def loan(self) -> Loan:
        return self.loans.get("c1")

    @property
    def is_registered(self) -> bool:
        return self.fleet.nodes.standing(NODE) is not None

    def told(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.landlord.heard if isinstance(message, kind)]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    clock = ManualClock()
    store = MemoryStore(clock)
    async with (
        fleet_on(store, clock) as fleet,
        World(fleet, FakeLandlord(LOAN.borrowed.ends_at)).running() as made,
    ):
        await made.borrow()
        yield made
    await store.close()


async def test_a_contract_becomes_a_node_that_is_what_we_say_and_not_what_it_says() -> None:
    async with world() as made:
        await made.opened()
        node = made.fleet.nodes.get(NODE)
        assert (node.name, node.room, node.facts) == ("north-c1", LOAN.borrowed.taken, FACTS)
        assert node.labels == {"skerry.borrowed": "north", "skerry.contract": "c1"}
        assert node.subnet != "10.9.9.0/24"
        assert node.member is None
        assert made.landlord.credentials == {"h1.secret"}
        standing = made.fleet.nodes.standing(NODE)
        assert standing is not None
        assert standing.view.is_borrowed
        assert (
            standing.view.room == LOAN.borrowed.taken
        )  # nothing is kept back for a machine that is not ours
        assert made.landlord.guest is not None
        await made.landlord.guest.changed(Hello("again", FACTS, Room(10**6, 10**6, 10**6), member=MEMBER))
        await made.landlord.guest.report(Reports(1))
        await eventually(lambda: made.told(Acknowledged))
        assert made.fleet.nodes.get(NODE) == node


async def test_orders_arrive_and_the_whereabouts_of_servers_do_not() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        await eventually(
            lambda: any(order.instance == "one" for orders in made.told(Orders) for order in orders.orders)
        )
        made.sessions._sessions[NODE].tell_servers(("192.0.2.1:1324",))
        await made.fleet.bind(instance_on(NODE, "two"))
        await eventually(
            lambda: any(order.instance == "two" for orders in made.told(Orders) for order in orders.orders)
        )
        assert made.told(Servers) == []


async def test_tunnels_go_to_the_provider_and_not_to_the_node() -> None:
    async with world() as made:
        await made.opened()

        async def echo(end: End) -> None:
            while (frame := await end.receive()) is not None:
                await end.send(frame.upper())
            await end.end()

        made.landlord.play = echo
        async with made.sessions.open_tunnel(NODE, InstanceId("one"), LogsAsk(tail=3)) as near:
            await near.send(b"hello")
            assert await near.receive() == b"HELLO"
            await near.end()
            assert await near.receive() is None
        (asked,) = made.landlord.tunnels
        assert (asked.instance, asked.ask) == ("one", LogsAsk(tail=3))
        assert made.told(OpenTunnel) == []

        async def fail(end: End) -> None:
            await end.fail(errors.NotFound("there is no such instance"))

        made.landlord.play = fail
        async with made.sessions.open_tunnel(NODE, InstanceId("none"), LogsAsk()) as near:
            with pytest.raises(errors.NotFound, match="no such instance"):
                await near.receive()
        made.landlord.is_down = True
        async with made.sessions.open_tunnel(NODE, InstanceId("one"), LogsAsk()) as near:
            with pytest.raises(errors.Unavailable, match="cannot be reached"):
                await near.receive()


async def test_a_door_that_is_shut_is_opened_again_and_it_is_the_same_node() -> None:
    async with world() as made:
        await made.opened()
        await made.landlord.hang_up()
        await made.until(lambda: made.landlord.doors >= 2)
        await eventually(lambda: NODE in made.sessions._sessions)
        assert made.loan.borrowed.state is State.OPEN
        assert len(await made.fleet.events("node.registered")) == 1


async def test_what_is_taken_back_is_drained_and_released_when_it_is_empty() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        notice = made.clock.now() + 120
        made.landlord.tell(reclaim_at=notice, reason="repairs")
        await made.until(lambda: made.fleet.nodes.get(NODE).drain_by == notice)
        assert made.loan.borrowed.state is State.DRAINING
        assert made.landlord.released == []
        await remove(made.fleet, "one")
        await made.until(lambda: made.loan.is_done)
        assert made.landlord.released == ["c1"]
        assert made.loan.borrowed.reason == "taken back: repairs"
        assert not made.is_registered


async def remove(fleet: Fleet, id: str) -> None:
    revision = await fleet.store.commit([Delete(f"instance/{id}")])
    await fleet.mirror.seen(revision)


async def test_what_we_give_back_is_drained_and_released() -> None:
    async with world() as made:
        await made.opened()
        by = made.clock.now() + 60
        await made.loans.change(ContractId("c1"), lambda loan: borrowing.leave(loan, by), actor="ann")
        await made.until(lambda: made.loan.is_done)
        assert (made.landlord.released, made.is_registered) == (["c1"], False)
        assert made.loan.borrowed.reason == "given back"
        assert made.borrower._doors == {}  # or its node would register again


async def test_a_silent_provider_is_given_up_with_its_work_and_told_when_it_is_back() -> None:
    async with world() as made:
        await made.opened()
        await made.fleet.bind(instance_on(NODE, "one"))
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: NODE not in made.sessions._sessions)
        made.clock.advance(119 - UNNOTICED_S)
        await made.borrower.tend()
        assert not made.loan.is_over
        made.clock.advance(2 + UNNOTICED_S)
        await made.until(lambda: made.loan.is_over)
        await made.until(lambda: not made.is_registered)
        assert made.loan.borrowed.reason == "nothing was heard of its provider for 120 s"
        assert not made.loan.is_done
        made.landlord.is_down = False
        await made.until(lambda: made.loan.is_done)
        assert made.landlord.released == ["c1"]


async def test_silence_counts_from_the_last_word_and_not_from_when_it_was_noticed() -> None:
    async with world() as made:
        await made.opened()
        door, _ = made.borrower._doors[ContractId("c1")]
        made.clock.advance(100)
        assert door.silent_s == 0
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: door.silent_s)
        assert door.silent_s == UNNOTICED_S
        made.clock.advance(120 - UNNOTICED_S)
        await made.until(lambda: made.loan.is_over)


async def test_a_release_that_could_not_be_told_is_forgotten_at_the_contracts_end() -> None:
    async with world() as made:
        await made.opened()
        made.landlord.is_down = True
        await made.landlord.hang_up()
        await eventually(lambda: NODE not in made.sessions._sessions)
        made.clock.advance(200)
        await made.until(lambda: made.loan.is_over)
        made.clock.advance(3600)
        await made.until(lambda: made.loan.is_done)
        assert made.landlord.released == []


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_contract_that_ended_while_nobody_was_at_the_door_is_over(is_forgotten: bool) -> None:
    async with world() as made:
        made.landlord.refusal = errors.Expired("this contract has been released")
        made.landlord.now = replace(made.landlord.now, ended="released")
        if is_forgotten:

            async def forgotten(contract: ContractId) -> Standing:
                raise errors.NotFound("there is no such contract")

            made.landlord.standing = forgotten
        await made.until(lambda: made.loan.is_done)
        assert (made.landlord.released, made.is_registered) == ([], False)


async def test_a_cell_that_is_not_made_in_time_is_given_back_with_the_reason() -> None:
    async with world() as made:
        made.landlord.refusal = errors.Unavailable("peer north: its cell is scheduling (no node has room)")
        await made.borrower.tend()
        await eventually(lambda: made.borrower._doors[ContractId("c1")][0].trouble)
        made.clock.advance(21)
        await made.until(lambda: made.loan.is_done)
        assert "did not open in time: peer north: its cell is scheduling" in made.loan.borrowed.reason
        assert made.landlord.released == ["c1"]


async def test_another_server_that_leads_takes_over() -> None:
    async with world() as made:
        await made.opened()
        async with (
            fleet_on(made.fleet.store, made.clock, server="http://two:8080") as fleet,
            World(fleet, made.landlord).running() as other,
        ):
            made.is_leading = False
            await made.borrower.tend()
            await eventually(lambda: NODE not in made.sessions._sessions)
            await other.until(lambda: NODE in other.sessions._sessions)
            assert other.loan.borrowed.state is State.OPEN
            assert len(await fleet.events("node.registered")) == 1
            by = made.clock.now()
            await other.loans.change(ContractId("c1"), lambda loan: borrowing.leave(loan, by), actor="ann")
            await other.until(lambda: other.loan.is_done)


async def test_it_runs_by_itself() -> None:
    async with world() as made:
        running = asyncio.ensure_future(made.borrower.run())
        await eventually(lambda: made.loan.borrowed.state is State.OPEN)
        assert made.fleet.nodes.get(NODE).status is NodeStatus.READY
        made.landlord.tell(ended="withdrawn", reason="repairs")
        await eventually(lambda: made.loan.is_done and not made.is_registered)
        await give_up([running])


async def test_a_provider_that_has_news_without_end_is_listened_to_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.wire.rear.borrowing._PAUSE_S", 0.1)
    looks: list[float] = []
    async with world() as made:
        running = asyncio.ensure_future(made.borrower.run())
        await eventually(lambda: made.loan.borrowed.state is State.OPEN)
        trim = made.loans.trim

        async def look(most: int) -> None:
            looks.append(asyncio.get_running_loop().time())
            await trim(most)

        monkeypatch.setattr(made.loans, "trim", look)
        numbers = iter(range(10**9))

        def nag() -> bool:
            made.landlord.tell(reason=f"repairs {next(numbers)}")
            return len(looks) >= 4

        await eventually(nag)
        await give_up([running])
    assert all(later - before >= 0.1 for before, later in itertools.pairwise(looks))
