"""A control plane with volumes, and nodes that play what real ones do about them, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.writer import TransitionWriter
from skerry.control.named_table import key_of
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.snapshots.controller import OperationController
from skerry.control.snapshots.decisions import NodeTask
from skerry.control.snapshots.node_tasks import NodeTaskRunner, OnProgress
from skerry.control.snapshots.object_stores import StoreSource
from skerry.control.snapshots.registry import SnapshotRegistry
from skerry.control.snapshots.tables import OperationTable, OperationTables, SnapshotTable
from skerry.control.volumes.table import VolumeTable
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock, SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId, NodeId, VolumeId
from skerry.model.nodes import Liveness, Node
from skerry.model.resources import NO_RESOURCES, Gigabytes, Resources
from skerry.model.settings import EventSettings
from skerry.model.snapshot_settings import SnapshotSettings
from skerry.model.statuses import InstanceStatus
from skerry.model.volume_tasks import TaskProgress, TaskResult, VolumeAction
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState
from skerry.schedule.requests import NodeView
from skerry.store.protocol import Expect, Store

HERE, THERE = NodeId("here"), NodeId("there")
VOLUME = VolumeId("01m7gtfpsmxr1dcp2kdcyztdzr")


class PlayedNodes:
    """Two nodes; conditions of both, and their tasks. `fault` is called with each task, before and after."""

    def __init__(self) -> None:
        self.disks: dict[NodeId, dict[str, str]] = {HERE: {f"volume/{VOLUME}": "data"}, THERE: {}}
        self.fault: Callable[[str, NodeTask], None] = lambda moment, task: None
        self.tasks: list[tuple[NodeId, VolumeAction]] = []
        self.is_slow = asyncio.Event()  # when it is set, copies do not end
        self.lost: set[NodeId] = set()
        self.free = dict.fromkeys(self.disks, Resources(disk=Gigabytes(100)))

    # The part of a registry of nodes

    def get(self, id_or_name: str) -> Node:
        if id_or_name not in self.disks:
            raise errors.NotFound(f"there is no node {id_or_name!r}")
        return Node(NodeId(id_or_name), id_or_name, 0.0, 0.0)

    def condition(self, node: NodeId) -> NodeCondition | None:
        if node not in self.disks:
            return None
        view = NodeView(node, NO_RESOURCES, name=node, features=(NodeFeature.SNAPSHOTS,))
        return NodeCondition(view, Liveness.LOST if node in self.lost else Liveness.LIVE)

    def conditions(self) -> list[NodeCondition]:
        return [found for node in self.disks if (found := self.condition(node)) is not None]

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        return lambda: None

    async def ready(self) -> None: ...

    # Tasks

    async def run(self, assigned: NodeTask, on_progress: OnProgress) -> TaskResult:
        self.fault("before", assigned)
        task, disk = assigned.task, self.disks[assigned.node]
        self.tasks.append((assigned.node, task.action))
        volume, draft, snapshot = (
            f"volume/{task.volume}",
            f"draft/{task.operation}",
            f"snapshot/{task.snapshot}",
        )
        result = TaskResult()
        match task.action:
            case VolumeAction.SNAPSHOT:
                disk[draft] = ""
                await self._copy(on_progress)
                disk[snapshot] = disk[volume]
                del disk[draft]
                result = TaskResult(disk[snapshot], 5, 10, 1.0)
            case VolumeAction.FETCH:
                disk[draft] = ""
                await self._copy(on_progress)
                disk[draft] = disk[snapshot]
                result = TaskResult(disk[draft], 5, 10, 1.0)
            case VolumeAction.INSTALL:
                if disk.get(draft):
                    disk[volume] = disk.pop(draft)
                elif volume not in disk:
                    raise errors.NotFound("the copy is gone")
            case VolumeAction.DELETE_SNAPSHOT | VolumeAction.DISCARD_SNAPSHOT:
                disk.pop(snapshot, None)
                disk.pop(draft, None)
            case VolumeAction.REMOVE:
                disk.pop(volume, None)
                disk.pop(draft, None)
            case VolumeAction.DISCARD:
                disk.pop(draft, None)
            case _:
                raise AssertionError(task.action)
        self.fault("after", assigned)
        return result

    async def transfer(self, send: NodeTask, receive: NodeTask, on_progress: OnProgress) -> TaskResult:
        self.fault("before", receive)
        self.tasks += [(send.node, send.task.action), (receive.node, receive.task.action)]
        source, target = self.disks[send.node], self.disks[receive.node]
        draft = f"draft/{receive.task.operation}"
        if send.task.action is VolumeAction.SEND_VOLUME:
            source[draft] = "manifest"
            content = source[f"volume/{send.task.volume}"]
        else:
            content = source[f"snapshot/{send.task.snapshot}"]
        target[draft] = ""
        await self._copy(on_progress)
        target[draft] = content
        self.fault("after", receive)
        return TaskResult(content, 5, 10, 1.0)

    async def _copy(self, on_progress: OnProgress) -> None:
        await on_progress(TaskProgress(3, 10))
        if self.is_slow.is_set():
            await asyncio.get_running_loop().create_future()


@dataclass
class VolumeServer:
    """One server; several may share a store, of which one leads."""

    store: Store
    nodes: PlayedNodes
    clock: Clock = field(default_factory=SystemClock)
    fence: Expect = field(default_factory=lambda: Expect("leader", 0))

    def __post_init__(self) -> None:
        self.events = EventLog(self.store, self.clock, EventSettings())
        self.instances = InstanceTable(self.store)
        self.volumes = VolumeTable(self.store)
        self.snapshots = SnapshotTable(self.store)
        self.operations = OperationTable(self.store)
        tables = OperationTables(self.operations, self.snapshots, self.volumes, self.instances)
        stores = StoreSource(SnapshotSettings())
        self.registry = SnapshotRegistry(
            self.events,
            self.clock,
            tables=tables,
            nodes=self.nodes,
            free=lambda node: self.nodes.free[node],
            stores=stores,
        )
        runner = NodeTaskRunner.__new__(NodeTaskRunner)
        runner.run = self.nodes.run  # type: ignore[method-assign]
        runner.transfer = self.nodes.transfer  # type: ignore[method-assign]
        self.controller = OperationController(
            self.events,
            self.clock,
            runner,
            tables=tables,
            conditions=self.nodes,
            stores=stores,
            backoff=Backoff(first_s=0.01, cap_s=0.05),
        )
        self.instances.listen(self._play_leaving)
        self._writer = TransitionWriter(self.events, self.instances)
        self._leaving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> AsyncIterator[VolumeServer]:
        tables = (self.instances, self.volumes, self.snapshots, self.operations)
        tasks = [asyncio.create_task(table.run()) for table in tables]
        for table in tables:
            await table.ready()
        if leads:
            tasks.append(asyncio.create_task(self.controller.lead(self.fence)))
        try:
            yield self
        finally:
            await cancel_and_wait([*tasks, *self._leaving])

    async def add_volume(self, **changed: object) -> None:
        plain = Volume(
            VOLUME, "db", Gigabytes(1), 0.0, node=HERE, status=VolumeStatus.READY, has_been_ready=True
        )
        volume = replace(plain, **changed)
        await self.volumes.commit([self.volumes.put(key_of(volume), volume)])

    async def add_user(self) -> None:
        """An instance that runs with the volume."""
        instance = Instance(
            InstanceId("01m7gtfpsmxr1dcp2kdcyztdzs"),
            InstanceSpec("writer", "example.org/writer"),
            0.0,
            observed=ObservedState(InstanceStatus.RUNNING, 0.0, ""),
            node=HERE,
            volumes=(VOLUME,),
        )
        await self.instances.commit([self.instances.put(instance.id, instance)])

    def volume(self, name: str = "db") -> Volume:
        record = self.volumes.by_name(name)
        assert record is not None
        return record.value

    def _play_leaving(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        """A node that is to remove an instance does so, and reports it."""
        if after is not None and after.value.leaving is not None:
            task = asyncio.create_task(self._unbind(after.value.id))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _unbind(self, id: InstanceId) -> None:
        await self._writer.change(
            id,
            lambda record: (
                None
                if record.value.leaving is None
                else transitions.unbind(record.value, at=1.0, reason="it left", actor="node")
            ),
        )
