"""The stored records of the ledger: an account for each flavor, and a sale for each contract.

Every hold or sale of a flavor writes its account in the same transaction, so the account's revision guards
all of it. Free capacity is derived, and never negative. Values only;
`skerry.market.provider.ledger.decisions` changes them.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import NO_CONTACT, Contact, Contract, Offer
from skerry.model.resources import NO_RESOURCES, Resources

PREFIX: Final = "market/"
OFFER_PREFIX: Final = PREFIX + "flavor/"
HOLD_PREFIX: Final = PREFIX + "hold/"
CONTRACT_PREFIX: Final = PREFIX + "contract/"


class OfferWithdrawal(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A flavor is no longer offered. Holds keep their terms; contracts end early only if it `reclaims`."""

    at: float
    reason: str = ""
    reclaims: bool = False  # contracts are taken back, each after its notice


class OfferRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A flavor and where its capacity is: free, held or sold. `flavor.version` is the account's."""

    flavor: Offer
    capacity: Resources  # the capacity now; if it follows a node, less than `flavor.whole` at times
    held: Resources = NO_RESOURCES
    sold: Resources = NO_RESOURCES
    withdrawn: OfferWithdrawal | None = None
    wanted: Resources | None = None  # the desired capacity, while more is held or sold

    @property
    def size(self) -> Resources:
        """The desired capacity."""
        return self.capacity if self.wanted is None else self.wanted

    @property
    def free(self) -> Resources:
        """Neither held nor sold."""
        return self.capacity - self.held - self.sold

    def sized(self, wanted: Resources) -> OfferRecord:
        """With so much of it; with what is held and sold, as long as that is more."""
        capacity = wanted + wanted.lack(self.held + self.sold)
        return replace(self, capacity=capacity, wanted=None if capacity == wanted else wanted)

    def moved(self, *, held: Resources, sold: Resources) -> OfferRecord:
        """With so much held and sold; capacity above the desired one is removed as it becomes free."""
        after = replace(self, held=held, sold=sold)
        return after if self.wanted is None else after.sized(self.wanted)

    def is_offered(self, now: float) -> bool:
        """True if it may be reserved, as far as it is free."""
        expires_at = self.flavor.expires_at
        return self.withdrawn is None and (expires_at is None or now < expires_at)


class ContractRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A contract with its signed documents."""

    contract: Contract
    document: bytes  # what the purchase answered, for ever
    amended: bytes = b""  # the contract after its last renewal, signed again
    countersigned: bytes = b""  # the newest of both, with the buyer's signature
    amended_at: float = 0.0  # when it was last renewed
    signed_until: float = 0.0  # end of the terms that the buyer signed last
    opened_at: float | None = None  # the buyer came to its tunnel for the first time
    contact: Contact = NO_CONTACT  # as of the hold

    @property
    def current(self) -> bytes:
        """The document of the terms that hold now."""
        return self.amended or self.document


def offer_key(id: OfferId) -> str:
    return OFFER_PREFIX + id


def hold_key(id: HoldId) -> str:
    return HOLD_PREFIX + id


def contract_key(id: ContractId) -> str:
    return CONTRACT_PREFIX + id
