"""`/job/`: jobs over HTTP: list, show, create, cancel, delete, and their tries.

Translation only: jobs are controlled by `skerry.control.jobs`. The logs of a try are those of its instance.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.kit.tasks import map_in_turns
from skerry.model import errors
from skerry.model.jobs import Job
from skerry.transport.http.endpoints import RequestContext, Response, endpoint
from skerry.wire import namespaces, rest_conventions
from skerry.wire.namespaces import NamespaceQuery, NamespaceTarget, PageQuery
from skerry.wire.own.jobs import documents
from skerry.wire.own.jobs.context import JobContext
from skerry.wire.own.jobs.documents import JobDocument, TryDocument
from skerry.wire.own.jobs.inputs import JobInput


class JobPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128, description="Its name, or its id")]


class JobQuery(PageQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which jobs."""

    schedule: Annotated[str, Meta(description="Only runs of the schedule of that name")] = ""


class JobList(msgspec.Struct, frozen=True):
    """A page of jobs, the oldest first; `count` is how many there are in all."""

    count: int
    jobs: tuple[JobDocument, ...]
    cursor: str | None


class TryList(msgspec.Struct, frozen=True):
    """The stored tries of a job, in the order of their creation."""

    count: int
    tries: tuple[TryDocument, ...]


@endpoint(
    "GET",
    "/job/",
    summary="List jobs",
    raises=(errors.Invalid, errors.NotFound, errors.Unprocessable),
)
async def list_jobs(context: JobContext, call: RequestContext, query: JobQuery) -> JobList:
    """In the order of their creation, also ended ones until they expire."""
    schedule = None
    if query.schedule:
        namespace = namespaces.one_namespace(query)
        schedule = (await context.schedules.read(query.schedule, namespace)).value.id
    page = context.jobs.list(**query.arguments(), schedule=schedule)
    items = await map_in_turns(
        lambda job: documents.job_document(job, context.jobs.count_active(job)), page.items
    )
    return JobList(page.total, items, page.cursor)


@endpoint("GET", "/job/{name}", summary="Show a job", raises=(errors.Invalid, errors.NotFound))
async def show(
    context: JobContext, call: RequestContext, path: JobPath, query: NamespaceQuery
) -> JobDocument | Response:
    """By its name or its id. `ETag` changes with its record, and not with its tries."""
    record = await context.jobs.read(path.name, namespaces.requested_namespace(query))
    return _answer(context, record.value, etag=rest_conventions.etag(record.revision))


@endpoint(
    "PUT",
    "/job/",
    summary="Create a job",
    status=201,
    extra_statuses={200: "It exists already, with the same spec or the same Idempotency-Key."},
    raises=rest_conventions.CREATE_ERRORS,
    headers=rest_conventions.RETRY_HEADER,
    max_body_bytes=rest_conventions.MAX_SPEC_BODY,
)
async def create(
    context: JobContext, call: RequestContext, query: NamespaceTarget, body: JobInput
) -> JobDocument | Response:
    """It starts at once.

    A try is an instance; its program has `SKERRY_JOB_INDEX` and `SKERRY_JOB_ATTEMPT` in its environment, and
    succeeds with exit code 0. Its name is unique in its namespace: 409 if there is a job of that name with
    another spec, also an ended one.
    """
    namespace = namespaces.target_namespace(query, body.namespace)
    name, spec = body.job(call.caller, rest_conventions.name_seed(call, "", context.clock))
    job, is_new = await context.jobs.create(
        name,
        spec,
        actor=call.caller.name,
        namespace=namespace,
        idempotency_key=call.idempotency_key,
    )
    place = f"/namespace/{job.namespace}/job/{job.name}"
    return _answer(context, job, status=201 if is_new else 200, location=place)


@endpoint(
    "POST",
    "/job/{name}/cancel",
    summary="Cancel a job",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def cancel(
    context: JobContext, call: RequestContext, path: JobPath, query: NamespaceQuery
) -> JobDocument | Response:
    """Running tries are stopped, and no others are made; logs are kept. An ended job is not changed."""
    namespace = namespaces.requested_namespace(query)
    return _answer(context, await context.jobs.cancel(path.name, actor=call.caller.name, namespace=namespace))


@endpoint(
    "DELETE",
    "/job/{name}",
    summary="Delete a job, its tries and their logs",
    status=202,
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def delete(
    context: JobContext, call: RequestContext, path: JobPath, query: NamespaceQuery
) -> JobDocument | Response:
    """It is `DELETING` until its nodes have removed the tries."""
    namespace = namespaces.requested_namespace(query)
    return _answer(context, await context.jobs.delete(path.name, actor=call.caller.name, namespace=namespace))


@endpoint(
    "GET", "/job/{name}/tries", summary="List the tries of a job", raises=(errors.Invalid, errors.NotFound)
)
async def tries(context: JobContext, call: RequestContext, path: JobPath, query: NamespaceQuery) -> TryList:
    """Each is an instance, with its logs and events at `/instance/{id}`."""
    job = (await context.jobs.read(path.name, namespaces.requested_namespace(query))).value
    made = tuple(
        documents.try_document(number, instance)
        for number, instance in enumerate(context.jobs.tries(job), start=1)
    )
    return TryList(len(made), made)


def _answer(context: JobContext, job: Job, *, status: int | None = None, **headers: str) -> Response:
    document = documents.job_document(job, context.jobs.count_active(job))
    return rest_conventions.respond(document, status, **headers)
