"""Schedules as callers see them: requests made durable, and what is known told from memory.

Runs are begun by whichever server leads (`skerry.control.schedules.controller`), also those that somebody
wants now: these are only written down here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from skerry.control import idempotency, paging
from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.instance_index import age_key_at
from skerry.control.jobs.registry import check_spec
from skerry.control.paging import ListPage
from skerry.control.schedules import decisions, due_times
from skerry.control.schedules.table import ScheduleRecord, ScheduleTable, schedule_key
from skerry.control.workloads.registry import check_match, check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, ScheduleId
from skerry.model.schedules import (
    MAX_QUEUED,
    FunctionTarget,
    JobTarget,
    OverlapPolicy,
    RunStatus,
    Schedule,
    ScheduledRun,
)
from skerry.store.protocol import Put, Store
from skerry.store.tables.table import Write

MAX_SCHEDULES = 10_000
SHOWN_TIMES = 5


class ScheduleSettings(msgspec.Struct, frozen=True):
    """What people choose of a schedule."""

    cron: str
    target: JobTarget | FunctionTarget
    timezone: str = "UTC"
    overlap: OverlapPolicy = OverlapPolicy.SKIP
    window_s: float = 3600.0
    is_paused: bool = False

    @classmethod
    def of(cls, schedule: Schedule) -> ScheduleSettings:
        return cls(
            schedule.cron,
            schedule.target,
            schedule.timezone,
            schedule.overlap,
            schedule.window_s,
            schedule.is_paused,
        )


class ScheduleRegistry:
    """The schedules of one cloud."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        schedules: ScheduleTable,
        has_function: Callable[[str], bool],
        new_id: Callable[[float], str] = ulid.new_id,
    ) -> None:
        self._events = events
        self._clock = clock
        self._table = schedules
        self._has_function = has_function
        self._new_id = new_id
        self._idempotency = IdempotencyTable(store, clock)

    async def create(
        self,
        name: str,
        settings: ScheduleSettings,
        *,
        actor: str,
        namespace: Namespace = DEFAULT_NAMESPACE,
        idempotency_key: str | None = None,
    ) -> tuple[Schedule, bool]:
        """A schedule of this name, and whether it is new.

        The same name with the same settings, or the same key with the same request, gives the one that is
        there; the same name with others raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        now = self._clock.now()
        schedule = _apply(
            Schedule(
                ScheduleId(self._new_id(now)),
                name,
                settings.cron,
                settings.target,
                now,
                namespace=namespace,
                handled_until=now,
                request_id=logs.request_id(),
            ),
            settings,
            now,
        )
        self._check(schedule, now)
        request = (
            IdempotentRequest.of(idempotency_key, actor, namespace, "schedule", name, settings)
            if idempotency_key
            else None
        )
        key = schedule_key(namespace, name)
        while True:
            if made := await self._idempotency.recall(request):
                again = await self._table.read(key)
                if again is None or again.value.id != made:
                    raise idempotency.created_then_deleted("schedule", made)
                return again.value, False
            if there := await self._table.read(key):
                if ScheduleSettings.of(there.value) != settings:
                    raise errors.AlreadyExists(
                        f"schedule {name!r} exists with other settings; change it, or choose another name"
                    )
                return there.value, False
            if len(self._table) >= MAX_SCHEDULES:
                raise errors.TooLarge(
                    f"there are {MAX_SCHEDULES} schedules, and no more are taken; delete some"
                )
            puts, expect = await self._idempotency.put(request, schedule.id)
            event = self._event("created", schedule, actor)
            try:
                await self._table.commit(
                    [self._table.put(key, schedule), event, *puts], [self._table.expect(key, None), *expect]
                )
            except errors.Conflict:
                continue  # somebody was quicker with the name or the key; reading again shows which
            return schedule, True

    def find(self, name: str, namespace: Namespace | None = None) -> ScheduleRecord:
        """The schedule of that name in a namespace; without one, in the default one."""
        record = self._table.get(schedule_key(namespace or DEFAULT_NAMESPACE, name))
        if record is None:
            raise unknown_schedule(name, namespace)
        return record

    async def read(self, name: str, namespace: Namespace | None = None) -> ScheduleRecord:
        """`find`, also of one that another server has just made."""
        key = schedule_key(namespace or DEFAULT_NAMESPACE, name)
        record = self._table.get(key) or await self._table.read(key)
        if record is None:
            raise unknown_schedule(name, namespace)
        return record

    def next_times(self, schedule: Schedule) -> list[float]:
        """When it is due next; nothing while it is paused."""
        if schedule.is_paused:
            return []
        since = max(self._clock.now(), schedule.handled_until)
        return due_times.upcoming(schedule.cron, schedule.timezone, since, SHOWN_TIMES)

    def list(
        self,
        *,
        namespace: Namespace | None = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Schedule]:
        """Schedules by age and id, of all namespaces if none is given."""
        return paging.paginate_sorted(
            (schedule for schedule in self._table.values() if namespace in (None, schedule.namespace)),
            lambda schedule: age_key_at(schedule.created_at, schedule.id),
            limit=limit,
            offset=offset,
            cursor=cursor,
        )

    async def change(
        self,
        name: str,
        merge: Callable[[ScheduleSettings], ScheduleSettings],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
    ) -> Schedule:
        """Other settings. With another expression or zone, or if it was paused and is not any more, only
        times after now count. What runs goes on."""
        check_space()

        def decide(record: ScheduleRecord) -> Write[Schedule] | None:
            check_match(record.revision, if_match)
            before, now = record.value, self._clock.now()
            after = _apply(before, merge(ScheduleSettings.of(before)), now)
            if after == before:
                return None
            self._check(after, now)
            if isinstance(after.target, FunctionTarget) != isinstance(before.target, FunctionTarget):
                raise errors.Invalid(
                    "a schedule of jobs cannot become one of calls, or the other way; create another",
                    field="target",
                )
            return self._write("changed", after, actor)

        return await self._update(name, namespace, decide)

    async def set_paused(
        self, name: str, is_paused: bool, *, actor: str, namespace: Namespace | None = None
    ) -> Schedule:
        """Pause it, or resume it: then only times after now count."""

        def decide(record: ScheduleRecord) -> Write[Schedule] | None:
            before = record.value
            if before.is_paused is is_paused:
                return None
            after = _apply(
                before, replace(ScheduleSettings.of(before), is_paused=is_paused), self._clock.now()
            )
            return self._write("paused" if is_paused else "resumed", after, actor)

        return await self._update(name, namespace, decide)

    async def run_now(self, name: str, *, actor: str, namespace: Namespace | None = None) -> ScheduledRun:
        """A run beside those that are due; `FailedPrecondition` if one goes on and the rule is `skip`."""
        check_space()
        added: list[ScheduledRun] = []

        def decide(record: ScheduleRecord) -> Write[Schedule]:
            schedule = record.value
            going_on = [run for run in schedule.runs if not run.is_over]
            if going_on and schedule.overlap is OverlapPolicy.SKIP:
                since = due_times.display(going_on[0].due_at, schedule.timezone)
                raise errors.FailedPrecondition(
                    f"the run of {since} goes on, and the overlap rule of schedule {name!r} is `skip`; wait "
                    "for its end, or cancel its job"
                )
            if len(going_on) > MAX_QUEUED:
                raise errors.Overloaded(f"{MAX_QUEUED} runs of schedule {name!r} wait already; try later")
            taken = {int(run.due_at) for run in schedule.runs}
            due_at = float(int(self._clock.now()))
            while int(due_at) in taken or not due_at % 60:  # the names of jobs and ids of calls have seconds
                due_at += 1
            run = ScheduledRun(due_at, RunStatus.QUEUED, is_manual=True)
            added[:] = [run]
            after = replace(schedule, runs=decisions.trim([*schedule.runs, run]))
            return self._write("requested", after, actor)

        await self._update(name, namespace, decide)
        return added[0]

    async def delete(self, name: str, *, actor: str, namespace: Namespace | None = None) -> Schedule:
        """Delete it. Jobs that it has made stay until their own time is over."""

        def decide(record: ScheduleRecord) -> Write[Schedule]:
            event = self._event("deleted", record.value, actor)
            return Write(record.value, [event], is_delete=True)

        return await self._update(name, namespace, decide)

    def _check(self, schedule: Schedule, now: float) -> None:
        due_times.check(schedule.cron, schedule.timezone, now)
        target = schedule.target
        if isinstance(target, FunctionTarget):
            if not self._has_function(target.function):
                raise errors.Unprocessable(
                    f"there is no function {target.function[:64]!r}; create it first, `skerry fn list` lists "
                    "those there are"
                )
        else:
            check_spec(schedule.name, target.spec)

    async def _update(
        self,
        name: str,
        namespace: Namespace | None,
        decide: Callable[[ScheduleRecord], Write[Schedule] | None],
    ) -> Schedule:
        key = schedule_key(namespace or DEFAULT_NAMESPACE, name)
        return await self._table.update(key, decide, missing=unknown_schedule(name, namespace))

    def _write(self, kind: str, after: Schedule, actor: str) -> Write[Schedule]:
        after = replace(after, request_id=logs.request_id())
        return Write(after, [self._event(kind, after, actor)])

    def _event(self, kind: str, schedule: Schedule, actor: str) -> Put:
        return self._events.put(
            f"schedule.{kind}",
            self._table.key(schedule_key(schedule.namespace, schedule.name)),
            actor=actor,
            request_id=logs.request_id(),
            name=schedule.name,
            namespace=schedule.namespace,
        )


def unknown_schedule(name: str, namespace: Namespace | None = None) -> errors.NotFound:
    within, option = (f" in the namespace {namespace!r}", f" -n {namespace}") if namespace else ("", "")
    return errors.NotFound(
        f"there is no schedule {name[:128]!r}{within}; `skerry schedule list{option}` lists those there are"
    )


def _apply(schedule: Schedule, settings: ScheduleSettings, now: float) -> Schedule:
    after = replace(
        schedule,
        cron=settings.cron,
        target=settings.target,
        timezone=settings.timezone,
        overlap=settings.overlap,
        window_s=settings.window_s,
        is_paused=settings.is_paused,
    )
    is_due_otherwise = (after.cron, after.timezone) != (schedule.cron, schedule.timezone)
    if is_due_otherwise or (schedule.is_paused and not after.is_paused):
        # Also if the clock was ahead once: this is how to mend that.
        after = replace(after, handled_until=now)
    return after
