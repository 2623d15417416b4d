"""All offers of a market, found by selector.

`skerry.market.terms.selectors` evaluates selectors. Small catalogs are searched one by one, large ones by
columns of numbers (`skerry.market.provider.catalog.column_index`, and with it numpy, is imported only then).
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from skerry.kit import malloc
from skerry.market.terms.selectors import (
    PAGE,
    OfferCursor,
    OfferPage,
    OfferSelector,
    OfferSnapshot,
    cursor_for,
    matches,
)
from skerry.model.ids import OfferId

if TYPE_CHECKING:
    from skerry.market.provider.catalog.column_index import OfferColumnIndex

# From here on columns are quicker than looking at each.
MANY: Final = 512
_COLUMNS: Final = "skerry.market.provider.catalog.column_index"


class OfferIndex:
    """All offers of a market, indexed; `put` changes one."""

    def __init__(self, offers: Iterable[OfferSnapshot] = (), *, many: int = MANY) -> None:
        self._offers = {offer.flavor.id: offer for offer in offers}
        self._many = many
        self._index: OfferColumnIndex | None = None
        if self._is_large:
            self._indexed()  # takes a while, so not in the middle of the first search

    def __len__(self) -> int:
        return len(self._offers)

    def __iter__(self) -> Iterator[OfferSnapshot]:
        return iter(self._offers.values())

    def get(self, id: str) -> OfferSnapshot | None:
        return self._offers.get(OfferId(id))

    def put(self, offer: OfferSnapshot) -> None:
        self._offers[offer.flavor.id] = offer
        if self._index is not None:
            self._index.put(offer)

    def drop(self, id: OfferId) -> None:
        """Remove an offer, if it is known."""
        if self._offers.pop(id, None) is not None and self._index is not None:
            self._index.drop(id)

    def find(self, selector: OfferSelector, *, limit: int = PAGE, after: str = "") -> OfferPage:
        """The first `limit` of what the selector means, behind the place that `after` is the token of."""
        begin = OfferCursor.read(after) if after else None
        if self._index is not None or (self._is_large and _COLUMNS in sys.modules):
            found = self._indexed().find(selector, limit + 1, begin)
        else:
            found = self._one_by_one(selector, limit + 1, begin)
        if len(found) <= limit:
            return OfferPage(found)
        return OfferPage(found[:limit], cursor_for(found[limit - 1], selector).token() if limit else "")

    async def prepare(self) -> None:
        """Have the columns of a catalog that has become large. numpy is imported in a thread; until it is,
        offers are searched one by one."""
        if self._is_large and self._index is None:
            await asyncio.to_thread(importlib.import_module, _COLUMNS)
            self._indexed()

    @property
    def _is_large(self) -> bool:
        return len(self._offers) >= max(1, self._many)

    def _one_by_one(
        self, selector: OfferSelector, limit: int, begin: OfferCursor | None
    ) -> list[OfferSnapshot]:
        placed = [
            (cursor_for(offer, selector), offer)
            for offer in self._offers.values()
            if matches(offer, selector)
        ]
        placed.sort(key=lambda pair: pair[0])
        return [offer for where, offer in placed if begin is None or where > begin][:limit]

    def _indexed(self) -> OfferColumnIndex:
        if self._index is None:
            from skerry.market.provider.catalog.column_index import (
                OfferColumnIndex,  # numpy takes its time and its memory
            )

            malloc.raise_malloc_thresholds()  # every search works on columns, and throws them away
            self._index = OfferColumnIndex(self._offers.values())
        return self._index
