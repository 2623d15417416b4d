"""All endpoints of snapshots and of operations on volumes, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.snapshots import endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    endpoints.take,
    endpoints.list_of_volume,
    endpoints.restore,
    endpoints.move,
    endpoints.list_snapshots,
    endpoints.show,
    endpoints.delete,
    endpoints.list_operations,
    endpoints.show_operation,
    endpoints.cancel,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED))
