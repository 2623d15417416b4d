"""What `/metrics` of a server has beside the metrics of its parts: the cloud as it knows it.

Called by `skerry.daemon.server_role`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from prometheus_client.registry import Collector

from skerry import __version__
from skerry.control.telemetry.certificate_metrics import (
    CertificateEnd,
    CertificateMetrics,
    certificate_ends,
)
from skerry.control.telemetry.instance_metrics import InstanceMetrics
from skerry.control.telemetry.node_metrics import NodeMetrics
from skerry.control.telemetry.service_metrics import JobMetrics, ReadyCopies, ServiceMetrics
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.market import MarketParts
from skerry.daemon.server_base import ServerBase
from skerry.kit import metrics
from skerry.market.metrics import MarketMetrics
from skerry.model import errors
from skerry.store.commit_metrics import StoreMetrics
from skerry.store.factory import FILE_NAME


def start_server(base: ServerBase, fleet: ControlPlaneParts, trade: MarketParts) -> None:
    """Export what a server knows of its cloud. The tables must be ready."""
    metrics.BUILD.labels(__version__, "server").set(1)
    instances, nodes = fleet.instance_table, fleet.nodes
    ready = ReadyCopies(instances, nodes)
    base.undo.callback(ready.close)
    node_metrics = NodeMetrics(nodes, fleet.reconciler, instances.index, fleet.instances.usages)
    base.undo.callback(node_metrics.close)
    instance_metrics = InstanceMetrics(instances)
    base.undo.callback(instance_metrics.close)
    job_metrics = JobMetrics(fleet.jobs.tables[0])
    base.undo.callback(job_metrics.close)
    store = StoreMetrics(base.store, base.folder / FILE_NAME if base.is_alone else None)
    base.loops.forever("store.metrics", store.run)
    for collector in (
        node_metrics,
        instance_metrics,
        ServiceMetrics(fleet.services.context.services.tables, ready),
        job_metrics,
        store,
        CertificateMetrics(lambda: certificates(base, fleet)),
        MarketMetrics(trade.context.ledger, trade.context.buyer),
    ):
        export(base, collector)


def certificates(base: ServerBase, fleet: ControlPlaneParts) -> Iterator[CertificateEnd]:
    """When the certificates of this cloud end, as far as this server knows."""

    def name_of(node: str) -> str | None:
        with suppress(errors.SkerryError):
            return fleet.nodes.get(node).name
        return None

    return certificate_ends(
        base.authority, base.identity, base.certificates.current, fleet.tls.table, name_of
    )


def export(base: ServerBase, collector: Collector) -> None:
    """Until this server stops."""
    metrics.REGISTRY.register(collector)
    base.undo.callback(metrics.REGISTRY.unregister, collector)
