"""How often a node and its server send each other heartbeats, by the number of nodes. Pure.

Heartbeats are all that a cloud at rest sends. A small one has the interval of its settings; with more nodes
than `HEARTBEATS_PER_S` allow it grows, to half of the silence after which a node is suspect, so that a
heartbeat that is late does not make it so. `skerry.control.sessions.node_session` tells nodes.
"""

from __future__ import annotations

from typing import Final

from skerry.model.settings import FleetSettings

HEARTBEATS_PER_S: Final = 200  # from the nodes of one server, and as many to them


def heartbeat_interval(settings: FleetSettings, nodes: int) -> float:
    """Seconds between two heartbeats of each of so many nodes."""
    longest = max(settings.report_s, settings.suspect_after_s / 2)
    return min(max(settings.report_s, nodes / HEARTBEATS_PER_S), longest)
