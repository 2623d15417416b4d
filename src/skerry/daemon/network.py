"""Network objects of this process: the sources of what nodes are told of the network.

Called by `skerry.daemon.control_plane`.
"""

from __future__ import annotations

from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.nodes.registry import NodeRegistry
from skerry.daemon.mesh import MeshParts


def start(nodes: NodeRegistry, mesh: MeshParts) -> NetworkObjects:
    """The feed with all sources."""
    feed = NetworkObjects()
    feed.add(NodeLocations(nodes))
    mesh.feed(feed)
    return feed
