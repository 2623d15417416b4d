"""Jobs, their tries, schedules and their runs as JSON documents. Pure; the endpoints return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skerry.control.jobs import decisions
from skerry.control.schedules import due_times
from skerry.kit.clock import iso
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.ids import DEFAULT_NAMESPACE
from skerry.model.jobs import Job, JobSpec, JobStatus
from skerry.model.schedules import FunctionTarget, JobTarget, OverlapPolicy, RunStatus, Schedule, ScheduledRun
from skerry.model.statuses import InstanceStatus
from skerry.model.workloads import Instance
from skerry.wire.spec_documents import TemplateDocument, template_fields

Epoch = Annotated[float, Meta(description="Seconds since the epoch")]


class JobSpecDocument(TemplateDocument, frozen=True, kw_only=True):
    """The spec of a job; times are seconds."""

    completions: int
    parallelism: int
    retries: Annotated[int, Meta(description="Of each completion")]
    deadline_s: Annotated[float | None, Meta(description="Of the whole job; null: none")]
    keep_for_s: Annotated[float, Meta(description="After its end, with the logs of every try")]


class JobDocument(JobSpecDocument, frozen=True, kw_only=True):
    """A job."""

    id: str
    name: str
    namespace: str
    status: JobStatus
    succeeded: Annotated[int, Meta(description="Completions that are done")]
    active: Annotated[int, Meta(description="Tries that run or wait for a node")]
    failures: Annotated[int, Meta(description="Tries that failed")]
    reason: Annotated[str, Meta(description="Why it failed, was cancelled, or waits for quota")]
    schedule_id: Annotated[str | None, Meta(description="Of the schedule whose run it is")]
    created_at: Epoch
    ended_at: Annotated[float | None, Meta(description="Seconds since the epoch; null: not ended")]


class TryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One try of a job: an instance, which has routes of its own, for logs and others."""

    number: Annotated[int, Meta(description="From 1, in the order in which they were made")]
    instance_id: str
    name: str
    index: Annotated[int, Meta(description="Of the completion that it is for")]
    attempt: Annotated[int, Meta(description="How many tries of that failed before")]
    status: InstanceStatus
    exit_code: int | None
    reason: str
    node_id: str | None
    created_at: Epoch
    since: Annotated[float, Meta(description="When `status` began, seconds since the epoch")]


class RunDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a schedule. Times are RFC 3339, in UTC."""

    due_at: str
    status: RunStatus
    started_at: str | None
    ended_at: str | None
    target: Annotated[str, Meta(description="The name of its job, or the id of its call")]
    reason: str
    manual: Annotated[bool, Meta(description="Requested by a user, not due")]


class FunctionDocument(msgspec.Struct, frozen=True):
    """The call that a schedule makes."""

    name: str
    parameters: dict[str, Any]
    namespace: Annotated[
        str,
        Meta(
            description="Of the function: that of the schedule, or `default` in schedules of earlier versions"
        ),
    ] = DEFAULT_NAMESPACE


class ScheduleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule; it makes jobs or calls a function. Times are RFC 3339, in UTC."""

    id: str
    name: str
    namespace: str
    cron: str
    timezone: str
    overlap: OverlapPolicy
    window_s: Annotated[float, Meta(description="A run that is later than this is missed")]
    paused: bool
    job: Annotated[JobSpecDocument | None, Meta(description="Spec of the job of each run")]
    function: FunctionDocument | None
    next: Annotated[tuple[str, ...], Meta(description="The next five due times; none while it is paused")]
    next_local: Annotated[
        tuple[str, ...], Meta(description="The same in the schedule's time zone, for people")
    ]
    runs: Annotated[tuple[RunDocument, ...], Meta(description="The latest, the newest last")]
    created_at: Epoch


def job_document(job: Job, active: int) -> JobDocument:
    return JobDocument(
        id=job.id,
        name=job.name,
        namespace=job.namespace,
        status=job.status,
        succeeded=len(job.succeeded),
        active=active,
        failures=job.failures,
        reason=job.reason or job.quota_message * (not job.is_over),
        schedule_id=job.schedule,
        created_at=job.created_at,
        ended_at=job.ended_at,
        **_spec(job.spec),
    )


def try_document(number: int, instance: Instance) -> TryDocument:
    owner, seen = decisions.owner_of(instance), instance.observed
    return TryDocument(
        number=number,
        instance_id=instance.id,
        name=instance.spec.name,
        index=owner.index,
        attempt=owner.attempt,
        status=seen.status,
        exit_code=seen.exit_code,
        reason=seen.reason,
        node_id=instance.node,
        created_at=instance.created_at,
        since=seen.since,
    )


def run_document(run: ScheduledRun) -> RunDocument:
    return RunDocument(
        due_at=iso(run.due_at),
        status=run.status,
        started_at=None if run.started_at is None else iso(run.started_at),
        ended_at=None if run.ended_at is None else iso(run.ended_at),
        target=plain_name(run.target),
        reason=run.reason,
        manual=run.is_manual,
    )


def schedule_document(schedule: Schedule, upcoming: Sequence[float]) -> ScheduleDocument:
    target = schedule.target
    return ScheduleDocument(
        id=schedule.id,
        name=schedule.name,
        namespace=schedule.namespace,
        cron=schedule.cron,
        timezone=schedule.timezone,
        overlap=schedule.overlap,
        window_s=schedule.window_s,
        paused=schedule.is_paused,
        job=JobSpecDocument(**_spec(target.spec)) if isinstance(target, JobTarget) else None,
        function=FunctionDocument(
            plain_name(target.function), target.parameters, namespace_of(target.function)
        )
        if isinstance(target, FunctionTarget)
        else None,
        next=tuple(map(iso, upcoming)),
        next_local=tuple(due_times.display(at, schedule.timezone) for at in upcoming),
        runs=tuple(map(run_document, schedule.runs)),
        created_at=schedule.created_at,
    )


def _spec(spec: JobSpec) -> dict[str, Any]:
    return {
        **template_fields(spec.template),
        "completions": spec.completions,
        "parallelism": spec.parallelism,
        "retries": spec.retries,
        "deadline_s": spec.deadline_s,
        "keep_for_s": spec.keep_for_s,
    }
