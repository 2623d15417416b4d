"""What is offered, found by selector and written down: a catalogue that follows the ledger.

Before each search it takes in what has changed, so whoever was answered by the ledger finds it here. What was
written is kept until it changes: each offer in each dialect, and whole answers, as many buyers ask the same.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from skerry.kit import jsonio
from skerry.kit.clock import Clock
from skerry.market.accounts import Account
from skerry.market.selecting import PAGE, Catalogue, Offer, Page, Selector
from skerry.model.ids import FlavorId
from skerry.wire.rear.keeper import Ledger

_MOST_WRITTEN: Final = 20_000
_MOST_ANSWERS: Final = 128
_LARGEST_ANSWER: Final = 128 * 1024
_CATCH_UP_S: Final = 0.2


class Shelf:
    """The offers of a ledger."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        accounts, self._follower = ledger.changes.snapshot()
        self._catalogue = Catalogue(map(offer_of, accounts))
        self._mortal = {offer.flavor.id for offer in self._catalogue if offer.flavor.expires_at is not None}
        # By dialect, of offers as they are in the catalogue; what was written first goes first.
        self._written: dict[str, OrderedDict[FlavorId, bytes]] = {}
        self._answers: dict[Hashable, bytes] = {}

    def find(self, selector: Selector, *, limit: int = PAGE, after: str = "") -> Page:
        """Of what is offered at this moment."""
        self._catch_up()
        page = self._catalogue.find(selector, limit=limit, after=after)
        if not self._mortal:
            return page
        now = self._clock.now()
        there = [offer for offer in page.offers if not _is_over(offer, now)]
        return Page(there, page.following)

    async def run(self) -> None:
        """Take in what changes, for ever, so that there is never much to take in before an answer."""
        while True:
            self._catch_up()
            await asyncio.sleep(_CATCH_UP_S)

    def written(self, offers: Iterable[Offer], dialect: str, write: Callable[[Offer], Any]) -> list[bytes]:
        """The JSON of each of these, which were just found here; kept until it changes."""
        kept = self._written.setdefault(dialect, OrderedDict())
        found = [
            kept.get(offer.flavor.id) or kept.setdefault(offer.flavor.id, jsonio.encode(write(offer)))
            for offer in offers
        ]
        while len(kept) > _MOST_WRITTEN:
            kept.popitem(last=False)  # a few each time: all at once would hold everybody up
        return found

    def answer(self, question: Hashable, make: Callable[[], bytes]) -> bytes:
        """What `make` gives for a question; the same again, without asking it, until any offer changes."""
        self._catch_up()
        kept = self._answers.get(question)
        if kept is not None:
            return kept
        made = make()
        if len(made) <= _LARGEST_ANSWER and not self._mortal:  # those end without a change
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[question] = made
        return made

    def _catch_up(self) -> None:
        changes = self._follower.take()
        if changes is None:
            self._start_over()
            return
        for _, batch in changes:
            for changed in batch:
                account = changed.after
                if account is not None and account.withdrawn is None:
                    self._put(offer_of(account))
                elif (gone := account or changed.before) is not None:
                    self._drop(gone.flavor.id)

    def _start_over(self) -> None:
        """Take everything anew, and write only what is not the same."""
        accounts, self._follower = self._ledger.changes.snapshot()
        there = {account.flavor.id for account in accounts}
        for gone in [offer.flavor.id for offer in self._catalogue if offer.flavor.id not in there]:
            self._drop(gone)
        for account in accounts:
            known = self._catalogue.get(account.flavor.id)
            if known is None or known.flavor != account.flavor or known.free != account.free:
                self._put(offer_of(account))

    def _put(self, offer: Offer) -> None:
        self._forget(offer.flavor.id)
        self._catalogue.put(offer)
        if offer.flavor.expires_at is not None:
            self._mortal.add(offer.flavor.id)

    def _drop(self, id: FlavorId) -> None:
        self._forget(id)
        self._catalogue.drop(id)

    def _forget(self, id: FlavorId) -> None:
        self._answers.clear()
        self._mortal.discard(id)
        for kept in self._written.values():
            kept.pop(id, None)


def offer_of(account: Account) -> Offer:
    return Offer(account.flavor, account.free)


def _is_over(offer: Offer, now: float) -> bool:
    return offer.flavor.expires_at is not None and now >= offer.flavor.expires_at
