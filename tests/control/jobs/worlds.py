"""Servers that lead jobs and schedules on a store in memory, with a node that runs what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from skerry.control.events.log import EventLog
from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.instances import transitions
from skerry.control.instances.report_rules import evaluate_report
from skerry.control.instances.writer import TransitionWriter
from skerry.control.jobs.controller import JobController
from skerry.control.jobs.decisions import owner_of
from skerry.control.jobs.registry import JobRegistry
from skerry.control.jobs.table import JobTable
from skerry.control.schedules.controller import CallNames, ScheduleController
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.kit.clock import SystemClock
from skerry.kit.tasks import cancel_and_wait
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.jobs import Job, JobSpec
from skerry.model.orders import InstanceReport
from skerry.model.settings import EventSettings, FleetSettings
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance, InstanceSpec
from skerry.store.protocol import Expect, Op, Put, Store

NODE = NodeId("n1")
MARK = "mark"
SPEC = InstanceSpec(name="sums", uri="example.org/sums:1")


def job_spec(**more: Any) -> JobSpec:
    return JobSpec(SPEC, **more)


class ShiftedClock(SystemClock):
    """The machine's clock, begun at another time."""

    def __init__(self, start: float) -> None:
        self._shift = start - super().now()

    def now(self) -> float:
        return super().now() + self._shift

    def advance(self, seconds: float) -> None:
        self._shift += seconds


class Crash(Exception):
    """The process ended."""


class CrashingStore:
    """A store whose n-th transaction is the last thing that a process does: before it, or after."""

    def __init__(self, store: Store, crash_at: int, *, is_written: bool) -> None:
        self._store = store
        self._left = crash_at
        self._is_written = is_written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def has_crashed(self) -> bool:
        return self._left <= 0

    async def commit(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> int:
        if self.has_crashed:
            raise Crash
        self._left -= 1
        if self._left == 0:
            if self._is_written:
                await self._store.commit(ops, expect)
            raise Crash
        return await self._store.commit(ops, expect)


class JobServer:
    """Everything of jobs and schedules, with controllers that lead."""

    def __init__(self, store: Store, clock: SystemClock, settings: FleetSettings | None = None) -> None:
        settings = settings or FleetSettings(job_retry_base_s=0.01)
        self.store = store
        self.clock = clock
        self.events = EventLog(store, clock, EventSettings())
        self.instances = InstanceTable(store)
        self.job_table = JobTable(store)
        self.schedule_table = ScheduleTable(store)
        self.jobs = JobRegistry(store, self.events, clock, self.job_table, self.instances)
        self.schedules = ScheduleRegistry(
            store, self.events, clock, self.schedule_table, lambda name: name == "there"
        )
        self._job_controller = JobController(
            store, self.events, clock, settings, jobs=self.job_table, instances=self.instances
        )
        self._schedule_controller = ScheduleController(
            store,
            self.events,
            clock,
            schedules=self.schedule_table,
            jobs=self.job_table,
            calls=CallNames(MARK, 3600.0),
        )

    @asynccontextmanager
    async def running(self, *, leads: bool = True) -> AsyncIterator[JobServer]:
        """Ends in `Crash` if its store does."""
        tables = (self.instances, self.job_table, self.schedule_table)
        loops = [asyncio.ensure_future(table.run()) for table in tables]
        leading: list[asyncio.Task[None]] = []
        try:
            for table in tables:
                await table.ready()
            if leads:
                fence = Expect("leader", await self.store.commit([Put("leader", b"here")]))
                leading = [
                    asyncio.ensure_future(self._job_controller.lead(fence)),
                    asyncio.ensure_future(self._schedule_controller.lead(fence)),
                ]
            self.leading = leading
            yield self
        finally:
            await cancel_and_wait([*loops, *leading])

    def tries(self) -> list[Instance]:
        return [known.value for known in self.instances.index]


class PlayedNode:
    """A node that has resources for everything: it takes every instance and ends it as `exit_code` says."""

    def __init__(self, store: Store, clock: SystemClock, exit_code: Callable[[Instance], int | None]) -> None:
        self._clock = clock
        self._table = InstanceTable(store)
        self._writer = TransitionWriter(EventLog(store, clock, EventSettings()), self._table)
        self._exit_code = exit_code
        self.runs: list[tuple[str, int, int]] = []  # job, index and attempt of every try that began

    @asynccontextmanager
    async def running(self) -> AsyncIterator[PlayedNode]:
        changed = asyncio.Event()
        self._table.listen(lambda before, after: changed.set())

        async def obey() -> None:
            while True:
                changed.clear()
                for known in list(self._table.index):
                    try:
                        await self._act(known)
                    except errors.Conflict:  # somebody was quicker
                        changed.set()
                        await self._table.sync()
                await changed.wait()

        loops = [asyncio.ensure_future(self._table.run())]
        try:
            await self._table.ready()
            loops.append(asyncio.ensure_future(obey()))
            yield self
            for loop in loops:
                if loop.done():
                    loop.result()
        finally:
            await cancel_and_wait(loops)

    async def _act(self, known: InstanceRecord) -> None:
        instance, now = known.value, self._clock.now()
        if instance.node is None:
            if instance.desired is DesiredStatus.RUNNING and instance.observed.status not in TERMINAL:
                await self._writer.commit([(known, transitions.bind(instance, NODE, at=now))])
            return
        for status, code in self._deeds(instance):
            record = self._table.get(instance.id)
            if record is None:
                return
            report = InstanceReport(instance.id, instance.generation, status, now, exit_code=code)
            step = evaluate_report(record.value, NODE, report, now).step
            if step is not None:
                await self._writer.commit([(record, step)])

    def _deeds(self, instance: Instance) -> list[tuple[InstanceStatus, int | None]]:
        if instance.desired is DesiredStatus.DESTROYED:
            return [(InstanceStatus.TERMINATED, None)]
        if instance.observed.status in TERMINAL:
            return []
        if instance.desired is DesiredStatus.STOPPED:
            is_down = instance.observed.status is InstanceStatus.STOPPED
            return [] if is_down else [(InstanceStatus.STOPPED, None)]
        deeds: list[tuple[InstanceStatus, int | None]] = []
        if instance.observed.status is InstanceStatus.SCHEDULED:
            owner = owner_of(instance)
            self.runs.append((owner.name, owner.index, owner.attempt))
            deeds += [(InstanceStatus.STARTING, None), (InstanceStatus.RUNNING, None)]
        code = self._exit_code(instance)
        if code is not None:
            ended = InstanceStatus.TERMINATED if code == 0 else InstanceStatus.FAILED
            deeds += [] if code == 0 else [(InstanceStatus.CRASHED, code)]
            deeds.append((ended, code))
        return deeds


def succeed(instance: Instance) -> int:
    return 0


def find_job(server: JobServer, name: str) -> Job | None:
    return server.job_table.value(f"default/{name}")
