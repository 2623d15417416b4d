"""Network objects of this process: the sources of what nodes are told of the network.

Called by `skerry.daemon.control_plane`.
"""

from __future__ import annotations

from skerry.control.instance_index import InstanceTable
from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.network.service_endpoints import ServiceAddressSource
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.services.tables import ServiceTables


def start(
    nodes: NodeRegistry, services: ServiceTables, instances: InstanceTable, service_subnet: str
) -> NetworkObjects:
    """The feed with all sources."""
    feed = NetworkObjects()
    feed.add(NodeLocations(nodes))
    feed.add(ServiceAddressSource(services, instances, nodes, service_subnet))
    return feed
