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


class _Load:
    """The last value, and the highest ones since the last two times that it was taken."""

    __slots__ = ("_before", "_last", "_peak")

    def __init__(self) -> None:
        self._last = self._peak = self._before = 0.0

    def add(self, value: float) -> None:
        self._last = value
        self._peak = max(self._peak, value)

    def take(self) -> float:
        highest = max(self._peak, self._before)
        self._before, self._peak = self._peak, self._last
        return highest


class RouteReports:
    """The last loads that nodes reported to this server."""

    def __init__(self) -> None:
        self._loads: dict[NodeId, dict[str, _Load]] = {}

    async def loads_reported(self, node: NodeId, loads: Sequence[NetworkObject]) -> None:
        known = self._loads.setdefault(node, {})
        for load in loads:
            if not isinstance(load, RouteLoad) or not math.isfinite(load.requests):
                continue
            if load.service in known or len(known) < MAX_SERVICES:
                known.setdefault(load.service, _Load()).add(max(0.0, load.requests))

    def requests(self, service: ServiceId, nodes: Callable[[NodeId], bool]) -> Iterable[float]:
        """The requests under way at a service, of each edge node for which `nodes` is true: the most since
        the last call but one, so that a short request between two calls counts."""
        for node, loads in self._loads.items():
            if (load := loads.get(service)) is not None and nodes(node):
                yield load.take()

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
