"""Metrics of neighbours for Prometheus: plain numbers, formatted when they are read.

The metrics of a neighbour that leaves the cloud are removed.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from skerry.functions.continuum.member_table import MemberTable
from skerry.kit import metrics

CALLS = metrics.counter_family(
    "skerry_offloaded_calls_total", "Calls forwarded to a neighbour, by result", ["node", "outcome"]
)
UP = metrics.gauge_family("skerry_neighbour_up", "1 if the neighbour can be reached", ["node"])
ROUND_TRIP = metrics.gauge_family(
    "skerry_neighbour_round_trip_seconds", "A round trip to the neighbour", ["node"]
)


class MemberMetrics(metrics.UndescribedCollector):
    """All of it, as one collector of the process's registry."""

    def __init__(self, places: MemberTable) -> None:
        self._places = places
        metrics.REGISTRY.register(self)

    def collect(self) -> Iterator[Metric]:
        calls, up, rtt = CALLS(), UP(), ROUND_TRIP()
        for peer in self._places.peers.values():
            node = peer.member.name
            calls.add_metric([node, "answered"], peer.done)
            calls.add_metric([node, "refused"], peer.refused)
            calls.add_metric([node, "lost"], peer.lost)
            if peer.member.memory:
                up.add_metric([node], float(peer.is_up))
            if peer.is_measured:
                rtt.add_metric([node], peer.rtt_s)
        yield from (calls, up, rtt)

    def close(self) -> None:
        metrics.REGISTRY.unregister(self)
