"""What this room needs of the ledger, so that it can be served and tested without a store.

`skerry.market.provider.ledger.ledger` and `skerry.market.provider.allowlist` keep these promises. A change is
durable when it returns; reads come from memory. The other half of the market, buying, is
`skerry.market.buyer.quotes.BuyerPort`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from skerry.market.provider.allowlist import AllowedBuyer
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model.ids import ContractId, OfferId
from skerry.model.market import Hold, Offer, Price


class MarketLedgerPort(Protocol):
    """Flavors of this cloud, holds on them, and contracts."""

    async def publish(self, flavor: Offer, *, actor: str) -> OfferRecord:
        """Raises `AlreadyExists` if the id is that of another."""
        ...

    async def reprice(self, id: OfferId, price: Price, *, actor: str) -> OfferRecord:
        """Holds and contracts keep theirs. Raises `FailedPrecondition` if its price follows the settings."""
        ...

    async def withdraw(
        self, id: OfferId, *, actor: str, reason: str = "", reclaim: bool = False
    ) -> OfferRecord: ...

    async def reclaim(self, id: ContractId, *, actor: str, reason: str = "") -> ContractRecord: ...

    def flavors(self) -> Sequence[OfferRecord]:
        """All that is offered, in the order of ids; not what was withdrawn."""
        ...

    def flavor(self, id: OfferId) -> OfferRecord:
        """Withdrawn or not; raises `NotFound`."""
        ...

    def holds(self) -> Sequence[Hold]: ...

    def contracts(self) -> Sequence[ContractRecord]: ...

    async def find_contract(self, id: ContractId) -> ContractRecord:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    def now(self) -> float:
        """The time that deadlines are judged by."""
        ...

    def audits(self) -> Iterator[tuple[OfferId, list[str]]]:
        """Every flavor, with what of it does not add up and why."""
        ...


class AllowlistPort(Protocol):
    """Buyers that may buy without the limits of unknown ones."""

    def all(self) -> Sequence[AllowedBuyer]: ...

    async def add(self, id: str, *, note: str = "", actor: str) -> AllowedBuyer:
        """Again, with another note, is a change of that."""
        ...

    async def remove(self, id: str, *, actor: str) -> None:
        """Raises `NotFound`, and `Conflict` for one that the settings name."""
        ...
