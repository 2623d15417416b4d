"""A cache of encoded offers beside the catalog.

An encoded offer is kept until the offer changes, for each dialect, and so are whole responses, because many
buyers send the same request. `skerry.market.provider.catalog.offer_catalog` finds the offers.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final

from skerry.kit import json_codec
from skerry.market.provider.catalog.offer_catalog import OfferCatalog
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model.ids import OfferId

_MAX_WRITTEN: Final = 20_000
_MAX_RESPONSES: Final = 128
_AT_ONCE: Final = 50
_LARGEST_RESPONSE: Final = 128 * 1024


class OfferDocumentCache:
    """The offers of a ledger, and their encodings."""

    def __init__(self, ledger: Ledger) -> None:
        # By dialect and offer; what was not asked for the longest is dropped first.
        self._written: dict[str, OrderedDict[OfferId, bytes]] = {}
        self._responses: dict[Hashable, bytes] = {}
        self._catalog = OfferCatalog(ledger.changes, ledger.now, self._forget)
        self.find = self._catalog.find
        self.run = self._catalog.run

    def written(
        self, offers: Iterable[OfferSnapshot], dialect: str, write: Callable[[OfferSnapshot], Any]
    ) -> list[bytes]:
        """The JSON of each of these offers, which were just found in the catalog."""
        kept = self._written.setdefault(dialect, OrderedDict())
        found: list[bytes] = []
        for offer in offers:
            id = offer.flavor.id
            text = kept.get(id)
            if text is None:
                text = kept[id] = json_codec.encode(write(offer))
            else:
                kept.move_to_end(id)
            found.append(text)
        while len(kept) > _MAX_WRITTEN:
            kept.popitem(last=False)  # a few at a time: all at once would block other requests
        return found

    async def written_in_turns(
        self, offers: Sequence[OfferSnapshot], dialect: str, write: Callable[[OfferSnapshot], Any]
    ) -> list[bytes]:
        """The same for very many: other tasks run meanwhile, so some may have changed since."""
        found: list[bytes] = []
        for at in range(0, len(offers), _AT_ONCE):
            for offer in offers[at : at + _AT_ONCE]:
                if self._catalog.is_current(offer):
                    found += self.written((offer,), dialect, write)
                else:
                    found.append(json_codec.encode(write(offer)))
            await asyncio.sleep(0)
        return found

    def response(self, request: Hashable, make: Callable[[], bytes]) -> bytes:
        """The result of `make` for a request; the cached one until any offer changes."""
        self._catalog.catch_up()
        kept = self._responses.get(request)
        if kept is not None:
            return kept
        made = make()
        if len(made) <= _LARGEST_RESPONSE:
            if len(self._responses) >= _MAX_RESPONSES:
                self._responses.clear()
            self._responses[request] = made
        return made

    def _forget(self, id: OfferId) -> None:
        self._responses.clear()
        for kept in self._written.values():
            kept.pop(id, None)
