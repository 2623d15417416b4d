"""A provider: a market and a control plane on one store, put together as a server does, with nodes that are
only standings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.daemon import lending
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import Keeper
from skerry.market.lending import NAMESPACE, cell_of, spec_of
from skerry.model import errors
from skerry.model.ids import ContractId, FlavorId, InstanceId, NodeId
from skerry.model.market import Contract
from skerry.model.nodes import Liveness
from skerry.model.room import Millicores, Room
from skerry.model.statuses import Desired, Status
from skerry.model.workloads import Instance, Kind
from skerry.schedule.asks import NodeView
from skerry.store.memory import MemoryStore
from tests.control.worlds import Server, Standings, held, instance, spec, standing
from tests.market.markets import ANN, PROVIDER, Market, market, room
from tests.support.waiting import eventually
from tests.wire.rear.nouns import ACCOUNT, CONTRACT
from tests.wire.rear.test_doors import Ways

FLAVOR = FlavorId("node-n")
KEY: Any = SimpleNamespace(cloud=PROVIDER, derive=lambda use: use)  # what a test needs of one
SELLING: dict[str, Any] = {"sell_percent": 50, "sell_memory_min": 0, "sell_memory_step": 0, "sell_cpu_min": 0}


def machine(name: str, cores: int = 8, **more: Any) -> Any:
    one = standing(name, cores * 1000, **more)
    return replace(one, view=replace(one.view, architecture="amd64"))


@dataclass
class Provider:
    market: Market
    server: Server
    nodes: Standings

    def cell(self, id: ContractId) -> Instance | None:
        known = self.server.mirror.census.get(cell_of(id))
        return None if known is None else known.value

    def offered(self, id: FlavorId = FLAVOR) -> int:
        """Cores that can be bought now."""
        try:
            account = self.market.ledger.flavor(id)
        except errors.NotFound:
            return 0
        return account.free.cpu // 1000 if account.withdrawn is None else 0

    async def offers(self, cores: int, id: FlavorId = FLAVOR) -> None:
        await eventually(lambda: self.offered(id) == cores, what=f"{cores} cores of {id} are offered")

    async def buy(self, cores: int) -> Contract:
        hold = await self.market.ledger.reserve(ANN, FLAVOR, room=Room(room(cores).cpu))
        return (await self.market.ledger.purchase(hold.id, ANN)).contract

    async def lent(self, contract: Contract) -> Instance:
        """Wait until the contract's cell is placed; its node then makes it at once."""
        await self.server.becomes(cell_of(contract.id), Status.SCHEDULED)
        found = self.cell(contract.id)
        assert found is not None
        assert found.node is not None
        await self.server.obey(found.node)
        return found


@asynccontextmanager
async def providing(*nodes: Any, **settings: Any) -> AsyncIterator[Provider]:
    clock = ManualClock()
    store = MemoryStore(clock)
    standings = Standings(nodes)
    try:
        async with (
            market(store=store, clock=clock, **{**SELLING, **settings}) as m,
            Server(store, standings, clock).running() as server,
            Keeper("provider", clock=clock) as loops,
        ):
            lending.start(
                store,
                m.ledger,
                clock,
                m.settings,
                key=KEY,
                mirror=server.mirror,
                instances=server.instances,
                standings=standings,
                reconciler=server.reconciler,
                ways=Ways(),
                is_leading=lambda: server.leader.is_leading,
                name="skerry.example",
                url="https://skerry.example",
                loops=loops,
            )
            yield Provider(m, server, standings)
    finally:
        await store.close()


async def test_a_contract_is_a_cell_on_the_node_that_it_was_carved_from() -> None:
    async with providing(machine("m", 3), machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.lent(contract)
        assert (cell.node, cell.namespace, cell.spec.kind) == ("n", NAMESPACE, Kind.CELL)
        assert (cell.spec.room, cell.spec.uri) == (contract.taken, f"contract:{contract.id}")
        assert cell.spec.architecture == "amd64"
        await p.server.becomes(cell.id, Status.RUNNING)
        assert p.offered() == 2, "it is counted as sold, and not as used as well"
        await p.market.ledger.release(contract.id, ANN)
        await eventually(lambda: (one := p.cell(contract.id)) is None or one.desired is Desired.DESTROYED)
        await p.server.obey("n")
        await p.server.becomes(cell.id, None)
        await p.offers(4)


async def test_what_an_operator_destroys_is_made_again_and_what_it_stops_is_started() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.lent(contract)
        await p.server.becomes(cell.id, Status.RUNNING)
        await p.server.instances.stop(cell.id, actor="ed")
        await eventually(lambda: (one := p.cell(contract.id)) is not None and one.desired is Desired.RUNNING)
        await p.server.instances.destroy(cell.id, actor="ed")
        await p.server.obey("n")
        again = await p.lent(contract)
        assert again.generation > cell.generation
        assert again.node == "n"


async def test_a_cell_that_failed_is_shown_for_a_while_and_then_made_again() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = cell_of(contract.id)
        await p.server.becomes(cell, Status.SCHEDULED)
        await p.server.say(cell, Status.STARTING, Status.FAILED, reason="no cgroups")
        estate = lending.Cells(p.server.instances, p.server.mirror, p.market.clock)
        await estate.lend(contract)
        assert p.server.status(cell) is Status.FAILED
        p.market.clock.advance(10)
        await estate.lend(contract)
        await p.server.obey("n")
        await p.lent(contract)


async def test_the_cell_of_a_node_that_is_lost_moves_to_another() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.lent(contract)
        p.nodes.put(machine("m"))
        p.nodes.put(machine("n", liveness=Liveness.LOST))
        await eventually(lambda: (one := p.cell(contract.id)) is not None and one.node == "m")
        await p.server.becomes(cell.id, Status.SCHEDULED)
        await p.offers(4, FlavorId("node-m"))  # of eight cores two are used by it
        p.nodes.put(machine("m", 4))
        await p.offers(2, FlavorId("node-m"))


async def test_room_that_is_held_or_sold_is_not_given_to_our_own() -> None:
    async with providing(machine("n", 4), sell_percent=100) as p:
        await p.offers(4)
        hold = await p.market.ledger.reserve(ANN, FLAVOR, room=Room(room(3).cpu))
        ours, _ = await p.server.instances.create(spec(cpu=2000), actor="test")
        small, _ = await p.server.instances.create(spec(cpu=1000), actor="test")
        await p.server.becomes(small.id, Status.SCHEDULED)
        assert p.server.status(ours.id) is Status.SCHEDULING
        contract = (await p.market.ledger.purchase(hold.id, ANN)).contract
        cell = await p.lent(contract)
        assert cell.node == "n"
        assert p.server.status(ours.id) is Status.SCHEDULING
        await p.market.ledger.release(contract.id, ANN)
        await eventually(lambda: (one := p.cell(contract.id)) is None or one.desired is Desired.DESTROYED)
        await p.server.obey("n")
        await p.server.becomes(ours.id, Status.SCHEDULED)


async def test_an_offer_shrinks_as_its_node_fills_up_drains_falls_silent_or_is_cordoned() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        for id in ("one", "two"):
            await p.server.instances.create(spec(cpu=3000), actor="test", id=id)
        await p.offers(2)
        await p.server.instances.destroy("one", actor="test")
        await p.server.obey("n")
        await p.offers(4)
        for why in ({"drain_by": 1.0e9}, {"why_not": "is cordoned"}, {"liveness": Liveness.SUSPECT}):
            p.nodes.put(machine("n", **why))
            await p.offers(0)
            p.nodes.put(machine("n"))
            await p.offers(4)


async def test_a_node_that_is_gone_has_its_contracts_taken_back_with_notice() -> None:
    async with providing(machine("n"), notice_s=120.0) as p:
        await p.offers(4)
        contract = await p.buy(1)
        p.nodes.remove("n")
        ledger = p.market.ledger
        await eventually(lambda: ledger.contract(contract.id).contract.reclaim_at is not None)
        assert ledger.flavor(FLAVOR).withdrawn is not None


async def test_a_cell_whose_contract_is_over_takes_room_until_it_is_gone() -> None:
    async with providing(machine("n", 4), sell_percent=100) as p:
        await p.offers(4)
        contract = await p.buy(3)
        cell = await p.lent(contract)
        await p.market.ledger.release(contract.id, ANN)
        await p.offers(1)
        await p.server.obey("n")
        await p.server.becomes(cell.id, None)
        await p.offers(4)


async def test_a_borrowed_node_is_not_offered_on() -> None:
    borrowed = machine("n")
    borrowed = replace(borrowed, view=replace(borrowed.view, is_borrowed=True))
    async with providing(borrowed, machine("m")) as p:
        await p.offers(4, FlavorId("node-m"))
        assert p.offered() == 0


def test_what_is_used_of_a_node_is_all_but_the_cells_of_its_own_contracts() -> None:
    view = NodeView(NodeId("n"), room(8, 8000), architecture="arm64", labels={"zone": "a"})
    own, other = CONTRACT, replace(CONTRACT, id=ContractId("c-2"))
    cells = [instance(cell_of(one.id), node="n", what=spec_of(one)) for one in (own, other)]
    leaving = instance("leaving", Status.RUNNING, node="n", what=spec(cpu=10), leaving=spec(cpu=300))
    over = instance("over", Status.FAILED, node="n", what=spec(cpu=5000))
    there = map(held, (*cells, leaving, over))
    stands = replace(standing("n"), view=view, machine=room(9, 9000))
    supply = lending.supply_of(stands, there, [own])
    assert supply.machine == room(9, 9000)
    assert supply.used == other.taken + Room(Millicores(300))
    assert (supply.room, supply.architecture, supply.labels) == (view.room, "arm64", {"zone": "a"})


async def test_a_price_that_is_none_is_said_at_the_start() -> None:
    with pytest.raises(errors.Invalid, match="sell_price"):
        async with providing(machine("n"), sell_price="cheap"):
            pass


def test_promises_name_the_cells_of_contracts_and_what_is_held_together() -> None:
    assert lending.promised(ACCOUNT, [CONTRACT]) == {
        InstanceId("contract-c-1"): CONTRACT.taken,
        InstanceId("f-1+held"): ACCOUNT.held,
    }
