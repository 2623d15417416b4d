"""The listener for links of other members: access, limits, and stopping.

Serves `skerry.functions.continuum.member_api.MemberService` on a bound socket, over TLS with certificates on
both sides only. `skerry.transport.links.members.server_link` serves one link.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from functools import partial
from typing import Final

import structlog

from skerry.functions.continuum.member_api import MemberService
from skerry.kit import metrics, namespace_marker
from skerry.kit.clock import Clock
from skerry.model.ids import NodeId
from skerry.model.settings import FunctionSettings
from skerry.transport.access import peers
from skerry.transport.admission import AdmissionLimits
from skerry.transport.links.members import framing
from skerry.transport.links.members.link_identity import LinkAccess
from skerry.transport.links.members.server_link import MemberLinkLimits, ServerLink, ServerLinkDeps
from skerry.transport.listeners import Listener, ListenerMetrics, ListenerOptions

log = structlog.get_logger(__name__)

_NAME: Final = "neighbours"
_LINKS: Final = 4096  # a listener's
_LINKS_OF_ONE_ADDRESS: Final = 1024
_LINKS_OF_ONE: Final = 4  # of one neighbour: the one that it uses, and those that are broken on its side only
_HANDSHAKE_S: Final = 10.0
_MEASURES: Final = ListenerMetrics(
    metrics.gauge("skerry_neighbour_links", "Links that neighbours have dialled", ["listener"]),
    metrics.counter(
        "skerry_neighbour_links_refused_total",
        "Links of neighbours that were rejected",
        ["listener", "reason"],
    ),
)


class MemberLinkServer:
    """`context` must require a client certificate. `listen` on a bound socket, `stop` last.

    Links end as soon as `access` refuses their peers.
    """

    def __init__(
        self,
        here: NodeId,
        serves: MemberService,
        context: ssl.SSLContext,
        clock: Clock,
        settings: FunctionSettings,
        *,
        access: LinkAccess,
        limits: MemberLinkLimits | None = None,
    ) -> None:
        if context.verify_mode is not ssl.CERT_REQUIRED:
            raise ValueError("neighbours are identified by their certificates; the context must require one")
        self._context = context
        self._deps = ServerLinkDeps(
            here,
            serves,
            clock,
            access,
            framing.max_frame_bytes(settings),
            limits or MemberLinkLimits(),
            connected=self._connected,
            disconnected=self._left,
        )
        self._links: dict[NodeId, list[ServerLink]] = {}
        self._listener: Listener[ServerLink] | None = None
        access.listen(self._check_access)

    def listen(self, sock: socket.socket) -> None:
        """Serve on a bound TCP socket and own it from then on."""
        sock.listen(1024)
        options = ListenerOptions(
            tls=self._context,
            plaintext=False,
            limits=AdmissionLimits(_LINKS, _LINKS_OF_ONE_ADDRESS),
            handshake_timeout_s=_HANDSHAKE_S,
            trusted_uids=peers.trusted_uids(namespace_marker.own_uid()),
            measures=_MEASURES,
        )
        self._listener = Listener(_NAME, sock, options, partial(ServerLink, self._deps))
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

    def _check_access(self) -> None:
        for link in [] if self._listener is None else list(self._listener.connections):
            link.check_access()

    def _connected(self, link: ServerLink) -> None:
        assert link.node is not None
        links = self._links.setdefault(link.node, [])
        links.append(link)
        log.info("neighbour.came", node=link.node, peer=link.peer)
        if len(links) > _LINKS_OF_ONE:
            links[0].fail("replaced", f"node {link.node} has dialled {_LINKS_OF_ONE} times since")

    def _left(self, link: ServerLink) -> None:
        assert link.node is not None
        links = self._links[link.node]
        links.remove(link)
        if not links:
            del self._links[link.node]
        log.info("neighbour.left", node=link.node)
