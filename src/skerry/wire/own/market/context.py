"""The context of the market's endpoints, which they get when the application is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from skerry.market.buyer.quotes import BuyerPort
from skerry.market.provider.allowlist import AllowedBuyer
from skerry.market.provider.ledger.ledger import Ledger
from skerry.model.ids import CloudId
from skerry.model.market import Offer
from skerry.transport.limits import ConcurrencyLimit

# Each talks to peers for a while, and people buy one at a time.
MAX_PURCHASES: Final = 16


class AllowlistPort(Protocol):
    """The allowlist of buyers."""

    def all(self) -> Sequence[AllowedBuyer]: ...

    async def add(self, id: str, *, note: str = "", actor: str) -> AllowedBuyer:
        """A buyer that is on it gets the new note."""
        ...

    async def remove(self, id: str, *, actor: str) -> None:
        """Raises `NotFound`, and `Conflict` for one that the settings name."""
        ...


class MarketContext(msgspec.Struct, frozen=True):
    """The first argument of these endpoints."""

    ledger: Ledger
    buyer: BuyerPort
    allowlist: AllowlistPort
    provider: CloudId  # this cloud
    new_id: Callable[[], str]  # for flavors that are published without one
    shortage: Callable[[Offer], str] = lambda _: (
        ""
    )  # why the nodes cannot deliver an offer; empty if they can
    sale_refusal: Callable[[], str] = lambda: ""  # why nothing can be sold here; empty if something can
    purchases: ConcurrencyLimit = msgspec.field(
        default_factory=lambda: ConcurrencyLimit(MAX_PURCHASES, "purchases")
    )
