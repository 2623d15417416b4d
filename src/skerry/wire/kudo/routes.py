"""All endpoints of this dialect; those of instances and workloads also below `/namespace/`.

Errors come in the envelope, too, if the client accepts that.
"""

from __future__ import annotations

from msgspec.structs import replace

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.kudo import rest_diagnostics, rest_instances, rest_logs_exec, rest_nodes, rest_workloads
from skerry.wire.kudo.envelope import ENVELOPE, EnvelopedProblem
from skerry.wire.namespaces import in_namespace

_NAMESPACED: tuple[Endpoint, ...] = (
    rest_instances.list_instances,
    rest_instances.show,
    rest_instances.create,
    rest_instances.create_by_post,
    rest_instances.change,
    rest_instances.delete,
    rest_logs_exec.logs,
    rest_logs_exec.execute,
    rest_diagnostics.events,
    rest_diagnostics.explain,
    rest_workloads.list_workloads,
    rest_workloads.show,
    rest_workloads.create,
    rest_workloads.create_by_post,
    rest_workloads.change,
    rest_workloads.delete,
)
_ALL: tuple[Endpoint, ...] = (
    *_NAMESPACED,
    *map(in_namespace, _NAMESPACED),
    rest_nodes.list_nodes,
    rest_nodes.show,
    rest_nodes.list_cells,
    rest_nodes.relabel,
    rest_nodes.unregister,
    rest_nodes.cordon,
    rest_nodes.uncordon,
    rest_nodes.drain,
)
ENDPOINTS: tuple[Endpoint, ...] = tuple(
    replace(declared, other_problems={ENVELOPE: EnvelopedProblem}) for declared in _ALL
)
