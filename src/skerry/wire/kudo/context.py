"""The context of Kudo's endpoints, which they get when the application is built."""

from __future__ import annotations

import msgspec

from skerry.control.instances.registry import InstanceRegistry
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.cell_lister import CellLister
from skerry.control.sessions.tunnels import NodeTunnels
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.kit.clock import Clock
from skerry.model.callers import Caller
from skerry.model.ids import Namespace
from skerry.transport.limits import ConcurrencyLimit, shared_limit
from skerry.wire import namespaces
from skerry.wire.kudo.document_cache import DocumentCache
from skerry.wire.namespaces import NamespaceQuery

# Streams of logs and exec through one server at a time: each holds a connection at both ends.
_MAX_TUNNELS = 256


class KudoContext(msgspec.Struct, frozen=True):
    """The first argument of every endpoint of this dialect."""

    workloads: WorkloadRegistry
    instances: InstanceRegistry
    nodes: NodeRegistry
    tunnels: NodeTunnels
    clock: Clock
    cells: CellLister
    slots: ConcurrencyLimit = msgspec.field(
        default_factory=lambda: shared_limit(_MAX_TUNNELS, "tunnels to instances")
    )

    documents: DocumentCache = msgspec.field(default_factory=DocumentCache)

    async def check_in_namespace(self, id: str, scope: NamespaceQuery) -> None:
        """Raise `NotFound` if a namespace is named and the instance is not in it."""
        if (namespace := namespaces.requested_namespace(scope)) is not None:
            await self.instances.check_in(namespace, id)

    async def check_workload_visible(self, caller: Caller, id_or_name: str, namespace: Namespace) -> None:
        """Raise `NotFound` if `caller` is bound to namespaces and the workload is in another: the registry's
        own error tells unbound callers where it is."""
        if caller.scope.is_bound:
            await self.workloads.read(id_or_name, namespace)
