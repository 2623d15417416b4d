"""What uses a secret: services, workloads, instances, jobs, schedules and functions.

Found by looking through all of them, which is done when a secret is changed or deleted. Functions are known
by a callback, since they are beside this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from skerry.control.instance_index import InstanceTable
from skerry.control.jobs.table import JobTable
from skerry.control.schedules.table import ScheduleTable
from skerry.control.services.tables import ServiceTables
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.functions import Function
from skerry.model.ids import Namespace
from skerry.model.schedules import FunctionTarget
from skerry.model.secrets import SecretKind, SecretUse
from skerry.model.statuses import TERMINAL, DesiredStatus
from skerry.model.workloads import Instance


class SecretUser(NamedTuple):
    """Something that uses a secret, and the versions that it uses."""

    noun: str
    name: str
    versions: tuple[int, ...]
    is_past: bool = False  # only earlier revisions of a service do, to which it may be rolled back

    def __str__(self) -> str:
        return f"{self.noun} {self.name}"


class SecretUsers:
    """All that may use secrets."""

    def __init__(
        self,
        instances: InstanceTable,
        workloads: WorkloadRegistry,
        services: ServiceTables,
        jobs: JobTable,
        schedules: ScheduleTable,
        functions: Callable[[], Sequence[Function]],
    ) -> None:
        self._instances = instances
        self._workloads = workloads
        self._services = services
        self._jobs = jobs
        self._schedules = schedules
        self._functions = functions

    def of(self, namespace: Namespace, kind: SecretKind, name: str) -> list[SecretUser]:
        """What uses the secret of this name."""
        found = []
        for noun, user, of_namespace, uses, past in self._all():
            if of_namespace == namespace:
                present = {use.version for use in uses if (use.kind, use.name) == (kind, name)}
                before = {use.version for use in past if (use.kind, use.name) == (kind, name)}
                if present or before:
                    versions = tuple(sorted(present | before))
                    found.append(SecretUser(noun, user, versions, is_past=not present))
        return found

    def _all(self) -> Iterator[tuple[str, str, Namespace, Iterable[SecretUse], Iterable[SecretUse]]]:
        """Each with what it uses, and what its earlier revisions used."""
        for service in self._services.services.values():
            own = [service.target, *([service.stable] if service.stable else [])]
            uses = [use for revision in own for use in revision.template.secrets]
            kept = self._services.revisions_of(service.id)
            past = [use for revision in kept for use in revision.template.secrets]
            yield "service", service.name, service.namespace, uses, past
        for record in self._workloads.records():
            workload = record.value
            yield "workload", workload.spec.name, workload.namespace, workload.spec.secrets, ()
        for job in self._jobs.values():
            if not job.is_over:
                yield "job", job.name, job.namespace, job.spec.template.secrets, ()
        for schedule in self._schedules.values():
            if not isinstance(schedule.target, FunctionTarget):
                yield "schedule", schedule.name, schedule.namespace, schedule.target.spec.template.secrets, ()
        for function in self._functions():
            yield "function", plain_name(function.name), namespace_of(function.name), function.secrets, ()
        for known in self._instances.index:
            instance = known.value
            if _may_run(instance):
                leaving = instance.leaving.secrets if instance.leaving is not None else ()
                yield (
                    "instance",
                    instance.spec.name,
                    instance.namespace,
                    (*instance.spec.secrets, *leaving),
                    (),
                )


def _may_run(instance: Instance) -> bool:
    return instance.desired is not DesiredStatus.DESTROYED and instance.observed.status not in TERMINAL
