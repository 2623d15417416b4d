"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from skerry.market.buyer.quotes import BuyerPort
from skerry.model.ids import CloudId
from skerry.model.market import Offer
from skerry.transport.limits import ConcurrencyLimit
from skerry.wire.own.market.ports import AllowlistPort, MarketLedgerPort

# Each talks to peers for a while; people buy one at a time.
MAX_PURCHASES: Final = 16


@dataclass(frozen=True, slots=True)
class MarketContext:
    """The first argument of every endpoint in this room."""

    ledger: MarketLedgerPort
    trader: BuyerPort
    allowlist: AllowlistPort
    provider: CloudId  # this cloud
    new_id: Callable[[], str]  # of flavors that are put up without one
    shortage: Callable[[Offer], str] = lambda _: ""  # why the nodes cannot deliver one, if they cannot
    purchases: ConcurrencyLimit = field(default_factory=lambda: ConcurrencyLimit(MAX_PURCHASES, "purchases"))
