"""`/schedule/`: schedules over HTTP: list, show, create, change, delete, pause, resume, run now.

Translation only: `skerry.control.schedules` starts the runs.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.jobs import Job
from skerry.model.schedules import Schedule
from skerry.model.services import check_service_name
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.jobs import documents
from skerry.wire.own.jobs.context import JobContext
from skerry.wire.own.jobs.documents import RunDocument, ScheduleDocument
from skerry.wire.own.jobs.inputs import ScheduleInput

_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable)


class SchedulePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class ScheduleList(msgspec.Struct, frozen=True):
    """A page of schedules, the oldest first; `count` is how many there are in all."""

    count: int
    schedules: tuple[ScheduleDocument, ...]
    cursor: str | None


@endpoint("GET", "/schedule/", summary="List schedules", raises=(errors.Invalid, errors.Unprocessable))
async def list_schedules(context: JobContext, call: RequestContext, query: PageQuery) -> ScheduleList:
    """In the order of their creation."""
    page = context.schedules.list(**query.arguments())
    shown = await map_in_turns(partial(_document, context), page.items)
    return ScheduleList(page.total, shown, page.cursor)


@endpoint("GET", "/schedule/{name}", summary="Show a schedule", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: JobContext, call: RequestContext, path: SchedulePath, query: NamespaceQuery
) -> ScheduleDocument | Response:
    """With its next due times and its latest runs. `ETag` changes with each."""
    record = await context.schedules.read(path.name, namespaces.requested_namespace(query))
    return _answer(context, record.value, etag=rest_conventions.etag(record.revision))


@endpoint(
    "PUT",
    "/schedule/",
    summary="Create a schedule",
    status=201,
    extra_statuses={200: "It exists already, with the same settings or the same Idempotency-Key."},
    raises=(*rest_conventions.CREATE_ERRORS, errors.NotFound),
    headers=rest_conventions.RETRY_HEADER,
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def create(
    context: JobContext, call: RequestContext, query: NamespaceTarget, body: ScheduleInput
) -> ScheduleDocument | Response:
    """Only due times after now count. An expression that is never due, an unknown time zone and an unknown
    function are refused.
    """
    if body.name is UNSET:
        raise errors.Invalid("`name` is needed", field="name")
    name = check_service_name(body.name, "schedule")
    namespace = namespaces.target_namespace(query, body.namespace)
    job = await _source(context, body, NamespaceQuery(namespace=namespace))
    schedule, is_new = await context.schedules.create(
        name,
        body.settings(call.caller, name, namespace, job),
        actor=call.caller.name,
        namespace=namespace,
        idempotency_key=call.idempotency_key,
    )
    place = f"/namespace/{schedule.namespace}/schedule/{schedule.name}"
    return _answer(context, schedule, status=201 if is_new else 200, location=place)


@endpoint(
    "PATCH",
    "/schedule/{name}",
    summary="Change a schedule",
    raises=(*_CHANGE_ERRORS, errors.Unprocessable, errors.TooLarge),
    headers=rest_conventions.MATCH_HEADER,
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def change(
    context: JobContext,
    call: RequestContext,
    path: SchedulePath,
    query: NamespaceQuery,
    body: ScheduleInput,
) -> ScheduleDocument | Response:
    """A merge patch (RFC 7396): fields that are not given stay, null resets one to its default; the target is
    given whole. With another `cron` or `timezone`, only due times after now count.
    """
    namespace = namespaces.requested_namespace(query)
    record = await context.schedules.read(path.name, namespace)
    present = record.value
    if body.name not in (UNSET, present.name):
        raise errors.Invalid("the name of a schedule cannot change; create another", field="name")
    namespaces.check_namespace_unchanged("a schedule", query, body.namespace, present.namespace)
    job = await _source(context, body, NamespaceQuery(namespace=present.namespace))
    schedule = await context.schedules.change(
        path.name,
        lambda base: body.settings(call.caller, present.name, present.namespace, job, base),
        actor=call.caller.name,
        namespace=namespace,
        if_match=rest_conventions.check_if_match(call, lambda: record.revision),
    )
    return _answer(context, schedule)


@endpoint(
    "DELETE",
    "/schedule/{name}",
    summary="Delete a schedule",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def delete(
    context: JobContext, call: RequestContext, path: SchedulePath, query: NamespaceQuery
) -> ScheduleDocument | Response:
    """Its jobs keep running, and are stored until they expire."""
    namespace = namespaces.requested_namespace(query)
    return _answer(
        context, await context.schedules.delete(path.name, actor=call.caller.name, namespace=namespace)
    )


@endpoint("POST", "/schedule/{name}/run", summary="Run a schedule now", raises=_CHANGE_ERRORS, status=202)
async def run(
    context: JobContext, call: RequestContext, path: SchedulePath, query: NamespaceQuery
) -> RunDocument:
    """A run in addition to the due ones, also while paused; 412 if one is running and `overlap` is `skip`."""
    namespace = namespaces.requested_namespace(query)
    added = await context.schedules.run_now(path.name, actor=call.caller.name, namespace=namespace)
    return documents.run_document(added)


@endpoint("POST", "/schedule/{name}/pause", summary="Pause a schedule", raises=_CHANGE_ERRORS)
async def pause(
    context: JobContext, call: RequestContext, path: SchedulePath, query: NamespaceQuery
) -> ScheduleDocument | Response:
    """Nothing is due until it is resumed. A running run continues."""
    return await _set_paused(context, call, path, query, is_paused=True)


@endpoint("POST", "/schedule/{name}/resume", summary="Resume a schedule", raises=_CHANGE_ERRORS)
async def resume(
    context: JobContext, call: RequestContext, path: SchedulePath, query: NamespaceQuery
) -> ScheduleDocument | Response:
    """Only due times after now count."""
    return await _set_paused(context, call, path, query, is_paused=False)


async def _set_paused(
    context: JobContext,
    call: RequestContext,
    path: SchedulePath,
    query: NamespaceQuery,
    *,
    is_paused: bool,
) -> Response:
    schedule = await context.schedules.set_paused(
        path.name,
        is_paused,
        actor=call.caller.name,
        namespace=namespaces.requested_namespace(query),
    )
    return _answer(context, schedule)


async def _source(context: JobContext, body: ScheduleInput, scope: NamespaceQuery) -> Job | None:
    """The job whose spec is copied, if one is named."""
    if body.from_job is UNSET:
        return None
    return (await context.jobs.read(body.from_job, namespaces.requested_namespace(scope))).value


def _document(context: JobContext, schedule: Schedule) -> ScheduleDocument:
    return documents.schedule_document(schedule, context.schedules.next_times(schedule))


def _answer(
    context: JobContext, schedule: Schedule, *, status: int | None = None, **headers: str
) -> Response:
    return rest_conventions.respond(_document(context, schedule), status, **headers)
