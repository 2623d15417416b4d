"""Events as rows of a table, for the pages of objects."""

from __future__ import annotations

from collections.abc import Sequence

from skerry.console import formats
from skerry.console.components import Cell, EmptyState, Table
from skerry.console.tables import ListQuery, TableColumn, TableContext, TableShape, build_table
from skerry.control.events.log import StoredEvent
from skerry.model.events import NAMESPACE, Event


def event_table(events: Sequence[StoredEvent], within: TableContext, now: float) -> Table:
    """Events of an object, the newest first."""
    columns = (
        TableColumn("Age", "", lambda one: one.event.at, number=True),
        TableColumn("Event", "", lambda one: one.event.kind),
        TableColumn("What", "", lambda one: one.event.reason),
        TableColumn("By", "", lambda one: one.event.actor, minor=True),
    )

    def cells(stored: StoredEvent) -> tuple[Cell, ...]:
        event = stored.event
        return (
            Cell(formats.age(event.at, now), time=event.at),
            Cell(event.kind, mono=True),
            details_of(event),
            Cell(event.actor),
        )

    empty = EmptyState("No events are stored", "Events are kept for as long as the settings say.")
    shape = TableShape("tab", "Events", "", columns, lambda one: one.event.kind, cells, empty, within.href)
    return build_table(shape, list(reversed(events)), ListQuery(page=within.page))


def details_of(event: Event) -> Cell:
    """Its reason, and below it what else is known."""
    more = ", ".join(f"{name} {value}" for name, value in event.data.items() if value and name != NAMESPACE)
    return Cell(event.reason or more, note=more if event.reason else "")
