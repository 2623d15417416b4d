"""What edge nodes report of routes: requests under way, and services that requests wait for.

A node reports to one server; that server publishes the loads to the leader
(`skerry.control.services.autoscaler`), and starts the first copy of a service itself: people's requests
change services on every server, too, and a held request should not wait for the leader's next turn.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from skerry.model import errors
from skerry.model.ids import NodeId, ServiceId
from skerry.model.network_objects import NetworkObject
from skerry.model.routes import RouteLoad, ServiceWake

log = structlog.get_logger(__name__)

MAX_SERVICES = 10_000  # that one node reports


class RouteReports:
    """The last loads that nodes reported to this server."""

    def __init__(self) -> None:
        self._loads: dict[NodeId, dict[str, float]] = {}

    async def loads_reported(self, node: NodeId, loads: Sequence[NetworkObject]) -> None:
        known = self._loads.setdefault(node, {})
        for load in loads:
            if not isinstance(load, RouteLoad) or not math.isfinite(load.requests):
                continue
            if load.service in known or len(known) < MAX_SERVICES:
                known[load.service] = max(0.0, load.requests)

    def requests(self, service: ServiceId, nodes: Callable[[NodeId], bool]) -> Iterable[float]:
        """The requests under way at a service, of each edge node for which `nodes` is true."""
        for node, loads in self._loads.items():
            if service in loads and nodes(node):
                yield loads[service]

    async def wakes_reported(
        self,
        node: NodeId,
        wakes: Sequence[NetworkObject],
        wake: Callable[[ServiceId], Awaitable[None]],
    ) -> None:
        for one in wakes:
            if not isinstance(one, ServiceWake) or not one.number:
                continue
            try:
                await wake(ServiceId(one.service))
            except errors.SkerryError as error:  # requests go on waiting, and end with 503
                log.warning("routes.not_woken", node=node, service=one.service, error=error.message)
