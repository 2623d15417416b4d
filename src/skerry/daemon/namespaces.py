"""Namespaces of this process: what counts towards their quotas, and requests about them.

Called by `skerry.daemon.control_plane`. Quotas are enforced in the store itself (`base.store`), by every
server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from skerry.control.instance_index import InstanceTable
from skerry.control.namespaces.registry import NamespaceRegistry
from skerry.control.namespaces.usage import function_use, has_same_use, instance_use, volume_use
from skerry.control.network.explanations import ConnectionExplainer
from skerry.control.volumes.table import VolumeTable
from skerry.control.workloads.registry import WorkloadRegistry
from skerry.daemon.jobs import JobParts
from skerry.daemon.server_base import ServerBase
from skerry.daemon.services import ServiceParts
from skerry.functions.registry.registry import FunctionRegistry
from skerry.model.functions import Function
from skerry.model.ids import Namespace
from skerry.model.namespaces import QuotaAmounts
from skerry.model.network import NamespaceEgress
from skerry.store.tables.table import Table
from skerry.wire.own.namespaces.endpoints import NamespaceContext


class _Namespaced(Protocol):
    @property
    def namespace(self) -> Namespace: ...


def begin(
    base: ServerBase, instance_table: InstanceTable, functions: FunctionRegistry, volumes: VolumeTable
) -> None:
    """Count instances, functions and volumes, before anything reads or writes them."""
    # Adopted instances run already.
    base.store.count(
        instance_table,
        instance_use,
        is_exempt=lambda instance: instance.is_adopted,
        has_same=has_same_use,
    )
    base.store.count(functions.table, function_use)
    # A volume is created without a node, unless its node has recovered it for a store that was restored.
    base.store.count(volumes, volume_use, is_exempt=lambda volume: volume.node is not None)
    base.loops.forever("namespaces", base.store.quotas.table.run, critical=True)


def context(
    base: ServerBase,
    instance_table: InstanceTable,
    workloads: WorkloadRegistry,
    services: ServiceParts,
    jobs: JobParts,
    functions: FunctionRegistry,
    others: Mapping[str, Table[Any]],
    connections: ConnectionExplainer,
) -> NamespaceContext:
    """What the endpoints of namespaces need; `others` are tables of further objects, by their kind."""

    def object_counts() -> Mapping[Namespace, Counter[str]]:
        found: dict[Namespace, Counter[str]] = {}
        for namespace, count in instance_table.index.counts().items():
            found.setdefault(namespace, Counter())["instance"] += count
        owners: dict[str, Iterable[_Namespaced]] = {
            "workload": [record.value for record in workloads.records()],
            "service": services.services(),
            "job": jobs.jobs(),
            "schedule": jobs.schedules(),
            **{kind: table.values() for kind, table in others.items()},
        }
        for kind, objects in owners.items():
            for one in objects:
                found.setdefault(one.namespace, Counter())[kind] += 1
        for function in functions.all():
            found.setdefault(function_use(function)[0], Counter())["function"] += 1
        return found

    default_egress = NamespaceEgress.parse(base.settings.fleet.egress)
    return NamespaceContext(
        NamespaceRegistry(base.events, base.clock, base.store.quotas, object_counts, default_egress),
        connections,
    )


def check_prewarm(base: ServerBase, function: Function, instances: int) -> None:
    """Raise `QuotaExceeded` if so many more workers do not fit into what is left of the quota."""
    worker = QuotaAmounts(cpu=function.cpu or 0, memory=function.memory)
    base.store.quotas.check(function_use(function)[0], worker * instances)
