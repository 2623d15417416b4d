"""Jobs and schedules of this process, and the calls of functions that schedules make.

Called by `skerry.daemon.control_plane`; the calls begin when functions are ready
(`skerry.daemon.server_role`). Every server serves all of it and makes its own calls; one of them leads.
"""

from __future__ import annotations

import msgspec

from skerry.control.instance_index import InstanceTable
from skerry.control.jobs.controller import JobController
from skerry.control.jobs.registry import JobRegistry
from skerry.control.jobs.table import JobTable
from skerry.control.leadership.election import LeaderElection
from skerry.control.schedules.calls import CallOutcome, ScheduledCalls
from skerry.control.schedules.controller import CallNames, ScheduleController
from skerry.control.schedules.registry import ScheduleRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.daemon.server_base import ServerBase
from skerry.daemon.volumes import VolumeParts
from skerry.functions.asynchronous.runner import AsyncCallRunner
from skerry.functions.continuum.replica_placement import origin_suffix
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model.calls import CallRequest, CallState
from skerry.model.ids import FunctionName
from skerry.model.jobs import Job
from skerry.model.schedules import Schedule
from skerry.model.secret_versions import SecretVersions
from skerry.model.settings import FunctionSettings
from skerry.wire.own.jobs.context import JobContext


class JobParts(msgspec.Struct, frozen=True):
    """Jobs and schedules as they are served."""

    context: JobContext
    _base: ServerBase
    _jobs: JobTable
    _schedules: ScheduleTable
    _job_controller: JobController
    _schedule_controller: ScheduleController

    async def ready(self) -> None:
        """When what is in the store is known."""
        await self._jobs.ready()
        await self._schedules.ready()

    @property
    def tables(self) -> tuple[JobTable, ScheduleTable]:
        return self._jobs, self._schedules

    def jobs(self) -> list[Job]:
        """All jobs."""
        return self._jobs.values()

    def schedules(self) -> list[Schedule]:
        """All schedules."""
        return self._schedules.values()

    def lead(self, leader: LeaderElection) -> None:
        """Begin to make tries and runs, while this server leads."""
        loops = self._base.loops
        loops.forever("jobs.controller", lambda: self._job_controller.run(leader))
        loops.forever("schedules.controller", lambda: self._schedule_controller.run(leader))

    def make_calls(self, runner: AsyncCallRunner) -> None:
        """Begin to make the calls of schedules that are this server's."""
        base = self._base
        caller = LocalFunctionCaller(origin_suffix(base.node), runner, base.settings.functions)
        calls = ScheduledCalls(self._schedules, caller, base.events, base.clock)
        base.loops.forever("schedules.calls", calls.run)


class LocalFunctionCaller:
    """Async calls of this server, as schedules make them."""

    def __init__(self, mark: str, runner: AsyncCallRunner, settings: FunctionSettings) -> None:
        self.mark = mark
        self.known_for_s = settings.result_ttl_s
        self._runner = runner

    async def accept(self, id: str, function: FunctionName, parameters: bytes) -> None:
        await self._runner.accept(CallRequest(function, parameters), id=id)

    async def outcome(self, id: str) -> CallOutcome | None:
        result = await self._runner.result(id)
        if result is None or result.state is CallState.EXPIRED:
            return None
        error = result.report.answer.error if result.report is not None else ""
        last_line = error.strip().rpartition("\n")[2]
        return CallOutcome(result.state is CallState.DONE, last_line)


def start(
    base: ServerBase,
    instances: InstanceTable,
    functions: FunctionRegistry,
    secrets: SecretVersions,
    volumes: VolumeParts,
) -> JobParts:
    """Begin to read what is in the store."""
    store, events, clock = base.store, base.events, base.clock
    settings, settled = base.settings, base.history.settled
    jobs = volumes.templates.jobs = JobTable(store)
    schedules = volumes.templates.schedules = ScheduleTable(store)
    calls = CallNames(
        origin_suffix(base.node),
        # It may wait for so long, run for so long, and its result may come late.
        2 * settings.functions.result_ttl_s + settings.functions.call_timeout_s,
    )
    controller = JobController(
        store, events, clock, settings.fleet, jobs=jobs, instances=instances, settled=settled
    )
    controller.follow_quotas(store.quotas)
    parts = JobParts(
        JobContext(
            JobRegistry(store, events, clock, jobs, instances, secrets=secrets, mounts=volumes.registry),
            ScheduleRegistry(
                store,
                events,
                clock,
                schedules,
                lambda name: functions.get(name) is not None,
                secrets=secrets,
            ),
            clock,
        ),
        base,
        jobs,
        schedules,
        controller,
        ScheduleController(
            store,
            events,
            clock,
            schedules=schedules,
            jobs=jobs,
            calls=calls,
            settled=settled,
        ),
    )
    base.loops.forever("jobs", jobs.run, critical=True)
    base.loops.forever("schedules", schedules.run, critical=True)
    return parts
