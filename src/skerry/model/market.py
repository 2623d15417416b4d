"""The market's nouns: offers of capacity, holds on them, and the contracts that come of holds.

Free of every dialect: `skerry.wire.rear` translates. Amounts of money are decimal and exact. Which part of an
offer may be taken is decided here, on values alone; the ledger that makes it binding is `skerry.market`.
"""

from __future__ import annotations

import re
from decimal import Decimal

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId
from skerry.model.room import NOTHING, Gigabytes, Room

_CURRENCY = re.compile(r"[A-Z]{3}")
# ISO 8601 duration: at least one part, and one after the T if there is a T; or weeks alone.
_PERIOD = re.compile(
    r"P(?:[0-9]{1,6}W|(?=[0-9T])(?:[0-9]{1,6}Y)?(?:[0-9]{1,6}M)?(?:[0-9]{1,6}D)?"
    r"(?:T(?=[0-9])(?:[0-9]{1,6}H)?(?:[0-9]{1,6}M)?(?:[0-9]{1,6}S)?)?)"
)
_MOST_DIGITS = 18


class Price(msgspec.Struct, frozen=True):
    """So much money for each period: `Price(Decimal("0.05"), "EUR", "PT1H")`."""

    amount: Decimal
    currency: str  # ISO 4217
    period: str  # ISO 8601 duration

    def __post_init__(self) -> None:
        # The exponent is looked at first: 1E+999999999 is a short text and a very long number.
        exponent = self.amount.as_tuple().exponent
        is_small = isinstance(exponent, int) and abs(exponent) <= _MOST_DIGITS
        if not is_small or not 0 <= self.amount < Decimal(10) ** _MOST_DIGITS:
            raise errors.Invalid(
                f"an amount is 0 or more, with at most {_MOST_DIGITS} digits on either side of the point",
                field="price.amount",
            )
        if not _CURRENCY.fullmatch(self.currency):
            raise errors.Invalid("a currency is an ISO 4217 code, such as `EUR`", field="price.currency")
        if not _PERIOD.fullmatch(self.period) or not re.search("[1-9]", self.period):
            raise errors.Invalid(
                "a period is an ISO 8601 duration above zero, such as `PT1H` or `P1M`", field="price.period"
            )


class Partition(msgspec.Struct, frozen=True):
    """In which parts an offer may be taken: `least`, and from there in whole steps; a step of 0 is any."""

    least: Room
    step: Room

    def check(self, ask: Room, free: Room) -> None:
        """Raise unless `ask` is a part that may be taken of `free`, and what stays can still be sold."""
        if not free.fits(ask):
            raise errors.NoRoom(f"the offer {free.shortfall(ask)}")
        if not ask.fits(self.least):
            raise errors.Unprocessable(f"the part is too small: it {ask.shortfall(self.least)}")
        rest = free - ask
        columns = zip(ask.parts(), self.least.parts(), self.step.parts(), rest.parts(), strict=True)
        for (name, unit, asked), (_, _, least), (_, _, step), (_, _, left) in columns:
            if step and (asked - least) % step:
                raise errors.Unprocessable(
                    f"{name} must be {least} {unit} and whole steps of {step}, not {asked}"
                )
            if 0 < left < least:
                raise errors.Unprocessable(
                    f"{left} {unit} of {name} would be left, which is too little to sell; "
                    f"take all {asked + left}, or at most {asked + left - least}"
                )


class Aggregation(msgspec.Struct, frozen=True):
    """How many of an offer may be taken together."""

    least: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise errors.Invalid("aggregation needs 1 <= least <= most", field="aggregation")

    def check(self, count: int) -> None:
        """Raise `Unprocessable` unless `count` may be taken together."""
        if not self.least <= count <= self.most:
            raise errors.Unprocessable(f"take {self.least} to {self.most} of this offer, not {count}")


class Flavor(msgspec.Struct, frozen=True):
    """An offer of capacity, carved from free room."""

    id: FlavorId
    provider: CloudId
    kind: str
    room: Room
    price: Price
    created_at: float
    architecture: str = ""
    gpus: int = 0
    persistent: Gigabytes = Gigabytes(0)  # disk that outlives what runs; `room.disk` does not
    partition: Partition | None = None  # None: whole or not at all
    aggregation: Aggregation | None = None
    expires_at: float | None = None
    version: int = 1  # goes up with every change that buyers are told of

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_id(self.provider, "provider")
        ids.check_id(self.kind, "kind")
        if self.gpus < 0 or self.persistent < 0:
            raise errors.Invalid("gpus and persistent disk are 0 or more", field="characteristics")

    def check_part(self, ask: Room, free: Room) -> None:
        """Raise unless `ask` may be taken while `free` of it is not taken yet."""
        if ask == NOTHING:
            raise errors.Invalid("nothing was asked for; name an amount", field="room")
        if self.partition is not None:
            self.partition.check(ask, free)
        elif ask != self.room:
            raise errors.Unprocessable("this offer is sold whole; ask for all of it")
        elif not free.fits(ask):
            raise errors.NoRoom(f"the offer {free.shortfall(ask)}")


class Hold(msgspec.Struct, frozen=True):
    """A part of a flavor, kept for one buyer until `expires_at` at the price of that moment."""

    id: HoldId
    flavor: FlavorId
    buyer: CloudId
    room: Room
    price: Price
    created_at: float
    expires_at: float

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_id(self.buyer, "buyer")
        if self.expires_at <= self.created_at:
            raise errors.Invalid("a hold ends after it begins", field="expires_at")

    def is_live(self, now: float) -> bool:
        """True while it can be bought; at `expires_at` itself it is over."""
        return now < self.expires_at


class Contract(msgspec.Struct, frozen=True):
    """A part of a flavor, bought: the terms as they stood when the hold was made."""

    id: ContractId
    hold: HoldId  # a hold is bought once; asking again finds this contract
    flavor: Flavor
    buyer: CloudId
    seller: CloudId
    room: Room
    price: Price
    starts_at: float
    ends_at: float
    ended_at: float | None = None  # given back or withdrawn before its time

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        ids.check_id(self.buyer, "buyer")
        ids.check_id(self.seller, "seller")
        if self.ends_at <= self.starts_at:
            raise errors.Invalid("a contract ends after it begins", field="ends_at")

    def is_live(self, now: float) -> bool:
        """True while its room belongs to the buyer."""
        return self.ended_at is None and self.starts_at <= now < self.ends_at
