"""Services and their revisions in memory, found by name and by id.

`ServiceTables` has the records of both. Requests of users and the leader's controller write them.
The key of a service is its namespace and name,
so that the store itself keeps names apart; revisions are kept under the service's id, which is never used
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from skerry.model.ids import Namespace, ServiceId
from skerry.model.services import Service, ServiceRevision
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, RecordChange, Table, json_of

ServiceRecord = Record[Service]


class ServiceTables:
    """The services of one cloud, with their revisions."""

    def __init__(self, store: Store) -> None:
        self.services: Table[Service] = Table(store, "service/", json_of(Service))
        self.revisions: Table[ServiceRevision] = Table(store, "service-revision/", json_of(ServiceRevision))
        self._keys: dict[ServiceId, str] = {}  # of services, by id
        self.services.subscribe(self._changed)

    async def run(self) -> None:
        """Follow both for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.services.run())
            group.create_task(self.revisions.run())

    async def ready(self) -> None:
        await self.services.ready()
        await self.revisions.ready()

    def by_id(self, id: ServiceId) -> ServiceRecord | None:
        key = self._keys.get(id)
        return None if key is None else self.services.get(key)

    def revisions_of(self, id: ServiceId) -> Sequence[ServiceRevision]:
        """The revisions that are kept, the oldest first."""
        return [record.value for _, record in self.revisions.items(f"{id}/")]

    def _changed(self, changes: Sequence[RecordChange[Service]]) -> None:
        for key, before, after in changes:
            if before is not None and self._keys.get(before.value.id) == key:
                del self._keys[before.value.id]
            if after is not None:
                self._keys[after.value.id] = key


def service_key(namespace: Namespace, name: str) -> str:
    """Under which a service is in its table."""
    return f"{namespace}/{name}"


def revision_key(id: ServiceId, number: int) -> str:
    """Under which a revision is in its table; in the order of numbers."""
    return f"{id}/{number:08}"
