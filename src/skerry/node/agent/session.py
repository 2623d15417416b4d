"""What goes on over one connection with a control plane: hello, orders and tunnels down, reports up.

`skerry.node.agent.agent` runs one on each of the connections that this node dials, one after the other;
`skerry.node.guests` that of whoever borrows a cell. Neither how messages travel nor what follows the end of a
connection is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait, race
from skerry.model import errors
from skerry.model.callers import RevokedCertificate
from skerry.model.node_messages import (
    MAX_CLAIMS,
    ClaimBatch,
    FunctionUpdate,
    InstanceClaim,
    MemberList,
    NodeHello,
    OrderUpdate,
    ReportAck,
    ReportBatch,
    RevocationUpdate,
    ServerList,
    ServerMessage,
    SessionClose,
    SessionConfig,
    SessionHeartbeat,
    TunnelRequest,
)
from skerry.model.orders import InstanceReport
from skerry.model.streams import TunnelStream
from skerry.node.agent.instances.instances import NodeInstances
from skerry.node.agent.ports import ControlConnection

log = structlog.get_logger(__name__)

_MAX_REPORTS = 500  # in one batch
_MAX_BATCHES = 10_000  # that wait to be acknowledged
_WELCOME_S = 10.0  # one that takes longer may be frozen, and there may be another
_CLAIMS_BYTES = 512 * 1024  # of receipts in one message; one receipt has at most half a MiB
_DESCRIBE_S = 60.0  # between two looks at what this machine has


class ServerClosedSession(errors.Unavailable):
    """The server said goodbye, as one does that stops."""


class MemberListener(Protocol):
    """What takes calls of functions on this node, and needs to know who else does, and which there are."""

    async def members_changed(self, update: MemberList) -> None: ...

    async def functions_changed(self, update: FunctionUpdate) -> None: ...


async def _refuse_tunnel(request: TunnelRequest, tunnel: TunnelStream) -> None:
    raise errors.FailedPrecondition("there are no tunnels on this connection")


async def _ignore_revocations(update: RevocationUpdate) -> None:
    """For who did not say that it takes them."""


async def _ignore_subnet(subnet: str) -> None:
    """For who has no containers of its own network."""


@dataclass(frozen=True, slots=True)
class AgentHooks:
    """What this machine tells the control plane of itself, and who hears what is said besides orders."""

    describe: Callable[[], NodeHello]
    condition: Callable[[], str] = lambda: ""  # when it changes, this machine is described anew at once
    assign: Callable[[str], Awaitable[None]] = _ignore_subnet  # its containers have addresses of this subnet
    # Told which certificates were revoked, if the hello says that this node takes that; knows all of them.
    revoke: Callable[[RevocationUpdate], Awaitable[None]] = _ignore_revocations
    revoked: Callable[[], Sequence[RevokedCertificate]] = tuple
    member: MemberListener | None = None  # hears what those are told who take calls of functions


async def _ignore_servers(addresses: Sequence[str]) -> None:
    """For who has only this one way to its control plane."""


async def _handle(handling: Awaitable[None]) -> None:
    """What every session tells anew holds also if the disk refuses to keep it."""
    try:
        await handling
    except OSError as error:
        log.warning("session.not_kept", error=str(error))


class AgentSession:
    """What goes on over one connection."""

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
        """`serve` answers over a tunnel; `learn` is told where the servers are. Messages that come quicker
        than every `pace_s` wait at the other end."""
        self._connection = connection
        self._instances = instances
        self._hooks = hooks
        self._clock = clock
        self._serve = serve
        self._learn = learn
        self._pace_s = pace_s
        self._described = hooks.condition()  # in what follows
        self.hello = hooks.describe()  # as the control plane knows it
        self._sequence = 0  # of the last batch
        self._sent = 0  # the number of the last report in it
        self._unacknowledged: deque[tuple[int, int]] = deque()  # batches, and the last report in each
        self._tunnels: set[asyncio.Task[None]] = set()

    async def open(self) -> SessionConfig:
        """Say hello; what the control plane welcomes us with. Raises what it has against us."""
        try:
            async with asyncio.timeout(_WELCOME_S):
                return await self._connection.hello(self.hello)
        except TimeoutError:
            raise errors.TimedOut("the control plane did not answer in time") from None

    async def run(self, config: SessionConfig) -> None:
        """Until the connection ends, or the server falls silent; raises why."""
        try:
            await race(self._receive(config), self._send_reports_forever(config))
        finally:
            await cancel_and_wait(self._tunnels)

    async def _receive(self, config: SessionConfig) -> None:
        messages = self._connection.messages()
        while (message := await self._next_of(messages, config.silence_s)) is not None:
            match message:
                case OrderUpdate():
                    await self._take_orders(message, takes_claims=config.takes_claims)
                case ReportAck():
                    self._acknowledge(message.sequence)
                case TunnelRequest():
                    self._begin_tunnel(message)
                case ServerList():
                    await _handle(self._learn(message.addresses))
                case RevocationUpdate():
                    await _handle(self._hooks.revoke(message))
                case MemberList() if self._hooks.member is not None:
                    await _handle(self._hooks.member.members_changed(message))
                case FunctionUpdate() if self._hooks.member is not None:
                    await _handle(self._hooks.member.functions_changed(message))
                case SessionClose():
                    raise ServerClosedSession(f"the control plane sent this node away: {message.reason}")
            if self._pace_s:
                await asyncio.sleep(self._pace_s)
        raise errors.Unavailable("the control plane ended the session")

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
        """What the control plane may have forgotten goes on until it says otherwise."""
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
        """What the server says next; None if that is nothing more. One that froze keeps its connections."""
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
        report_s = config.report_s
        if config.takes_claims and (revoked := tuple(one for one in self._hooks.revoked() if one.proof)):
            await self._connection.send(ClaimBatch(revoked=revoked[:MAX_CLAIMS]))
        if config.wants_claims:  # before reports, which mean nothing to who does not know of what
            await self._claim(self._instances.claims())
        # First all that was not acknowledged, in order; then what everything is now: whatever the control
        # plane made of our silence, it is right again after that.
        await self._send_new_reports()
        await self._send_reports(self._instances.inventory())
        sent_at = described_at = self._clock.monotonic()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, sent_at + report_s - self._clock.monotonic())):
                    await self._instances.wait_for_reports()
            now = self._clock.monotonic()
            has_sent = await self._send_new_reports()
            if now < sent_at + report_s:
                continue
            if now >= described_at + _DESCRIBE_S or self._hooks.condition() != self._described:
                described_at = now
                await self._describe_again()
            # The rest can wait for its turn, and is told together.
            has_sent |= await self._send_reports(self._instances.take_usage())
            if not has_sent:
                await self._connection.send(SessionHeartbeat())
            sent_at = now

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
            raise errors.Unavailable("the control plane acknowledges nothing that it is told")
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
        except errors.SkerryError as error:  # who asked has gone; nobody is left to be told
            log.debug("tunnel.ended", instance=request.instance, error=error.message)
        except Exception as error:  # a fault of ours, which must not end the session
            log.error("tunnel.failed", instance=request.instance, error=repr(error), exc_info=error)
