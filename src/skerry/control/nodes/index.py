"""All nodes in memory: their records, heartbeats, and since when heartbeats are missing.

The reading half of `skerry.control.nodes.registry`, kept current by a watch of the store. It notifies
listeners when the condition of a node changes, by a change of the store or by time. Nothing here decides or
writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from skerry.control.nodes import liveness, transitions
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.nodes.liveness import HeartbeatPublisher, LivenessTracker, NodeHeartbeat
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness, Node
from skerry.model.settings import FleetSettings
from skerry.model.statuses import NodeStatus
from skerry.store.protocol import Store
from skerry.store.tables.table import RecordChange, Table, json_of

PREFIX = "node/"

NodeChangeCallback = Callable[[NodeId], None]


class NodeIndex:
    """Every node, found by id or by name."""

    def __init__(
        self, store: Store, clock: Clock, settings: FleetSettings, heartbeats: HeartbeatPublisher
    ) -> None:
        self._clock = clock
        self._publisher = heartbeats
        self._reserve_percent = settings.reserve_percent
        self.table = Table(store, PREFIX, json_of(Node))
        self.table.subscribe(self._records_changed)
        self._heartbeats = Table(store, liveness.PREFIX, json_of(NodeHeartbeat))
        self._heartbeats.subscribe(self._heartbeats_changed)
        self._liveness = LivenessTracker(
            suspect_after_s=settings.suspect_after_s, lost_after_s=settings.lost_after_s
        )
        self._silence_changed = asyncio.Event()
        self._listeners: CallbackList[[NodeId]] = CallbackList()
        self.draining: set[NodeId] = set()
        self.absent: set[NodeId] = set()  # nodes of third parties that are lost or have left

    async def run(self) -> None:
        """Follow the store, and notify of nodes that are overdue, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.table.run())
            group.create_task(self._heartbeats.run())
            group.create_task(self._notify_overdue_forever())

    async def ready(self) -> None:
        """Wait until all nodes and their heartbeats are known."""
        await self.table.ready()
        await self._heartbeats.ready()

    def get(self, id_or_name: str) -> Node:
        """The node of this id, else the only one of this name; `NotFound` or `FailedPrecondition`
        otherwise."""
        record = self.table.value(id_or_name)
        if record is not None:
            return record
        named = [node for node in self.all() if node.name == id_or_name]
        if len(named) > 1:
            choices = ", ".join(node.id for node in named)
            raise errors.FailedPrecondition(
                f"{len(named)} nodes are called {id_or_name!r}; use an id: {choices}"
            )
        if not named:
            raise unknown(id_or_name)
        return named[0]

    def all(self) -> list[Node]:
        """All of them, by id."""
        return self.table.values()

    def liveness(self, node: NodeId) -> Liveness:
        return self._liveness.liveness(node, self._clock.monotonic())

    def heartbeat(self, node: NodeId) -> NodeHeartbeat | None:
        """The heartbeat of the node, with its server; None if there is none."""
        return self._heartbeats.value(node)

    def condition(self, node: NodeId) -> NodeCondition | None:
        record = self.table.value(node)
        return None if record is None else self._condition(record)

    def conditions(self) -> list[NodeCondition]:
        return [self._condition(node) for node in self.all()]

    def listen(self, changed: NodeChangeCallback) -> Callable[[], None]:
        """Call `changed` whenever the condition of a node changes; the result ends that."""
        return self._listeners.add(changed)

    def notify_overdue(self) -> None:
        """Notify of nodes that have been without a heartbeat for too long."""
        for node in self._liveness.take_overdue(self._clock.monotonic()):
            self._listeners.notify(node)

    def _condition(self, node: Node) -> NodeCondition:
        now = self._clock.monotonic()
        condition = transitions.condition_of(
            node, self._liveness.liveness(node.id, now), reserve_percent=self._reserve_percent
        )
        if condition.liveness is Liveness.LIVE:
            return condition
        return replace(
            condition,
            silent_s=self._liveness.silent_s(node.id, now),
            is_awaited=self._liveness.is_awaited(node.id, now),
        )

    def _records_changed(self, changes: Sequence[RecordChange[Node]]) -> None:
        now = self._clock.monotonic()
        for id, before, after in changes:
            node = NodeId(id)
            if after is None:
                self._liveness.mark_live(node)
            elif self.heartbeat(node) is None and (before is None or _is_back(before.value, after.value)):
                self._liveness.mark_live(node)  # by the server that wrote this, whose key follows
                self._liveness.mark_unknown(node, now)
                self._silence_changed.set()
            is_draining = after is not None and after.value.status is NodeStatus.DRAINING
            (self.draining.add if is_draining else self.draining.discard)(node)
            is_absent = (
                after is not None and after.value.is_foreign and after.value.status in transitions.OVER
            )
            (self.absent.add if is_absent else self.absent.discard)(node)
            self._listeners.notify(node)

    def _heartbeats_changed(self, changes: Sequence[RecordChange[NodeHeartbeat]]) -> None:
        now = self._clock.monotonic()
        for id, _, after in changes:
            node = NodeId(id)
            if after is not None:
                self._liveness.mark_live(node)
            elif self.table.get(node) is not None:
                self._liveness.mark_suspect(node, now)
                self._silence_changed.set()
            self._publisher.key_changed(node, after)
            self._listeners.notify(node)

    async def _notify_overdue_forever(self) -> None:
        while True:
            self._silence_changed.clear()
            self.notify_overdue()
            at = self._liveness.next_overdue()
            wait_s = None if at is None else max(0.0, at - self._clock.monotonic())
            try:
                async with asyncio.timeout(wait_s):
                    await self._silence_changed.wait()
            except TimeoutError:
                pass


def _is_back(before: Node, after: Node) -> bool:
    return before.status is NodeStatus.LOST and after.status is not NodeStatus.LOST


def unknown(id: str) -> errors.NotFound:
    return errors.NotFound(f"there is no node {id[:128]!r}; `skerry node list` shows all")
