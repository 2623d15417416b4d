"""The autoscaler of services: every server publishes the loads that its nodes report, and the leader decides.

A node reports to one server, so each server publishes the loads of autoscaled services that it knows, as one
record under a lease of its own; the record of a dead server expires. The leader adds them up at intervals and
changes `replicas` under the fence. `skerry.control.services.autoscaling` has the decisions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
import structlog
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.named_table import key_of
from skerry.control.routes.reports import RouteReports
from skerry.control.services.autoscaling import NO_LOAD, ScalingHistory, ServiceLoad, measure, recommend
from skerry.control.services.tables import ServiceTables
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId, ServiceId
from skerry.model.resources import Resources
from skerry.model.services import Service
from skerry.model.workloads import OwnerKind
from skerry.store.protocol import Expect, Store
from skerry.store.tables.leases import LeaseKeeper
from skerry.store.tables.table import Record, Table, Write, json_of

log = structlog.get_logger(__name__)

PREFIX = "service-load/"
PERIOD_S = 5.0  # between two measurements of the load
_LEASE_S = 30  # of what a server publishes

InstanceLoad = Callable[[InstanceId], tuple[Resources | None, float | None]]


class _ServerLoads(msgspec.Struct, frozen=True):
    """The loads that one server knows."""

    services: dict[str, ServiceLoad]


class ServiceAutoscaler:
    """Publishes loads, and scales while this server leads."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        *,
        tables: ServiceTables,
        instance_table: InstanceTable,
        load: InstanceLoad,
        is_live_here: Callable[[NodeId], bool],
        server: str,
    ) -> None:
        """`load` is the last reported load of an instance, and counts while `is_live_here` is true of its
        node."""
        self._events = events
        self._clock = clock
        self._tables = tables
        self._index = instance_table.index
        self._load = load
        self._is_live_here = is_live_here
        self._server = server
        self._routes = RouteReports()
        self._lease = LeaseKeeper(store, _LEASE_S)
        self._loads: Table[_ServerLoads] = Table(store, PREFIX, json_of(_ServerLoads))
        self._published: _ServerLoads | None = None
        self._history: dict[ServiceId, ScalingHistory] = {}

    def follow_routes(self, routes: RouteReports) -> None:
        """Count requests that edge nodes report to this server."""
        self._routes = routes

    async def run(self, leader: LeaderElection) -> None:
        """For ever. The tables must be running."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._loads.run())
            group.create_task(self._publish_for_ever())
            group.create_task(leader.run_while_leading("autoscaling", self._lead))

    def loads(self) -> Mapping[str, ServiceLoad]:
        """The loads of all servers together."""
        total: dict[str, ServiceLoad] = {}
        for server in self._loads.values():
            for id, load in server.services.items():
                total[id] = total.get(id, NO_LOAD) + load
        return total

    async def _publish_for_ever(self) -> None:
        await self._tables.ready()
        while True:
            try:
                await self._publish()
            except errors.Unavailable as error:
                log.warning("autoscaling.unpublished", error=error.message)
            await asyncio.sleep(PERIOD_S)

    async def _publish(self) -> None:
        loads = _ServerLoads({service.id: self._load_of(service) for service in self._scaled()})
        if not loads.services and self._published is None:
            return
        is_same_lease = await self._lease.renew()
        if loads != self._published or not is_same_lease:
            await self._loads.commit([self._loads.put(self._server, loads, self._lease.lease)])
            self._published = loads

    def _load_of(self, service: Service) -> ServiceLoad:
        total = NO_LOAD
        for record in self._index.of_owner(OwnerKind.SERVICE, service.id):
            node = record.value.node
            # The last load from a node that has connected to another server is outdated.
            if not record.value.is_ready or node is None or not self._is_live_here(node):
                continue
            used, metric = self._load(record.value.id)
            if used is not None:
                total += ServiceLoad(1, used.cpu, used.memory, int(metric is not None), metric or 0.0)
        for requests in self._routes.requests(service.id, self._is_live_here):
            total += ServiceLoad(edges=1, requests=requests)
        return total

    async def _lead(self, fence: Expect) -> None:
        await self._tables.ready()
        await self._loads.ready()
        self._history.clear()
        while True:
            loads = self.loads()
            services = self._scaled()
            for id in self._history.keys() - {service.id for service in services}:
                del self._history[id]
            for service in services:
                await self._scale(service, loads.get(service.id, NO_LOAD), fence)
            await asyncio.sleep(PERIOD_S)

    async def _scale(self, service: Service, load: ServiceLoad, fence: Expect) -> None:
        policy = service.autoscale
        assert policy is not None
        wanted = recommend(service, policy, load)
        if wanted is None:
            return
        history = self._history.setdefault(service.id, ScalingHistory())
        replicas = history.add(policy, service.replicas, wanted, self._clock.now())
        if replicas == service.replicas:
            return
        total = measure(service, policy, load) or 0.0
        reason = (
            f"{policy.metric} is {total / max(1, service.replicas):.4g} per copy, the target is "
            f"{policy.target:g}: from {service.replicas} to {replicas}"
        )
        services = self._tables.services

        def write(record: Record[Service]) -> Write[Service] | None:
            if record.value.id != service.id or record.value.autoscale != policy or record.value.is_deleting:
                return None
            event = self._events.put(
                "service.scaled", services.subject(service), actor="skerry", reason=reason
            )
            return Write(replace(record.value, replicas=replicas), [event])

        missing = services.unknown(service.name, service.namespace)
        try:
            await services.update(key_of(service), write, missing=missing, fence=fence)
        except (errors.NotFound, errors.Unavailable) as error:
            log.info("autoscaling.not_done", service=service.name, error=error.message)

    def _scaled(self) -> list[Service]:
        """The services that are scaled by their load now."""
        return [
            record.value
            for _, record in self._tables.services.items()
            if record.value.autoscale is not None and not (record.value.is_deleting or record.value.is_paused)
        ]
