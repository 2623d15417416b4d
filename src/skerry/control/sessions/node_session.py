"""Node sessions: the connected nodes, messages to them, and their reports.

A node has one session, the newest. It gets all its orders first and then changes
(`skerry.control.sessions.change_feed`), and so the revoked certificates, its volumes and network objects; a
member also gets the functions and the other members. A report is acknowledged once it is durable.
`skerry.transport.links.nodes` transports the messages; orders come from
`skerry.control.instances.registry`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager

import structlog
from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord
from skerry.control.instances.report_rules import ReportDisposition
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.recovery.claims import ClaimProcessor
from skerry.control.sessions.change_feed import ChangeFeed
from skerry.control.sessions.feeds import NO_FEEDS, OrderSource, SessionFeeds
from skerry.control.sessions.heartbeat_interval import heartbeat_interval
from skerry.control.sessions.tunnels import TunnelBroker, TunnelEndpoint
from skerry.kit import metrics
from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.container_options import NodeFeature
from skerry.model.function_names import namespace_of
from skerry.model.functions import Function
from skerry.model.ids import DEFAULT_NAMESPACE, FunctionName, InstanceId, NodeId, VolumeId
from skerry.model.members import ContinuumMember
from skerry.model.network_objects import NetworkKey, NetworkObject
from skerry.model.node_messages import (
    ClaimBatch,
    FunctionUpdate,
    MemberList,
    NetworkReportBatch,
    NetworkUpdate,
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    RevocationUpdate,
    SecretDelivery,
    SecretRequest,
    SecretValue,
    ServerList,
    ServerMessage,
    SessionClose,
    SessionConfig,
    TunnelRequest,
    VolumeReportBatch,
    VolumeUpdate,
)
from skerry.model.orders import InstanceOrder
from skerry.model.settings import FleetSettings
from skerry.model.streams import StreamRequest
from skerry.model.volumes import VolumeOrder

log = structlog.get_logger(__name__)

CONNECTED = metrics.gauge("skerry_node_sessions", "Nodes that are connected to this server")

MAX_REPORTS = 1000  # in one batch


class NodeSession:
    """One connection of a node: `messages` is what to send, the other methods are what came."""

    def __init__(
        self,
        node: NodeId,
        config: SessionConfig,
        orders: Callable[[], Sequence[InstanceOrder]],
        *,
        as_sent: Callable[[InstanceOrder], InstanceOrder] = lambda order: order,
        makes_claims: bool = False,
    ) -> None:
        """`as_sent` makes of an order what the node gets. With `config.wants_claims` orders are held back
        until `release_orders`."""
        self.node = node
        self.config = config
        self.address = ""  # that it comes from
        self.makes_claims = makes_claims
        self._as_sent = as_sent
        self._orders_paused = config.wants_claims
        self._orders: ChangeFeed[InstanceId, InstanceOrder] = ChangeFeed(
            orders
        )  # a removed instance is not on this node any more
        self._functions: ChangeFeed[FunctionName, Function] | None = None  # of one that takes calls
        self._with_namespaces = True
        self._with_secrets = True
        self._with_web = True
        self._members: MemberList | None = None  # to be sent
        self._revoked: ChangeFeed[str, RevokedCertificate] | None = None  # of one that takes them
        self._volumes: ChangeFeed[VolumeId, VolumeOrder] | None = None  # likewise
        self._network: ChangeFeed[NetworkKey, NetworkObject] | None = None  # likewise
        self._sequence = 0
        self._received = 0  # of the node's batches
        self._acknowledged = 0
        self._tunnels: deque[TunnelRequest] = deque()
        self._secrets: deque[SecretDelivery] = deque()  # requested by the node
        self._servers: ServerList | None = None  # to be sent
        self._close_message: SessionClose | None = None
        self._ended = asyncio.Event()
        self._wake = asyncio.Event()
        self._wake.set()  # for the orders

    @property
    def is_over(self) -> bool:
        return self._close_message is not None

    async def messages(self) -> AsyncIterator[ServerMessage]:
        """Messages to the node, as they come; the last is a `SessionClose`."""
        acknowledged = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._acknowledged > acknowledged:
                acknowledged = self._acknowledged
                yield ReportAck(acknowledged)
            while self._tunnels:
                yield self._tunnels.popleft()
            while self._secrets:
                yield self._secrets.popleft()
            if self._servers is not None:
                servers, self._servers = self._servers, None
                yield servers
            if (revocations := self._revocations_message()) is not None:
                yield revocations
            # Before the orders of what uses them.
            if (volumes := self._volumes_message()) is not None:
                yield volumes
            if (orders := self._orders_message()) is not None:
                yield orders
            if (network := self._network_message()) is not None:
                yield network
            if self._members is not None:
                members, self._members = self._members, None
                yield members
            if (functions := self._functions_message()) is not None:
                yield functions
            if self._close_message is not None:
                yield self._close_message
                return

    async def ended(self) -> None:
        """Wait until only the `SessionClose` is left to send."""
        await self._ended.wait()

    def order_changed(self, instance: InstanceId, order: InstanceOrder | None) -> None:
        """The instance is to be this now."""
        if self._orders.put(instance, order):
            self._wake.set()

    def release_orders(self) -> None:
        """Send orders from now on."""
        self._orders_paused = False
        self._wake.set()

    def send_functions(
        self,
        functions: Callable[[], Sequence[Function]],
        *,
        with_namespaces: bool = True,
        with_secrets: bool = True,
        with_web: bool = True,
    ) -> None:
        """Tell the node of all functions, and from then on of changes. One of before functions had namespaces
        is told of those in the default one only, as it refuses the others' names; one of before secrets of
        those without secrets, and one of before web functions of the others."""
        self._with_namespaces = with_namespaces
        self._with_secrets = with_secrets
        self._with_web = with_web
        self._functions = ChangeFeed(
            lambda: [one for one in functions() if self._takes_function(one.name) and self._can_run(one)]
        )
        self._wake.set()

    def _can_run(self, function: Function) -> bool:
        return (self._with_secrets or not function.secrets) and (self._with_web or not function.is_web)

    def _takes_function(self, name: FunctionName) -> bool:
        return self._with_namespaces or namespace_of(name) == DEFAULT_NAMESPACE

    def stop_functions(self) -> None:
        """Tell it of neither functions nor members: it takes no calls any more."""
        self._functions = self._members = None

    def function_changed(self, name: FunctionName, function: Function | None) -> None:
        """The function is this now."""
        if self._functions is None or not self._takes_function(name):
            return
        if function is not None and not self._can_run(function):
            function = None
        if self._functions.put(name, function):
            self._wake.set()

    def send_revocations(self, everything: Callable[[], Sequence[RevokedCertificate]]) -> None:
        """Tell the node of all revoked certificates, and from then on of further ones."""
        self._revoked = ChangeFeed(everything)
        self._wake.set()

    def certificates_revoked(self, revoked: Sequence[RevokedCertificate]) -> None:
        if self._revoked is not None and sum(self._revoked.put(one.serial, one) for one in revoked):
            self._wake.set()

    def send_volumes(self, everything: Callable[[], Sequence[VolumeOrder]]) -> None:
        """Tell the node of all its volumes, and from then on of changes."""
        self._volumes = ChangeFeed(everything)
        self._wake.set()

    @property
    def takes_volumes(self) -> bool:
        return self._volumes is not None

    def volume_changed(self, order: VolumeOrder) -> None:
        if self._volumes is not None and self._volumes.put(order.id, order):
            self._wake.set()

    def send_network(self, everything: Callable[[], Sequence[NetworkObject]]) -> None:
        """Tell the node of all network objects, and from then on of changes."""
        self._network = ChangeFeed(everything)
        self._wake.set()

    @property
    def takes_network(self) -> bool:
        return self._network is not None

    def network_changed(self, key: NetworkKey, value: NetworkObject | None) -> None:
        if self._network is not None and self._network.put(key, value):
            self._wake.set()

    def send_members(self, members: tuple[ContinuumMember, ...]) -> None:
        """These are all of them now."""
        self._members = MemberList(members)
        self._wake.set()

    def request_tunnel(self, tunnel: TunnelRequest) -> None:
        self._tunnels.append(tunnel)
        self._wake.set()

    def deliver_secrets(self, values: Sequence[SecretValue]) -> None:
        """Answer a request of the node."""
        self._secrets.append(SecretDelivery(tuple(values)))
        self._wake.set()

    def send_servers(self, addresses: tuple[str, ...]) -> None:
        """These are all the servers now."""
        self._servers = ServerList(addresses)
        self._wake.set()

    def end(self, reason: str) -> None:
        """Say goodbye, and nothing more."""
        if self._close_message is None:
            self._close_message = SessionClose(reason)
            self._ended.set()
            self._wake.set()

    def receive(self, batch: ReportBatch) -> None:
        """Check the sequence number of a batch."""
        if len(batch.reports) > MAX_REPORTS:
            raise errors.TooLarge(
                f"{len(batch.reports)} reports in one batch; at most {MAX_REPORTS}, send more batches"
            )
        if batch.sequence <= self._received:
            raise errors.Invalid(
                f"batch {batch.sequence} came after {self._received}; batches are counted upwards",
                field="sequence",
            )
        self._received = batch.sequence

    def acknowledge(self, sequence: int) -> None:
        self._acknowledged = sequence
        self._wake.set()

    def _orders_message(self) -> OrderUpdate | None:
        update = None if self._orders_paused else self._orders.take()
        if update is None:
            return None
        self._sequence += 1
        orders = tuple(map(self._as_sent, update.present))
        return OrderUpdate(self._sequence, is_full=update.is_full, orders=orders, removed=update.removed)

    def _revocations_message(self) -> RevocationUpdate | None:
        update = None if self._revoked is None else self._revoked.take()
        return None if update is None else RevocationUpdate(update.present)

    def _volumes_message(self) -> VolumeUpdate | None:
        update = None if self._volumes is None else self._volumes.take()
        return None if update is None else VolumeUpdate(update.present)

    def _network_message(self) -> NetworkUpdate | None:
        update = None if self._network is None else self._network.take()
        return None if update is None else NetworkUpdate(update.is_full, update.present, update.removed)

    def _functions_message(self) -> FunctionUpdate | None:
        update = None if self._functions is None else self._functions.take()
        return None if update is None else FunctionUpdate(update.is_full, update.present, update.removed)


class NodeSessions:
    """The nodes that are connected to this server."""

    def __init__(
        self,
        nodes: NodeRegistry,
        instances: OrderSource,
        settings: FleetSettings,
        *,
        feeds: SessionFeeds = NO_FEEDS,
        tunnels: TunnelBroker | None = None,
        claims: ClaimProcessor | None = None,
        here: NodeId | None = None,
    ) -> None:
        """Without `claims`, nodes remove what they are not ordered. The node `here` is of this very process,
        and knows."""
        self._nodes = nodes
        self._instances = instances
        self._settings = settings
        self._sessions: dict[NodeId, NodeSession] = {}
        self._closed = ""
        self.report_s = settings.report_s  # of a session that begins now
        self._servers, self._members, self._functions, self._certificates = feeds[:4]
        self._secrets, self._volumes, self._network = feeds.secrets, feeds.volumes, feeds.network
        self._claims = claims
        self._here = here
        self._sharing: set[NodeSession] = set()  # with nodes that take calls of functions
        self.tunnels = tunnels or TunnelBroker()
        instances.listen(self._instance_changed)
        nodes.listen(self._node_changed)
        if feeds.servers is not None:
            feeds.servers.listen(self._servers_changed)
        if feeds.members is not None:
            feeds.members.listen(self._members_changed)
        if feeds.functions is not None:
            feeds.functions.listen(self._function_changed)
        if feeds.certificates is not None:
            feeds.certificates.listen_revoked(self._certificates_revoked)
        if feeds.volumes is not None:
            feeds.volumes.listen(self._volume_changed)
        if feeds.network is not None:
            feeds.network.listen(self._network_changed)
        nodes.heartbeats.listen(lambda node: self._end(node, "it is connected to another server"))

    @asynccontextmanager
    async def connect(self, id: str, hello: NodeHello, address: str = "") -> AsyncIterator[NodeSession]:
        """The session of the node that sent `hello`, which registers it; it ends with the context. It comes
        from `address`."""
        self._require_open()
        node = await self._nodes.register(id, hello)
        # A node removes what is not among its orders: they must not be those of a while ago.
        await self._instances.sync()
        if node.member is not None and self._functions is not None:
            await self._functions.sync()
        if self._volumes is not None:
            await self._volumes.sync()
        if self._network is not None:
            await self._network.ready()
        self._require_open()
        claims = self._claims
        makes_claims = hello.makes_claims and claims is not None
        self.report_s = heartbeat_interval(self._settings, self._nodes.total())
        session = NodeSession(
            node.id,
            SessionConfig(
                node.id,
                node.subnet,
                self.report_s,
                self._settings.restart_base_s,
                self._settings.restart_cap_s,
                self._settings.restart_reset_s,
                silence_s=self._settings.suspect_after_s,
                takes_claims=makes_claims,
                wants_claims=makes_claims and claims is not None and claims.is_settling,
                joins_mesh=node.is_borrowed and node.has_network,
            ),
            lambda: self._instances.orders(node.id),
            as_sent=lambda order: self._as_sent(node.id, hello, order),
            makes_claims=makes_claims,
        )
        session.address = address
        self._end(node.id, "a newer session of this node began")
        self._sessions[node.id] = session
        self._send_servers(session)
        if hello.takes_revocations and self._certificates is not None:
            session.send_revocations(self._certificates.revoked)
        self._send_volumes(session, hello)
        self._send_network(session, hello)
        if node.member is not None:
            self._send_member_feeds(session)
        self._nodes.heartbeats.begin(node.id)
        CONNECTED.set(len(self._sessions))
        log.info("session.began", node=node.id, name=node.name)
        try:
            yield session
        finally:
            session.end("the connection is over")
            self._sharing.discard(session)
            if self._sessions.get(node.id) is session:
                del self._sessions[node.id]
            CONNECTED.set(len(self._sessions))
            log.info("session.ended", node=node.id, name=node.name)

    def _as_sent(self, node: NodeId, hello: NodeHello, order: InstanceOrder) -> InstanceOrder:
        if NodeFeature.POLICIES not in hello.facts.features:
            order = order.without_policies()
        return order if self._claims is None else self._claims.with_receipt(node, order)

    def received(self, session: NodeSession) -> None:
        """A message came from the node."""
        if not session.is_over:
            self._nodes.heartbeats.received(session.node)

    def busy_with(self, session: NodeSession) -> AbstractContextManager[None]:
        """While a message of the node is processed, and no others are read."""
        return self._nodes.heartbeats.busy_with(session.node)

    async def changed(self, session: NodeSession, hello: NodeHello) -> None:
        """The node is different now."""
        # Its subnet is that of the session.
        await self._nodes.register(session.node, replace(hello, subnet="", occupied=()))
        if not session.is_over and not session.takes_volumes:
            self._send_volumes(session, hello)
        if not session.is_over and not session.takes_network:
            self._send_network(session, hello)
        if hello.member is None:
            self._sharing.discard(session)
            session.stop_functions()
        elif not session.is_over:
            self._send_member_feeds(session)

    async def reported(self, session: NodeSession, batch: ReportBatch) -> None:
        """Make what the node saw durable, and acknowledge it."""
        session.receive(batch)
        for outcome in await self._instances.reported(session.node, batch.reports):
            if (
                outcome.disposition is ReportDisposition.STALE and not session.makes_claims
            ):  # else its claim decides
                session.order_changed(outcome.instance, None)
        session.acknowledge(batch.sequence)

    async def volumes_reported(self, session: NodeSession, batch: VolumeReportBatch) -> None:
        """Make what the node has of its volumes durable."""
        if self._volumes is None:
            raise errors.Invalid("this server takes no reports of volumes", field="volume_reports")
        await self._volumes.reported(session.node, batch.reports)

    async def network_reported(self, session: NodeSession, batch: NetworkReportBatch) -> None:
        """Take what the node reports of the network."""
        if self._network is None:
            raise errors.Invalid("this server takes no network objects", field="network_reports")
        await self._network.reported(session.node, batch.objects)

    async def claimed(self, session: NodeSession, claims: ClaimBatch) -> None:
        """Adopt claimed instances that the store does not know; the node removes the others, or has orders
        for them."""
        if self._claims is None:
            raise errors.Invalid("this server takes no claims", field="claims")
        if self._certificates is not None:
            await self._certificates.import_revoked(claims.revoked, actor=f"node/{session.node}")
        for instance in await self._claims.take(session.node, claims.claims):
            session.order_changed(instance, None)

    async def secrets_requested(self, session: NodeSession, request: SecretRequest) -> None:
        """Answer with the values that the node may have; for the others with the reason."""
        if self._secrets is None:
            raise errors.Invalid("this server has no secrets", field="secrets")
        session.deliver_secrets(await self._secrets.values(session.node, request))

    async def run(self) -> None:
        """Give orders again when a store that was restored has settled."""
        if self._claims is not None:
            await self._claims.settled()
            for session in self._sessions.values():
                session.release_orders()
        await asyncio.get_running_loop().create_future()

    def address(self, node: NodeId) -> str:
        """The address that the session of a node comes from; empty if it is not known here."""
        session = self._sessions.get(node)
        return "" if session is None else session.address

    def elsewhere(self, node: NodeId) -> str | None:
        """The other server that the node is connected to; None if it is connected here, or to none."""
        alive = None if node in self._sessions else self._nodes.heartbeat(node)
        return None if alive is None or alive.server == self._nodes.heartbeats.server else alive.server

    def open_tunnel(
        self, node: NodeId, instance: InstanceId, request: StreamRequest
    ) -> AbstractAsyncContextManager[TunnelEndpoint]:
        """Our end of a tunnel to an instance on the node; `Unavailable` if it is not connected here."""
        session = self._sessions.get(node)
        if session is None:
            if (server := self.elsewhere(node)) is not None:
                raise errors.Unavailable(f"node {node} is connected to the server at {server}; ask there")
            raise errors.Unavailable(f"node {node} is not connected; try again when it is back")
        return self.tunnels.open(
            node, lambda id: session.request_tunnel(TunnelRequest(id, instance, request))
        )

    def close(self, reason: str = "this server stops") -> None:
        """Send every node away, to another server if it knows one, and take no more."""
        self._closed = reason
        for session in self._sessions.values():
            session.end(reason)

    def _require_open(self) -> None:
        if self._closed:
            raise errors.Unavailable(f"{self._closed}; connect to another, or later")

    def _end(self, node: NodeId, reason: str) -> None:
        session = self._sessions.pop(node, None)
        if session is not None:
            session.end(reason)

    def _servers_changed(self) -> None:
        for session in self._sessions.values():
            self._send_servers(session)

    def _send_servers(self, session: NodeSession) -> None:
        if self._servers is not None and (addresses := self._servers.addresses):
            session.send_servers(addresses)

    def _send_member_feeds(self, session: NodeSession) -> None:
        """Tell a node that takes calls of functions what it needs for that."""
        if session in self._sharing or session.node == self._here:
            return
        self._sharing.add(session)
        if self._members is not None:
            session.send_members(self._members.all)
        if self._functions is not None:
            features = self._nodes.get(session.node).facts.features
            session.send_functions(
                self._functions.all,
                with_namespaces=NodeFeature.FUNCTION_NAMESPACES in features,
                with_secrets=NodeFeature.SECRETS in features,
                with_web=NodeFeature.WEB_FUNCTIONS in features,
            )

    def _send_volumes(self, session: NodeSession, hello: NodeHello) -> None:
        if (feed := self._volumes) is None or NodeFeature.VOLUMES not in hello.facts.features:
            return
        node = session.node
        session.send_volumes(lambda: [feed.as_sent(node, order) for order in feed.orders(node)])

    def _volume_changed(self, node: NodeId, order: VolumeOrder) -> None:
        if (session := self._sessions.get(node)) is not None and self._volumes is not None:
            session.volume_changed(self._volumes.as_sent(node, order))

    def _send_network(self, session: NodeSession, hello: NodeHello) -> None:
        if (feed := self._network) is None or NodeFeature.NETWORK not in hello.facts.features:
            return
        session.send_network(lambda: feed.objects(session.node))

    def _network_changed(self, node: NodeId | None, key: NetworkKey, value: NetworkObject | None) -> None:
        if node is not None:
            if (session := self._sessions.get(node)) is not None:
                session.network_changed(key, value)
            return
        for session in self._sessions.values():
            session.network_changed(key, value)

    def _certificates_revoked(self, revoked: Sequence[RevokedCertificate]) -> None:
        for session in self._sessions.values():
            session.certificates_revoked(revoked)

    def _members_changed(self) -> None:
        assert self._members is not None, "nobody else calls this"
        for session in self._sharing:
            session.send_members(self._members.all)

    def _function_changed(self, name: FunctionName, function: Function | None) -> None:
        for session in self._sharing:
            session.function_changed(name, function)

    def _node_changed(self, node: NodeId) -> None:
        if node in self._sessions and self._nodes.condition(node) is None:
            self._end(node, "this node was unregistered")

    def policy_changed(self, instance: InstanceRecord) -> None:
        """The policy of its namespace is another, and so its order may be."""
        self._instance_changed(None, instance)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        was, now = before and before.value, after and after.value
        was_on, is_on = was and was.node, now and now.node
        if was is not None and was_on != is_on and was_on in self._sessions:
            self._sessions[was_on].order_changed(was.id, None)
        if now is not None and is_on in self._sessions:
            order = self._instances.order(now)
            if was is None or was_on != is_on or self._instances.order(was) != order:
                self._sessions[is_on].order_changed(now.id, order)
