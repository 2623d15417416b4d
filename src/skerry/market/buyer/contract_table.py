"""Borrowed contracts and purchases in progress, in the store and in memory.

`market-deal/ID` is written before a reservation, and deleted in the transaction that writes the contract
(`market-borrowed/ID`) or when the deal is undone: whatever happens in between, there is a record of what a
provider may hold for us. Ended contracts stay, up to a number. No secret is stored: the credential of a
contract tunnel is fetched again, by its hold. `skerry.market.buyer.acquisition` and
`skerry.market.buyer.node_decisions` decide about records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from skerry.control.events.log import EventLog
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.model import errors, ids
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.resources import Resources
from skerry.store import fencing
from skerry.store.protocol import MAX_OPS, Expect, Put, Store
from skerry.store.tables.table import Record, Table, Write, json_of

PENDING_PREFIX: Final = "market-deal/"
BORROWED_PREFIX: Final = "market-borrowed/"


class PendingContract(msgspec.Struct, frozen=True, omit_defaults=True):
    """A purchase that is under way. Its id is the Idempotency-Key that it is held with."""

    id: str
    peer: str
    flavor: OfferId
    resources: Resources = msgspec.field(name="room")
    count: int
    made_at: float
    due_at: float  # by then it is a contract or undone; else the leader undoes it
    duration_s: float | None = None
    hold: HoldId | None = None  # None: it may not have been held


class BorrowedContractRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A contract of ours, and its private state."""

    borrowed: BorrowedContract
    hold: HoldId
    signed_until: float  # from the signed document
    open_by: float  # if it is not open by then it is given back
    leave_by: float | None = None  # a release was requested; its node is empty by then
    is_provider_notified: bool = msgspec.field(name="is_told", default=False)  # that it is over

    @property
    def is_over(self) -> bool:
        return self.borrowed.state is BorrowedContractState.ENDED

    @property
    def is_done(self) -> bool:
        """True if nothing remains to be done about it at the provider."""
        return self.is_over and self.is_provider_notified


class BorrowedContractTable:
    """`run` for ever; read once it is `ready`. Changes are transactions, each with its event."""

    def __init__(self, store: Store, events: EventLog) -> None:
        self._store = store
        self._events = events
        self._deals = Table(store, PENDING_PREFIX, json_of(PendingContract))
        self._contracts = Table(store, BORROWED_PREFIX, json_of(BorrowedContractRecord))
        self._moved = asyncio.Event()
        self._deals.subscribe(lambda _: self._notify())
        self._contracts.subscribe(lambda _: self._notify())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deals.run())
            group.create_task(self._contracts.run())

    async def ready(self) -> None:
        await self._deals.ready()
        await self._contracts.ready()

    @property
    def moved(self) -> asyncio.Event:
        """An event that is set at the next change. Get it first, then read, then wait."""
        return self._moved

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a purchase or a contract has changed."""
        self._deals.subscribe(lambda _: changed())
        self._contracts.subscribe(lambda _: changed())

    def _notify(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # Reading

    def all(self) -> Sequence[BorrowedContractRecord]:
        """Live and over, by id."""
        return self._contracts.values()

    def find(self, id: str) -> BorrowedContractRecord | None:
        return self._contracts.value(id)

    def get(self, id: str) -> BorrowedContractRecord:
        """Raises `NotFound`."""
        record = self.find(id)
        if record is None:
            raise _unknown(id)
        return record

    def deals(self) -> Sequence[PendingContract]:
        """All that are under way, or were left behind."""
        return self._deals.values()

    # Deals

    async def begin(self, deal: PendingContract) -> None:
        """Write it before the reservation."""
        await self._deals.commit([self._deals.put(deal.id, deal)], [self._deals.expect(deal.id, None)])

    async def note(self, deal: PendingContract) -> None:
        """Write its progress; `Conflict` if it was undone meanwhile."""
        await self._deals.commit([self._deals.put(deal.id, deal)], [self._expected(deal.id)])

    async def keep(self, deal: PendingContract, record: BorrowedContractRecord) -> None:
        """The deal has become a contract; `Conflict` if it was undone meanwhile, or the id is taken."""
        borrowed = record.borrowed
        event = self._event("bought", borrowed, borrowed.actor)
        await self._contracts.commit(
            [self._deals.delete(deal.id), self._contracts.put(borrowed.id, record), event],
            [self._expected(deal.id), self._contracts.expect(borrowed.id, None)],
        )

    async def drop(self, deal: PendingContract, *, fence: Expect | None = None) -> None:
        """Nothing of it is left at the provider."""
        revision = await fencing.commit(self._store, [self._deals.delete(deal.id)], fence=fence)
        await self._deals.wait_for_revision(revision)  # another server may have dropped it

    def _expected(self, id: str) -> Expect:
        deal = self._deals.get(id)
        if deal is None:
            raise errors.Conflict("this purchase took too long and was undone; try again")
        return self._deals.expect(id, deal)

    # Contracts

    async def change(
        self,
        id: ContractId,
        change: Callable[[BorrowedContractRecord], BorrowedContractRecord],
        *,
        actor: str,
        event: str = "",
        fence: Expect | None = None,
    ) -> BorrowedContractRecord:
        """Apply `change`, with an event of the kind `event`, or of the new state if that is another."""

        def decide(current: Record[BorrowedContractRecord]) -> Write[BorrowedContractRecord] | None:
            before, after = current.value, change(current.value)
            if after == before:
                return None
            kind = event or ("" if after.borrowed.state is before.borrowed.state else after.borrowed.state)
            return Write(after, [self._event(kind, after.borrowed, actor)] if kind else [])

        return await self._contracts.update(id, decide, missing=_unknown(id), fence=fence)

    async def trim(self, keep: int, *, fence: Expect | None = None) -> None:
        """Forget the oldest that are over and done with, but `keep` of them."""
        if len(self._contracts) <= keep:
            return
        over = sorted(
            (record.borrowed for record in self.all() if record.is_done), key=lambda one: one.ended_at or 0.0
        )
        old = over[: max(0, len(over) - keep)][:MAX_OPS]
        if old:
            ops = [self._contracts.delete(borrowed.id) for borrowed in old]
            await fencing.commit(self._store, ops, fence=fence)

    def _event(self, kind: str, borrowed: BorrowedContract, actor: str) -> Put:
        return self._events.put(
            f"borrowed.{kind}",
            f"borrowed/{borrowed.id}",
            actor=actor,
            reason=borrowed.reason,
            peer=borrowed.peer,
            node=borrowed.node,
        )


def _unknown(id: str) -> errors.NotFound:
    return errors.NotFound(f"there is no borrowed contract {id[: ids.MAX_ID]!r}; list them to see all")
