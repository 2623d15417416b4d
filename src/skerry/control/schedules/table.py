"""Schedules in memory, by namespace and name.

Requests of people (`registry`), the leader (`controller`) and the server that takes a call (`calls`) write
them.
"""

from __future__ import annotations

from skerry.model.ids import Namespace
from skerry.model.schedules import Schedule
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, Table, json_of

PREFIX = "schedule/"

ScheduleRecord = Record[Schedule]


class ScheduleTable(Table[Schedule]):
    """The schedules of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, PREFIX, json_of(Schedule))


def schedule_key(namespace: Namespace, name: str) -> str:
    """Under which a schedule is in its table."""
    return f"{namespace}/{name}"
