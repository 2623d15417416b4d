"""A provider: a market and a control plane on one store, put together as a server does, with nodes that are
only conditions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.control.volumes.table import VolumeTable
from skerry.daemon.market import start_provider
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import TaskSupervisor
from skerry.market.provider import contract_cell_controller, node_capacity
from skerry.market.provider.contract_cells import NAMESPACE, cell_id_for, cell_spec_for
from skerry.model import errors
from skerry.model.callers import MARKET
from skerry.model.ids import ContractId, InstanceId, NodeId, OfferId
from skerry.model.market import Contract, Hold, Partition
from skerry.model.nodes import Liveness
from skerry.model.resources import Millicores, Resources
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, WorkloadKind
from skerry.schedule.requests import NodeView
from skerry.store.fencing import LeadershipLost
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Expect, Put
from tests.control.worlds import Server, Standings, condition, held, instance, spec
from tests.market.markets import ANN, PROVIDER, Market, flavor, market, resources
from tests.support.waiting import eventually
from tests.wire.rear.nouns import ACCOUNT, CONTRACT
from tests.wire.rear.test_tunnel_server import Ways

FLAVOR = OfferId("node-n")
KEY: Any = SimpleNamespace(cloud=PROVIDER, derive=lambda use: use)  # what a test needs of one
SELLING: dict[str, Any] = {"sell_percent": 50, "sell_memory_min": 0, "sell_memory_step": 0, "sell_cpu_min": 0}


def machine(name: str, cores: int = 8, **more: Any) -> Any:
    one = condition(name, cores * 1000, **more)
    return replace(one, view=replace(one.view, architecture="amd64"))


@dataclass
class Provider:
    market: Market
    server: Server
    nodes: Standings

    def cell(self, id: ContractId) -> Instance | None:
        known = self.server.instance_table.index.get(cell_id_for(id))
        return None if known is None else known.value

    def offered(self, id: OfferId = FLAVOR) -> int:
        """Cores that can be bought now."""
        try:
            account = self.market.ledger.flavor(id)
        except errors.NotFound:
            return 0
        return account.free.cpu // 1000 if account.withdrawn is None else 0

    async def offers(self, cores: int, id: OfferId = FLAVOR) -> None:
        await eventually(lambda: self.offered(id) == cores, what=f"{cores} cores of {id} are offered")

    async def buy(self, cores: int) -> Contract:
        hold = await self.market.ledger.reserve(ANN, FLAVOR, resources=Resources(resources(cores).cpu))
        return (await self.market.ledger.purchase(hold.id, ANN)).contract

    async def leased(self, contract: Contract) -> Instance:
        """Wait until the contract's cell is placed; its node then makes it at once."""
        await self.server.becomes(cell_id_for(contract.id), InstanceStatus.SCHEDULED)
        found = self.cell(contract.id)
        assert found is not None
        assert found.node is not None
        await self.server.obey(found.node)
        return found


@asynccontextmanager
async def providing(*nodes: Any, **settings: Any) -> AsyncIterator[Provider]:
    clock = ManualClock()
    store = MemoryStore(clock)
    conditions = Standings(nodes)
    try:
        async with (
            market(store=store, clock=clock, **{**SELLING, **settings}) as m,
            Server(store, conditions, clock).running() as server,
            TaskSupervisor("provider", clock=clock) as loops,
        ):
            volumes = VolumeTable(store)
            loops.forever("volumes", volumes.run)
            await volumes.ready()
            # As much of both as is needed.
            base: Any = SimpleNamespace(
                store=store, clock=clock, loops=loops, settings=SimpleNamespace(market=m.settings)
            )
            fleet: Any = SimpleNamespace(
                instance_table=server.instance_table,
                instances=server.instances,
                nodes=conditions,
                reconciler=server.reconciler,
                tunnels=Ways(),
                leader=server.leader,
                volumes=SimpleNamespace(table=volumes),
            )
            start_provider(base, fleet, m.ledger, KEY, name="skerry.example", url="https://skerry.example")
            yield Provider(m, server, conditions)
    finally:
        await store.close()


async def test_a_contract_is_a_cell_on_the_node_that_it_was_carved_from() -> None:
    async with providing(machine("m", 3), machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.leased(contract)
        assert (cell.node, cell.namespace, cell.spec.kind) == ("n", NAMESPACE, WorkloadKind.CELL)
        assert (cell.spec.resources, cell.spec.uri) == (contract.taken, f"contract:{contract.id}")
        assert cell.spec.architecture == "amd64"
        await p.server.becomes(cell.id, InstanceStatus.RUNNING)
        assert p.offered() == 2, "it is counted as sold, and not as used as well"
        await p.market.ledger.release(contract.id, ANN)
        await eventually(
            lambda: (one := p.cell(contract.id)) is None or one.desired is DesiredStatus.DESTROYED
        )
        await p.server.obey("n")
        await p.server.becomes(cell.id, None)
        await p.offers(4)


async def test_a_contract_that_nobody_opens_ends_its_cell_goes_and_its_room_is_offered_again() -> None:
    async with providing(machine("n"), open_s=0.2) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.leased(contract)
        await p.server.becomes(cell.id, InstanceStatus.RUNNING)
        assert p.offered() == 2

        def is_ended() -> bool:
            p.market.clock.advance(0.1)
            return p.market.ledger.contract(contract.id).contract.ending is not None

        await eventually(is_ended)
        assert p.market.ledger.contract(contract.id).contract.reason.startswith("its buyer did not open it")
        await eventually(
            lambda: (one := p.cell(contract.id)) is None or one.desired is DesiredStatus.DESTROYED
        )
        await p.server.obey("n")
        await p.server.becomes(cell.id, None)
        await p.offers(4)


async def test_nobody_else_stops_or_destroys_a_cell_and_one_that_goes_all_the_same_is_made_again() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.leased(contract)
        await p.server.becomes(cell.id, InstanceStatus.RUNNING)
        for change in (p.server.instances.stop, p.server.instances.destroy):
            with pytest.raises(errors.Forbidden, match="skerry market reclaim"):
                await change(cell.id, actor="ed")
        await p.server.instances.stop(cell.id, actor=MARKET)
        await eventually(
            lambda: (one := p.cell(contract.id)) is not None and one.desired is DesiredStatus.RUNNING
        )
        await p.server.instances.destroy(cell.id, actor=MARKET)
        await p.server.obey("n")
        again = await p.leased(contract)
        assert again.generation > cell.generation
        assert again.node == "n"


async def test_a_cell_that_failed_is_shown_for_a_while_and_then_made_again() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = cell_id_for(contract.id)
        await p.server.becomes(cell, InstanceStatus.SCHEDULED)
        await p.server.say(cell, InstanceStatus.STARTING, InstanceStatus.FAILED, reason="no cgroups")
        cells = contract_cell_controller.ContractCells(
            p.server.instances, p.server.instance_table, p.market.clock
        )
        await cells.ensure(contract, None)
        assert p.server.status(cell) is InstanceStatus.FAILED
        p.market.clock.advance(10)
        await cells.ensure(contract, None)
        await p.server.obey("n")
        await p.leased(contract)


async def test_a_server_that_no_longer_leads_makes_and_removes_no_cell() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.leased(contract)
        store = p.market.store
        stale = Expect("other-leader", await store.commit([Put("other-leader", b"here")]))
        await store.commit([Put("other-leader", b"there")])
        cells = contract_cell_controller.ContractCells(
            p.server.instances, p.server.instance_table, p.market.clock
        )
        with pytest.raises(LeadershipLost):
            await cells.remove(contract.id, stale)
        with pytest.raises(LeadershipLost):
            await cells.ensure(replace(contract, id=ContractId("another")), stale)
        assert list(cells.leased()) == [contract.id]
        known = p.server.instance_table.index.get(cell.id)
        assert known is not None
        assert known.value.desired is DesiredStatus.RUNNING


async def test_the_cell_of_a_node_that_is_lost_moves_to_another() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        contract = await p.buy(2)
        cell = await p.leased(contract)
        p.nodes.put(machine("m"))
        p.nodes.put(machine("n", liveness=Liveness.LOST))
        await eventually(lambda: (one := p.cell(contract.id)) is not None and one.node == "m")
        await p.server.becomes(cell.id, InstanceStatus.SCHEDULED)
        await p.offers(4, OfferId("node-m"))  # of eight cores two are used by it
        p.nodes.put(machine("m", 4))
        await p.offers(2, OfferId("node-m"))


async def test_room_that_is_held_or_sold_is_not_given_to_our_own() -> None:
    async with providing(machine("n", 4), sell_percent=100) as p:
        await p.offers(4)
        hold = await p.market.ledger.reserve(ANN, FLAVOR, resources=Resources(resources(3).cpu))
        ours, _ = await p.server.instances.create(spec(cpu=2000), actor="test")
        small, _ = await p.server.instances.create(spec(cpu=1000), actor="test")
        await p.server.becomes(small.id, InstanceStatus.SCHEDULED)
        assert p.server.status(ours.id) is InstanceStatus.SCHEDULING
        contract = (await p.market.ledger.purchase(hold.id, ANN)).contract
        cell = await p.leased(contract)
        assert cell.node == "n"
        assert p.server.status(ours.id) is InstanceStatus.SCHEDULING
        await p.market.ledger.release(contract.id, ANN)
        await eventually(
            lambda: (one := p.cell(contract.id)) is None or one.desired is DesiredStatus.DESTROYED
        )
        await p.server.obey("n")
        await p.server.becomes(ours.id, InstanceStatus.SCHEDULED)


async def test_an_offer_shrinks_as_its_node_fills_up_drains_falls_silent_or_is_cordoned() -> None:
    async with providing(machine("n")) as p:
        await p.offers(4)
        for id in ("one", "two"):
            await p.server.instances.create(spec(cpu=3000), actor="test", id=id)
        await p.offers(2)
        await p.server.instances.destroy("one", actor="test")
        await p.server.obey("n")
        await p.offers(4)
        for why in (
            {"drain_by": 1.0e9},
            {"unschedulable_reason": "is cordoned"},
            {"liveness": Liveness.SUSPECT},
        ):
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
        cell = await p.leased(contract)
        await p.market.ledger.release(contract.id, ANN)
        await p.offers(1)
        await p.server.obey("n")
        await p.server.becomes(cell.id, None)
        await p.offers(4)


async def test_a_borrowed_node_is_not_offered_on() -> None:
    borrowed = machine("n")
    borrowed = replace(borrowed, view=replace(borrowed.view, is_borrowed=True))
    async with providing(borrowed, machine("m")) as p:
        await p.offers(4, OfferId("node-m"))
        assert p.offered() == 0


def test_what_is_used_of_a_node_is_all_but_the_cells_of_its_own_contracts() -> None:
    view = NodeView(NodeId("n"), resources(8, 8000), architecture="arm64", labels={"zone": "a"})
    own, other = CONTRACT, replace(CONTRACT, id=ContractId("c-2"))
    cells = [instance(cell_id_for(one.id), node="n", what=cell_spec_for(one)) for one in (own, other)]
    leaving = instance("leaving", InstanceStatus.RUNNING, node="n", what=spec(cpu=10), leaving=spec(cpu=300))
    over = instance("over", InstanceStatus.FAILED, node="n", what=spec(cpu=5000))
    there = map(held, (*cells, leaving, over))
    stands = replace(condition("n"), view=view, machine=resources(9, 9000))
    supply = node_capacity.supply_of(stands, there, [own])
    assert supply.machine == resources(9, 9000)
    assert supply.used == other.taken + Resources(Millicores(300))
    assert (supply.resources, supply.architecture, supply.labels) == (view.resources, "arm64", {"zone": "a"})


async def test_a_price_that_is_none_is_said_at_the_start() -> None:
    with pytest.raises(errors.Invalid, match="sell_price"):
        async with providing(machine("n"), sell_price="cheap"):
            pass


def test_promises_name_the_cells_of_contracts_and_what_is_held_together() -> None:
    assert node_capacity.reserved_resources(ACCOUNT, [CONTRACT]) == {
        InstanceId("contract-c-1"): CONTRACT.taken,
        InstanceId("f-1+held"): ACCOUNT.held,
    }


def by_hand(cores: int = 64, id: str = "loose") -> Any:
    core = Resources(resources(1).cpu)
    return flavor(id=OfferId(id), resources=core * cores, partition=Partition(core, core))


async def test_an_offer_by_hand_is_sold_as_far_as_nodes_that_take_work_have_it_free() -> None:
    nodes = (machine("n", 8), machine("m", 8))
    async with providing(*nodes, sell_percent=0) as it:
        await it.market.ledger.publish(by_hand(), actor="ed")

        async def hold(cores: int) -> Any:
            return await it.market.ledger.reserve(
                ANN, OfferId("loose"), resources=Resources(resources(cores).cpu)
            )

        first = await hold(6)
        await hold(6)
        with pytest.raises(errors.ResourcesExhausted, match="no node of this provider has 4 cores"):
            await hold(4)  # four cores are free, and on no node
        contract = (await it.market.ledger.purchase(first.id, ANN)).contract
        with pytest.raises(errors.ResourcesExhausted):
            await hold(3)  # what is sold and on no node yet counts too
        await it.leased(contract)
        with pytest.raises(errors.ResourcesExhausted):
            await hold(3)
        await hold(2)


async def test_what_is_held_of_a_nodes_own_offer_is_not_sold_by_hand_as_well() -> None:
    async with providing(machine("n", 8)) as it:
        await it.offers(4)
        await it.market.ledger.publish(by_hand(), actor="ed")
        await it.market.ledger.reserve(ANN, FLAVOR, resources=Resources(resources(4).cpu))
        with pytest.raises(errors.ResourcesExhausted, match="no node of this provider"):
            await it.market.ledger.reserve(ANN, OfferId("loose"), resources=Resources(resources(5).cpu))
        await it.market.ledger.reserve(ANN, OfferId("loose"), resources=Resources(resources(4).cpu))


async def test_while_no_node_takes_work_a_buyer_is_refused_at_once() -> None:
    async with providing(machine("n", 8), sell_percent=0) as it:
        await it.market.ledger.publish(by_hand(), actor="ed")
        one = machine("n", 8)
        it.nodes.put(
            replace(one, view=replace(one.view, is_schedulable=False, unschedulable_reason="is cordoned"))
        )
        with pytest.raises(errors.ResourcesExhausted, match="no node of this provider has 1 core"):
            await it.market.ledger.reserve(ANN, OfferId("loose"), resources=Resources(resources(1).cpu))
        it.nodes.put(one)
        await it.market.ledger.reserve(ANN, OfferId("loose"), resources=Resources(resources(1).cpu))


async def test_a_cloud_without_a_node_sells_nothing_and_says_so_at_once() -> None:
    one = machine("n", 8)
    borrowed = replace(one, view=replace(one.view, is_borrowed=True))
    foreign = replace(
        one, view=replace(one.view, is_schedulable=False), liveness=Liveness.LOST, is_foreign=True
    )
    async with providing(sell_percent=0) as it:
        await it.market.ledger.publish(by_hand(), actor="ed")

        async def hold() -> Hold:
            return await it.market.ledger.reserve(
                ANN, OfferId("loose"), resources=Resources(resources(1).cpu)
            )

        with pytest.raises(errors.ResourcesExhausted, match="it has no node"):
            await hold()
        for others in (borrowed, foreign):
            it.nodes.put(others)
            with pytest.raises(errors.ResourcesExhausted, match="it has no node"):
                await hold()
        it.nodes.put(one)
        assert (await hold()).ending is None


@pytest.mark.parametrize("offer", ["loose", "node-n"])
async def test_a_hold_is_honoured_whatever_has_become_of_the_nodes(offer: str) -> None:
    one = machine("n", 8)
    async with providing(one) as it:
        await it.offers(4)
        await it.market.ledger.publish(by_hand(), actor="ed")
        hold = await it.market.ledger.reserve(ANN, OfferId(offer), resources=Resources(resources(2).cpu))
        silent = replace(one, view=replace(one.view, is_schedulable=False), liveness=Liveness.SUSPECT)
        it.nodes.put(silent)
        with pytest.raises(errors.Unavailable, match="its nodes are silent; try again in a moment"):
            await it.market.ledger.reserve(ANN, OfferId("loose"), resources=Resources(resources(2).cpu))
        it.nodes.put(machine("m", 1))
        assert (await it.market.ledger.purchase(hold.id, ANN)).contract.hold == hold.id


def test_only_nodes_that_take_work_count_when_a_seller_is_warned() -> None:
    def changed(name: str, **more: Any) -> Any:
        one = machine(name, 8)
        return replace(one, view=replace(one.view, **more))

    nodes = [
        machine("own", 8),
        changed("borrowed", is_borrowed=True),
        changed("cordoned", is_schedulable=False, unschedulable_reason="is cordoned"),
        changed("lost", is_schedulable=False, unschedulable_reason="is lost"),
        changed("foreign", is_schedulable=False, unschedulable_reason="takes no orders"),
    ]
    assert [one.cpu for one in node_capacity.node_resources(Standings(nodes))] == [8000]
