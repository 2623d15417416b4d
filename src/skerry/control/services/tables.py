"""The records of services and of their revisions.

Requests of people (`registry`) and the leader (`controller`) write them. Revisions are kept under the id of
their service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from skerry.control.named_table import NamedTable
from skerry.model.ids import ServiceId
from skerry.model.services import Service, ServiceRevision
from skerry.store.protocol import Store
from skerry.store.tables.table import Record, Table, json_of

ServiceRecord = Record[Service]


class ServiceTables:
    """The services of one cloud, with their revisions."""

    def __init__(self, store: Store) -> None:
        self.services = NamedTable(store, "service", Service)
        self.revisions: Table[ServiceRevision] = Table(store, "service-revision/", json_of(ServiceRevision))

    async def run(self) -> None:
        """Follow both for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.services.run())
            group.create_task(self.revisions.run())

    async def ready(self) -> None:
        await self.services.ready()
        await self.revisions.ready()

    def revisions_of(self, id: ServiceId) -> Sequence[ServiceRevision]:
        """The revisions that are kept, the oldest first."""
        return [record.value for _, record in self.revisions.items(f"{id}/")]


def revision_key(id: ServiceId, number: int) -> str:
    """The key of a revision in its table; keys are in the order of numbers."""
    return f"{id}/{number:08}"
