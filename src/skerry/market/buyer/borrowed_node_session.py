"""The session of one borrowed node, over its contract tunnel, which is kept open.

`BorrowedNodeSession` dials, again and again, and has the session of any node
(`skerry.transport.links.nodes.borrowed_session`). The name, the resources and the labels of the node are
those of the contract, whatever it reports, and it is no member. It does not get the addresses of our servers.
Tunnels to its instances are not dialled by the node: they are opened at the provider, and joined with the
caller here. `skerry.market.buyer.node_decisions` decides about the contract. The provider has
`skerry.wire.rear.contract_tunnels`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, NamedTuple, Protocol

import msgspec
import structlog

from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import run_together
from skerry.market.buyer.contract_table import BorrowedContractRecord
from skerry.market.buyer.provider_client import RemoteContract, RemoteContractStatus
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId, NodeId
from skerry.model.node_messages import TunnelRequest
from skerry.model.resources import Resources
from skerry.model.streams import TunnelStream

log = structlog.get_logger(__name__)

BORROWED_LABEL: Final = "skerry.borrowed"
CONTRACT_LABEL: Final = "skerry.contract"
# A ping is sent after this long without input, and must be answered within half of it.
PING_S: Final = 10.0
PEER_LOSS_S: Final = PING_S * 1.5
_TAIL: Final = 6  # of the contract's id, in the node's name


class BorrowedContractClient(Protocol):
    """The part of `skerry.wire.rear.client.RearClient` that is needed for what was bought."""

    async def purchase(self, hold: HoldId) -> RemoteContract: ...

    async def contract_state(self, contract: ContractId) -> RemoteContractStatus: ...

    async def release(self, contract: str) -> None: ...

    def contract_tunnel(
        self, contract: ContractId, credential: str, on_status: Callable[[RemoteContractStatus], None]
    ) -> AbstractAsyncContextManager[TunnelStream]: ...

    def tunnel(
        self, contract: ContractId, credential: str, tunnel: TunnelRequest
    ) -> AbstractAsyncContextManager[TunnelStream]: ...


class BorrowedNodeIdentity(msgspec.Struct, frozen=True):
    """The identity of the node here, whatever it reports: all but its facts is from the contract."""

    node: NodeId
    name: str
    resources: Resources
    labels: dict[str, str]
    in_mesh: bool = False  # it may take part in our mesh


class BorrowedNodeHooks(NamedTuple):
    """Callbacks of the session of a borrowed node."""

    frame_received: Callable[[], None]  # a frame came through the tunnel
    set_connected: Callable[[bool], None]  # whether the node is in session
    join: Callable[[TunnelRequest], Awaitable[None]]  # open a tunnel at the provider


class BorrowedNodeConversation(Protocol):
    """A node's session over an open tunnel, until it is over."""

    async def __call__(
        self, frames: TunnelStream, identity: BorrowedNodeIdentity, hooks: BorrowedNodeHooks
    ) -> None: ...


class BorrowedNodeSession:
    """`run` for ever; `changed` is called whenever something else is to be seen here.

    `provider` is called whenever the tunnel is dialled, because the peer's address may change, and so is
    `in_mesh`: whether its node takes part in our mesh.
    """

    def __init__(
        self,
        record: BorrowedContractRecord,
        provider: Callable[[], BorrowedContractClient],
        sessions: NodeSessions,
        clock: Clock,
        *,
        converse: BorrowedNodeConversation,
        changed: Callable[[], None],
        backoff: Backoff,
        in_mesh: Callable[[], bool] = lambda: False,
    ) -> None:
        self._converse = converse
        self._in_mesh = in_mesh
        self._borrowed = record.borrowed
        self._hold = record.hold
        self._provider = provider
        self._sessions = sessions
        self._clock = clock
        self._changed = changed
        self._backoff = backoff
        self._is_open = False
        self._last_contact_at = (
            clock.monotonic()
        )  # a server that has just started gives every provider the full time
        self.contract_state: RemoteContractStatus | None = None
        self.last_error = ""  # why the tunnel did not open last time
        self.is_connected = False  # the node is in session
        self.was_in_mesh = False  # and takes part in our mesh, by what was set when it began

    @property
    def silent_s(self) -> float:
        """How long the provider has been unreachable."""
        return 0.0 if self._is_open else self._clock.monotonic() - self._last_contact_at

    async def run(self) -> None:
        """Dial, and again when it is over."""
        failures = 0
        while True:
            began = self._clock.monotonic()
            await self._try()
            if self._clock.monotonic() - began >= self._backoff.cap_s:
                failures = 0
            await asyncio.sleep(self._backoff.delay(failures))
            failures += 1

    async def _try(self) -> None:
        contract, peer = self._borrowed.id, self._borrowed.peer
        try:
            provider = self._provider()
            try:
                await self._connect(provider)
            except (errors.Unavailable, errors.TimedOut):
                raise
            except errors.SkerryError:
                await self._fetch_contract_state(provider)
                raise
        except errors.SkerryError as error:
            self.last_error = error.message
            log.info("door.failed", contract=contract, peer=peer, error=error.message)
        else:
            log.info("door.closed", contract=contract, peer=peer)

    async def _fetch_contract_state(self, provider: BorrowedContractClient) -> None:
        """The connection was refused: perhaps the contract has ended."""
        try:
            self._note(await provider.contract_state(self._borrowed.id))
        except errors.NotFound:
            self._note(RemoteContractStatus(self._borrowed.ends_at, ended="forgotten"))

    async def _connect(self, provider: BorrowedContractClient) -> None:
        # The same answer every time, so the credential need not be stored.
        credential = (await provider.purchase(self._hold)).credential
        self._provider_answered()
        async with provider.contract_tunnel(self._borrowed.id, credential, self._note) as frames:
            self._is_open = True
            try:
                await self._run_session(provider, credential, frames)
            finally:
                self._is_open = False
                # A lost peer is noticed late, unless it closed the connection.
                self._last_contact_at = max(self._last_contact_at, self._clock.monotonic() - PEER_LOSS_S)
                self._changed()

    async def _run_session(
        self, provider: BorrowedContractClient, credential: str, frames: TunnelStream
    ) -> None:
        borrowed, self.was_in_mesh = self._borrowed, self._in_mesh()
        identity = BorrowedNodeIdentity(
            borrowed.node,
            f"{borrowed.peer}-{borrowed.id[-_TAIL:]}",
            borrowed.taken,
            {BORROWED_LABEL: borrowed.peer, CONTRACT_LABEL: borrowed.id},
            self.was_in_mesh,
        )
        hooks = BorrowedNodeHooks(
            frame_received=self._frame_received,
            set_connected=self._set_connected,
            join=lambda request: self._join(provider, credential, request),
        )
        await self._converse(frames, identity, hooks)

    def _note(self, contract_state: RemoteContractStatus) -> None:
        self.contract_state = contract_state
        self._provider_answered()

    def _provider_answered(self) -> None:
        self._frame_received()
        self._changed()

    def _frame_received(self) -> None:
        """A frame came through the tunnel."""
        self._last_contact_at = self._clock.monotonic()

    def _set_connected(self, is_connected: bool) -> None:
        self.is_connected = is_connected
        self._changed()

    async def _join(self, provider: BorrowedContractClient, credential: str, request: TunnelRequest) -> None:
        """Open a tunnel at the provider for the caller that waits here."""
        with suppress(errors.NotFound):  # the caller has left
            async with self._sessions.tunnels.dialled(self._borrowed.node, request.id) as near:
                try:
                    async with provider.tunnel(self._borrowed.id, credential, request) as far:
                        await run_together(_relay(near, far), _relay(far, near))
                except errors.SkerryError as error:
                    await near.fail(error)


async def _relay(source: TunnelStream, target: TunnelStream) -> None:
    """Relay frames from one side to the other, until it has finished or one is closed."""
    try:
        while (frame := await source.receive()) is not None:
            await target.send(frame)
    except errors.SkerryError as error:
        with suppress(errors.SkerryError):
            await target.fail(error)
        raise
    await target.end()
