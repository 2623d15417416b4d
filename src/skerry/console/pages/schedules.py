"""Schedules: the list, and one of them with its due times, runs and events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, object_pages, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Cell, EmptyState, Fact, Table, Tone
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView
from skerry.console.pages import functions, jobs
from skerry.console.pages.event_rows import event_table
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.function_names import plain_name
from skerry.model.schedules import FunctionTarget, Schedule, ScheduledRun
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/schedules"
_TABS = (("runs", "Runs"), ("events", "Events"))
_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.FailedPrecondition, errors.Unavailable)


class SchedulePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint("GET", PATH, summary="Schedules", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Schedules with their next and last runs."""
    registry = context.jobs.schedules
    found = registry.list(namespace=query.listed, limit=EVERYTHING).items
    head = PageHead("Schedules", f"GET {PATH}", (Topic.SCHEDULES,), "skerry get schedules")
    table = schedule_table(found, registry.next_times, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A schedule", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: SchedulePath, query: ObjectQuery
) -> Response:
    """One schedule."""
    registry, now = context.jobs.schedules, context.plane.clock.now()
    schedule = (await registry.read(path.name, query.named)).value
    tab = object_pages.chosen(query.tab, _TABS)
    base = f"{PATH}/{schedule.name}"
    within = TableContext.of(base, query, tab)
    if tab == "events":
        subject = f"schedule/{schedule.namespace}/{schedule.name}"
        events = await context.plane.events.of(subject, reader=call.caller.scope)
        # One of that name may have been deleted before.
        table = event_table([one for one in events if one.event.at >= schedule.created_at], within, now)
    else:
        table = run_table(schedule, within, now)
    view = schedule_view(schedule, registry.next_times(schedule), call.caller, now)
    tabs = object_pages.tabs(base, schedule.namespace, _TABS, tab)
    view = msgspec.structs.replace(view, tab=tab, tabs=tabs, table=table)
    head = PageHead(
        schedule.name,
        f"GET {PATH}",
        (Topic.SCHEDULES,),
        cli("schedule", "describe", schedule.name, namespace=schedule.namespace),
    )
    return context.renderer.page(call, "object.html", head, view=view)


def schedule_table(
    schedules: Sequence[Schedule],
    next_times: Callable[[Schedule], Sequence[float]],
    query: ListQuery,
    now: float,
) -> Table:
    """The list; `next_times` is called for the rows that are shown."""
    columns = (
        TableColumn("Name", "name", lambda one: one.name),
        TableColumn("Status", "status", lambda one: one.is_paused),
        TableColumn("Cron", "", lambda one: one.cron),
        TableColumn("Runs", "runs", lambda one: _target(one).text, minor=True),
        TableColumn("Next in", "", lambda one: 0, number=True),
        TableColumn("Last run", "last", lambda one: _last_status(one), minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.namespace, minor=True),
    )

    def cells(schedule: Schedule) -> tuple[Cell, ...]:
        due = next(iter(next_times(schedule)), None)
        last = schedule.runs[-1] if schedule.runs else None
        return (
            Cell(schedule.name, url(f"{PATH}/{schedule.name}", namespace=schedule.namespace)),
            Cell(badge=_status(schedule)),
            Cell(schedule.cron, mono=True, note=schedule.timezone),
            _target(schedule),
            Cell("–") if due is None else Cell(formats.duration(due - now), until=due),
            Cell("none yet") if last is None else Cell(badge=statuses.run_badge(last.status)),
            Cell(schedule.namespace),
        )

    shape = TableShape(
        "schedules",
        "Schedules",
        PATH,
        columns,
        lambda one: f"{one.name} {one.cron} {_target(one).text} {one.namespace}",
        cells,
        EmptyState(
            "No schedules yet",
            "A schedule runs an image, a copy of a job, or a call of a function at times that repeat.",
            "skerry schedule add report '0 8 * * MON-FRI' --fn report",
        ),
    )
    return build_table(shape, schedules, query)


def _status(schedule: Schedule) -> Badge:
    return Badge("PAUSED", Tone.WARNING) if schedule.is_paused else Badge("ACTIVE", Tone.GOOD)


def _last_status(schedule: Schedule) -> str:
    return schedule.runs[-1].status.value if schedule.runs else ""


def _target(schedule: Schedule) -> Cell:
    """What each run is."""
    target = schedule.target
    if isinstance(target, FunctionTarget):
        name = plain_name(target.function)
        return Cell(f"function {name}", url(f"{functions.PATH}/{name}", namespace=schedule.namespace))
    return Cell(target.spec.template.uri, mono=True)


def run_table(schedule: Schedule, within: TableContext, now: float) -> Table:
    """The latest runs, the newest first."""
    columns = (
        TableColumn("Due", "", lambda one: 0, number=True),
        TableColumn("Status", "", lambda one: 0),
        TableColumn("Run", "", lambda one: 0),
        TableColumn("Took", "", lambda one: 0, number=True),
        TableColumn("Started", "", lambda one: 0, number=True, minor=True),
    )
    is_call = isinstance(schedule.target, FunctionTarget)

    def cells(run: ScheduledRun) -> tuple[Cell, ...]:
        ended = run.ended_at or now
        target = plain_name(run.target)
        href = "" if is_call or not target else url(f"{jobs.PATH}/{target}", namespace=schedule.namespace)
        return (
            Cell(formats.age(run.due_at, now), time=run.due_at, note="by hand" if run.is_manual else ""),
            Cell(badge=statuses.run_badge(run.status), note=run.reason),
            Cell(target or "none", href, mono=is_call),
            Cell("–" if run.started_at is None else formats.latency(max(0.0, ended - run.started_at))),
            Cell("–")
            if run.started_at is None
            else Cell(formats.age(run.started_at, now), time=run.started_at),
        )

    empty = EmptyState(
        "No runs yet", "It was not due since it was made. Run it now, if you do not want to wait."
    )
    shape = TableShape("tab", "Runs", "", columns, lambda one: one.target, cells, empty, within.href)
    return build_table(shape, list(reversed(schedule.runs)), ListQuery(page=within.page))


def schedule_view(schedule: Schedule, due: Sequence[float], caller: Caller, now: float) -> ObjectView:
    """The page of one schedule, without its tab."""
    base = f"{PATH}/{schedule.name}"
    target = schedule.target
    facts = [
        Fact("Runs", _target(schedule)),
        Fact("Cron", Cell(schedule.cron, mono=True, note=schedule.timezone)),
        Fact("Next in", Cell(formats.duration(due[0] - now), until=due[0]) if due else Cell("–")),
        Fact("If the last one still runs", Cell(schedule.overlap.value)),
        Fact("May start late by", Cell(formats.duration(schedule.window_s))),
        Fact("Created", Cell(formats.age(schedule.created_at, now), time=schedule.created_at)),
    ]
    if isinstance(target, FunctionTarget) and target.parameters:
        facts.append(Fact("Parameters", Cell(", ".join(target.parameters), note="names only")))
    return ObjectView(
        name=schedule.name,
        namespace=schedule.namespace,
        path=base,
        kind="Schedules",
        list_path=PATH,
        status=Cell(badge=_status(schedule)),
        note="Nothing is due until it is resumed." if schedule.is_paused else "",
        facts=tuple(facts),
        actions=tuple(
            one for one in _actions(schedule, base) if may(caller, f"POST {PATH}/{{name}}/{one.id}")
        ),
    )


def _actions(schedule: Schedule, base: str) -> list[Action]:
    name, namespace = schedule.name, schedule.namespace

    def action(id: str, label: str, question: str) -> Action:
        path = url(f"{base}/{id}", namespace=namespace)
        return Action(
            id, label, path, question, cli("schedule", id, name, namespace=namespace), id == "delete"
        )

    toggle = (
        action("resume", "Resume", f"Resume {name}? Only due times after now count.")
        if schedule.is_paused
        else action("pause", "Pause", f"Pause {name}? Nothing is due until it is resumed.")
    )
    return [
        action("run", "Run now", f"Run {name} now, in addition to its due times?"),
        toggle,
        action("delete", "Delete", f"Delete schedule {name}? Its jobs keep running."),
    ]


@endpoint("POST", PATH + "/{name}/run", summary="Run a schedule now", raises=_CHANGE_ERRORS)
async def run(
    context: ConsoleContext, call: RequestContext, path: SchedulePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """In addition to its due times."""
    await context.jobs.schedules.run_now(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"A run of {path.name} begins.")


@endpoint("POST", PATH + "/{name}/pause", summary="Pause a schedule", raises=_CHANGE_ERRORS)
async def pause(
    context: ConsoleContext, call: RequestContext, path: SchedulePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """A running run continues."""
    await context.jobs.schedules.set_paused(path.name, True, actor=call.caller.name, namespace=query.named)
    return done(f"{path.name} is paused.")


@endpoint("POST", PATH + "/{name}/resume", summary="Resume a schedule", raises=_CHANGE_ERRORS)
async def resume(
    context: ConsoleContext, call: RequestContext, path: SchedulePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Only due times after now count."""
    await context.jobs.schedules.set_paused(path.name, False, actor=call.caller.name, namespace=query.named)
    return done(f"{path.name} is resumed.")


@endpoint("POST", PATH + "/{name}/delete", summary="Delete a schedule", raises=_CHANGE_ERRORS)
async def delete(
    context: ConsoleContext, call: RequestContext, path: SchedulePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Its jobs keep running."""
    await context.jobs.schedules.delete(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Schedule {path.name} is deleted.", leave_to=PATH)


ENDPOINTS = (show_list, show, run, pause, resume, delete)
