"""All endpoints of routes, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.http_routes import endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    endpoints.list_routes,
    endpoints.show,
    endpoints.create,
    endpoints.change,
    endpoints.delete,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED))
