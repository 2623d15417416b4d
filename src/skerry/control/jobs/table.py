"""Jobs in memory, found by name and by id.

The key of a job is its namespace and name, so that the store itself keeps names apart; its id is what its
tries name as their owner, and is never used again. Requests of people (`registry`), the leader
(`controller`) and schedules write jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.model.ids import JobId, Namespace
from skerry.model.jobs import Job
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, RecordChange, Table, json_of

PREFIX = "job/"

JobRecord = Record[Job]


class JobTable(Table[Job]):
    """The jobs of one cloud."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, PREFIX, json_of(Job))
        self._keys: dict[JobId, str] = {}
        self.subscribe(self._index)  # first: who is told of a change finds it by its id

    def by_id(self, id: JobId) -> JobRecord | None:
        key = self._keys.get(id)
        return None if key is None else self.get(key)

    def key_of(self, id: JobId) -> str | None:
        """Under which it is in this table."""
        return self._keys.get(id)

    def _index(self, changes: Sequence[RecordChange[Job]]) -> None:
        for key, before, after in changes:
            if before is not None and self._keys.get(before.value.id) == key:
                del self._keys[before.value.id]
            if after is not None:
                self._keys[after.value.id] = key


def job_key(namespace: Namespace, name: str) -> str:
    """Under which a job is in its table."""
    return f"{namespace}/{name}"
