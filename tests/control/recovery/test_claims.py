"""What nodes claim: adopted if the store has forgotten it, removed if the store gave it up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.recovery import order_receipts
from skerry.control.recovery.claims import ClaimDecision, ClaimProcessor, decide_claim
from skerry.control.recovery.order_receipts import OrderReceipt
from skerry.control.recovery.store_history import StoreHistory, StoreStamp
from skerry.kit.clock import ManualClock
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import InstanceClaim
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.settings import EventSettings
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.store.local.memory import MemoryStore
from tests.support.controls import Control, control_on

N1, N2 = NodeId("n1"), NodeId("n2")
KEY = b"k" * 32
SPEC = InstanceSpec("web", "example.org/web")
STAMP = StoreStamp("run", 7)


def instance(
    generation: int = 1, node: NodeId | None = N1, status: InstanceStatus = InstanceStatus.RUNNING
) -> Instance:
    return Instance(InstanceId("i1"), SPEC, 1.0, ObservedState(status, 1.0), node=node, generation=generation)


@pytest.mark.parametrize(
    ("record", "generation", "is_unknown", "verdict"),
    [
        (None, 1, True, ClaimDecision.ADOPTED),
        (None, 1, False, ClaimDecision.REMOVED),
        (instance(), 1, True, ClaimDecision.ORDERED),
        (instance(), 1, False, ClaimDecision.ORDERED),
        (instance(generation=2), 1, True, ClaimDecision.ORDERED),
        (instance(), 2, True, ClaimDecision.ADOPTED),
        (instance(node=N2), 2, True, ClaimDecision.ADOPTED),
        (instance(node=N2), 1, True, ClaimDecision.REMOVED),
        (instance(node=N2), 2, False, ClaimDecision.REMOVED),
        (instance(node=None, status=InstanceStatus.SCHEDULING), 1, True, ClaimDecision.ADOPTED),
        (instance(node=None, status=InstanceStatus.SCHEDULING), 1, False, ClaimDecision.REMOVED),
        (instance(node=None, status=InstanceStatus.SCHEDULING, generation=3), 1, True, ClaimDecision.REMOVED),
        (instance(node=None, status=InstanceStatus.FAILED), 1, True, ClaimDecision.REMOVED),
        (
            replace(instance(node=None, status=InstanceStatus.STOPPED), desired=DesiredStatus.DESTROYED),
            1,
            True,
            ClaimDecision.REMOVED,
        ),
    ],
)
def test_of_two_copies_the_later_one_counts_if_the_store_has_forgotten_it(
    record: Instance | None, generation: int, is_unknown: bool, verdict: ClaimDecision
) -> None:
    assert (
        decide_claim(record, OrderReceipt(N1, STAMP, instance(generation)), is_unknown=is_unknown) is verdict
    )


def test_a_receipt_is_read_by_who_has_the_key_and_only_as_it_was_written() -> None:
    receipt = OrderReceipt(N1, STAMP, instance())
    text = order_receipts.write(KEY, receipt)
    assert order_receipts.read(KEY, text) == receipt
    assert order_receipts.read(b"x" * 32, text) is None
    assert order_receipts.read(KEY, text.replace(b"example.org/web", b"example.org/bad")) is None
    assert order_receipts.read(KEY, b"") is None


class Server:
    """A server on a store of the test, that nodes make claims to."""

    def __init__(self, control: Control, adopter: ClaimProcessor, history: StoreHistory) -> None:
        self.control = control
        self.adopter = adopter
        self.history = history

    async def place(self, id: str, node: NodeId) -> InstanceOrder:
        """The instance, running there; what the node was sent for it."""
        await self.control.bind(id, node)
        await self.control.report(id, InstanceStatus.STARTING, InstanceStatus.RUNNING, ip="10.64.0.7")
        return self.order(id, node)

    def order(self, id: str, node: NodeId) -> InstanceOrder:
        return self.adopter.with_receipt(node, InstanceOrder.of(self.control.instances.get(id)))

    async def claim(self, node: NodeId, order: InstanceOrder, **more: object) -> list[str]:
        """What the node has to remove of what it claims: nothing, or this."""
        report = InstanceReport(order.instance, order.generation, InstanceStatus.RUNNING, 5.0, **more)  # type: ignore[arg-type]
        return list(await self.adopter.take(node, [InstanceClaim(order.receipt, report)]))

    async def kinds(self, id: str) -> list[str]:
        return [told.event.kind for told in await self.control.instances.events(id)]


@asynccontextmanager
async def server_on(store: MemoryStore, clock: ManualClock, path: Path) -> AsyncIterator[Server]:
    events = EventLog(store, clock, EventSettings())
    clock.advance(1.0)
    history = StoreHistory(store, events, clock, path, server="s", is_alone=True, settle_s=30.0)
    await history.begin()
    async with control_on(store, events, clock) as control:
        adopter = ClaimProcessor(
            store,
            events,
            history,
            instance_table=control.instance_table,
            workloads=control.workloads,
            key=KEY,
        )
        await control.join(N1)
        await control.join(N2)
        yield Server(control, adopter, history)


@asynccontextmanager
async def empty(clock: ManualClock) -> AsyncIterator[MemoryStore]:
    store = MemoryStore(clock)
    yield store
    await store.close()


async def test_what_a_node_runs_is_written_down_again_with_its_workload(
    clock: ManualClock, tmp_path: Path
) -> None:
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        workload, _ = await server.control.workloads.create(SPEC, actor="test")
        made, _ = await server.control.instances.create(workload.id, actor="test")
        order = await server.place(made.id, N1)
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        assert await server.claim(N1, order, ip="10.64.0.7", restarts=3) == []
        found = server.control.instances.get(made.id)
        assert (found.node, found.observed.status, found.ip) == (N1, InstanceStatus.RUNNING, "10.64.0.7")
        assert (found.spec, found.workload, found.version, found.restarts) == (SPEC, workload.id, 1, 3)
        assert (found.generation, found.created_at, found.is_adopted) == (1, made.created_at, True)
        assert server.control.workloads.get("web").id == workload.id
        assert await server.kinds(made.id) == ["instance.adopted"]
        assert replace(server.order(made.id, N1), receipt=order.receipt) == order, "nothing changes for it"
        assert await server.claim(N1, order) == [], "it is ordered now"
        assert len(await server.kinds(made.id)) == 1
        assert server.history.is_settling


async def test_what_was_given_up_while_its_node_was_away_is_removed(
    clock: ManualClock, tmp_path: Path
) -> None:
    async with empty(clock) as store:
        async with server_on(store, clock, tmp_path / "file") as server:
            made, _ = await server.control.instances.create(SPEC, actor="test")
            order = await server.place(made.id, N1)
            await server.control.instances.destroy(made.id, actor="test")
            await server.control.report(made.id, InstanceStatus.TERMINATED)
            assert server.control.instance_table.index.get(made.id) is None
            assert await server.claim(N1, order) == [made.id]
        async with server_on(store, clock, tmp_path / "file") as server:
            assert await server.claim(N1, order) == [made.id], "nor does a restart forget that"
            assert not server.history.is_settling


async def test_a_node_can_claim_only_what_it_was_ordered_itself(clock: ManualClock, tmp_path: Path) -> None:
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        made, _ = await server.control.instances.create(SPEC, actor="test")
        order = await server.place(made.id, N1)
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        assert await server.claim(N2, order) == [made.id]
        other = replace(order, instance=InstanceId("i9"))
        assert await server.claim(N1, other) == ["i9"]
        forged = order_receipts.write(b"x" * 32, OrderReceipt(N1, STAMP, instance()))
        assert await server.claim(N1, replace(order, receipt=forged)) == [made.id]
        assert len(server.control.instance_table.index) == 0


async def test_an_instance_whose_workloads_name_is_anothers_by_now_is_on_its_own(
    clock: ManualClock, tmp_path: Path
) -> None:
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        workload, _ = await server.control.workloads.create(SPEC, actor="test")
        made, _ = await server.control.instances.create(workload.id, actor="test")
        order = await server.place(made.id, N1)
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        other, _ = await server.control.workloads.create(SPEC, actor="test")
        assert await server.claim(N1, order) == []
        assert server.control.instances.get(made.id).workload is None
        assert server.control.workloads.get("web").id == other.id


async def test_a_workload_is_at_least_of_the_version_that_runs(clock: ManualClock, tmp_path: Path) -> None:
    newer = replace(SPEC, uri="example.org/web:2")
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        workload, _ = await server.control.workloads.create(SPEC, actor="test", id="w1")
        await server.control.workloads.change("w1", lambda spec: newer, actor="test")
        made, _ = await server.control.instances.create(workload.id, actor="test")
        order = await server.place(made.id, N1)
    async with empty(clock) as store, server_on(store, clock, tmp_path / "file") as server:
        await server.control.workloads.create(SPEC, actor="test", id="w1")
        assert await server.claim(N1, order) == []
        found = server.control.workloads.get("w1")
        assert (found.version, found.spec) == (2, newer)
        assert server.control.instances.get(made.id).version == 2
