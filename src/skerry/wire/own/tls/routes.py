"""All endpoints of certificates, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.tls import endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    endpoints.list_certificates,
    endpoints.show_certificate,
    endpoints.import_certificate,
    endpoints.issue_certificate,
    endpoints.delete_certificate,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED))
