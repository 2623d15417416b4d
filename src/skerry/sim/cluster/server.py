"""One server of a simulated cloud: all of the control plane, on a store that others may share.

It has the parts of a real server, put together as in `skerry.daemon`, without transport: users and nodes call
`instances`, `services`, `nodes` and `sessions` directly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.jobs.controller import JobController
from skerry.control.jobs.registry import JobRegistry
from skerry.control.jobs.table import JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.placement.reconciler import Reconciler
from skerry.control.schedules.controller import CallNames, ScheduleController
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.control.services.controller import ServiceController
from skerry.control.services.registry import ServiceRegistry
from skerry.control.services.tables import ServiceTables
from skerry.control.sessions.node_session import NodeSessions
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor, cancel_and_wait
from skerry.model import errors
from skerry.model.settings import EventSettings, FleetSettings
from skerry.store.protocol import Store

T = TypeVar("T")

_FINGERPRINT = "0" * 64  # of a CA that is not used


class SimulatedServer:
    """`start` and `stop` it; a stopped server is not started again. Requests that a stop may interrupt go
    through `serve`."""

    def __init__(
        self,
        name: str,
        store: Store,
        clock: Clock,
        settings: FleetSettings,
        events: EventSettings,
        *,
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        """`new_id` gives the ids of services, jobs and their instances."""
        self.name = name
        self.events = EventLog(store, clock, events)
        self.instance_table = InstanceTable(store)
        self.workloads = WorkloadRegistry(store, self.events, clock, self.instance_table)
        self.nodes = NodeRegistry(
            store, self.events, self.instance_table, clock, settings, fingerprint=_FINGERPRINT, server=name
        )
        self.reconciler = Reconciler(
            store,
            self.events,
            clock,
            settings,
            instance_table=self.instance_table,
            workloads=self.workloads,
            conditions=self.nodes,
        )
        self.instances = InstanceRegistry(
            store,
            self.events,
            clock,
            instance_table=self.instance_table,
            workloads=self.workloads,
            conditions=self.nodes,
            explain=self.reconciler.explain,
        )
        tables = ServiceTables(store)
        self.services = ServiceRegistry(
            store,
            self.events,
            clock,
            tables=tables,
            instance_table=self.instance_table,
            conditions=self.nodes,
            placement=self.reconciler,
            new_id=new_id,
        )
        self._controller = ServiceController(
            store,
            self.events,
            clock,
            tables=tables,
            instance_table=self.instance_table,
            conditions=self.nodes,
            new_id=new_id,
        )
        self.job_table, self.schedule_table = JobTable(store), ScheduleTable(store)
        self.jobs = JobRegistry(store, self.events, clock, self.job_table, self.instance_table, new_id)
        self.schedules = ScheduleRegistry(
            store, self.events, clock, self.schedule_table, lambda name: False, new_id
        )
        self._job_controller = JobController(
            store,
            self.events,
            clock,
            settings,
            jobs=self.job_table,
            instances=self.instance_table,
            new_id=new_id,
        )
        self._schedule_controller = ScheduleController(
            store,
            self.events,
            clock,
            schedules=self.schedule_table,
            jobs=self.job_table,
            calls=CallNames(name, 3600.0),
            new_id=new_id,
        )
        self.sessions = NodeSessions(self.nodes, self.instances, settings)
        self.leader = LeaderElection(store, self.events, clock, name=name, lease_s=settings.leader_lease_s)
        self._supervisor = TaskSupervisor(f"server {name}", clock=clock)
        self._calls: set[asyncio.Task[Any]] = set()
        self.is_open = False

    async def start(self, *, leads: bool = True) -> None:
        """Run; returns when its tables are filled. With `leads` it is a candidate for the lead."""
        await self._supervisor.__aenter__()
        self._supervisor.forever("instances", self.instance_table.run)
        self._supervisor.forever("workloads", self.workloads.run)
        self._supervisor.forever("nodes", self.nodes.run)
        self._supervisor.forever("services", self.services.tables.run)
        self._supervisor.forever("jobs", self.job_table.run)
        self._supervisor.forever("schedules", self.schedule_table.run)
        self._supervisor.forever("events", self.events.run)
        await self.instance_table.ready()
        await self.workloads.ready()
        await self.nodes.ready()
        await self.services.tables.ready()
        await self.job_table.ready()
        await self.schedule_table.ready()
        if leads:
            self.lead()
        self.is_open = True

    def lead(self) -> None:
        """Lead as soon as no other server does."""
        self._supervisor.forever("leader", self.leader.run)
        self._supervisor.forever("reconciler", lambda: self.reconciler.run(self.leader))
        self._supervisor.forever("services.controller", lambda: self._controller.run(self.leader))
        self._supervisor.forever("jobs.controller", lambda: self._job_controller.run(self.leader))
        self._supervisor.forever("schedules.controller", lambda: self._schedule_controller.run(self.leader))

    async def serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Do the work of a request; `Unavailable` if this server stops meanwhile."""
        task = asyncio.ensure_future(work)
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.is_open or not task.cancelled() or _is_cancelled():
                raise
            raise errors.Unavailable("the server stopped before it answered") from None
        finally:
            self._calls.discard(task)

    async def stop(self) -> None:
        """End at once. Whether it gives up its lease depends on its store: a killed server does not."""
        self.is_open = False
        await cancel_and_wait(list(self._calls))
        await self._supervisor.stop()


def _is_cancelled() -> bool:
    """True if the present task itself is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
