"""The listener for neighbours: who may dial, how many may, and how it stops.

Serves `skerry.functions.continuum.neighbours.Serves` on a bound socket, over TLS with certificates on both
sides and nothing else. One link is `skerry.wire.neighbours.answering`'s matter.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Final

import structlog

from skerry.functions.continuum.neighbours import Serves
from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.settings import FunctionSettings
from skerry.wire.grpc.listener import Listener, Measures
from skerry.wire.neighbours import frames
from skerry.wire.neighbours.answering import Answering, House, Limits
from skerry.wire.neighbours.identities import Counts

log = structlog.get_logger(__name__)

_NAME: Final = "neighbours"
_LINKS: Final = 4096  # a listener's
_LINKS_OF_ONE: Final = 4  # of one neighbour: one that it uses, and those that it has lost and we have not
_HANDSHAKE_S: Final = 10.0
_MEASURES: Final = Measures(
    metrics.gauge("skerry_neighbour_links", "Links that neighbours have dialled", ["listener"]),
    metrics.counter(
        "skerry_neighbour_links_refused_total", "Links of neighbours turned away", ["listener", "reason"]
    ),
)


class NeighbourServer:
    """`context` must ask for a client certificate. `listen` on a bound socket, `stop` last.

    `counts` tells whether a certificate of a serial was not revoked, as far as this process can know.
    """

    def __init__(
        self,
        here: NodeId,
        serves: Serves,
        context: ssl.SSLContext,
        clock: Clock,
        settings: FunctionSettings,
        *,
        counts: Counts,
        limits: Limits | None = None,
    ) -> None:
        if context.verify_mode is not ssl.CERT_REQUIRED:
            raise ValueError("neighbours are known by their certificates; the context must require one")
        self._context = context
        self._house = House(
            here,
            serves,
            clock,
            counts,
            frames.longest(settings),
            limits or Limits(),
            came=self._came,
            left=self._left,
        )
        self._links: dict[NodeId, list[Answering]] = {}
        self._listener: Listener[Answering] | None = None

    def listen(self, sock: socket.socket) -> None:
        """Serve on a bound TCP socket and own it from then on."""
        sock.listen(1024)
        self._listener = Listener(
            _NAME,
            sock,
            partial(Answering, self._house),
            tls=self._context,
            plaintext=False,
            max_connections=_LINKS,
            handshake_timeout_s=_HANDSHAKE_S,
            measures=_MEASURES,
        )
        log.info("neighbours.listening", address="{}:{}".format(*sock.getsockname()[:2]))

    async def stop(self, within_s: float) -> None:
        """Accept nothing more; calls may end within this time, and end with their links then."""
        if self._listener is None:
            return
        self._listener.close()
        links = list(self._listener.connections)
        for link in links:
            link.is_stopping = True
        await asyncio.gather(*(link.stop(within_s) for link in links))
        await self._listener.drained()
        self._listener = None

    def _came(self, link: Answering) -> None:
        assert link.node is not None
        links = self._links.setdefault(link.node, [])
        links.append(link)
        log.info("neighbour.came", node=link.node, peer=link.peer)
        if len(links) > _LINKS_OF_ONE:
            links[0].give_up("replaced", f"node {link.node} has dialled {_LINKS_OF_ONE} times since")

    def _left(self, link: Answering) -> None:
        assert link.node is not None
        links = self._links[link.node]
        links.remove(link)
        if not links:
            del self._links[link.node]
        log.info("neighbour.left", node=link.node)
