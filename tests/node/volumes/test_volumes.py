"""The volumes of a node as its agent sees them: orders in, reports out; the store is a fake."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from msgspec.structs import replace

from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, VolumeId
from skerry.model.node_messages import VolumeUpdate
from skerry.model.resources import Gigabytes
from skerry.model.volumes import VolumeOrder, VolumeUsage
from skerry.node.volumes.records import VolumeRecord
from skerry.node.volumes.store import VolumeStore
from skerry.node.volumes.volumes import NodeVolumes
from tests.support.waiting import eventually

ID = VolumeId("01v")
ORDER = VolumeOrder(ID, "db", DEFAULT_NAMESPACE, Gigabytes(1), 1, receipt=b"r1")


class FakeStore:
    """Volumes in memory; the next orders fail with `failures`."""

    def __init__(self) -> None:
        self.records: dict[VolumeId, VolumeRecord] = {}
        self.failures: list[errors.SkerryError] = []
        self.applied: list[VolumeOrder] = []
        self.lost = ""

    def apply(self, order: VolumeOrder) -> None:
        self.applied.append(order)
        if self.failures:
            raise self.failures.pop(0)
        if order.is_deleted:
            self.records.pop(order.id, None)
        else:
            self.records[order.id] = VolumeRecord(
                order.id, order.name, order.namespace, order.size, order.generation, 1.0, order.receipt
            )

    def has(self, id: VolumeId) -> bool:
        return id in self.records

    def loss(self, id: VolumeId) -> str:
        return self.lost

    def ids(self) -> list[VolumeId]:
        return sorted(self.records)

    def record(self, id: VolumeId) -> VolumeRecord:
        return self.records[id]

    def usage(self, id: VolumeId) -> VolumeUsage:
        return VolumeUsage(5, 100)

    def disk_bytes(self) -> int:
        return 7 * len(self.records)


class Node:
    """Volumes over a fake store; pauses before new tries last until the test ends them."""

    def __init__(self) -> None:
        self.store = FakeStore()
        self.pauses: list[asyncio.Event] = []
        self.volumes = NodeVolumes(cast(VolumeStore, self.store), sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        pause = asyncio.Event()
        self.pauses.append(pause)
        await pause.wait()

    def order(self, **changes: Any) -> None:
        self.volumes.apply(VolumeUpdate((replace(ORDER, **changes),)))


@pytest.fixture
async def node() -> Any:
    node = Node()
    yield node
    await node.volumes.close()


async def test_a_volume_that_is_ordered_is_created_measured_and_reported(node: Node) -> None:
    node.order()
    await node.volumes.ready(ID)
    await eventually(lambda: node.volumes.inventory()[0].used_bytes == 5)
    [report] = node.volumes.inventory()
    assert (report.is_ready, report.generation, report.capacity_bytes, report.receipt) == (
        True,
        1,
        100,
        b"r1",
    )
    assert node.volumes.disk_bytes == 7
    assert node.volumes.take_reports() == []


async def test_a_failure_is_reported_told_to_who_waits_and_tried_again(node: Node) -> None:
    node.store.failures.append(errors.ResourcesExhausted("no disk"))
    node.order()
    with pytest.raises(errors.Unavailable, match="no disk"):
        await node.volumes.ready(ID)
    [report] = node.volumes.take_reports()
    assert (report.is_ready, report.reason) == (False, "no disk")
    await eventually(lambda: node.pauses != [])
    node.pauses[0].set()
    await eventually(lambda: node.store.has(ID))
    await node.volumes.ready(ID)


async def test_a_deleted_one_is_reported_as_gone_also_in_the_next_session(node: Node) -> None:
    node.order()
    await node.volumes.ready(ID)
    node.order(generation=2, is_deleted=True)
    await eventually(lambda: not node.store.has(ID))
    await eventually(lambda: node.volumes.inventory()[0].is_gone)
    node.order(generation=2, is_deleted=True)
    [report] = node.volumes.take_reports()
    assert (report.is_gone, report.generation) == (True, 2)


async def test_one_that_cannot_be_deleted_yet_is_not_gone(node: Node) -> None:
    node.order()
    await node.volumes.ready(ID)
    node.store.failures.append(errors.FailedPrecondition("it is mounted"))
    node.order(generation=2, is_deleted=True)
    await eventually(lambda: node.volumes.inventory()[0].reason == "it is mounted")
    assert not node.volumes.inventory()[0].is_gone


async def test_an_older_order_is_ignored(node: Node) -> None:
    node.order(generation=3)
    await node.volumes.ready(ID)
    node.order(generation=2, is_deleted=True)
    assert [order.generation for order in node.store.applied] == [3]


async def test_a_volume_without_an_order_is_reported_and_kept(node: Node) -> None:
    node.store.apply(ORDER)
    node.volumes.apply(VolumeUpdate())
    [report] = node.volumes.inventory()
    assert (report.id, report.is_ready) == (ID, True)
    assert node.store.has(ID)


async def test_one_whose_file_is_gone_is_reported_as_lost_and_again_when_it_is_back(node: Node) -> None:
    node.order()
    await node.volumes.ready(ID)
    measuring = asyncio.create_task(node.volumes.run())
    await eventually(lambda: node.pauses != [])
    for lost in ("its file is gone", ""):
        node.volumes.take_reports()
        node.store.lost = lost
        node.pauses.pop().set()
        await eventually(lambda: node.pauses != [])
        [report] = node.volumes.take_reports()
        assert (report.is_ready, report.reason) == (not lost, lost)
    await cancel_and_wait([measuring])


async def test_a_container_of_a_volume_that_was_never_ordered_does_not_wait(node: Node) -> None:
    with pytest.raises(errors.Unavailable, match="not on this node"):
        await node.volumes.ready(ID)
