"""What this cloud borrows, in the store and in memory: contracts, and purchases that are under way.

`market-deal/ID` is written before a provider is asked to hold something, and goes in the transaction that
makes the contract ours (`market-borrowed/ID`) or when the deal is undone: whatever happens in between, there
is a record of what a provider may hold for us. Contracts stay when they are over, up to a number. No secret
is kept: what opens a contract's door is asked for again, by the hold that it came of. What becomes of records
is decided by `skerry.market.buying` and `skerry.market.borrowing`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from skerry.kit import jsonio
from skerry.market.mirrors import EventWriter
from skerry.market.trading import Borrowed, State
from skerry.model import errors, ids
from skerry.model.ids import ContractId, FlavorId, HoldId
from skerry.model.room import Room
from skerry.store.protocol import ABSENT, MAX_OPS, Delete, Entry, Expect, Put, Store
from skerry.store.view import View

DEALS: Final = "market-deal/"
LOANS: Final = "market-borrowed/"
T = TypeVar("T")


class Deal(msgspec.Struct, frozen=True, omit_defaults=True):
    """A purchase that is under way. Its id is the Idempotency-Key that it is held with."""

    id: str
    peer: str
    flavor: FlavorId
    room: Room
    count: int
    made_at: float
    due_at: float  # by then it is a contract or undone; else whoever leads undoes it
    duration_s: float | None = None
    hold: HoldId | None = None  # None: it may not have been held


class Loan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A contract of ours, and what only we must know of it."""

    borrowed: Borrowed
    hold: HoldId
    signed_until: float  # as the document says
    open_by: float  # if it is not open by then it is given back
    leave_by: float | None = None  # it is given back by our own wish, and is empty by then
    is_told: bool = False  # the provider knows that it is over

    @property
    def is_over(self) -> bool:
        return self.borrowed.state is State.ENDED

    @property
    def is_done(self) -> bool:
        """True if nothing remains to be done about it at the provider."""
        return self.is_over and self.is_told


class Kept(NamedTuple, Generic[T]):
    """A record as the store holds it."""

    value: T
    revision: int


class Loans:
    """`run` for ever; read once it is `ready`. Changes are transactions, each with its event."""

    def __init__(self, store: Store, events: EventWriter) -> None:
        self._store = store
        self._events = events
        self._deals: View[Kept[Deal]] = View(store, DEALS, _read_deal, changed=lambda _: self._tell())
        self._loans: View[Kept[Loan]] = View(store, LOANS, _read_loan, changed=lambda _: self._tell())
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

    def all(self) -> Sequence[Loan]:
        """Live and over, by id."""
        return [kept.value for _, kept in self._loans.items()]

    def find(self, id: str) -> Loan | None:
        kept = self._loans.get(LOANS + id)
        return None if kept is None else kept.value

    def get(self, id: str) -> Loan:
        """Raises `NotFound`."""
        loan = self.find(id)
        if loan is None:
            raise _unknown(id)
        return loan

    def deals(self) -> Sequence[Deal]:
        """All that are under way, or were left behind."""
        return [kept.value for _, kept in self._deals.items()]

    # Deals

    async def begin(self, deal: Deal) -> None:
        """Make it known before anything is asked for."""
        key = DEALS + deal.id
        revision = await self._store.commit([Put(key, jsonio.encode(deal))], [Expect(key, ABSENT)])
        await self._deals.seen(revision)

    async def note(self, deal: Deal) -> None:
        """Write what came of it so far; `Conflict` if it was undone meanwhile."""
        revision = await self._store.commit(
            [Put(DEALS + deal.id, jsonio.encode(deal))], [self._expected(deal.id)]
        )
        await self._deals.seen(revision)

    async def keep(self, deal: Deal, loan: Loan) -> None:
        """The deal has become a contract; `Conflict` if it was undone meanwhile, or the id is taken."""
        borrowed = loan.borrowed
        key = LOANS + borrowed.id
        told = self._event("bought", borrowed, borrowed.actor)
        revision = await self._store.commit(
            [Delete(DEALS + deal.id), Put(key, jsonio.encode(loan)), told],
            [self._expected(deal.id), Expect(key, ABSENT)],
        )
        await self._loans.seen(revision)

    async def drop(self, deal: Deal) -> None:
        """Nothing of it is left at the provider."""
        await self._deals.reached(await self._store.commit([Delete(DEALS + deal.id)]))

    def _expected(self, deal: str) -> Expect:
        kept = self._deals.get(DEALS + deal)
        if kept is None:
            raise errors.Conflict("this purchase took too long and was undone; try again")
        return Expect(DEALS + deal, kept.revision)

    # Contracts

    async def change(
        self, id: ContractId, change: Callable[[Loan], Loan], *, actor: str, told: str = ""
    ) -> Loan:
        """Do what `change` says, and tell of it if it is in another state then, or as `told` says."""
        key = LOANS + id
        while True:
            entry = await self._store.get(key)
            if entry is None:
                raise _unknown(id)
            before = jsonio.decode(entry.value, Loan)
            after = change(before)
            if after == before:
                return before
            ops: list[Put] = [Put(key, jsonio.encode(after))]
            kind = told or ("" if after.borrowed.state is before.borrowed.state else after.borrowed.state)
            if kind:
                ops.append(self._event(kind, after.borrowed, actor))
            try:
                revision = await self._store.commit(ops, [Expect(key, entry.revision)])
            except errors.Conflict:
                continue
            await self._loans.seen(revision)
            return after

    async def trim(self, keep: int) -> None:
        """Forget the oldest that are over and done with, but `keep` of them."""
        if len(self._loans) <= keep:
            return
        over = sorted(
            (loan.borrowed for loan in self.all() if loan.is_done), key=lambda one: one.ended_at or 0.0
        )
        old = over[: max(0, len(over) - keep)][:MAX_OPS]
        if old:
            await self._store.commit([Delete(LOANS + borrowed.id) for borrowed in old])

    def _event(self, kind: str, borrowed: Borrowed, actor: str) -> Put:
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


def _read_deal(entry: Entry) -> Kept[Deal]:
    return Kept(jsonio.decode(entry.value, Deal), entry.revision)


def _read_loan(entry: Entry) -> Kept[Loan]:
    return Kept(jsonio.decode(entry.value, Loan), entry.revision)
