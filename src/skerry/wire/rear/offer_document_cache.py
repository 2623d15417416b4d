"""Offers as this contract writes them, kept beside the catalogue that finds them.

What was written is kept until it changes: each offer in each dialect, and whole answers, as many buyers ask
the same. What is found is `skerry.market.provider.catalog.offer_catalog`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from skerry.kit import json_codec
from skerry.market.provider.catalog.offer_catalog import OfferCatalog
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model.ids import OfferId

_MOST_WRITTEN: Final = 20_000
_MOST_ANSWERS: Final = 128
_LARGEST_ANSWER: Final = 128 * 1024


class OfferDocumentCache:
    """The offers of a ledger, and what was written of them."""

    def __init__(self, ledger: Ledger) -> None:
        # By dialect, of offers as they are in the catalogue; what was written first goes first.
        self._written: dict[str, OrderedDict[OfferId, bytes]] = {}
        self._answers: dict[Hashable, bytes] = {}
        self._catalog = OfferCatalog(ledger.changes, ledger.now, self._forget)
        self.find = self._catalog.find
        self.run = self._catalog.run

    def written(
        self, offers: Iterable[OfferSnapshot], dialect: str, write: Callable[[OfferSnapshot], Any]
    ) -> list[bytes]:
        """The JSON of each of these, which were just found here; kept until it changes."""
        kept = self._written.setdefault(dialect, OrderedDict())
        found = [
            kept.get(offer.flavor.id) or kept.setdefault(offer.flavor.id, json_codec.encode(write(offer)))
            for offer in offers
        ]
        while len(kept) > _MOST_WRITTEN:
            kept.popitem(last=False)  # a few each time: all at once would hold everybody up
        return found

    def answer(self, question: Hashable, make: Callable[[], bytes]) -> bytes:
        """What `make` gives for a question; the same again, without asking it, until any offer changes."""
        self._catalog.catch_up()
        kept = self._answers.get(question)
        if kept is not None:
            return kept
        made = make()
        if len(made) <= _LARGEST_ANSWER:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[question] = made
        return made

    def _forget(self, id: OfferId) -> None:
        self._answers.clear()
        for kept in self._written.values():
            kept.pop(id, None)
