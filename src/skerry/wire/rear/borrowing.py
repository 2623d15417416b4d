"""Borrowed contracts kept alive: on the server that leads, each has its door open and does what is decided.

What is to be done is `skerry.market.borrowing`, on the record and on what was seen; here it is seen and done.
Everything is looked at again every moment, so nothing hangs on a message that was missed, and a server that
takes over begins where the last one was. One that no longer leads lets go of every door.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog
from msgspec.structs import replace

from skerry.control.nodes import Nodes
from skerry.control.sessions import Sessions
from skerry.kit.backoff import Backoff
from skerry.kit.clock import Clock
from skerry.kit.tasks import give_up
from skerry.market import borrowing
from skerry.market.borrowing import Plan, Seen
from skerry.market.loans import Loan, Loans
from skerry.market.peers import Peers
from skerry.market.trading import Peer
from skerry.model import errors
from skerry.model.ids import ContractId, NodeId
from skerry.model.nodes import Node
from skerry.model.settings import MarketSettings
from skerry.model.statuses import NodeStatus
from skerry.wire.rear.doormen import Doorman, Landlord

log = structlog.get_logger(__name__)

ACTOR: Final = "market"
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 0.05  # between two looks: providers are strangers, and may have news without end
# Answers to a release that mean that there is nothing to give back any more.
_OVER: Final = (errors.NotFound, errors.Expired, errors.Conflict)


class Borrower:
    """`run` for ever."""

    def __init__(
        self,
        loans: Loans,
        peers: Peers,
        landlords: Callable[[Peer], Landlord],
        sessions: Sessions,
        nodes: Nodes,
        clock: Clock,
        settings: MarketSettings,
        *,
        is_leading: Callable[[], bool],
        backoff: Backoff | None = None,
    ) -> None:
        self._loans = loans
        self._peers = peers
        self._landlords = landlords
        self._sessions = sessions
        self._nodes = nodes
        self._clock = clock
        self._settings = settings
        self._is_leading = is_leading
        self._backoff = backoff or Backoff(first_s=0.5, cap_s=15.0)
        self._doors: dict[ContractId, tuple[Doorman, asyncio.Future[None]]] = {}
        self._telling: dict[ContractId, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Look, and look again when something has moved or a moment has passed."""
        try:
            while True:
                self._wake.clear()
                moved = self._loans.moved
                await self.tend()
                await asyncio.sleep(_PAUSE_S)
                waits = [asyncio.ensure_future(event.wait()) for event in (self._wake, moved)]
                try:
                    await asyncio.wait(waits, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    await give_up(waits)
        finally:
            await self.let_go()

    async def tend(self) -> None:
        """One look at every contract. Happens by itself; a test with its own clock calls it."""
        if not self._is_leading():
            await self.let_go()
            return
        for loan in self._loans.all():
            try:
                await self._tend(loan)
            except errors.SkerryError as error:
                log.warning("contract.not-tended", contract=loan.borrowed.id, error=error.message)
        await self._loans.trim(self._settings.keep_ended)

    async def _tend(self, loan: Loan) -> None:
        id, node = loan.borrowed.id, self._node(loan)
        seen, now = self._seen(loan, node), self._clock.now()
        if loan.is_done and node is None:
            return
        plan = self._decided(loan, seen, now)
        if plan.is_reopened and node is not None:
            await self._nodes.uncordon(node.id, actor=ACTOR)  # before it is written, or nobody would do it
        if plan.loan != loan:
            written = await self._loans.change(
                id, lambda current: self._decided(current, seen, now).loan, actor=ACTOR
            )
            plan = self._decided(written, seen, now)
        await self._act(plan, node)

    async def _act(self, plan: Plan, node: Node | None) -> None:
        id = plan.loan.borrowed.id
        if plan.wants_door:
            self._open(plan.loan)
        else:
            await self._close(id)  # first: a node that is in session registers again
        if plan.drain_by is not None and node is not None and node.drain_by != plan.drain_by:
            await self._nodes.drain(node.id, actor=ACTOR, by=plan.drain_by)
        if plan.unregisters and node is not None:
            with suppress(errors.NotFound):
                await self._nodes.unregister(node.id, actor=ACTOR, force=True)
        if plan.releases:
            self._tell(plan.loan)
        elif (telling := self._telling.pop(id, None)) is not None:
            await give_up([telling])

    def _decided(self, loan: Loan, seen: Seen, now: float) -> Plan:
        return borrowing.decide(loan, seen, self._settings, now)

    def _seen(self, loan: Loan, node: Node | None) -> Seen:
        door = self._doors.get(loan.borrowed.id)
        doorman = None if door is None else door[0]
        return Seen(
            is_heard=doorman is not None and doorman.is_heard,
            is_registered=node is not None,
            is_drained=node is not None and node.status is NodeStatus.DRAINED,
            silent_s=0.0 if doorman is None else doorman.silent_s,
            standing=None if doorman is None else doorman.standing,
            trouble="" if doorman is None else doorman.trouble,
        )

    def _node(self, loan: Loan) -> Node | None:
        node: NodeId = loan.borrowed.node
        return None if self._nodes.standing(node) is None else self._nodes.get(node)

    # Doors

    def _open(self, loan: Loan) -> None:
        id = loan.borrowed.id
        if id not in self._doors:
            doorman = Doorman(
                loan,
                lambda: self._landlord(loan),
                self._sessions,
                self._clock,
                changed=self._wake.set,
                backoff=self._backoff,
            )
            self._doors[id] = (doorman, asyncio.ensure_future(doorman.run()))
        elif (task := self._doors[id][1]).done():
            del self._doors[id]
            task.result()  # a fault of ours, for whoever keeps us going to tell

    async def _close(self, id: ContractId) -> None:
        if (door := self._doors.pop(id, None)) is not None:
            await give_up([door[1]])

    def _landlord(self, loan: Loan) -> Landlord:
        return self._landlords(self._peers.get(loan.borrowed.peer))

    async def let_go(self) -> None:
        """Close every door; somebody else opens them."""
        tasks = [task for _, task in self._doors.values()] + list(self._telling.values())
        self._doors.clear()
        self._telling.clear()
        await give_up(tasks)

    # Giving back

    def _tell(self, loan: Loan) -> None:
        telling = self._telling.get(loan.borrowed.id)
        if telling is None or telling.done():
            self._telling[loan.borrowed.id] = asyncio.ensure_future(self._release(loan))

    async def _release(self, loan: Loan) -> None:
        """Tell the provider, until it knows; whoever calls gives it up at the contract's end."""
        failures = 0
        while True:
            try:
                await self._landlord(loan).release(loan.borrowed.id)
            except _OVER:
                break
            except errors.SkerryError as error:
                log.info("contract.not-released", contract=loan.borrowed.id, error=error.message)
                await asyncio.sleep(self._backoff.delay(failures))
                failures += 1
            else:
                break
        with suppress(errors.SkerryError):  # else it is told again
            await self._loans.change(
                loan.borrowed.id, lambda current: replace(current, is_told=True), actor=ACTOR
            )
