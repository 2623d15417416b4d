"""One session with a control plane over one connection: receives orders and tunnel requests, sends reports.

`skerry.node.agent.agent` runs one on each connection that it dials; `skerry.node.guests` runs one for the
buyer of a leased cell. The transport and reconnecting are not handled here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

import msgspec
import structlog

from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait, race
from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.network_objects import MAX_REPORTED_OBJECTS
from skerry.model.node_messages import (
    MAX_CLAIMS,
    MAX_VOLUME_REPORTS,
    ClaimBatch,
    FunctionUpdate,
    InstanceClaim,
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
    ServerList,
    ServerMessage,
    SessionClose,
    SessionConfig,
    SessionHeartbeat,
    TunnelRequest,
    VolumeReportBatch,
    VolumeUpdate,
)
from skerry.model.orders import InstanceReport
from skerry.model.streams import TunnelStream
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.ports import ControlConnection, NetworkFeed
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.volumes.volumes import NodeVolumes

log = structlog.get_logger(__name__)

_MAX_REPORTS = 500  # in one batch
_MAX_BATCHES = 10_000  # not yet acknowledged
WELCOME_S = 10.0  # a server that takes longer may be frozen; another may respond
_CLAIMS_BYTES = 512 * 1024  # of claims in one message; one claim has at most half a MiB
_DESCRIBE_S = 60.0  # between two updates of this machine's resources


class ServerClosedSession(errors.Unavailable):
    """The server closed the session because it stops."""


class MemberListener(Protocol):
    """The function member on this node, which follows the lists of members and functions."""

    async def members_changed(self, update: MemberList) -> None: ...

    async def functions_changed(self, update: FunctionUpdate) -> None: ...


async def _refuse_tunnel(request: TunnelRequest, tunnel: TunnelStream) -> None:
    raise errors.FailedPrecondition("there are no tunnels on this connection")


async def _ignore_revocations(update: RevocationUpdate) -> None:
    """Default of nodes that do not announce that they accept revocations."""


async def _ignore_acceptance() -> None:
    """Default of nodes that wait for nothing with it."""


async def _ignore_subnet(subnet: str) -> None:
    """Default of nodes without a container network."""


class AgentHooks(msgspec.Struct, frozen=True):
    """Callbacks of a session: how to describe this machine, and who handles messages other than orders."""

    describe: Callable[[], NodeHello]
    condition: Callable[[], str] = lambda: ""  # when it changes, the machine is described again at once
    assign: Callable[[str], Awaitable[None]] = _ignore_subnet  # containers get addresses of this subnet
    # Called with all revoked certificates, if the hello announces that this node accepts them.
    revoke: Callable[[RevocationUpdate], Awaitable[None]] = _ignore_revocations
    revoked: Callable[[], Sequence[RevokedCertificate]] = tuple
    member: MemberListener | None = None  # receives updates of members and functions
    secrets: NodeSecrets | None = None  # requests values, and receives them
    volumes: NodeVolumes | None = None  # of this node; None: it reports no such feature
    network: NetworkFeed | None = None  # likewise
    contact: Callable[[], None] = lambda: None  # called with every message behind the network objects
    # Called when a server has accepted this node's version, and has one that this node accepts.
    accepted: Callable[[], Awaitable[None]] = _ignore_acceptance


async def _ignore_servers(addresses: Sequence[str]) -> None:
    """Default of a node with a single address of its control plane."""


async def _handle(handling: Awaitable[None]) -> None:
    """Log a failure to store what every session sends again; it holds in memory."""
    try:
        await handling
    except OSError as error:
        log.warning("session.not_kept", error=str(error))


def report_interval(requested_s: float, config: SessionConfig) -> float:
    """Seconds between two messages to a server that says in a heartbeat that its cloud has grown: never less
    than the welcome said, nor more than half of the silence after which either side gives up."""
    longest_s = config.silence_s / 2 if config.silence_s else config.report_s
    return max(config.report_s, min(longest_s, requested_s))


class AgentSession:
    """One session."""

    def __init__(
        self,
        connection: ControlConnection,
        instances: NodeInstances,
        hooks: AgentHooks,
        clock: Clock,
        *,
        serve: Callable[[TunnelRequest, TunnelStream], Awaitable[None]] = _refuse_tunnel,
        learn: Callable[[Sequence[str]], Awaitable[None]] = _ignore_servers,
        pace_s: float = 0.0,
    ) -> None:
        """`serve` handles a tunnel; `learn` receives the addresses of servers. Messages are read at most once
        per `pace_s`."""
        self._connection = connection
        self._instances = instances
        self._hooks = hooks
        self._clock = clock
        self._serve = serve
        self._learn = learn
        self._pace_s = pace_s
        self._described = hooks.condition()  # condition that the hello was made with
        self.hello = hooks.describe()  # as it was last sent
        self._sequence = 0  # of the last batch
        self._sent = 0  # number of the last report in it
        self._unacknowledged: deque[tuple[int, int]] = deque()  # batch, and its last report
        self._tunnels: set[asyncio.Task[None]] = set()
        self._takes_volumes = asyncio.Event()  # the server has sent volumes, so it takes reports of them
        self._takes_network = asyncio.Event()  # likewise
        self._report_s = 0.0  # between two messages to the server

    async def open(self, within_s: float = WELCOME_S) -> SessionConfig:
        """Send the hello; returns the session config. Raises the error of the control plane."""
        try:
            async with asyncio.timeout(within_s):
                return await self._connection.hello(self.hello)
        except TimeoutError:
            raise errors.TimedOut("the control plane did not respond in time") from None

    async def run(self, config: SessionConfig) -> None:
        """Run until the connection ends or the server is silent for too long. Raises the reason."""
        self._report_s = config.report_s
        try:
            await race(
                self._receive(config),
                self._send_reports_forever(config),
                self._request_secrets_forever(),
                self._send_volume_reports_forever(),
                self._send_network_reports_forever(),
            )
        finally:
            if self._hooks.network is not None:
                self._hooks.network.end_session()
            await cancel_and_wait(self._tunnels)

    async def _receive(self, config: SessionConfig) -> None:
        messages = self._connection.messages()
        while (message := await self._next_of(messages, config.silence_s)) is not None:
            match message:
                case OrderUpdate():
                    await self._take_orders(message, takes_claims=config.takes_claims)
                case SessionHeartbeat() if message.report_s:
                    self._report_s = report_interval(message.report_s, config)
                case ReportAck():
                    self._acknowledge(message.sequence)
                case TunnelRequest():
                    self._begin_tunnel(message)
                case ServerList():
                    await _handle(self._learn(message.addresses))
                case RevocationUpdate():
                    await _handle(self._hooks.revoke(message))
                case VolumeUpdate() if self._hooks.volumes is not None:
                    self._hooks.volumes.apply(message)
                    self._takes_volumes.set()
                case NetworkUpdate() if self._hooks.network is not None:
                    self._hooks.network.apply(message)
                    self._takes_network.set()
                case MemberList() if self._hooks.member is not None:
                    await _handle(self._hooks.member.members_changed(message))
                case FunctionUpdate() if self._hooks.member is not None:
                    await _handle(self._hooks.member.functions_changed(message))
                case SecretDelivery() if self._hooks.secrets is not None:
                    self._hooks.secrets.deliver(message)
                case SessionClose():
                    raise ServerClosedSession(
                        f"the control plane closed the session of this node: {message.reason}"
                    )
            if self._takes_network.is_set():
                self._hooks.contact()
            if self._pace_s:
                await asyncio.sleep(self._pace_s)
        raise errors.Unavailable("the control plane ended the session")

    async def _request_secrets_forever(self) -> None:
        secrets = self._hooks.secrets
        if secrets is None:
            await asyncio.get_running_loop().create_future()
            return
        secrets.begin_session()
        while True:
            await self._connection.send(SecretRequest(await secrets.next_request()))

    async def _take_orders(self, message: OrderUpdate, *, takes_claims: bool) -> None:
        claims: list[InstanceClaim] = []
        if message.is_full and takes_claims:
            claims = self._instances.claims({order.instance for order in message.orders})
        await self._instances.apply(
            message.orders,
            is_full=message.is_full,
            removed=message.removed,
            claimed=[claim.report.instance for claim in claims],
        )
        await self._claim(claims)

    async def _claim(self, claims: Sequence[InstanceClaim]) -> None:
        """Claim instances that the control plane may have lost; they keep running until it orders
        otherwise."""
        batch: list[InstanceClaim] = []
        size = 0
        for claim in claims:
            batch.append(claim)
            size += len(claim.receipt)
            if size >= _CLAIMS_BYTES or len(batch) == MAX_CLAIMS:
                await self._connection.send(ClaimBatch(tuple(batch)))
                batch, size = [], 0
        if batch:
            await self._connection.send(ClaimBatch(tuple(batch)))

    async def _next_of(
        self, messages: AsyncIterator[ServerMessage], silence_s: float
    ) -> ServerMessage | None:
        """The next message; None at the end of the session. Raises TimedOut: a frozen server keeps its
        connections."""
        try:
            async with asyncio.timeout(silence_s or None):
                return await anext(messages, None)
        except TimeoutError:
            raise errors.TimedOut(f"the control plane was silent for {silence_s:g} s") from None

    def _acknowledge(self, sequence: int) -> None:
        while self._unacknowledged and self._unacknowledged[0][0] <= sequence:
            _, number = self._unacknowledged.popleft()
            self._instances.acknowledge(number)

    async def _send_reports_forever(self, config: SessionConfig) -> None:
        if config.takes_claims and (revoked := tuple(one for one in self._hooks.revoked() if one.proof)):
            await self._connection.send(ClaimBatch(revoked=revoked[:MAX_CLAIMS]))
        if config.wants_claims:  # before reports, which a server without a record ignores
            await self._claim(self._instances.claims())
        # First all reports that were not acknowledged, in order, then the status of every instance: that
        # corrects whatever the control plane concluded while there was no session.
        await self._send_new_reports()
        await self._send_reports(self._instances.inventory())
        sent_at = described_at = self._clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sent_at + self._report_s - self._clock.monotonic())):
                    await self._instances.wait_for_reports()
            now = self._clock.monotonic()
            has_sent = await self._send_new_reports()
            if now < sent_at + self._report_s:
                continue
            if now >= described_at + _DESCRIBE_S or self._hooks.condition() != self._described:
                described_at = now
                await self._describe_again()
            # Further reports wait for the next batch.
            has_sent |= await self._send_reports(self._instances.take_usage())
            if not has_sent:
                await self._connection.send(SessionHeartbeat())
            sent_at = now

    async def _send_volume_reports_forever(self) -> None:
        """All volumes first, then those that change."""
        volumes = self._hooks.volumes
        await self._takes_volumes.wait()
        assert volumes is not None, "a node without volumes is sent none"
        reports = volumes.inventory()
        while True:
            for at in range(0, len(reports), MAX_VOLUME_REPORTS):
                await self._connection.send(VolumeReportBatch(tuple(reports[at : at + MAX_VOLUME_REPORTS])))
            await volumes.wait_for_reports()
            reports = volumes.take_reports()

    async def _send_network_reports_forever(self) -> None:
        network = self._hooks.network
        await self._takes_network.wait()
        assert network is not None, "a node without the feature is sent none"
        network.begin_session()
        while True:
            await self._connection.send(NetworkReportBatch(await network.next_reports(MAX_REPORTED_OBJECTS)))

    async def _send_new_reports(self) -> bool:
        has_sent = False
        while reports := self._instances.reports(self._sent, _MAX_REPORTS):
            self._sent = reports[-1].number
            await self._send([pending.report for pending in reports])
            has_sent = True
        return has_sent

    async def _send_reports(self, reports: Sequence[InstanceReport]) -> bool:
        for at in range(0, len(reports), _MAX_REPORTS):
            await self._send(reports[at : at + _MAX_REPORTS])
        return bool(reports)

    async def _send(self, reports: Sequence[InstanceReport]) -> None:
        if len(self._unacknowledged) >= _MAX_BATCHES:
            raise errors.Unavailable("the control plane acknowledges no reports")
        self._sequence += 1
        self._unacknowledged.append((self._sequence, self._sent))
        await self._connection.send(ReportBatch(self._sequence, tuple(reports)))

    async def _describe_again(self) -> None:
        self._described = self._hooks.condition()
        hello = self._hooks.describe()
        if hello != self.hello:
            self.hello = hello
            await self._connection.send(hello)

    def _begin_tunnel(self, request: TunnelRequest) -> None:
        task = asyncio.create_task(self._serve_tunnel(request), name=f"tunnel to {request.instance}")
        self._tunnels.add(task)
        task.add_done_callback(self._tunnels.discard)

    async def _serve_tunnel(self, request: TunnelRequest) -> None:
        try:
            async with self._connection.tunnel(request.id) as tunnel:
                await self._serve(request, tunnel)
        except errors.SkerryError as error:  # the client has gone; there is nobody to report it to
            log.debug("tunnel.ended", instance=request.instance, error=error.message)
        except Exception as error:  # a bug, which must not end the session
            log.error("tunnel.failed", instance=request.instance, error=repr(error), exc_info=error)
