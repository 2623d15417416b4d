"""The catalog of offers, searched by selector; it follows the ledger.

Before each search it applies changes, so a client finds what the ledger has acknowledged. Caches of offers,
such as of their documents, are notified of changes.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from skerry.market.provider.catalog.offer_index import OfferIndex
from skerry.market.provider.ledger.changelog import OfferChangeLog
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms.selectors import PAGE, OfferPage, OfferSelector, OfferSnapshot
from skerry.model.ids import OfferId
from skerry.model.market import Offer

_PAUSE_S: Final = 0.2  # changes come in crowds, and are taken in together


class OfferCatalog:
    """The offers of a ledger; `changed` is called with each that is not as it was before."""

    def __init__(
        self, changes: OfferChangeLog, now: Callable[[], float], changed: Callable[[OfferId], None]
    ) -> None:
        self._changes = changes
        self._now = now
        self._changed = changed
        accounts, self._follower = changes.snapshot()
        self._catalogue = OfferIndex(map(snapshot_offer, accounts))
        self._ends: dict[OfferId, float] = {}
        self._soonest = math.inf  # of those, so that they are checked only if one is due
        for offer in self._catalogue:
            self._note_end(offer.flavor)

    def __len__(self) -> int:
        return len(self._catalogue)

    def find(self, selector: OfferSelector, *, limit: int = PAGE, after: str = "") -> OfferPage:
        """Of what is offered at this moment."""
        self.catch_up()
        return self._catalogue.find(selector, limit=limit, after=after)

    def is_current(self, offer: OfferSnapshot) -> bool:
        """Whether an offer that was found is still as it was."""
        return self._catalogue.get(offer.flavor.id) is offer

    async def run(self) -> None:
        """Apply changes, for ever, so that there are never many before a search."""
        while True:
            self.catch_up()
            await self._catalogue.prepare()
            await asyncio.sleep(_PAUSE_S)
            await self._follower.wait()

    def catch_up(self) -> None:
        """Take in what has changed."""
        changes = self._follower.take()
        if changes is None:
            self._start_over()
        for _, batch in changes or ():
            for changed in batch:
                account = changed.after
                if account is not None and account.withdrawn is None:
                    self._put(snapshot_offer(account))
                elif (gone := account or changed.before) is not None:
                    self._drop(gone.flavor.id)
        now = self._now()
        if now >= self._soonest:  # an expired offer is removed at once, before the ledger does
            for id in [id for id, end in self._ends.items() if now >= end]:
                self._drop(id)
            self._soonest = min(self._ends.values(), default=math.inf)

    def _start_over(self) -> None:
        """Read everything again, and apply only differences."""
        accounts, self._follower = self._changes.snapshot()
        there = {account.flavor.id for account in accounts}
        for gone in [offer.flavor.id for offer in self._catalogue if offer.flavor.id not in there]:
            self._drop(gone)
        for account in accounts:
            known = self._catalogue.get(account.flavor.id)
            if known is None or known.flavor != account.flavor or known.free != account.free:
                self._put(snapshot_offer(account))

    def _put(self, offer: OfferSnapshot) -> None:
        self._forget(offer.flavor.id)
        self._catalogue.put(offer)
        self._note_end(offer.flavor)

    def _drop(self, id: OfferId) -> None:
        self._forget(id)
        self._catalogue.drop(id)

    def _note_end(self, flavor: Offer) -> None:
        if flavor.expires_at is not None:
            self._ends[flavor.id] = flavor.expires_at
            self._soonest = min(self._soonest, flavor.expires_at)

    def _forget(self, id: OfferId) -> None:
        self._ends.pop(id, None)
        self._changed(id)


def snapshot_offer(account: OfferRecord) -> OfferSnapshot:
    return OfferSnapshot(account.flavor, account.free)
