"""The controller of borrowed nodes: the leader keeps the tunnel of each contract open and carries out
decisions.

`skerry.market.buyer.node_decisions` decides, by the record and what was observed. Everything is reconciled
when a record, a node or a session changes, and at the next time that a decision depends on; a server that
takes over continues where the last one was. One that no longer leads closes every tunnel.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from msgspec.structs import replace

from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import cancel_and_wait, race
from skerry.market.buyer import node_decisions
from skerry.market.buyer.borrowed_node_session import (
    BorrowedContractClient,
    BorrowedNodeConversation,
    BorrowedNodeSession,
)
from skerry.market.buyer.contract_table import BorrowedContractRecord, BorrowedContractTable
from skerry.market.buyer.node_decisions import BorrowedNodePlan, ObservedBorrowedNode
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.quotes import MarketPeer
from skerry.model import errors
from skerry.model.ids import ContractId, NodeId
from skerry.model.market_settings import MarketSettings
from skerry.model.nodes import Node
from skerry.model.statuses import NodeStatus
from skerry.store.fencing import LeadershipLost
from skerry.store.protocol import Expect

log = structlog.get_logger(__name__)

ACTOR: Final = "market"
_RETRY_S: Final = 1.0
_AT_MOST_S: Final = 60.0  # times are those of the wall clock, which may be set while we wait
_PAUSE_S: Final = 0.05  # between two passes: a provider may send changes without end
# Errors of a release that mean that the contract has ended already.
_OVER: Final = (errors.NotFound, errors.Expired, errors.Conflict)


class BorrowedNodeController:
    """`run` while this server leads."""

    def __init__(
        self,
        contracts: BorrowedContractTable,
        peers: MarketPeerTable,
        providers: Callable[[MarketPeer], BorrowedContractClient],
        sessions: NodeSessions,
        nodes: NodeRegistry,
        clock: Clock,
        settings: MarketSettings,
        *,
        converse: BorrowedNodeConversation,
    ) -> None:
        self._contracts = contracts
        self._peers = peers
        self._providers = providers
        self._sessions = sessions
        self._nodes = nodes
        self._clock = clock
        self._settings = settings
        self._converse = converse
        self.backoff = Backoff(first_s=0.5, cap_s=15.0)
        self._open_sessions: dict[ContractId, tuple[BorrowedNodeSession, asyncio.Future[None]]] = {}
        self._releases: dict[ContractId, asyncio.Future[None]] = {}
        self._watched: set[NodeId] = set()
        self._wake = asyncio.Event()

    async def run(self, fence: Expect) -> None:
        """Reconcile now, and again when something has changed or a time has come."""
        stop = self._nodes.listen(self._node_changed)
        stop_peers = self._peers.listen(self._wake.set)
        try:
            while True:
                self._wake.clear()
                moved, since = self._contracts.moved, self._clock.now()
                is_done = await self.reconcile(fence)
                await asyncio.sleep(_PAUSE_S)
                wait_s = self._wait_s(since) if is_done else _RETRY_S
                await race(self._wake.wait(), moved.wait(), asyncio.sleep(wait_s))
        finally:
            stop()
            stop_peers()
            await self.close_session()

    async def reconcile(self, fence: Expect | None = None) -> bool:
        """Reconcile every contract; False if not all could be done. Also happens by itself; tests with their
        own clock call it."""
        is_done, contracts = True, self._contracts.all()
        self._watched = {record.borrowed.node for record in contracts}
        for record in contracts:
            try:
                await self._reconcile_one(record, fence)
            except errors.SkerryError as error:
                log.warning("contract.not_tended", contract=record.borrowed.id, error=error.message)
                is_done = False
        await self._contracts.trim(self._settings.keep_ended, fence=fence)
        return is_done

    def _node_changed(self, node: NodeId) -> None:
        if node in self._watched:
            self._wake.set()

    def _wait_s(self, since: float) -> float:
        """How long to wait after a pass at `since`, unless something changes."""
        now = self._clock.now()
        due_times = (
            node_decisions.next_due(record, self._settings, since) - now for record in self._contracts.all()
        )
        # A provider may become unreachable at any moment: check again by then.
        silences = (
            self._settings.peer_silence_s - session.silent_s for session, _ in self._open_sessions.values()
        )
        return min((_AT_MOST_S, *due_times, *silences))

    async def _reconcile_one(self, record: BorrowedContractRecord, fence: Expect | None) -> None:
        id, node = record.borrowed.id, self._node(record)
        seen, now = self._observed(record, node), self._clock.now()
        if record.is_done and node is None:
            return
        plan = self._decided(record, seen, now)
        if plan.is_reopened and node is not None:
            # Before it is written, or it would never be done.
            await self._nodes.uncordon(node.id, actor=ACTOR, fence=fence)
        if plan.record != record:
            written = await self._contracts.change(
                id, lambda current: self._decided(current, seen, now).record, actor=ACTOR, fence=fence
            )
            plan = self._decided(written, seen, now)
        await self._act(plan, node, fence)

    async def _act(self, plan: BorrowedNodePlan, node: Node | None, fence: Expect | None) -> None:
        id = plan.record.borrowed.id
        if plan.wants_tunnel:
            opened = self._open_sessions.get(id)
            if (
                opened is not None
                and opened[0].is_connected
                and opened[0].was_in_mesh != self._in_mesh(plan.record)
            ):
                await self._close(id)  # a new session announces it
            self._open(plan.record)
        else:
            await self._close(id)  # first: a node that is in session registers again
        if plan.drain_by is not None and node is not None and node.drain_by != plan.drain_by:
            await self._nodes.drain(node.id, actor=ACTOR, by=plan.drain_by, fence=fence)
        if plan.unregisters and node is not None:
            with suppress(errors.NotFound):
                await self._nodes.unregister(node.id, actor=ACTOR, force=True, fence=fence)
        if plan.releases:
            self._start_release(plan.record, fence)
        elif (release := self._releases.pop(id, None)) is not None:
            await cancel_and_wait([release])

    def _decided(
        self, record: BorrowedContractRecord, seen: ObservedBorrowedNode, now: float
    ) -> BorrowedNodePlan:
        return node_decisions.decide(record, seen, self._settings, now)

    def _observed(self, record: BorrowedContractRecord, node: Node | None) -> ObservedBorrowedNode:
        opened = self._open_sessions.get(record.borrowed.id)
        session = None if opened is None else opened[0]
        return ObservedBorrowedNode(
            is_connected=session is not None and session.is_connected,
            is_registered=node is not None,
            is_drained=node is not None and node.status is NodeStatus.DRAINED,
            silent_s=0.0 if session is None else session.silent_s,
            contract_state=None if session is None else session.contract_state,
            last_error="" if session is None else session.last_error,
        )

    def _node(self, record: BorrowedContractRecord) -> Node | None:
        node: NodeId = record.borrowed.node
        return None if self._nodes.condition(node) is None else self._nodes.get(node)

    # Sessions

    def _open(self, record: BorrowedContractRecord) -> None:
        id = record.borrowed.id
        if id not in self._open_sessions:
            session = BorrowedNodeSession(
                record,
                lambda: self._provider(record),
                self._sessions,
                self._clock,
                converse=self._converse,
                changed=self._wake.set,
                backoff=self.backoff,
                in_mesh=lambda: self._in_mesh(record),
            )
            running = asyncio.ensure_future(session.run())
            running.add_done_callback(lambda _: self._wake.set())
            self._open_sessions[id] = (session, running)
        elif (task := self._open_sessions[id][1]).done():
            del self._open_sessions[id]
            task.result()  # a fault of ours, which the supervisor logs

    def _in_mesh(self, record: BorrowedContractRecord) -> bool:
        return self._peers.get(record.borrowed.peer).mesh

    async def _close(self, id: ContractId) -> None:
        if (opened := self._open_sessions.pop(id, None)) is not None:
            await cancel_and_wait([opened[1]])

    def _provider(self, record: BorrowedContractRecord) -> BorrowedContractClient:
        return self._providers(self._peers.get(record.borrowed.peer))

    async def close_session(self) -> None:
        """Close every tunnel; the next leader opens them."""
        tasks = [task for _, task in self._open_sessions.values()] + list(self._releases.values())
        self._open_sessions.clear()
        self._releases.clear()
        await cancel_and_wait(tasks)

    # Giving back

    def _start_release(self, record: BorrowedContractRecord, fence: Expect | None) -> None:
        release = self._releases.get(record.borrowed.id)
        if release is None or release.done():
            self._releases[record.borrowed.id] = asyncio.ensure_future(self._release(record, fence))

    async def _release(self, record: BorrowedContractRecord, fence: Expect | None) -> None:
        """Release at the provider, with retries; the caller stops at the contract's end."""
        failures = 0
        while not await self._try_to_release(record, fence):
            await asyncio.sleep(self.backoff.delay(failures))
            failures += 1

    async def _try_to_release(self, record: BorrowedContractRecord, fence: Expect | None) -> bool:
        """True if the provider knows, and it is on record that it does."""
        id = record.borrowed.id
        try:
            with suppress(*_OVER):
                await self._provider(record).release(id)
            await self._contracts.change(
                id, lambda current: replace(current, is_provider_notified=True), actor=ACTOR, fence=fence
            )
        except (errors.NotFound, LeadershipLost):
            return True  # it has ended meanwhile
        except errors.SkerryError as error:
            log.info("contract.not_released", contract=id, error=error.message)
            return False
        return True
