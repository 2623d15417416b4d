"""The records of jobs.

Requests of people (`registry`), the leader (`controller`) and schedules write them. The id of a job is what
its tries name as their owner.
"""

from __future__ import annotations

from skerry.control.named_table import NamedTable
from skerry.model.jobs import Job
from skerry.store.protocol import Store
from skerry.store.tables.table import Record

JobRecord = Record[Job]


class JobTable(NamedTable[Job]):
    """The jobs of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "job", Job)
