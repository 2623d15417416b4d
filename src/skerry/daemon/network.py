"""Network objects of this process: the sources of what nodes are told of the network.

Called by `skerry.daemon.control_plane`.
"""

from __future__ import annotations

from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.nodes.registry import NodeRegistry


def start(nodes: NodeRegistry) -> NetworkObjects:
    """The feed with all sources."""
    feed = NetworkObjects()
    feed.add(NodeLocations(nodes))
    return feed
