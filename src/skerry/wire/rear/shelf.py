"""What is offered, found by selector and written down: a catalogue that follows the ledger.

Before each search it takes in what has changed, so whoever was answered by the ledger finds it here. What was
written is kept until it changes: each offer in each dialect, and whole answers, as many buyers ask the same.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final

from skerry.kit import jsonio
from skerry.market.accounts import Account
from skerry.market.selecting import PAGE, Catalogue, Offer, Page, Selector
from skerry.model.ids import FlavorId
from skerry.model.market import Flavor
from skerry.wire.rear.keeper import Ledger

_MOST_WRITTEN: Final = 20_000
_MOST_ANSWERS: Final = 128
_LARGEST_ANSWER: Final = 128 * 1024
_CATCH_UP_S: Final = 0.2


class Shelf:
    """The offers of a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        accounts, self._follower = ledger.changes.snapshot()
        self._catalogue = Catalogue(map(offer_of, accounts))
        self._ends: dict[FlavorId, float] = {}
        self._soonest = math.inf  # of those, so that they are looked at only if one is due
        for offer in self._catalogue:
            self._note_end(offer.flavor)
        # By dialect, of offers as they are in the catalogue; what was written first goes first.
        self._written: dict[str, OrderedDict[FlavorId, bytes]] = {}
        self._answers: dict[Hashable, bytes] = {}

    def find(self, selector: Selector, *, limit: int = PAGE, after: str = "") -> Page:
        """Of what is offered at this moment."""
        self._catch_up()
        return self._catalogue.find(selector, limit=limit, after=after)

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
        if len(made) <= _LARGEST_ANSWER:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[question] = made
        return made

    def _catch_up(self) -> None:
        changes = self._follower.take()
        if changes is None:
            self._start_over()
        for _, batch in changes or ():
            for changed in batch:
                account = changed.after
                if account is not None and account.withdrawn is None:
                    self._put(offer_of(account))
                elif (gone := account or changed.before) is not None:
                    self._drop(gone.flavor.id)
        now = self._ledger.now()
        if now >= self._soonest:  # what ends is gone at once, before the ledger says so
            for id in [id for id, end in self._ends.items() if now >= end]:
                self._drop(id)
            self._soonest = min(self._ends.values(), default=math.inf)

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
        self._note_end(offer.flavor)

    def _drop(self, id: FlavorId) -> None:
        self._forget(id)
        self._catalogue.drop(id)

    def _note_end(self, flavor: Flavor) -> None:
        if flavor.expires_at is not None:
            self._ends[flavor.id] = flavor.expires_at
            self._soonest = min(self._soonest, flavor.expires_at)

    def _forget(self, id: FlavorId) -> None:
        self._answers.clear()
        self._ends.pop(id, None)
        for kept in self._written.values():
            kept.pop(id, None)


def offer_of(account: Account) -> Offer:
    return Offer(account.flavor, account.free)
