"""Snapshots of this process: their records, requests about them, and the operations that the leader executes.

Called by `skerry.daemon.control_plane`. Every server serves all of it; one of them leads.
"""

from __future__ import annotations

import msgspec

from skerry.control.instance_index import InstanceTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.namespaces.usage import snapshot_use
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.control.snapshots.controller import OperationController
from skerry.control.snapshots.node_tasks import NodeTaskRunner
from skerry.control.snapshots.object_stores import StoreSource
from skerry.control.snapshots.registry import SnapshotRegistry
from skerry.control.snapshots.tables import OperationTable, OperationTables, SnapshotTable
from skerry.control.volumes.table import VolumeTable
from skerry.daemon.server_base import ServerBase
from skerry.wire.own.snapshots.context import SnapshotContext


class SnapshotParts(msgspec.Struct, frozen=True):
    """Snapshots as they are served."""

    context: SnapshotContext
    _base: ServerBase
    _snapshots: SnapshotTable
    _operations: OperationTable
    _controller: OperationController

    async def ready(self) -> None:
        """When what is in the store is known."""
        await self._snapshots.ready()
        await self._operations.ready()

    def lead(self, leader: LeaderElection) -> None:
        """Begin to execute operations, while this server leads."""
        self._base.loops.forever("snapshots.controller", lambda: self._controller.run(leader))


def start(
    base: ServerBase,
    volumes: VolumeTable,
    instances: InstanceTable,
    nodes: NodeRegistry,
    reconciler: Reconciler,
    tunnels: NodeTunnels,
) -> SnapshotParts:
    """Begin to read what is in the store."""
    snapshots, operations = SnapshotTable(base.store), OperationTable(base.store)
    base.store.count(snapshots, snapshot_use)
    tables = OperationTables(operations, snapshots, volumes, instances)
    stores = StoreSource(base.settings.snapshots)
    registry = SnapshotRegistry(
        base.events,
        base.clock,
        tables=tables,
        nodes=nodes,
        free=reconciler.free,
        stores=stores,
    )
    controller = OperationController(
        base.events,
        base.clock,
        NodeTaskRunner(tunnels),
        tables=tables,
        conditions=nodes,
        stores=stores,
        settled=base.history.settled,
    )
    base.loops.forever("snapshots", snapshots.run, critical=True)
    base.loops.forever("volume operations", operations.run, critical=True)
    return SnapshotParts(SnapshotContext(registry), base, snapshots, operations, controller)
