"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from skerry.market.trading import Trader
from skerry.model.ids import CloudId
from skerry.wire.market.keeper import Ledger
from skerry.wire.own.limits import Slots

# Each talks to peers for a while; people buy one at a time.
MAX_PURCHASES: Final = 16


@dataclass(frozen=True, slots=True)
class MarketDesk:
    """The first argument of every endpoint in this room."""

    ledger: Ledger
    trader: Trader
    provider: CloudId  # this cloud
    new_id: Callable[[], str]  # of flavors that are put up without one
    purchases: Slots = field(default_factory=lambda: Slots(MAX_PURCHASES, "purchases"))
