"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.control.instances.registry import InstanceRegistry
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.kit.clock import Clock
from skerry.transport.limits import ConcurrencyLimit
from skerry.transport.links.nodes.tunnel_router import TunnelDialer
from skerry.wire import namespaces
from skerry.wire.namespaces import NamespaceQuery

# Streams of output and programs under way through one server: each holds a connection at both ends.
_MAX_TUNNELS = 256


@dataclass(frozen=True, slots=True)
class KudoContext:
    """The first argument of every endpoint in this room."""

    workloads: WorkloadRegistry
    instances: InstanceRegistry
    nodes: NodeRegistry
    tunnels: TunnelDialer
    clock: Clock
    slots: ConcurrencyLimit = field(
        default_factory=lambda: ConcurrencyLimit(_MAX_TUNNELS, "tunnels to instances")
    )

    async def check_in_namespace(self, id: str, scope: NamespaceQuery) -> None:
        """Raise `NotFound` unless the instance is in the namespace that is named, if one is."""
        if (namespace := namespaces.requested_namespace(scope)) is not None:
            await self.instances.check_in(namespace, id)
