"""The records of schedules.

Requests of people (`registry`), the leader (`controller`) and the server that makes a call (`calls`) write
them.
"""

from __future__ import annotations

from skerry.control.named_table import NamedTable
from skerry.model.schedules import Schedule
from skerry.store.protocol import Store
from skerry.store.tables.table import Record

ScheduleRecord = Record[Schedule]


class ScheduleTable(NamedTable[Schedule]):
    """The schedules of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "schedule", Schedule)
