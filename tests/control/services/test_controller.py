"""The leader's loop over services, on a store in memory, with nodes that do what they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from skerry.control.services import controller as controllers
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.requests import ServiceSpec
from skerry.control.services.tables import ServiceTables
from skerry.kit import tasks
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, NodeId
from skerry.model.nodes import Liveness
from skerry.model.services import Service, UpdatePolicy
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, OwnerKind
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.control.worlds import Server, Standings, condition, spec
from tests.support.waiting import eventually

QUICK = UpdatePolicy(min_ready_s=0.0, drain_s=0.0)


class ServiceServer(Server):
    """A server with services, and nodes that obey."""

    def __init__(self, store: Store, conditions: Standings, name: str = "a") -> None:
        super().__init__(store, conditions, SystemClock(), name)
        self.conditions = conditions
        self.tables = ServiceTables(store)
        self.registry = ServiceRegistry(
            store,
            self.events,
            self.clock,
            tables=self.tables,
            instance_table=self.instance_table,
            conditions=conditions,
            placement=self.reconciler,
        )
        self.controller = ServiceController(
            store,
            self.events,
            self.clock,
            tables=self.tables,
            instance_table=self.instance_table,
            conditions=conditions,
        )
        self.is_obeyed: Callable[[Instance], bool] = lambda instance: True

    @asynccontextmanager
    async def serving(self, *, leads: bool = True) -> AsyncIterator[ServiceServer]:
        async with self.running(leads=leads):
            loops = [asyncio.ensure_future(self.tables.run())]
            if leads:
                loops.append(asyncio.ensure_future(self.controller.run(self.leader)))
                loops.append(asyncio.ensure_future(self._obey()))
            try:
                await self.tables.ready()
                yield self
                for loop in loops:
                    if loop.done():
                        loop.result()
            finally:
                await tasks.cancel_and_wait(loops)

    async def _obey(self) -> None:
        changed = asyncio.Event()
        self.instance_table.listen(lambda before, after: changed.set())
        while True:
            changed.clear()
            for one in self.conditions.conditions():
                if one.liveness is not Liveness.LIVE:
                    continue
                for order in list(self.instances.orders(one.view.id)):
                    known = self.instance_table.index.get(order.instance)
                    if known is not None and self.is_obeyed(known.value):
                        await self.obey_one(order.instance)
            await changed.wait()

    async def obey_one(self, id: str) -> None:
        known = self.instance_table.index.get(id)
        if known is None or known.value.node is None:
            return
        status = known.value.observed.status
        if known.value.desired is DesiredStatus.DESTROYED or known.value.leaving is not None:
            await self.say(id, InstanceStatus.TERMINATED)
        elif status is InstanceStatus.SCHEDULED:
            await self.say(id, InstanceStatus.STARTING, InstanceStatus.RUNNING)
        elif status is InstanceStatus.STARTING:
            await self.say(id, InstanceStatus.RUNNING)

    def service(self) -> Service:
        record = self.tables.services.get("default/web")
        assert record is not None
        return record.value

    def copies(self) -> list[Instance]:
        return [record.value for record in self.instance_table.index if record.value.owner]

    def ready(self) -> list[Instance]:
        return [copy for copy in self.copies() if copy.is_ready]

    async def is_well(self, revision: int, replicas: int) -> None:
        def look() -> bool:
            copies = [copy for copy in self.copies() if copy.desired is DesiredStatus.RUNNING]
            return (
                self.service().rollout is None
                and self.service().target.number == revision
                and len(copies) == replicas == len(self.ready())
                and all(copy.owner and copy.owner.revision == revision for copy in copies)
            )

        await eventually(look, what=f"{replicas} ready copies of revision {revision}")


def fleet(count: int = 4) -> Standings:
    return Standings([condition(f"n{number}", cpu=10_000) for number in range(count)])


@asynccontextmanager
async def server() -> AsyncIterator[ServiceServer]:
    store = MemoryStore(SystemClock())
    try:
        async with ServiceServer(store, fleet()).serving() as one:
            yield one
    finally:
        await store.close()


async def create(one: ServiceServer, replicas: int = 3, **fields: object) -> Service:
    wanted = ServiceSpec(template=spec("web"), replicas=replicas, update=QUICK, **fields)
    made, is_new = await one.registry.create(wanted, actor="test")
    assert is_new
    return made


async def test_a_service_gets_its_copies_and_keeps_them() -> None:
    async with server() as one:
        service = await create(one)
        await one.is_well(1, 3)
        copies = one.copies()
        assert sorted(copy.spec.name for copy in copies) == ["web-0", "web-1", "web-2"]
        assert {copy.owner.kind for copy in copies if copy.owner} == {OwnerKind.SERVICE}
        assert {copy.owner.id for copy in copies if copy.owner} == {service.id}
        await one.instances.destroy(copies[0].id, actor="somebody")
        await eventually(lambda: copies[0].id not in {copy.id for copy in one.copies()})
        await one.is_well(1, 3)


async def test_an_update_goes_through_and_is_told() -> None:
    async with server() as one:
        await create(one)
        await one.is_well(1, 3)
        template = replace(spec("web"), uri="example.org/web:2")
        await one.registry.change("web", lambda old: replace(old, template=template), actor="test")
        await one.is_well(2, 3)
        # The last of the old copies may still be on its way out.
        await eventually(lambda: {copy.spec.uri for copy in one.copies()} == {"example.org/web:2"})
        told = [stored.event.kind for stored in await one.registry.events("web")]
        assert "service.updated" in told


async def test_a_lost_nodes_copies_move() -> None:
    async with server() as one:
        await create(one)
        await one.is_well(1, 3)
        lost = one.copies()[0].node
        assert lost is not None
        one.conditions.put(condition(lost, cpu=10_000, liveness=Liveness.LOST))
        await eventually(lambda: len({c.node for c in one.ready()} - {lost, None}) == 3)
        assert all(copy.node != lost for copy in one.copies())


async def test_a_drained_node_gives_its_copy_up_when_the_next_is_ready() -> None:
    async with server() as one:
        await create(one)
        await one.is_well(1, 3)
        node = one.copies()[0].node
        assert node is not None
        fewest = 3

        def watch(before: object, after: object) -> None:
            nonlocal fewest
            fewest = min(fewest, len(one.ready()))

        one.instance_table.listen(watch)
        one.conditions.put(condition(node, cpu=10_000, drain_by=one.clock.now() + 3600))
        await eventually(lambda: all(copy.node != node for copy in one.copies()))
        await one.is_well(1, 3)
        assert fewest == 3


async def test_a_deleted_service_leaves_nothing() -> None:
    async with server() as one:
        await create(one)
        await one.is_well(1, 3)
        await one.registry.delete("web", actor="test")
        await eventually(lambda: one.tables.services.get("default/web") is None)
        assert one.copies() == []
        left = await one.store.range("service")
        assert left.entries == ()


async def test_another_server_goes_on_where_the_leader_stopped() -> None:
    store = MemoryStore(SystemClock())
    nodes = fleet()
    try:
        async with ServiceServer(store, nodes, "a").serving() as first:
            first.is_obeyed = lambda copy: copy.owner is None or copy.owner.revision == 1
            await create(first)
            await first.is_well(1, 3)
            template = replace(spec("web"), uri="example.org/web:2")
            await first.registry.change("web", lambda old: replace(old, template=template), actor="test")
            await eventually(lambda: len(first.copies()) == 4)
        async with ServiceServer(store, nodes, "b").serving() as second:
            await second.is_well(2, 3)
    finally:
        await store.close()


async def test_a_server_that_does_not_lead_does_nothing() -> None:
    store = MemoryStore(SystemClock())
    try:
        async with ServiceServer(store, fleet()).serving(leads=False) as one:
            await create(one)
            await one.tables.services.sync()
            assert one.copies() == []
    finally:
        await store.close()


async def test_services_of_hundreds_of_copies_are_made_in_several_transactions() -> None:
    async with server() as one:
        await create(one, replicas=300)
        await one.is_well(1, 300)
        assert len({copy.owner.index for copy in one.copies() if copy.owner}) == 300


@pytest.mark.parametrize("namespace", [DEFAULT_NAMESPACE])
async def test_copies_are_in_the_namespace_of_their_service(namespace: str) -> None:
    async with server() as one:
        await create(one, replicas=1)
        await one.is_well(1, 1)
        assert {copy.namespace for copy in one.copies()} == {namespace}
        assert NodeId(one.copies()[0].node or "") in {c.view.id for c in one.conditions.conditions()}


async def test_a_service_that_nothing_can_be_done_with_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = controllers.decide

    def decide(service: Service, *rest: object) -> object:
        if service.name == "broken":
            raise errors.Internal("its record makes no sense")
        return real(service, *rest)

    monkeypatch.setattr(controllers, "decide", decide)
    async with server() as one:
        broken = ServiceSpec(template=spec("broken"), replicas=1, update=QUICK)
        await one.registry.create(broken, actor="test")
        await create(one)
        await one.is_well(1, 3)
