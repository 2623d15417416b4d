"""When certificates end, for `/metrics`: of the CA, of servers, nodes and listeners, and of routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from skerry.control.identity.authenticator import Authenticator
from skerry.control.named_table import key_of
from skerry.control.tls.tables import TlsTable
from skerry.kit import metrics
from skerry.kit.certificate_metrics import NOT_AFTER
from skerry.kit.pki import CertificateAuthority, IssuedCertificate
from skerry.model.callers import EDGE, Role

EVERY_S: Final = 15.0
_KINDS: Final = {Role.NODE.value: "node", EDGE: "edge"}


class CertificateEnd(NamedTuple):
    """When the newest certificate of a holder ends."""

    kind: str
    name: str
    not_before: float
    not_after: float


class CertificateMetrics(metrics.SampledCollector):
    """Of the certificates that `ends` lists."""

    def __init__(self, ends: Callable[[], Iterable[CertificateEnd]]) -> None:
        super().__init__(EVERY_S)
        self._ends = ends

    def sample(self) -> Iterator[Metric]:
        yield metrics.add_series(NOT_AFTER(), (([one.kind, one.name], one.not_after) for one in self._ends()))


def certificate_ends(
    authority: CertificateAuthority,
    identity: Authenticator,
    server: IssuedCertificate,
    routes: TlsTable,
    name_of_node: Callable[[str], str | None],
) -> Iterator[CertificateEnd]:
    """Of this server, and of all other holders that are part of this cloud: nodes that are not registered any
    more, and other servers, have none."""
    yield CertificateEnd("ca", "ca", authority.not_before, authority.not_after)
    yield CertificateEnd("server", server.name, server.issued_at, server.not_after)
    newest: dict[tuple[str, str], CertificateEnd] = {}
    for one in identity.certificates():
        kind = _KINDS.get(one.role)
        if kind is None or one.revoked_at is not None:
            continue
        name = name_of_node(one.node or one.name)  # that of a server's own node has its id as name
        if name is None:
            continue
        present = newest.get((kind, name))
        if present is None or present.not_after < one.not_after:
            newest[kind, name] = CertificateEnd(kind, name, one.not_before, one.not_after)
    yield from newest.values()
    for route in routes.values():
        if route.version:
            yield CertificateEnd("route", key_of(route), route.not_before, route.not_after)
