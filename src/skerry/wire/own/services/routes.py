"""All endpoints of services, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.services import endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    endpoints.list_services,
    endpoints.show,
    endpoints.create,
    endpoints.change,
    endpoints.delete,
    endpoints.plan,
    endpoints.scale,
    endpoints.rollback,
    endpoints.promote,
    endpoints.pause,
    endpoints.resume,
    endpoints.revisions,
    endpoints.events,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED))
