"""The allowlist of buyers: who may buy without the limits of unknown keys.

Who is named in the setting `market.buyers` is known, and whoever an operator has added: one record of the
store for each, `market-buyer/ID`, mirrored in memory on every server and changed with an event. Accounts of
this cloud are known too, unless the setting names somebody. What others may do is
`skerry.market.provider.ledger.unknown_buyer_rules`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import Clock
from skerry.market import plain
from skerry.market.events import MarketEventWriter
from skerry.market.terms import keys
from skerry.model import errors, ids
from skerry.model.ids import CloudId
from skerry.model.market import check_cloud
from skerry.store.protocol import Delete, Entry, Op, Put, Store
from skerry.store.tables.cache import PrefixCache

PREFIX: Final = "market-buyer/"
MAX_BUYERS: Final = 10_000


class AllowedBuyer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A buyer on the list."""

    id: CloudId
    note: str = ""  # for people
    added_at: float | None = None  # None: by the setting


def is_listed(buyer: CloudId, named: Collection[str]) -> bool:
    """Whether the setting `market.buyers` lets a buyer in; accounts need not be named while nobody is."""
    return buyer in named or (not named and not keys.is_key_id(buyer))


class BuyerAllowlist:
    """`run` for ever; read once it is `ready`. `named` are the buyers of the setting."""

    def __init__(
        self, store: Store, events: MarketEventWriter, clock: Clock, *, named: Collection[str]
    ) -> None:
        self._store = store
        self._events = events
        self._clock = clock
        self._named = frozenset(named)
        self._view = PrefixCache(store, PREFIX, _read)

    async def run(self) -> None:
        await self._view.run()

    async def ready(self) -> None:
        await self._view.ready()

    def is_known(self, buyer: CloudId) -> bool:
        """Whether a buyer may buy without the limits of unknown ones."""
        return is_listed(buyer, self._named) or self._view.get(PREFIX + buyer) is not None

    def all(self) -> Sequence[AllowedBuyer]:
        """By id, first those of the setting."""
        added = [buyer for _, buyer in self._view.items()]
        return [*(AllowedBuyer(CloudId(name)) for name in sorted(self._named)), *added]

    async def add(self, id: str, *, note: str = "", actor: str) -> AllowedBuyer:
        """Let a buyer in, or note something else about it."""
        key = PREFIX + check_cloud(id, "buyer")
        if plain.is_plain(CloudId(id)):
            raise errors.Invalid(
                "a buyer without credentials cannot be put on the list; its limits are the settings "
                "market.plain_...",
                field="buyer",
            )
        known = self._view.get(key)
        if known is None and len(self._view) >= MAX_BUYERS:
            raise errors.TooLarge(f"there are {MAX_BUYERS} buyers on the list, the most; remove some")
        buyer = AllowedBuyer(
            CloudId(id), ids.check_display_text(note, "note"), known.added_at if known else self._clock.now()
        )
        if buyer != known:
            told = self._events.put("buyer.allowed", f"buyer/{id}", actor=actor)
            await self._commit([Put(key, json_codec.encode(buyer)), told])
        return buyer

    async def remove(self, id: str, *, actor: str) -> None:
        """Take a buyer off the list. What it holds and has bought stays its own; raises `NotFound`."""
        if self._view.get(PREFIX + id) is None:
            if id in self._named:
                raise errors.Conflict(f"{id} is named in the setting market.buyers; take it out there")
            raise errors.NotFound("there is no such buyer on the list; list buyers to see those there are")
        told = self._events.put("buyer.removed", f"buyer/{id}", actor=actor)
        await self._commit([Delete(PREFIX + id), told])

    async def _commit(self, ops: Sequence[Op]) -> None:
        await self._view.seen(await self._store.commit(ops))


def _read(entry: Entry) -> AllowedBuyer:
    return json_codec.decode(entry.value, AllowedBuyer)
