"""Events: everything that happened, the newest first, searched by kind, subject, reason and actor."""

from __future__ import annotations

from collections.abc import Sequence

from skerry.console import formats
from skerry.console.components import Cell, EmptyState, Table
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages.event_rows import details_of
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.control.events.log import StoredEvent
from skerry.control.events.positions import FROM_THE_START
from skerry.model import errors
from skerry.model.namespace_scope import scope_of
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = "/console/events"
RULE = "GET /console/events"


@endpoint("GET", PATH, summary="Events", media=HTML, raises=(errors.Unavailable,))
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """The stored events."""
    stored = await context.plane.events.list_after(
        FROM_THE_START, frozenset(), scope_of(query.listed), reader=call.caller.scope
    )
    head = PageHead("Events", RULE, (Topic.EVENTS,), "skerry events --after 0")
    table = events_table(stored, query, context.plane.clock.now())
    return context.renderer.page(call, "list.html", head, table=table, query=query, path=PATH)


def events_table(events: Sequence[StoredEvent], query: ListQuery, now: float) -> Table:
    """The newest first, unless the query names a column."""
    columns = (
        TableColumn("Age", "age", lambda one: -one.event.at, number=True),
        TableColumn("Event", "kind", lambda one: one.event.kind),
        TableColumn("What", "", lambda one: one.event.reason),
        TableColumn("By", "actor", lambda one: one.event.actor, minor=True),
    )

    def cells(stored: StoredEvent) -> tuple[Cell, ...]:
        event = stored.event
        return (
            Cell(formats.age(event.at, now), time=event.at),
            Cell(event.kind, mono=True, note=event.subject),
            details_of(event),
            Cell(event.actor),
        )

    shape = TableShape(
        "events",
        "Events",
        PATH,
        columns,
        lambda one: f"{one.event.kind} {one.event.subject} {one.event.reason} {one.event.actor}",
        cells,
        EmptyState("No events are stored", "Events are kept for as long as the settings say."),
    )
    return build_table(shape, list(reversed(events)), query)


ENDPOINTS = (show_list,)
