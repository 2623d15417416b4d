"""Orders about volumes as the agent of a node takes them, with a store that plays."""

from __future__ import annotations

import asyncio
import threading

from msgspec.structs import replace

from skerry.model.ids import DEFAULT_NAMESPACE, VolumeId
from skerry.model.node_messages import VolumeUpdate
from skerry.model.resources import Gigabytes
from skerry.model.volumes import VolumeOrder, VolumeUsage
from skerry.node.volumes.store import VolumeStore
from skerry.node.volumes.volumes import NodeVolumes

VOLUME = VolumeId("01m7gtfpsmxr1dcp2kdcyztdzr")


class SlowStore(VolumeStore):
    """Creates a volume when `go` is set."""

    def __init__(self) -> None:
        self.created: set[VolumeId] = set()
        self.go = threading.Event()
        self.began = threading.Event()

    def has(self, id: VolumeId) -> bool:
        return id in self.created

    def apply(self, order: VolumeOrder) -> None:
        self.began.set()
        assert self.go.wait(10)
        self.created.add(order.id)

    def usage(self, id: VolumeId) -> VolumeUsage:
        raise OSError

    def loss(self, id: VolumeId) -> str:
        return ""

    def disk_bytes(self) -> int:
        return 0


async def test_who_waits_for_a_volume_gets_it_also_if_it_is_ordered_again_meanwhile() -> None:
    """A server that is restarted sends its orders with other receipts."""
    store = SlowStore()
    volumes = NodeVolumes(store)
    order = VolumeOrder(VOLUME, "db", DEFAULT_NAMESPACE, Gigabytes(1), 1, receipt=b"one")
    volumes.apply(VolumeUpdate((order,)))
    await asyncio.to_thread(store.began.wait, 10)
    waiting = asyncio.create_task(volumes.ready(VOLUME))
    await asyncio.sleep(0)
    volumes.apply(VolumeUpdate((replace(order, receipt=b"two"),)))
    store.go.set()
    async with asyncio.timeout(10):
        await waiting
    await volumes.close()
