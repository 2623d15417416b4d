"""What edge nodes are told of certificates: those of the hosts that they serve, and answers to challenges.

A source of `skerry.control.network.feed`. Chains and keys are not in it: `may_have` says which node may
request which (`skerry.control.secrets.delivery`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from skerry.control.tls import decisions
from skerry.control.tls.tables import TlsTable
from skerry.kit.callbacks import CallbackList
from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.network_objects import NetworkKey, NetworkObject, ObjectChange
from skerry.model.secrets import SecretKind, SecretRef
from skerry.model.tls_certificates import (
    ChallengeKind,
    HttpChallenge,
    RouteCertificate,
    TlsCertificate,
    WantedDomains,
)


class EdgeCertificates:
    """Certificates and challenges, for edge nodes alone."""

    def __init__(
        self,
        table: TlsTable,
        wanted: WantedDomains,
        clock: Clock,
        *,
        nodes: Callable[[], Iterable[NodeId]],
    ) -> None:
        """`nodes` are all nodes of the cloud."""
        self._table = table
        self._wanted = wanted
        self._clock = clock
        self._nodes = nodes
        self._sent: dict[NodeId, dict[NetworkKey, NetworkObject]] = {}
        self._listeners: CallbackList[[NodeId | None, NetworkKey, NetworkObject | None]] = CallbackList()
        table.subscribe(lambda _: self._changed())
        wanted.listen(self._changed)

    def objects(self, node: NodeId) -> Iterable[NetworkObject]:
        return self._current().values() if self._wanted.is_edge(node) else ()

    def listen(self, changed: ObjectChange) -> None:
        self._listeners.add(changed)

    async def ready(self) -> None:
        await self._table.ready()

    def may_have(self, node: NodeId, ref: SecretRef) -> bool:
        """Whether a node may request a value: an edge node, that of a certificate which it serves."""
        if ref.kind is not SecretKind.TLS or not self._wanted.is_edge(node):
            return False
        return any(each.ref == ref for each in self._served())

    def _served(self) -> list[RouteCertificate]:
        return decisions.served(self._table.values(), self._wanted.domains_wanted(), self._clock.now())

    def _current(self) -> dict[NetworkKey, NetworkObject]:
        challenges = [
            challenge for each in self._table.values() if (challenge := challenge_of(each)) is not None
        ]
        found: list[NetworkObject] = [*self._served(), *challenges]
        return {each.network_key: each for each in found}

    def _changed(self) -> None:
        current = self._current()
        edges = {node for node in self._nodes() if self._wanted.is_edge(node)}
        for node in edges | self._sent.keys():
            before, after = self._sent.get(node, {}), current if node in edges else {}
            for key in before.keys() | after.keys():
                if before.get(key) != after.get(key):
                    self._listeners.notify(node, key, after.get(key))
        self._sent = dict.fromkeys(edges, current)


def challenge_of(certificate: TlsCertificate) -> HttpChallenge | None:
    """What edge nodes answer for the order of a certificate."""
    order = certificate.order
    if order is None or order.is_over or order.challenge is None:
        return None
    if order.challenge.kind is not ChallengeKind.HTTP:
        return None
    return HttpChallenge(order.challenge.token, order.challenge.authorization)
