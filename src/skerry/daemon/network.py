"""Network objects of this process: the sources of what nodes are told of the network.

Called by `skerry.daemon.control_plane`.
"""

from __future__ import annotations

from skerry.control.identity.offline_feed import OfflineTokenFeed
from skerry.control.network.feed import NetworkObjects
from skerry.control.network.node_locations import NodeLocations
from skerry.control.nodes.registry import NodeRegistry


def start(nodes: NodeRegistry, offline_tokens: OfflineTokenFeed) -> NetworkObjects:
    """The feed with all sources."""
    feed = NetworkObjects()
    feed.add(NodeLocations(nodes))
    feed.add(offline_tokens)
    return feed
