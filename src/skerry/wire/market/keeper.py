"""What this room needs of the ledger, so that it can be served and tested without a store.

`skerry.market.ledger` keeps these promises. A change is durable when it returns; reads come from memory. The
other half of the market, buying, is `skerry.market.trading.Trader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from skerry.market.accounts import Account, Sale
from skerry.model.ids import ContractId, FlavorId
from skerry.model.market import Flavor, Hold


class Ledger(Protocol):
    """Flavors of this cloud, holds on them, and contracts."""

    async def publish(self, flavor: Flavor, *, actor: str) -> Account:
        """Raises `AlreadyExists` if the id is that of another."""
        ...

    async def withdraw(
        self, id: FlavorId, *, actor: str, reason: str = "", reclaim: bool = False
    ) -> Account: ...

    async def reclaim(self, id: ContractId, *, actor: str, reason: str = "") -> Sale: ...

    def flavors(self) -> Sequence[Account]:
        """All that is offered, in the order of ids; not what was withdrawn."""
        ...

    def flavor(self, id: FlavorId) -> Account:
        """Withdrawn or not; raises `NotFound`."""
        ...

    def holds(self) -> Sequence[Hold]: ...

    def contracts(self) -> Sequence[Sale]: ...

    async def find_contract(self, id: ContractId) -> Sale:
        """Live or ended, also if another server has only just made it; raises `NotFound`."""
        ...

    def now(self) -> float:
        """The time that deadlines are judged by."""
        ...

    def audits(self) -> Iterator[tuple[FlavorId, list[str]]]:
        """Every flavor, with what of it does not add up and why."""
        ...
