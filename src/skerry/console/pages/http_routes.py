"""Routes: public host names and paths, where each leads, and why one does not answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Cell, EmptyState, Fact, Table, Tone
from skerry.console.context import EVERYTHING, ConsoleContext
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView, tabs
from skerry.console.pages.event_rows import event_table
from skerry.console.rendering import HTML, PageHead, url
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableContext, TableShape, build_table
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.routes import MAX_NAME, Route, TargetKind
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/routes"
RULE = "GET /console/routes"
_TABS = (("events", "Events"),)


class RoutePath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]


class RouteRow(msgspec.Struct, frozen=True):
    """A route, and why it is not served as it should be; empty: nothing is known."""

    route: Route
    problem: str


@endpoint("GET", PATH, summary="Routes", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Routes, the oldest first."""
    routes = context.routes.list(namespace=query.listed, limit=EVERYTHING).items
    rows = [RouteRow(one, context.problem_of_route(one)) for one in routes]
    head = PageHead("Routes", RULE, (Topic.ROUTES, Topic.SERVICES), "skerry route list")
    table = route_table(rows, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


@endpoint("GET", PATH + "/{name}", summary="A route", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: RoutePath, query: ObjectQuery
) -> Response:
    """One route."""
    route = (await context.routes.read(path.name, query.named)).value
    now = context.plane.clock.now()
    base = f"{PATH}/{route.name}"
    events = await context.plane.events.of(f"route/{route.namespace}/{route.name}", reader=call.caller.scope)
    view = msgspec.structs.replace(
        route_view(RouteRow(route, context.problem_of_route(route)), call.caller, now),
        tabs=tabs(base, route.namespace, _TABS, "events"),
        table=event_table(events, TableContext.of(base, query, "events"), now),
    )
    command = cli("route", "describe", route.name, namespace=route.namespace)
    head = PageHead(route.name, RULE, (Topic.ROUTES, Topic.SERVICES), command)
    return context.renderer.page(call, "object.html", head, view=view)


def route_table(rows: Sequence[RouteRow], query: ListQuery, now: float) -> Table:
    """The list of routes."""
    columns = (
        TableColumn("Host and path", "host", lambda one: (one.route.spec.host, one.route.spec.path)),
        TableColumn("Status", "status", lambda one: one.problem),
        TableColumn("To", "to", lambda one: _target(one.route)),
        TableColumn("Protection", "protection", lambda one: _protection(one.route), minor=True),
        TableColumn("Namespace", "namespace", lambda one: one.route.namespace, minor=True),
        TableColumn("Age", "age", lambda one: -one.route.created_at, number=True, minor=True),
    )

    def cells(row: RouteRow) -> tuple[Cell, ...]:
        route = row.route
        return (
            Cell(_place(route), url(f"{PATH}/{route.name}", namespace=route.namespace), note=route.name),
            Cell(badge=_badge(row), note=row.problem),
            _target_cell(route),
            Cell(_protection(route)),
            Cell(route.namespace),
            Cell(formats.age(route.created_at, now), time=route.created_at),
        )

    shape = TableShape(
        "routes",
        "Routes",
        PATH,
        columns,
        lambda one: f"{one.route.name} {_place(one.route)} {_target(one.route)} {one.route.namespace}",
        cells,
        EmptyState(
            "No routes yet",
            "A route leads a public host name to a service or a function, with a certificate.",
            "skerry route add shop.example.org --to service/web",
        ),
    )
    return build_table(shape, rows, query)


def route_view(row: RouteRow, caller: Caller, now: float) -> ObjectView:
    """The page of one route, without its events."""
    route, spec = row.route, row.route.spec
    base = f"{PATH}/{route.name}"
    rate = (
        f"{spec.rate.requests} requests in {spec.rate.period_s} s, of each address" if spec.rate else "none"
    )
    delete = Action(
        "delete",
        "Delete",
        url(f"{base}/delete", namespace=route.namespace),
        f"Delete the route {_place(route)}?",
        cli("route", "delete", route.name, namespace=route.namespace),
        is_destructive=True,
    )
    return ObjectView(
        name=_place(route),
        kind="Routes",
        list_path=PATH,
        path=base,
        namespace=route.namespace,
        status=Cell(badge=_badge(row)),
        note=row.problem,
        facts=(
            Fact("Name", Cell(route.name)),
            Fact("To", _target_cell(route)),
            Fact("Methods", Cell(formats.listed(spec.methods, none="all"))),
            Fact(
                "Headers",
                Cell(formats.listed([f"{one.name}: {one.value}" for one in spec.headers], none="any")),
            ),
            Fact("Rate limit", Cell(rate)),
            Fact("Cross-origin requests", Cell(formats.listed(spec.cors, none="refused"))),
            Fact("Protection", Cell(_protection(route))),
            Fact("TLS", Cell("no: plain HTTP only" if spec.http_only else "yes")),
            Fact("Created", Cell(formats.age(route.created_at, now), time=route.created_at)),
        ),
        actions=(delete,) if may(caller, f"POST {PATH}/{{name}}/delete") else (),
    )


def _place(route: Route) -> str:
    return route.spec.host + (route.spec.path if route.spec.path != "/" else "")


def _target(route: Route) -> str:
    return str(route.spec.target) if route.spec.target is not None else f"redirect to {route.spec.redirect}"


def _target_cell(route: Route) -> Cell:
    target = route.spec.target
    if target is None or target.kind is not TargetKind.SERVICE:
        return Cell(_target(route))
    return Cell(str(target), url(f"/console/services/{target.name}", namespace=route.namespace))


def _protection(route: Route) -> str:
    spec = route.spec
    if spec.protection is not None:
        return f"{spec.protection.kind.value} credentials"
    is_for_callers = (
        spec.target is not None and spec.target.kind is TargetKind.FUNCTION and not spec.is_public
    )
    return "a token of Skerry" if is_for_callers else "open to all"


def _badge(row: RouteRow) -> Badge:
    return Badge("PROBLEM", Tone.WARNING) if row.problem else Badge("SERVED", Tone.GOOD)


@endpoint(
    "POST",
    PATH + "/{name}/delete",
    summary="Delete a route",
    raises=(errors.Invalid, errors.NotFound, errors.Unavailable),
)
async def delete(
    context: ConsoleContext, call: RequestContext, path: RoutePath, query: ObjectQuery, body: ActionForm
) -> Response:
    """Edge nodes answer 404 from then on."""
    await context.routes.delete(path.name, actor=call.caller.name, namespace=query.named)
    return done(f"Route {path.name} is deleted.", leave_to=PATH)


ENDPOINTS = (show_list, show, delete)
