"""The allowlist of buyers, to whom the limits of unknown buyers do not apply.

It has the buyers of the setting `market.buyers`, and those that an operator has added: one record of the
store for each, `market-buyer/ID`, cached on every server and changed with an event. Accounts of this cloud
are on it too, unless the setting names a buyer. `skerry.market.provider.ledger.unknown_buyer_rules` has the
limits of others.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from skerry.control.events.log import EventLog
from skerry.kit.clock import Clock
from skerry.market import plain
from skerry.market.terms import keys
from skerry.model import errors, ids
from skerry.model.ids import CloudId
from skerry.model.market import check_cloud
from skerry.store.protocol import Store
from skerry.store.tables.table import Table, Write, json_of

PREFIX: Final = "market-buyer/"
MAX_BUYERS: Final = 10_000


class AllowedBuyer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A buyer on the list."""

    id: CloudId
    note: str = ""  # for people
    added_at: float | None = None  # None: by the setting


def is_listed(buyer: CloudId, named: Collection[str]) -> bool:
    """Whether the setting `market.buyers` allows a buyer; accounts need not be named while no buyer is."""
    return buyer in named or (not named and not keys.is_key_id(buyer))


class BuyerAllowlist:
    """`run` for ever; read once it is `ready`. `named` are the buyers of the setting."""

    def __init__(self, store: Store, events: EventLog, clock: Clock, *, named: Collection[str]) -> None:
        self._events = events
        self._clock = clock
        self._named = frozenset(named)
        self._table = Table(store, PREFIX, json_of(AllowedBuyer))

    async def run(self) -> None:
        await self._table.run()

    async def ready(self) -> None:
        await self._table.ready()

    def is_known(self, buyer: CloudId) -> bool:
        """Whether a buyer may buy without the limits of unknown ones."""
        return is_listed(buyer, self._named) or self._table.get(buyer) is not None

    def all(self) -> Sequence[AllowedBuyer]:
        """By id, first those of the setting."""
        return [*(AllowedBuyer(CloudId(name)) for name in sorted(self._named)), *self._table.values()]

    async def add(self, id: str, *, note: str = "", actor: str) -> AllowedBuyer:
        """Let a buyer in, or note something else about it."""
        check_cloud(id, "buyer")
        if plain.is_plain(CloudId(id)):
            raise errors.Invalid(
                "a buyer without credentials cannot be put on the list; its limits are the settings "
                "market.plain_...",
                field="buyer",
            )
        known = self._table.value(id)
        if known is None and len(self._table) >= MAX_BUYERS:
            raise errors.TooLarge(f"there are {MAX_BUYERS} buyers on the list, the most; remove some")
        buyer = AllowedBuyer(
            CloudId(id), ids.check_display_text(note, "note"), known.added_at if known else self._clock.now()
        )
        if buyer != known:
            event = self._events.put("buyer.allowed", f"buyer/{id}", actor=actor)
            await self._table.commit([self._table.put(id, buyer), event])
        return buyer

    async def remove(self, id: str, *, actor: str) -> None:
        """Take a buyer off the list. What it holds and has bought stays its own; raises `NotFound`."""
        unknown = errors.NotFound("there is no such buyer on the list; list buyers to see those there are")
        if self._table.get(id) is None:
            if id in self._named:
                raise errors.Conflict(f"{id} is named in the setting market.buyers; take it out there")
            raise unknown
        event = self._events.put("buyer.removed", f"buyer/{id}", actor=actor)
        await self._table.update(
            id, lambda buyer: Write(buyer.value, [event], is_delete=True), missing=unknown
        )
