"""Jobs: the list, and one of them with its completions, tries, output and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, object_pages, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Bar, Cell, EmptyState, Fact, LogView, Table
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView
from skerry.console.pages import instances
from skerry.console.pages.event_rows import event_table
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.jobs import Job, JobStatus
from skerry.model.workloads import Instance
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/jobs"
_TABS = (("tries", "Tries"), ("logs", "Logs"), ("events", "Events"))
_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.Unavailable)


class JobPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint("GET", PATH, summary="Jobs", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Jobs, the newest first."""
    found = context.jobs.jobs.list(namespace=query.listed, limit=EVERYTHING).items
    head = PageHead("Jobs", f"GET {PATH}", (Topic.JOBS,), "skerry get jobs")
    table = job_table(tuple(reversed(found)), query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A job", media=HTML, raises=(errors.NotFound,))
async def show(context: ConsoleContext, call: RequestContext, path: JobPath, query: ObjectQuery) -> Response:
    """One job."""
    job = (await context.jobs.jobs.read(path.name, query.named)).value
    tries, now = context.jobs.jobs.tries(job), context.plane.clock.now()
    tab = object_pages.chosen(query.tab, _TABS)
    base = f"{PATH}/{job.name}"
    within = TableContext.of(base, query, tab)
    table, logs = None, None
    if tab == "events":
        events = await context.plane.events.of(f"job/{job.namespace}/{job.name}", reader=call.caller.scope)
        # One of that name may have been deleted before.
        table = event_table([one for one in events if one.event.at >= job.created_at], within, now)
    elif tab == "logs" and tries:
        source = url(f"{instances.PATH}/{tries[-1].id}/logs", namespace=job.namespace)
        command = cli("job", "logs", job.name, "--try", str(len(tries)), namespace=job.namespace)
        logs = LogView(source, command)
    else:
        table = try_table(tries, instances.node_names(context), within, now)
    view = job_view(job, context.jobs.jobs.count_active(job), call.caller, now)
    view = msgspec.structs.replace(
        view,
        tab=tab,
        tabs=object_pages.tabs(base, job.namespace, _TABS, tab),
        table=table,
        logs=logs,
    )
    head = PageHead(
        job.name,
        f"GET {PATH}",
        (Topic.JOBS, Topic.INSTANCES),
        cli("job", "describe", job.name, namespace=job.namespace),
    )
    return context.renderer.page(call, "object.html", head, view=view)


def job_table(jobs: Sequence[Job], query: ListQuery, now: float) -> Table:
    """The list of jobs."""
    columns = (
        TableColumn("Name", "name", lambda one: one.name),
        TableColumn("Status", "status", lambda one: one.status.value),
        TableColumn("Completions", "completions", lambda one: len(one.succeeded), number=True),
        TableColumn("Failed tries", "failures", lambda one: one.failures, number=True, minor=True),
        TableColumn("Image", "image", lambda one: one.spec.template.uri, minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.namespace, minor=True),
        TableColumn(
            "Took", "took", lambda one: (one.ended_at or now) - one.created_at, number=True, minor=True
        ),
        TableColumn("Age", "age", lambda one: -one.created_at, number=True, minor=True),
    )

    def cells(job: Job) -> tuple[Cell, ...]:
        return (
            Cell(job.name, url(f"{PATH}/{job.name}", namespace=job.namespace)),
            Cell(badge=statuses.job_badge(job.status), note=_trouble(job)),
            Cell(f"{len(job.succeeded)}/{job.spec.completions}"),
            Cell(f"{job.failures:,}"),
            Cell(job.spec.template.uri, mono=True),
            Cell(job.namespace),
            Cell(formats.duration((job.ended_at or now) - job.created_at)),
            Cell(formats.age(job.created_at, now), time=job.created_at),
        )

    shape = TableShape(
        "jobs",
        "Jobs",
        PATH,
        columns,
        lambda one: f"{one.name} {one.id} {one.spec.template.uri} {one.namespace} {one.status.value}",
        cells,
        EmptyState(
            "No jobs yet",
            "A job runs an image to its end, once or many times, and tries again what fails.",
            "skerry job run --wait docker.io/library/busybox -- echo done",
        ),
    )
    return build_table(shape, jobs, query)


def _trouble(job: Job) -> str:
    return job.reason if job.status is JobStatus.FAILED else job.quota_message


def try_table(tries: Sequence[Instance], names: Mapping[str, str], within: TableContext, now: float) -> Table:
    """The tries of a job, the newest first."""
    columns = (
        TableColumn("Try", "", lambda one: 0, number=True),
        TableColumn("Completion", "", lambda one: 0, number=True, minor=True),
        TableColumn("Status", "", lambda one: 0),
        TableColumn("Exit code", "", lambda one: 0, number=True),
        TableColumn("Node", "", lambda one: 0, minor=True),
        TableColumn("Instance", "", lambda one: 0, minor=True),
        TableColumn("Age", "", lambda one: 0, number=True),
    )

    def cells(item: tuple[int, Instance]) -> tuple[Cell, ...]:
        number, one = item
        index, attempt = (one.owner.index, one.owner.attempt) if one.owner is not None else (0, 0)
        seen = one.observed
        href = url(f"{instances.PATH}/{one.id}", namespace=one.namespace)
        return (
            Cell(str(number), href),
            Cell(str(index), note=f"retry {attempt}" if attempt else ""),
            Cell(badge=statuses.instance_badge(one), note=seen.reason if seen.exit_code else ""),
            Cell("–" if seen.exit_code is None else str(seen.exit_code)),
            Cell(names.get(one.node or "", "none")),
            Cell(one.id, mono=True),
            Cell(formats.age(one.created_at, now), time=one.created_at),
        )

    empty = EmptyState("No tries", "None is made yet, or those of before are no longer kept.")
    shape = TableShape("tab", "Tries", "", columns, lambda item: item[1].id, cells, empty, within.href)
    numbered = list(enumerate(tries, start=1))
    return build_table(shape, list(reversed(numbered)), ListQuery(page=within.page))


def job_view(job: Job, active: int, caller: Caller, now: float) -> ObjectView:
    """The page of one job, without its tab."""
    spec = job.spec
    base = f"{PATH}/{job.name}"
    done_of = f"{len(job.succeeded)} of {spec.completions}"
    facts = [
        Fact("Image", Cell(spec.template.uri, mono=True)),
        Fact("Running now", Cell(f"{active}", note=f"at most {spec.parallelism} at once")),
        Fact("Failed tries", Cell(f"{job.failures:,}", note=f"at most {spec.retries} retries of each")),
        Fact("Deadline", Cell(f"{formats.duration(spec.deadline_s)} in all" if spec.deadline_s else "none")),
        Fact("Created", Cell(formats.age(job.created_at, now), time=job.created_at)),
    ]
    if job.ended_at is not None:
        facts.append(Fact("Ended", Cell(formats.age(job.ended_at, now), time=job.ended_at)))
        kept_until = job.ended_at + spec.keep_for_s
        facts.append(Fact("Kept for", Cell(formats.duration(kept_until - now), until=kept_until)))
    return ObjectView(
        name=job.name,
        namespace=job.namespace,
        path=base,
        kind="Jobs",
        list_path=PATH,
        status=Cell(badge=statuses.job_badge(job.status)),
        note=" ".join(filter(None, (job.reason, job.quota_message))),
        facts=tuple(facts),
        bars=(
            Bar("Completions", f"{done_of} succeeded", len(job.succeeded) / spec.completions, None, False),
        ),
        actions=tuple(one for one in _actions(job, base) if may(caller, f"POST {PATH}/{{name}}/{one.id}")),
    )


def _actions(job: Job, base: str) -> list[Action]:
    def action(id: str, label: str, question: str, *, is_destructive: bool) -> Action:
        path = url(f"{base}/{id}", namespace=job.namespace)
        return Action(
            id, label, path, question, cli("job", id, job.name, namespace=job.namespace), is_destructive
        )

    found = []
    if not job.is_over:
        question = f"Cancel job {job.name}? Running tries are stopped; their output is kept."
        found.append(action("cancel", "Cancel job", question, is_destructive=True))
    if job.status is not JobStatus.DELETING:
        question = f"Delete job {job.name}, its tries and their output?"
        found.append(action("delete", "Delete", question, is_destructive=True))
    return found


@endpoint("POST", PATH + "/{name}/cancel", summary="Cancel a job", raises=_CHANGE_ERRORS)
async def cancel(
    context: ConsoleContext, call: RequestContext, path: JobPath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Output is kept."""
    await context.jobs.jobs.cancel(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Job {path.name} is cancelled.")


@endpoint("POST", PATH + "/{name}/delete", summary="Delete a job", raises=_CHANGE_ERRORS)
async def delete(
    context: ConsoleContext, call: RequestContext, path: JobPath, query: ObjectQuery, body: ActionForm
) -> Response:
    """With its tries and their output."""
    await context.jobs.jobs.delete(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Job {path.name} is being deleted.", leave_to=PATH)


ENDPOINTS = (show_list, show, cancel, delete)
