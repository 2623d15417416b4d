"""The ledger: offers, holds and contracts, made durable before anybody is told.

Requests about a flavor queue in memory; all that wait are decided together (`skerry.market.decisions`: no
I/O) and written in one transaction, which expects the flavor's account at the revision that was decided on.
If another server was quicker, its change is read and the same requests are decided again. Answers are given
when the transaction is durable and the mirror has it, so who was answered finds it. Deadlines stand in the
records, on the provider's clock; they are judged at every decision and minded by `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from skerry.kit.clock import Clock
from skerry.market.accounts import Account, Sale
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId
from skerry.model.market import Contract, Flavor, Hold
from skerry.model.room import Room
from skerry.model.settings import MarketSettings
from skerry.store.protocol import Put, Store


class EventWriter(Protocol):
    """The operation that writes an event, for the transaction of the change it tells of."""

    def put(self, kind: str, subject: str, *, actor: str, reason: str = "", **data: str) -> Put: ...


class Ledger:
    """`await Ledger.open(...)`, then `run` for ever."""

    @classmethod
    async def open(
        cls,
        store: Store,
        clock: Clock,
        settings: MarketSettings,
        events: EventWriter,
        *,
        provider: CloudId,
        make_contract: Callable[[Contract], bytes],
    ) -> Ledger:
        """`make_contract` gives the signed document of a contract: the same bytes for the same contract."""
        raise NotImplementedError

    async def publish(self, flavor: Flavor, *, actor: str, capacity: Room | None = None) -> Account:
        """Offer it, `capacity` of it if not all; one that was withdrawn may be offered again.

        The same again is no change; `AlreadyExists` if the id is that of another.
        """
        raise NotImplementedError

    async def update(
        self,
        id: FlavorId,
        change: Callable[[Flavor], Flavor],
        *,
        actor: str,
        capacity: Room | None = None,
    ) -> Account:
        """Change terms or capacity; never below what is held or sold, whose terms stay."""
        raise NotImplementedError

    async def withdraw(self, id: FlavorId, *, actor: str, reason: str = "", reclaim: bool = False) -> Account:
        """Offer it no longer; with `reclaim`, take its contracts back after the notice of each."""
        raise NotImplementedError

    async def reclaim(self, id: ContractId, *, actor: str, reason: str = "") -> Sale:
        """Say that the provider takes one contract back; it ends after its notice."""
        raise NotImplementedError

    async def reserve(
        self,
        buyer: CloudId,
        flavor: FlavorId,
        *,
        room: Room | None = None,
        count: int = 1,
        duration_s: float | None = None,
        wait_s: float = 0.0,
        idempotency_key: str | None = None,
    ) -> Hold:
        """Hold `count` times `room`, or all that is free, until the hold's deadline.

        `NoRoom` if it is not free; with `wait_s`, after waiting in line that long. `NotFound` for an unknown
        flavor, `Expired` for one that is withdrawn, `Unprocessable` against its policies, or for another
        request with the same key; `Conflict` while a request with the key is under way; `Overloaded` for a
        buyer that holds too much, or too often without buying.
        """
        raise NotImplementedError

    async def purchase(self, id: HoldId, buyer: CloudId) -> Sale:
        """Turn the hold into its contract, once; again, it is the same contract.

        `NotFound`, `Forbidden` for anybody but its buyer, `Expired` if it was cancelled or its time is over.
        """
        raise NotImplementedError

    async def cancel(self, id: HoldId, buyer: CloudId) -> Hold:
        """Give the hold up; `Conflict` if it was bought."""
        raise NotImplementedError

    async def release(self, id: ContractId, buyer: CloudId) -> Sale:
        """Give the contract's room back now."""
        raise NotImplementedError

    async def renew(self, id: ContractId, buyer: CloudId, until: float) -> Sale:
        """Let the contract last until then, at the price of now for the time that is added.

        No change if it lasts that long already. `Expired` if it, or its flavor, is over.
        """
        raise NotImplementedError

    async def countersign(self, id: ContractId, buyer: CloudId, document: bytes) -> Sale:
        """Keep the contract as its buyer signed it, which whoever calls has verified; `Conflict` for a second."""
        raise NotImplementedError

    def flavors(self) -> Sequence[Account]:
        """All that is offered, in the order of ids, also if nothing of it is free."""
        raise NotImplementedError

    def flavor(self, id: FlavorId) -> Account:
        """Raises `NotFound`; one that was withdrawn is found while it is kept."""
        raise NotImplementedError

    def hold(self, id: HoldId) -> Hold:
        """Live or ended; raises `NotFound`."""
        raise NotImplementedError

    def contract(self, id: ContractId) -> Sale:
        """Live or ended; raises `NotFound`."""
        raise NotImplementedError

    def holds(self, buyer: CloudId | None = None) -> Sequence[Hold]:
        """Holds that are kept, live or ended, of one buyer or of all."""
        raise NotImplementedError

    def contracts(self, buyer: CloudId | None = None) -> Sequence[Sale]:
        """Contracts that are kept, live or ended, of one buyer or of all."""
        raise NotImplementedError
