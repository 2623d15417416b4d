"""Every endpoint of this room; those of instances and workloads once more in a namespace."""

from __future__ import annotations

from skerry.wire.http.endpoints import Endpoint
from skerry.wire.kudo import rest_instances, rest_nodes, rest_reasons, rest_tunnels, rest_workloads
from skerry.wire.kudo.rest_namespaces import within

_NAMESPACED: tuple[Endpoint, ...] = (
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
)
ENDPOINTS: tuple[Endpoint, ...] = (
    *_NAMESPACED,
    *map(within, _NAMESPACED),
    rest_nodes.list_nodes,
    rest_nodes.show,
    rest_nodes.relabel,
    rest_nodes.unregister,
    rest_nodes.cordon,
    rest_nodes.uncordon,
    rest_nodes.drain,
)
