"""What the endpoints of this room work with, given when the app is built.

Offers are found in a catalogue that follows the ledger: before each search it takes in what has changed, so
whoever was answered by the ledger finds it here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from skerry.kit import jsonio
from skerry.kit.clock import Clock
from skerry.market.accounts import Account, Sale
from skerry.market.selecting import MAX_PAGE, Catalogue, Offer, Page, Selector
from skerry.market.signing import verify
from skerry.model.ids import CloudId, FlavorId
from skerry.model.market import Contract
from skerry.wire.own.limits import Slots
from skerry.wire.rear.documents import Identity
from skerry.wire.rear.keeper import Ledger, Proofs
from skerry.wire.rear.news import News

# Subscribers at once: each holds a connection, and nothing else while nothing changes.
MAX_SUBSCRIBERS: Final = 4096
HEARTBEAT_S: Final = 15.0
_MOST_WRITTEN: Final = 20_000
_CATCH_UP_S: Final = 0.2


class Shelf:
    """The offers of a ledger, found by selector, and written down once for each dialect."""

    def __init__(self, ledger: Ledger, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        accounts, self._follower = ledger.changes.snapshot()
        self._catalogue = Catalogue(map(offer_of, accounts))
        self._written: dict[tuple[str, FlavorId], tuple[Offer, bytes]] = {}

    def find(self, selector: Selector, *, limit: int = MAX_PAGE, after: str = "") -> Page:
        """Of what is offered at this moment."""
        self._catch_up()
        page = self._catalogue.find(selector, limit=limit, after=after)
        now = self._clock.now()
        if any(_is_over(offer, now) for offer in page.offers):
            return Page(
                [offer for offer in page.offers if not _is_over(offer, now)], page.total, page.following
            )
        return page

    async def run(self) -> None:
        """Take in what changes, for ever, so that there is never much to take in before an answer."""
        while True:
            self._catch_up()
            await asyncio.sleep(_CATCH_UP_S)

    def written(self, offer: Offer, dialect: str, write: Callable[[Offer], Any]) -> bytes:
        """The JSON of an offer, kept until it changes."""
        key = (dialect, offer.flavor.id)
        kept = self._written.get(key)
        if kept is not None and kept[0] is offer:
            return kept[1]
        data = jsonio.encode(write(offer))
        if len(self._written) >= _MOST_WRITTEN:
            self._written.clear()
        self._written[key] = (offer, data)
        return data

    def _catch_up(self) -> None:
        changes = self._follower.take()
        if changes is None:
            self._start_over()
            return
        for _, batch in changes:
            for changed in batch:
                account = changed.after
                if account is not None and account.withdrawn is None:
                    self._catalogue.put(offer_of(account))
                elif (gone := account or changed.before) is not None:
                    self._catalogue.drop(gone.flavor.id)

    def _start_over(self) -> None:
        """Take everything anew, and write only what is not the same."""
        accounts, self._follower = self._ledger.changes.snapshot()
        there = {account.flavor.id for account in accounts}
        for gone in [offer.flavor.id for offer in self._catalogue if offer.flavor.id not in there]:
            self._catalogue.drop(gone)
        for account in accounts:
            known = self._catalogue.get(account.flavor.id)
            if known is None or known.flavor != account.flavor or known.free != account.free:
                self._catalogue.put(offer_of(account))


def offer_of(account: Account) -> Offer:
    return Offer(account.flavor, account.free)


def _is_over(offer: Offer, now: float) -> bool:
    return offer.flavor.expires_at is not None and now >= offer.flavor.expires_at


def terms_of(sale: Sale) -> Contract:
    """The terms at the time of the purchase, whatever became of the contract since."""
    return verify(sale.document).contract if sale.amended else sale.contract


@dataclass(frozen=True, slots=True)
class Rear:
    """The first argument of every endpoint in this room."""

    ledger: Ledger
    proofs: Proofs
    clock: Clock
    provider: CloudId
    owner: Identity  # of all flavors: this cloud
    new_id: Callable[[], str]
    shelf: Shelf
    news: News
    subscribers: Slots = field(default_factory=lambda: Slots(MAX_SUBSCRIBERS, "subscriptions to offers"))
    heartbeat_s: float = HEARTBEAT_S

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        proofs: Proofs,
        clock: Clock,
        *,
        provider: CloudId,
        new_id: Callable[[], str],
        domain: str = "",
        address: str = "",
    ) -> Rear:
        """`domain` and `address` are where this cloud says that it is."""
        owner = Identity(domain, provider, address)
        return cls(ledger, proofs, clock, provider, owner, new_id, Shelf(ledger, clock), News(owner))
