"""All endpoints of secrets, configs and registry logins, also below `/namespace/`."""

from __future__ import annotations

from skerry.transport.http.endpoints import Endpoint
from skerry.wire.namespaces import in_namespace
from skerry.wire.own.secrets import endpoints

_NAMESPACED: tuple[Endpoint, ...] = (
    endpoints.list_secrets,
    endpoints.show_secret,
    endpoints.set_secret,
    endpoints.delete_secret,
    endpoints.list_configs,
    endpoints.show_config,
    endpoints.read_config,
    endpoints.set_config,
    endpoints.delete_config,
    endpoints.list_registries,
    endpoints.set_registry,
    endpoints.delete_registry,
)
ENDPOINTS: tuple[Endpoint, ...] = (*_NAMESPACED, *map(in_namespace, _NAMESPACED), endpoints.rotate_key)
