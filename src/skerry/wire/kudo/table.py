"""Every endpoint of this room."""

from __future__ import annotations

from skerry.wire.http.endpoints import Endpoint
from skerry.wire.kudo import rest_instances, rest_nodes, rest_reasons, rest_tunnels, rest_workloads

ENDPOINTS: tuple[Endpoint, ...] = (
    rest_instances.list_instances,
    rest_instances.show,
    rest_instances.create,
    rest_instances.create_by_post,
    rest_instances.change,
    rest_instances.delete,
    rest_tunnels.logs,
    rest_tunnels.execute,
    rest_reasons.events,
    rest_reasons.explain,
    rest_workloads.list_workloads,
    rest_workloads.show,
    rest_workloads.create,
    rest_workloads.create_by_post,
    rest_workloads.change,
    rest_workloads.delete,
    rest_nodes.list_nodes,
    rest_nodes.show,
    rest_nodes.relabel,
    rest_nodes.unregister,
    rest_nodes.cordon,
    rest_nodes.uncordon,
    rest_nodes.drain,
)
