"""What the endpoints of this room work with, given when the app is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from skerry.model.ids import CloudId, ContractId
from skerry.wire.own.limits import Slots
from skerry.wire.rear.documents import Credentials, Identity
from skerry.wire.rear.keeper import Ledger, Proofs
from skerry.wire.rear.news import News
from skerry.wire.rear.porter import Porter
from skerry.wire.rear.shelf import Shelf

# Subscribers at once: each holds a connection, and nothing else while nothing changes. Not so many that they
# could take all connections of a server, nor one of them all places.
MAX_SUBSCRIBERS: Final = 2048
MAX_OF_ONE_BUYER: Final = 1024
HEARTBEAT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Rear:
    """The first argument of every endpoint in this room."""

    ledger: Ledger
    proofs: Proofs
    provider: CloudId
    owner: Identity  # of all flavors: this cloud
    new_id: Callable[[], str]
    shelf: Shelf
    news: News
    porter: Porter | None = None  # None: this server does not lend
    subscribers: Slots = field(
        default_factory=lambda: Slots(MAX_SUBSCRIBERS, "subscribers to offers", each=MAX_OF_ONE_BUYER)
    )
    heartbeat_s: float = HEARTBEAT_S

    def credentials_of(self, id: ContractId) -> Credentials | None:
        """What the buyer of a contract is to show; None if there is nothing to show it at."""
        return None if self.porter is None else self.porter.credentials_of(id)

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        proofs: Proofs,
        *,
        provider: CloudId,
        new_id: Callable[[], str],
        domain: str = "",
        address: str = "",
        porter: Porter | None = None,
    ) -> Rear:
        """`domain` and `address` are where this cloud says that it is."""
        owner = Identity(domain, provider, address)
        return cls(ledger, proofs, provider, owner, new_id, Shelf(ledger), News(owner), porter)
