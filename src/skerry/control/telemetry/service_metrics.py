"""Services, jobs and schedules for `/metrics`: desired and ready copies of each service, updates that are
under way, and jobs by status. Counted from the changes of their tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from skerry.control.instance_index import InstanceTable
from skerry.control.jobs.table import JobRecord, JobTable
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.services.tables import ServiceTables
from skerry.control.telemetry.table_counts import TableCounts
from skerry.kit import metrics
from skerry.model.ids import ServiceId
from skerry.model.jobs import JobStatus
from skerry.model.nodes import Liveness
from skerry.model.services import Service, ServiceStatus
from skerry.model.workloads import Instance, OwnerKind

REPLICAS = metrics.gauge_family(
    "skerry_service_replicas", "Copies that the service is to have", ["namespace", "service"]
)
READY = metrics.gauge_family(
    "skerry_service_ready_replicas", "Copies that are ready, on live nodes", ["namespace", "service"]
)
SERVICES = metrics.gauge_family("skerry_services", "Services, by status", ["status"])
JOBS = metrics.gauge_family(
    "skerry_jobs", "Jobs that are kept, by namespace and status", ["namespace", "status"]
)
ENDED = metrics.counter_family(
    "skerry_jobs_ended_total", "Jobs that this server saw end, by their last status", ["status"]
)
_LAST: Final = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)


class ReadyCopies:
    """Ready copies of services, by their id."""

    def __init__(self, instances: InstanceTable, conditions: NodeConditions) -> None:
        self._counts = TableCounts(instances, _ready_copy_of)
        self._index = instances.index
        self._conditions = conditions

    def counts(self) -> Counter[ServiceId]:
        """Without those on nodes that are not live: nobody knows how they are."""
        found: Counter[ServiceId] = Counter({ServiceId(id): count for (id,), count in self._counts.items()})
        for condition in self._conditions.conditions():
            if condition.liveness is Liveness.LIVE:
                continue
            for record in self._index.on_node(condition.view.id):
                if (labels := _ready_copy_of(record.value)) is not None:
                    found[ServiceId(labels[0])] -= 1
        return found

    def close(self) -> None:
        self._counts.close()


class ServiceMetrics(metrics.UndescribedCollector):
    """Follows the tables of services and instances."""

    def __init__(self, tables: ServiceTables, ready: ReadyCopies) -> None:
        self._services = tables.services
        self._ready = ready

    def collect(self) -> Iterator[Metric]:
        ready, services = self._ready.counts(), self._services.values()
        yield metrics.add_series(REPLICAS(), ((_labels(one), one.replicas) for one in services))
        yield metrics.add_series(READY(), ((_labels(one), ready[one.id]) for one in services))
        statuses = Counter(one.status(ready[one.id]) for one in services)
        family = SERVICES()
        for status in ServiceStatus:
            family.add_metric([status.value], statuses[status])
        yield family


class JobMetrics(metrics.UndescribedCollector):
    """Follows the table of jobs."""

    def __init__(self, table: JobTable) -> None:
        self._statuses = TableCounts(table, lambda job: (job.namespace, job.status.value))
        self._ended: Counter[JobStatus] = Counter()
        self._end = table.listen(self._changed)

    def close(self) -> None:
        self._statuses.close()
        self._end()

    def collect(self) -> Iterator[Metric]:
        yield metrics.add_series(JOBS(), self._statuses.items())
        ended = ENDED()
        for status in _LAST:
            ended.add_metric([status.value], self._ended[status])
        yield ended

    def _changed(self, before: JobRecord | None, after: JobRecord | None) -> None:
        if before is not None and after is not None and after.value.is_over and not before.value.is_over:
            self._ended[after.value.status] += 1


def _labels(service: Service) -> tuple[str, str]:
    return service.namespace, service.name


def _ready_copy_of(instance: Instance) -> tuple[str] | None:
    owner = instance.owner
    if owner is None or owner.kind is not OwnerKind.SERVICE or not instance.is_ready:
        return None
    return (owner.id,)
