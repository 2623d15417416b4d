"""Services: the list, and one of them with its copies, revisions and events, and the actions of its
rollout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, statuses
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Cell, Chart, EmptyState, Fact, Field, Tab, Table
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages.event_rows import event_table
from skerry.console.pages.instances import copies_table, node_names
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.control.services.registry import ServiceState
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.services import Service, ServiceRevision
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/services"
_TABS = (("copies", "Copies"), ("revisions", "Revisions"), ("events", "Events"))
_CHANGE_ERRORS = (errors.Invalid, errors.NotFound, errors.Conflict, errors.FailedPrecondition)


class ServicePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class ScaleForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    replicas: int


class RollbackForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    revision: int | None = None


class ServiceView(msgspec.Struct, frozen=True):
    """The page of one service."""

    name: str
    namespace: str
    status: Cell
    progress: str  # of its rollout; empty: there is none
    facts: tuple[Fact, ...]
    actions: tuple[Action, ...]
    charts: tuple[Chart, ...]
    tabs: tuple[Tab, ...]
    tab: str
    table: Table


@endpoint("GET", PATH, summary="Services", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Services with their health."""
    states = context.services.list(namespace=query.listed, limit=EVERYTHING).items
    head = PageHead(
        "Services", "GET /console/services", (Topic.SERVICES, Topic.INSTANCES), "skerry get services"
    )
    table = service_table(states, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A service", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery
) -> Response:
    """One service."""
    state = await context.services.get(path.name, query.named)
    service = state.service
    now = context.plane.clock.now()
    tab = query.tab if query.tab in dict(_TABS) else "copies"
    within = TableContext.of(f"{PATH}/{service.name}", query, tab)
    if tab == "events":
        events = await context.services.events(path.name, query.named, reader=call.caller.scope)
        table = event_table(events, within, now)
    elif tab == "revisions":
        kept = await context.services.revisions(path.name, query.named)
        table = revision_table(kept, service, within, now)
    else:
        table = copies_table(state.copies, node_names(context), within, now)
    head = PageHead(
        service.name,
        "GET /console/services",
        (Topic.SERVICES, Topic.INSTANCES),
        cli("describe", "service", service.name, namespace=service.namespace),
    )
    charts = context.history.copies_charts(one.id for one in state.copies)
    view = service_view(state, call.caller, charts, tab, table, now)
    return context.renderer.page(call, "service.html", head, view=view)


def service_table(states: Sequence[ServiceState], query: ListQuery, now: float) -> Table:
    """The list of services."""
    columns = (
        TableColumn("Name", "name", lambda one: one.service.name),
        TableColumn("Status", "status", lambda one: one.service.status(one.ready).value),
        TableColumn("Ready", "ready", lambda one: one.ready, number=True),
        TableColumn("Revision", "revision", lambda one: one.service.target.number, number=True, minor=True),
        TableColumn("Image", "image", lambda one: one.service.target.template.uri, minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.service.namespace, minor=True),
        TableColumn("Age", "age", lambda one: -one.service.created_at, number=True, minor=True),
    )

    def cells(state: ServiceState) -> tuple[Cell, ...]:
        service = state.service
        return (
            Cell(service.name, url(f"{PATH}/{service.name}", namespace=service.namespace)),
            Cell(badge=statuses.service_badge(service.status(state.ready))),
            Cell(f"{state.ready}/{service.replicas}"),
            Cell(str(service.target.number)),
            Cell(service.target.template.uri, mono=True),
            Cell(service.namespace),
            Cell(formats.age(service.created_at, now), time=service.created_at),
        )

    shape = TableShape(
        "services",
        "Services",
        PATH,
        columns,
        lambda one: (
            f"{one.service.name} {one.service.target.template.uri} {one.service.namespace} "
            f"{one.service.status(one.ready).value}"
        ),
        cells,
        EmptyState(
            "No services yet",
            "A service keeps copies of an image running, and updates them without a gap.",
            "skerry service create web docker.io/library/nginx --replicas 2 -p 8080:80",
        ),
    )
    return build_table(shape, states, query)


def revision_table(
    revisions: Sequence[ServiceRevision], service: Service, within: TableContext, now: float
) -> Table:
    """The revisions that are kept, the newest first."""
    columns = (
        TableColumn("Revision", "", lambda one: one.number, number=True),
        TableColumn("Outcome", "", lambda one: one.outcome),
        TableColumn("Image", "", lambda one: one.template.uri),
        TableColumn("By", "", lambda one: one.actor, minor=True),
        TableColumn("Age", "", lambda one: one.created_at, number=True),
    )

    def cells(one: ServiceRevision) -> tuple[Cell, ...]:
        stable = service.stable is not None and service.stable.number == one.number
        notes = [
            "wanted now" if one.number == service.target.number else "",
            "last good" if stable else "",
        ]
        return (
            Cell(str(one.number), note=", ".join(filter(None, notes))),
            Cell(badge=statuses.revision_badge(one.outcome)),
            Cell(one.template.uri, mono=True),
            Cell(one.actor),
            Cell(formats.age(one.created_at, now), time=one.created_at),
        )

    empty = EmptyState("No revisions", "Every change of the template is one.")
    shape = TableShape(
        "tab", "Revisions", "", columns, lambda one: one.template.uri, cells, empty, within.href
    )
    return build_table(shape, list(reversed(revisions)), ListQuery(page=within.page))


def service_view(
    state: ServiceState, caller: Caller, charts: tuple[Chart, ...], tab: str, table: Table, now: float
) -> ServiceView:
    """The page of one service."""
    service, template = state.service, state.service.target.template
    base = f"{PATH}/{service.name}"
    resources = template.resources
    facts = [
        Fact("Ready", Cell(f"{state.ready} of {service.replicas}")),
        Fact("Image", Cell(template.uri, mono=True)),
        Fact("Revision", Cell(str(service.target.number), note=f"of {service.latest}")),
        Fact("Address", Cell(service.address or "none yet", mono=True)),
        Fact(
            "Each copy reserves",
            Cell(f"{formats.cores(resources.cpu)} cores, {formats.megabytes(resources.memory)}"),
        ),
        Fact("Checks", Cell(formats.checks(template.checks))),
        Fact("Created", Cell(formats.age(service.created_at, now), time=service.created_at)),
    ]
    if service.autoscale is not None:
        scaling = service.autoscale
        facts.append(
            Fact(
                "Autoscaling",
                Cell(f"{scaling.min} to {scaling.max} copies", note=f"{scaling.metric} {scaling.target:g}"),
            )
        )
    tabs = tuple(
        Tab(text, url(base, namespace=service.namespace, tab=key), key == tab) for key, text in _TABS
    )
    return ServiceView(
        service.name,
        service.namespace,
        Cell(badge=statuses.service_badge(service.status(state.ready))),
        _progress(state),
        tuple(facts),
        tuple(one for one in _actions(service, base) if may(caller, _rule(one))),
        charts,
        tabs,
        tab,
        table,
    )


def _progress(state: ServiceState) -> str:
    """The rollout in a sentence."""
    service, rollout = state.service, state.service.rollout
    if rollout is None:
        return service.quota_message
    step = f"{state.good} of {service.replicas} copies follow revision {service.target.number}."
    if rollout.is_canary:
        step = (
            f"{state.good} of {service.update.canary} canaries of revision {service.target.number} are good."
        )
    return " ".join(filter(None, (step, rollout.reason, service.quota_message)))


def _rule(action: Action) -> str:
    return f"POST {PATH}/{{name}}/{action.id}"


def _actions(service: Service, base: str) -> list[Action]:
    """What can be done with it now."""
    name, namespace = service.name, service.namespace

    def action(id: str, label: str, question: str, *words: str, fields: tuple[Field, ...] = ()) -> Action:
        stem = cli("service", id, name, namespace=namespace) if fields else ""
        return Action(
            id,
            label,
            url(f"{base}/{id}", namespace=namespace),
            question,
            cli("service", id, name, *words, namespace=namespace),
            id == "delete",
            fields,
            stem=stem,
        )

    if service.is_deleting:
        return []
    found = []
    if service.autoscale is None:
        copies = str(service.replicas)
        replicas = Field("replicas", "Copies", copies, "number", "0", "10000", is_argument=True)
        found.append(action("scale", "Scale", f"How many copies of {name}?", copies, fields=(replicas,)))
    rollout = service.rollout
    if rollout is not None and rollout.is_canary:
        found.append(action("promote", "Promote", f"Let all copies of {name} follow its canaries?"))
    if rollout is not None and not service.is_paused and not rollout.is_halted:
        found.append(action("pause", "Pause", f"Pause the update of {name}?"))
    if service.is_paused or (rollout is not None and rollout.is_halted):
        found.append(action("resume", "Resume", f"Continue the update of {name}?"))
    if service.latest > 1:
        number = Field("revision", "Revision (empty: the last good one)", "", "number", "1", flag="--to")
        found.append(
            action("rollback", "Roll back", f"Take {name} back to an earlier revision?", fields=(number,))
        )
    found.append(
        action(
            "delete",
            "Delete",
            f"Delete service {name} and its {formats.count(service.replicas, 'copy', 'copies')}?",
        )
    )
    return found


@endpoint("POST", PATH + "/{name}/scale", summary="Scale a service", raises=_CHANGE_ERRORS)
async def scale(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: ScaleForm
) -> Response:
    """To so many copies."""
    await context.services.scale(path.name, body.replicas, actor=call.caller.name, namespace=query.named)
    return done(f"{path.name} is scaled to {formats.count(body.replicas, 'copy', 'copies')}.")


@endpoint("POST", PATH + "/{name}/rollback", summary="Roll a service back", raises=_CHANGE_ERRORS)
async def rollback(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: RollbackForm
) -> Response:
    """To a revision, or the last good one."""
    service = await context.services.roll_back(
        path.name, body.revision, actor=call.caller.name, namespace=query.named
    )
    return done(f"{path.name} goes back to the template of before, as revision {service.target.number}.")


@endpoint("POST", PATH + "/{name}/promote", summary="Promote canaries", raises=_CHANGE_ERRORS)
async def promote(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """All copies follow."""
    await context.services.promote(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"All copies of {path.name} follow its canaries.")


@endpoint("POST", PATH + "/{name}/pause", summary="Pause an update", raises=_CHANGE_ERRORS)
async def pause(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Copies stay as they are."""
    await context.services.pause(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"The update of {path.name} is paused.")


@endpoint("POST", PATH + "/{name}/resume", summary="Resume an update", raises=_CHANGE_ERRORS)
async def resume(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """It continues."""
    await context.services.resume(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"The update of {path.name} continues.")


@endpoint("POST", PATH + "/{name}/delete", summary="Delete a service", raises=_CHANGE_ERRORS)
async def delete(
    context: ConsoleContext, call: RequestContext, path: ServicePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """With its copies."""
    await context.services.delete(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Service {path.name} is being deleted with its copies.", leave_to=PATH)


ENDPOINTS = (show_list, show, scale, rollback, promote, pause, resume, delete)
