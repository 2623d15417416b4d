"""What this cloud borrows, in the store and in memory: contracts, and purchases that are under way.

`market-deal/ID` is written before a provider is asked to hold something, and goes in the transaction that
makes the contract ours (`market-borrowed/ID`) or when the deal is undone: whatever happens in between, there
is a record of what a provider may hold for us. Contracts stay when they are over, up to a number. No secret
is kept: what opens a contract's door is asked for again, by the hold that it came of. What becomes of records
is decided by `skerry.market.buyer.acquisition` and `skerry.market.buyer.node_decisions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from skerry.kit import json_codec
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.market.events import MarketEventWriter
from skerry.model import errors, ids
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.resources import Resources
from skerry.store import fencing
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Entry, Expect, Put, Store
from skerry.store.tables.cache import PrefixCache

PENDING_PREFIX: Final = "market-deal/"
BORROWED_PREFIX: Final = "market-borrowed/"
T = TypeVar("T")


class PendingContract(msgspec.Struct, frozen=True, omit_defaults=True):
    """A purchase that is under way. Its id is the Idempotency-Key that it is held with."""

    id: str
    peer: str
    flavor: OfferId
    room: Resources
    count: int
    made_at: float
    due_at: float  # by then it is a contract or undone; else whoever leads undoes it
    duration_s: float | None = None
    hold: HoldId | None = None  # None: it may not have been held


class BorrowedContractRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A contract of ours, and what only we must know of it."""

    borrowed: BorrowedContract
    hold: HoldId
    signed_until: float  # as the document says
    open_by: float  # if it is not open by then it is given back
    leave_by: float | None = None  # it is given back by our own wish, and is empty by then
    is_told: bool = False  # the provider knows that it is over

    @property
    def is_over(self) -> bool:
        return self.borrowed.state is BorrowedContractState.ENDED

    @property
    def is_done(self) -> bool:
        """True if nothing remains to be done about it at the provider."""
        return self.is_over and self.is_told


class VersionedContract(NamedTuple, Generic[T]):
    """A record as the store holds it."""

    value: T
    revision: int


class BorrowedContractTable:
    """`run` for ever; read once it is `ready`. Changes are transactions, each with its event."""

    def __init__(self, store: Store, events: MarketEventWriter) -> None:
        self._store = store
        self._events = events
        self._deals: PrefixCache[VersionedContract[PendingContract]] = PrefixCache(
            store, PENDING_PREFIX, _read_deal, changed=lambda _: self._tell()
        )
        self._loans: PrefixCache[VersionedContract[BorrowedContractRecord]] = PrefixCache(
            store, BORROWED_PREFIX, _read_loan, changed=lambda _: self._tell()
        )
        self._moved = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._deals.run())
            group.create_task(self._loans.run())

    async def ready(self) -> None:
        await self._deals.ready()
        await self._loans.ready()

    @property
    def moved(self) -> asyncio.Event:
        """Set when something is not as it is now. Take it first, then look, then wait."""
        return self._moved

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # Reading

    def all(self) -> Sequence[BorrowedContractRecord]:
        """Live and over, by id."""
        return [kept.value for _, kept in self._loans.items()]

    def find(self, id: str) -> BorrowedContractRecord | None:
        kept = self._loans.get(BORROWED_PREFIX + id)
        return None if kept is None else kept.value

    def get(self, id: str) -> BorrowedContractRecord:
        """Raises `NotFound`."""
        loan = self.find(id)
        if loan is None:
            raise _unknown(id)
        return loan

    def deals(self) -> Sequence[PendingContract]:
        """All that are under way, or were left behind."""
        return [kept.value for _, kept in self._deals.items()]

    # Deals

    async def begin(self, deal: PendingContract) -> None:
        """Make it known before anything is asked for."""
        key = PENDING_PREFIX + deal.id
        revision = await self._store.commit([Put(key, json_codec.encode(deal))], [Expect(key, ABSENT)])
        await self._deals.seen(revision)

    async def note(self, deal: PendingContract) -> None:
        """Write what came of it so far; `Conflict` if it was undone meanwhile."""
        revision = await self._store.commit(
            [Put(PENDING_PREFIX + deal.id, json_codec.encode(deal))], [self._expected(deal.id)]
        )
        await self._deals.seen(revision)

    async def keep(self, deal: PendingContract, loan: BorrowedContractRecord) -> None:
        """The deal has become a contract; `Conflict` if it was undone meanwhile, or the id is taken."""
        borrowed = loan.borrowed
        key = BORROWED_PREFIX + borrowed.id
        told = self._event("bought", borrowed, borrowed.actor)
        revision = await self._store.commit(
            [Delete(PENDING_PREFIX + deal.id), Put(key, json_codec.encode(loan)), told],
            [self._expected(deal.id), Expect(key, ABSENT)],
        )
        await self._loans.seen(revision)

    async def drop(self, deal: PendingContract, *, fence: Expect | None = None) -> None:
        """Nothing of it is left at the provider."""
        delete = Delete(PENDING_PREFIX + deal.id)
        await self._deals.reached(await fencing.commit(self._store, [delete], fence=fence))

    def _expected(self, deal: str) -> Expect:
        kept = self._deals.get(PENDING_PREFIX + deal)
        if kept is None:
            raise errors.Conflict("this purchase took too long and was undone; try again")
        return Expect(PENDING_PREFIX + deal, kept.revision)

    # Contracts

    async def change(
        self,
        id: ContractId,
        change: Callable[[BorrowedContractRecord], BorrowedContractRecord],
        *,
        actor: str,
        told: str = "",
        fence: Expect | None = None,
    ) -> BorrowedContractRecord:
        """Do what `change` says, and tell of it if it is in another state then, or as `told` says."""
        key = BORROWED_PREFIX + id
        while True:
            entry = await self._store.get(key)
            if entry is None:
                raise _unknown(id)
            before = json_codec.decode(entry.value, BorrowedContractRecord)
            after = change(before)
            if after == before:
                return before
            ops: list[Put] = [Put(key, json_codec.encode(after))]
            kind = told or ("" if after.borrowed.state is before.borrowed.state else after.borrowed.state)
            if kind:
                ops.append(self._event(kind, after.borrowed, actor))
            try:
                revision = await fencing.commit(self._store, ops, [Expect(key, entry.revision)], fence)
            except errors.Conflict:
                continue
            await self._loans.seen(revision)
            return after

    async def trim(self, keep: int, *, fence: Expect | None = None) -> None:
        """Forget the oldest that are over and done with, but `keep` of them."""
        if len(self._loans) <= keep:
            return
        over = sorted(
            (loan.borrowed for loan in self.all() if loan.is_done), key=lambda one: one.ended_at or 0.0
        )
        old = over[: max(0, len(over) - keep)][:MAX_OPS]
        if old:
            ops = [Delete(BORROWED_PREFIX + borrowed.id) for borrowed in old]
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


def _read_deal(entry: Entry) -> VersionedContract[PendingContract]:
    return VersionedContract(json_codec.decode(entry.value, PendingContract), entry.revision)


def _read_loan(entry: Entry) -> VersionedContract[BorrowedContractRecord]:
    return VersionedContract(json_codec.decode(entry.value, BorrowedContractRecord), entry.revision)
