"""Which host names of routes need certificates, and which nodes serve them: `WantedDomains` of
`skerry.model.tls_certificates`.

Internal names get certificates of the cloud's own CA; others are ordered by ACME if that is configured, and
else use certificates that were imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skerry.control.nodes.registry import NodeRegistry
from skerry.control.routes.table import RouteTable
from skerry.kit.callbacks import CallbackList
from skerry.model import errors
from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.tls_certificates import CertificateSource, InternalDomains, WantedDomain, check_domain
from skerry.model.tls_settings import TlsSettings


class RouteDomains:
    """The host names of all routes with TLS."""

    def __init__(
        self, table: RouteTable, nodes: NodeRegistry, settings: TlsSettings, internal: InternalDomains
    ) -> None:
        self._table = table
        self._nodes = nodes
        self._settings = settings
        self._internal = internal
        self._edges: frozenset[NodeId] = frozenset()
        self._listeners: CallbackList[[]] = CallbackList()
        table.subscribe(lambda _: self._listeners.notify())
        nodes.listen(self._node_changed)

    def domains_wanted(self) -> Sequence[WantedDomain]:
        found: dict[str, WantedDomain] = {}
        for route in self._table.values():
            host = route.spec.host
            if route.spec.wants_certificate and _is_domain(host):
                found.setdefault(host, WantedDomain(host, route.namespace, self._source(host)))
        return tuple(found.values())

    def is_edge(self, node: NodeId) -> bool:
        known = self._nodes.condition(node) is not None
        return known and NodeFeature.EDGE in self._nodes.get(node).facts.features

    def listen(self, changed: Callable[[], object]) -> object:
        return self._listeners.add(changed)

    def _source(self, host: str) -> CertificateSource:
        if self._internal.has(host):
            return CertificateSource.OWN_CA
        is_configured = self._settings.acme_terms_agreed and self._settings.acme_directory
        return CertificateSource.ACME if is_configured else CertificateSource.IMPORTED

    def _node_changed(self, node: NodeId) -> None:
        edges = self._edges - {node} | ({node} if self.is_edge(node) else set())
        if edges != self._edges:
            self._edges = edges
            self._listeners.notify()


def _is_domain(host: str) -> bool:
    """False: nobody issues a certificate for it, as for a name without a dot."""
    try:
        check_domain(host)
    except errors.Invalid:
        return False
    return True
