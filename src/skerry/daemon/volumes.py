"""Volumes of this process: their records, requests about them, and the feed to nodes.

Called by `skerry.daemon.control_plane`. Every server serves all of it; placement binds volumes on the leader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from skerry.control.instance_index import InstanceTable
from skerry.control.jobs.table import JobTable
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.schedules.table import ScheduleTable
from skerry.control.services.tables import ServiceTables
from skerry.control.volumes import reports as volume_reports
from skerry.control.volumes.orders import VolumeOrders
from skerry.control.volumes.registry import VolumeRegistry
from skerry.control.volumes.reports import VolumeReports
from skerry.control.volumes.table import VolumeTable
from skerry.control.volumes.users import TemplateUse, VolumeUsers
from skerry.daemon.server_base import ServerBase
from skerry.model.jobs import JobStatus
from skerry.model.schedules import JobTarget
from skerry.wire.own.volumes.context import VolumeContext


@dataclass(slots=True)
class TemplateTables:
    """The tables of what makes instances; set when they are there."""

    services: ServiceTables | None = None
    jobs: JobTable | None = None
    schedules: ScheduleTable | None = None

    def uses(self) -> Iterator[TemplateUse]:
        """Every spec that instances will be made from."""
        for service in () if self.services is None else self.services.services.values():
            if not service.is_deleting:
                yield TemplateUse(
                    "service", service.name, service.namespace, service.target.template, service.replicas
                )
        for job in () if self.jobs is None else self.jobs.values():
            if not job.is_over and job.status is not JobStatus.DELETING:
                yield TemplateUse("job", job.name, job.namespace, job.spec.template)
        for schedule in () if self.schedules is None else self.schedules.values():
            if isinstance(schedule.target, JobTarget):
                yield TemplateUse(
                    "schedule", schedule.name, schedule.namespace, schedule.target.spec.template
                )


class VolumeParts(msgspec.Struct, frozen=True):
    """Volumes as they are served."""

    table: VolumeTable
    registry: VolumeRegistry
    orders: VolumeOrders
    context: VolumeContext
    templates: TemplateTables = msgspec.field(default_factory=TemplateTables)

    async def ready(self) -> None:
        """When what is in the store is known."""
        await self.table.ready()


def start(
    base: ServerBase, table: VolumeTable, instance_table: InstanceTable, nodes: NodeRegistry
) -> VolumeParts:
    """Begin to read what is in the store."""
    store, events, clock = base.store, base.events, base.clock
    reports = VolumeReports(
        events,
        clock,
        table,
        history=base.history,
        # The same for all servers of this cloud, and secret.
        key=base.authority.derive(volume_reports.KEY_USE),
    )
    templates = TemplateTables()

    def uses() -> Iterable[TemplateUse]:
        return templates.uses()

    registry = VolumeRegistry(
        store,
        events,
        clock,
        table=table,
        users=VolumeUsers(instance_table, uses),
        conditions=nodes,
        reports=reports,
    )
    base.loops.forever("volumes", table.run, critical=True)
    return VolumeParts(table, registry, VolumeOrders(table, reports), VolumeContext(registry), templates)
