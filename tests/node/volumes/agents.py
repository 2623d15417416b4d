"""Two agents with real volumes in one process, and tunnels between them as a server relays them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from skerry.control.sessions.tunnels import TunnelBroker
from skerry.control.snapshots.decisions import NodeTask
from skerry.control.snapshots.node_tasks import NodeTaskRunner
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, InstanceId, NodeId, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.snapshots import SnapshotLocation
from skerry.model.streams import StreamRequest, TunnelStream
from skerry.model.volume_tasks import TaskProgress, TaskResult, VolumeAction, VolumeTask
from skerry.model.volumes import VolumeOrder
from skerry.node.volumes.store import VolumeStore
from skerry.node.volumes.task_handler import VolumeTaskHandler

MB = 1024**2
GIGABYTE = 24 * MB  # of these tests
VOLUME = VolumeId("01m7gtfpsmxr1dcp2kdcyztdzr")
SNAPSHOT = "01m7gtfpsmxr1dcp2kdcyztdzs"
OPERATION = "01m7gtfpsmxr1dcp2kdcyztdzt"


class Agents:
    """The agents `a` and `b`: a `skerry.control.sessions.tunnels.NodeTunnels`."""

    def __init__(self, folder: Path, failpoint: Callable[[str], None] = lambda step: None) -> None:
        self.stores: dict[str, VolumeStore] = {}
        self.handlers: dict[str, VolumeTaskHandler] = {}
        self.folders = {name: folder / name for name in "ab"}
        (folder / "backups").mkdir(parents=True, exist_ok=True)
        settings = SnapshotSettings(folder=str(folder / "backups"))
        for name, own in self.folders.items():
            store = VolumeStore(
                own / "volumes", now=SystemClock().now, bytes_per_gb=GIGABYTE, failpoint=failpoint
            )
            store.open()
            self.stores[name] = store
            handler = VolumeTaskHandler(store, own, settings, SystemClock(), failpoint=failpoint)
            handler.open()
            self.handlers[name] = handler
        self.runner = NodeTaskRunner(self)
        self._broker = TunnelBroker()
        self._serving: set[asyncio.Task[None]] = set()

    def create_volume(self) -> None:
        """At `a`."""
        self.stores["a"].apply(VolumeOrder(VOLUME, "db", DEFAULT_NAMESPACE, Gigabytes(1), 1))

    @asynccontextmanager
    async def open_tunnel(
        self, node: NodeId, instance: InstanceId, request: StreamRequest
    ) -> AsyncIterator[TunnelStream]:
        def dial(id: str) -> None:
            task = asyncio.create_task(self._serve(node, id, request))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

        async with self._broker.open(node, dial) as tunnel:
            yield tunnel

    async def _serve(self, node: NodeId, id: str, request: StreamRequest) -> None:
        assert isinstance(request, VolumeTask)
        async with self._broker.dialled(node, id) as tunnel:
            try:
                await self.handlers[node].handle(request, tunnel)
            except errors.SkerryError as error:
                await tunnel.fail(error)
            with suppress(errors.Unavailable):
                while await tunnel.receive() is not None:
                    pass

    async def run(self, node: str, action: VolumeAction, **changed: object) -> TaskResult:
        return await self.runner.run(NodeTask(NodeId(node), task(action, **changed)), note)

    async def transfer(self, send: VolumeAction = VolumeAction.SEND_VOLUME) -> TaskResult:
        """From `a` to `b`."""
        return await self.runner.transfer(
            NodeTask(NodeId("a"), task(send)), NodeTask(NodeId("b"), task(VolumeAction.RECEIVE)), note
        )

    async def close(self) -> None:
        for handler in self.handlers.values():
            await handler.close()
        await cancel_and_wait(list(self._serving))


async def note(progress: TaskProgress) -> None:
    assert progress.done <= progress.total


def task(action: VolumeAction, **changed: object) -> VolumeTask:
    fields: dict[str, object] = {
        "volume": VOLUME,
        "name": "db",
        "namespace": DEFAULT_NAMESPACE,
        "size": Gigabytes(1),
        "generation": 2,
        "snapshot": SNAPSHOT,
        "location": SnapshotLocation.NODE,
        **changed,
    }
    return VolumeTask(action, OPERATION, **fields)  # type: ignore[arg-type]
