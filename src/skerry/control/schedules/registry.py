"""The registry of schedules: it takes requests durably, and answers reads from memory.

The leader starts runs (`skerry.control.schedules.controller`), also those that a user requests now: these are
only written here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.control.idempotency import IdempotencyTable, IdempotentRequest
from skerry.control.jobs.registry import check_spec
from skerry.control.named_table import key_of_name
from skerry.control.paging import ListPage
from skerry.control.schedules import decisions, due_times
from skerry.control.schedules.table import ScheduleRecord, ScheduleTable
from skerry.control.workloads.registry import check_match, check_may_create, check_space
from skerry.kit import logs, ulid
from skerry.kit.clock import Clock
from skerry.model import errors, secret_versions
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.ids import DEFAULT_NAMESPACE, Namespace, ScheduleId
from skerry.model.namespace_scope import ListedNamespaces
from skerry.model.schedules import (
    MAX_QUEUED,
    FunctionTarget,
    JobTarget,
    OverlapPolicy,
    RunStatus,
    Schedule,
    ScheduledRun,
)
from skerry.model.secret_versions import NO_SECRETS, SecretVersions
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
        secrets: SecretVersions = NO_SECRETS,
    ) -> None:
        self._secrets = secrets
        self._events = events
        self._clock = clock
        self._table = schedules
        self._has_function = has_function
        self._new_id = new_id
        self._idempotency = IdempotencyTable(store, clock)
        self._upcoming = due_times.UpcomingTimes(SHOWN_TIMES)

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

        The same name with the same settings, or the same key with the same request, returns the existing one;
        the same name with others raises `AlreadyExists`.
        """
        check_may_create(namespace, actor)
        check_space()
        now = self._clock.now()
        if isinstance(settings.target, JobTarget):
            await self._secrets.catch_up(namespace, settings.target.spec.template.secrets)
        given, settings = settings, self._settle(settings, namespace)
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

        def check_existing(existing: Schedule) -> None:
            if _as_given(ScheduleSettings.of(existing)) != _as_given(settings):
                raise errors.AlreadyExists(
                    f"schedule {name!r} exists with other settings; change it, or choose another name"
                )

        return await self._table.create(
            schedule,
            [self._event("created", schedule, actor)],
            IdempotentRequest.of(idempotency_key, actor, namespace, "schedule", name, given),
            self._idempotency,
            check_existing=check_existing,
            limit=MAX_SCHEDULES,
        )

    def find(self, name: str, namespace: Namespace | None = None) -> ScheduleRecord:
        """The schedule of that name in a namespace; without one, in the default one."""
        record = self._table.by_name(name, namespace)
        if record is None:
            raise self._table.unknown(name, namespace)
        return record

    async def read(self, name: str, namespace: Namespace | None = None) -> ScheduleRecord:
        """`find`, also of one that another server has just made."""
        key = key_of_name(name, namespace)
        record = self._table.get(key) or await self._table.read(key)
        if record is None:
            raise self._table.unknown(name, namespace)
        return record

    def next_times(self, schedule: Schedule) -> list[float]:
        """When it is due next; nothing while it is paused."""
        if schedule.is_paused:
            return []
        since = max(self._clock.now(), schedule.handled_until)
        return self._upcoming.after(schedule.cron, schedule.timezone, since)

    def list(
        self,
        *,
        namespace: ListedNamespaces = None,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
    ) -> ListPage[Schedule]:
        """Schedules by age and id, of all namespaces if none is given."""
        page = self._table.list_page(namespace, limit=limit, offset=offset, cursor=cursor)
        return page.map(lambda record: record.value)

    async def change(
        self,
        name: str,
        merge: Callable[[ScheduleSettings], ScheduleSettings],
        *,
        actor: str,
        namespace: Namespace | None = None,
        if_match: int | None = None,
    ) -> Schedule:
        """Other settings. With another expression or time zone, or if it is resumed, only due times after now
        count. A running run continues."""
        check_space()

        def decide(record: ScheduleRecord) -> Write[Schedule] | None:
            check_match(record.revision, if_match)
            before, now = record.value, self._clock.now()
            settings = ScheduleSettings.of(before)
            after = _apply(before, self._settle(merge(settings), before.namespace, settings), now)
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

    async def follow_secrets(self) -> None:
        """Have the next runs of all use the newest versions of their secrets and configs."""
        for schedule in self._table.values():
            if self._followed(schedule) is not None:
                await self._update(schedule.name, schedule.namespace, self._follow)

    def _follow(self, record: ScheduleRecord) -> Write[Schedule] | None:
        after = self._followed(record.value)
        return None if after is None else self._write("changed", after, "skerry")

    def _followed(self, schedule: Schedule) -> Schedule | None:
        target = schedule.target
        if not isinstance(target, JobTarget):
            return None
        template = target.spec.template
        uses = secret_versions.follow(template.secrets, schedule.namespace, self._secrets)
        if uses is None:
            return None
        spec = replace(target.spec, template=replace(template, secrets=uses))
        return replace(schedule, target=replace(target, spec=spec))

    def _settle(
        self, settings: ScheduleSettings, namespace: Namespace, before: ScheduleSettings | None = None
    ) -> ScheduleSettings:
        """With the versions of its secrets that the next run uses."""
        target = settings.target
        if not isinstance(target, JobTarget):
            return settings
        old = before.target if before is not None else None
        template = secret_versions.settle(
            target.spec.template,
            namespace,
            self._secrets,
            old.spec.template if isinstance(old, JobTarget) else None,
        )
        return replace(settings, target=replace(target, spec=replace(target.spec, template=template)))

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
        """A run in addition to the due ones; `FailedPrecondition` if one is running and the rule is
        `skip`."""
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
                    f"there is no function {plain_name(target.function)[:64]!r} in the namespace "
                    f"{namespace_of(target.function)!r}; create it first, `skerry fn list` lists those that "
                    "exist"
                )
        else:
            check_spec(schedule.name, target.spec)

    async def _update(
        self,
        name: str,
        namespace: Namespace | None,
        decide: Callable[[ScheduleRecord], Write[Schedule] | None],
    ) -> Schedule:
        key = key_of_name(name, namespace)
        return await self._table.update(key, decide, missing=self._table.unknown(name, namespace))

    def _write(self, kind: str, after: Schedule, actor: str) -> Write[Schedule]:
        after = replace(after, request_id=logs.request_id())
        return Write(after, [self._event(kind, after, actor)])

    def _event(self, kind: str, schedule: Schedule, actor: str) -> Put:
        return self._events.put(
            f"schedule.{kind}",
            self._table.subject(schedule),
            actor=actor,
            request_id=logs.request_id(),
            name=schedule.name,
            namespace=schedule.namespace,
        )


def _as_given(settings: ScheduleSettings) -> ScheduleSettings:
    """As a user gave it: versions of secrets are the server's."""
    target = settings.target
    if not isinstance(target, JobTarget):
        return settings
    template = secret_versions.without_versions(target.spec.template)
    return replace(settings, target=replace(target, spec=replace(target.spec, template=template)))


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
