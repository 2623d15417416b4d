"""Network objects of this process: the sources of what nodes are told of the network.

Called by `skerry.daemon.control_plane`.
"""

from __future__ import annotations

from skerry.control.instance_index import InstanceTable
from skerry.control.namespaces.policies import RecordedPolicies
from skerry.control.network.feed import NetworkObjects
from skerry.control.network.isolated_namespaces import IsolatedNamespaces
from skerry.control.network.node_locations import NodeLocations
from skerry.control.network.service_endpoints import ServiceAddressSource
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.services.tables import ServiceTables


def start(
    nodes: NodeRegistry,
    services: ServiceTables,
    instances: InstanceTable,
    policies: RecordedPolicies,
    service_subnet: str,
) -> NetworkObjects:
    """The feed with these sources; parts of the control plane add their own."""
    feed = NetworkObjects()
    feed.add(NodeLocations(nodes))
    feed.add(ServiceAddressSource(services, instances, nodes, service_subnet))
    feed.add(IsolatedNamespaces(policies))
    return feed
