"""Types of the market: offers of capacity, holds on them, and contracts.

A flavor's `resources` and `price` are those of one whole, and there may be `stock` of it. A buyer takes a
part of one (partition) or several (aggregation); of a flavor that allows both, several equal parts.

Free of every dialect: `skerry.wire.rear` translates. Amounts of money are decimal and exact. Which part of an
offer may be taken is decided here, on values alone; the ledger that makes it binding is `skerry.market`.

They hold only values and there may be very many: the garbage collector need not track them (`gc=False`).
"""

from __future__ import annotations

import enum
import re
from decimal import Decimal

import msgspec

from skerry.model import errors, ids
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources

_CURRENCY = re.compile(r"[A-Z]{3}")
# ISO 8601 duration: at least one part, and one after the T if there is a T; or weeks alone. Its groups are
# weeks, years, months, days, hours, minutes and seconds, in whole numbers with a known length.
PERIOD = re.compile(
    r"P(?:([0-9]{1,9})W|(?=[0-9T])(?:([0-9]{1,9})Y)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})D)?"
    r"(?:T(?=[0-9])(?:([0-9]{1,9})H)?(?:([0-9]{1,9})M)?(?:([0-9]{1,9})S)?)?)"
)
_MOST_DIGITS = 18
MAX_KUBECONFIG = 16 * 1024
MAX_DETAILS = MAX_KUBECONFIG + 4 * 1024  # bytes of a buyer's contact beside names and addresses
_CLOUD = re.compile(rf"[A-Za-z0-9._-]{{1,{ids.MAX_ID}}}")


class Price(msgspec.Struct, frozen=True, gc=False):
    """So much money for each period: `Price(Decimal("0.05"), "EUR", "PT1H")`."""

    amount: Decimal
    currency: str  # ISO 4217
    period: str  # ISO 8601 duration

    def __post_init__(self) -> None:
        # The exponent is checked first: 1E+999999999 is a short text and a very long number.
        exponent = self.amount.as_tuple().exponent
        is_small = isinstance(exponent, int) and abs(exponent) <= _MOST_DIGITS
        if not is_small or not 0 <= self.amount < Decimal(10) ** _MOST_DIGITS:
            raise errors.Invalid(
                f"an amount is 0 or more, with at most {_MOST_DIGITS} digits on either side of the point",
                field="price.amount",
            )
        if not _CURRENCY.fullmatch(self.currency):
            raise errors.Invalid("a currency is an ISO 4217 code, such as `EUR`", field="price.currency")
        if not PERIOD.fullmatch(self.period) or not re.search("[1-9]", self.period):
            raise errors.Invalid(
                "a period is an ISO 8601 duration above zero, such as `PT1H` or `P1M`", field="price.period"
            )


class Partition(msgspec.Struct, frozen=True, gc=False):
    """In which parts an offer may be taken: `least`, and from there in whole steps; a step of 0 is any."""

    least: Resources
    step: Resources

    def check(self, requested: Resources, free: Resources, count: int = 1) -> None:
        """Raise unless `count` parts of `requested` may be taken of `free`, and what stays can still be sold:
        all resources of it together, as a part has some of each.
        """
        taken = requested * count
        if not free.fits(taken):
            raise _remaining_after(free, taken)
        if not requested.fits(self.least):
            raise errors.Unprocessable(
                f"a part has at least {resources_text(self.least)}; request that or more"
            )
        columns = zip(requested.parts(), self.least.parts(), self.step.parts(), strict=True)
        for (name, unit, amount), (_, _, least), (_, _, step) in columns:
            if step and (over := (amount - least) % step):
                raise errors.Unprocessable(
                    f"of {name}, {_amount(unit, least)} and whole steps of {_amount(unit, step)} are "
                    f"available; request {_amount(unit, amount - over)} or "
                    f"{_amount(unit, amount - over + step)}"
                )
        rest = free - taken
        if not rest.fits(self.least) and not self.is_below_step(rest):
            raise errors.Unprocessable(
                f"{resources_text(rest)} would be left, which is too little to sell; take all "
                f"({resources_text(self.largest(free))}), or leave at least {resources_text(self.least)}"
            )

    def is_below_step(self, rest: Resources) -> bool:
        """True if `rest` is nothing, or of no resource as much as a step: no larger part leaves less."""
        columns = zip(rest.parts(), self.step.parts(), strict=True)
        return all(left < max(step, 1) for (_, _, left), (_, _, step) in columns)

    def largest(self, free: Resources) -> Resources:
        """The largest part of `free`: of each resource the least and whole steps, or none if it has less."""
        least, step = self.least, self.step
        return Resources(
            Millicores(_stepped(free.cpu, least.cpu, step.cpu)),
            Megabytes(_stepped(free.memory, least.memory, step.memory)),
            Gigabytes(_stepped(free.disk, least.disk, step.disk)),
        )


class Aggregation(msgspec.Struct, frozen=True, gc=False):
    """How many of an offer may be taken together."""

    least: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise errors.Invalid(
                f"at least {self.least} and at most {self.most} cannot be taken together; let the least be "
                "1 or more, and not above the most",
                field="aggregation",
            )

    def check(self, count: int) -> None:
        """Raise `Unprocessable` unless `count` may be taken together."""
        if not self.least <= count <= self.most:
            raise errors.Unprocessable(f"take {self.least} to {self.most} of this offer, not {count}")


class Offer(msgspec.Struct, frozen=True, gc=False):
    """An offer of capacity, of free resources."""

    id: OfferId
    provider: CloudId
    kind: str
    resources: Resources = msgspec.field(name="room")
    price: Price
    created_at: float
    architecture: str = ""
    gpus: int = 0
    persistent: Gigabytes = Gigabytes(0)  # disk that outlives what runs; `resources.disk` does not
    partition: Partition | None = None  # None: whole or not at all
    aggregation: Aggregation | None = None  # None: one at a time
    expires_at: float | None = None
    version: int = 1  # goes up with every change that subscribers get
    stock: int = 1  # how many of `resources` there are; one if it is sold in parts
    location: str = ""  # for people and selectors
    worker: str = ""  # the node that it is carved from, if it is of one

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        check_cloud(self.provider, "provider")
        ids.check_id(self.kind, "kind")
        ids.check_display_text(self.architecture, "architecture")
        ids.check_display_text(self.location, "location")
        ids.check_display_text(self.worker, "worker")
        if self.gpus < 0 or self.persistent < 0:
            raise errors.Invalid(
                "gpus and persistent storage are 0 or more; correct them", field="characteristics"
            )
        if self.stock < 1:
            raise errors.Invalid("an offer has a count of at least 1", field="stock")
        if self.partition is not None and self.stock != 1:
            raise errors.Invalid(
                "an offer that is sold in parts is one piece; publish several, or sell whole ones",
                field="stock",
            )

    @property
    def whole(self) -> Resources:
        """All of it."""
        return self.resources * self.stock

    def gpus_in(self, taken: Resources) -> int:
        """The GPUs that belong to so much of it. They come with whole ones; parts have none."""
        if not self.gpus or self.partition is not None:
            return 0
        whole = self.resources
        pieces = taken.cpu // whole.cpu if whole.cpu else taken.memory // max(1, whole.memory)
        return self.gpus * pieces

    @property
    def least_count(self) -> int:
        """The minimum count, which is also the default."""
        return 1 if self.aggregation is None else self.aggregation.least

    def check_part(self, requested: Resources, free: Resources, count: int = 1) -> None:
        """Raise unless `count` times `requested` may be taken while `free` of it is not taken yet."""
        if requested == NO_RESOURCES:
            raise errors.Invalid("no amount was requested; set one", field="room")
        (self.aggregation or Aggregation()).check(count)
        if self.partition is not None:
            self.partition.check(requested, free, count)
        elif requested != self.resources:
            raise errors.Unprocessable("this offer is sold whole; request all of it")
        elif not free.fits(requested * count):
            raise _remaining_after(free, requested * count)


class EndReason(enum.StrEnum):
    """How a hold or a contract ended."""

    BOUGHT = "bought"  # a hold that became a contract
    CANCELLED = "cancelled"  # a hold, by its buyer
    EXPIRED = "expired"  # its time was over
    RELEASED = "released"  # a contract, by its buyer
    WITHDRAWN = "withdrawn"  # a contract, by the provider after its notice


class Contact(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How a buyer describes itself: no term of a deal, and not trusted."""

    domain: str = ""
    address: str = ""
    cluster: str = ""
    kubeconfig: str = ""  # of records that have no `details`
    node: str = ""  # what it calls itself, if it is known here by something else
    details: str = ""  # JSON: all other fields that it sent, `cluster` and the kubeconfig included

    @property
    def size(self) -> int:
        """Its size in bytes beside its names."""
        return len(self.kubeconfig) + len(self.details.encode())

    def __post_init__(self) -> None:
        if len(self.details.encode()) > MAX_DETAILS:
            raise errors.Invalid(
                f"additionalInformation has at most {MAX_DETAILS} bytes; leave out what is not needed",
                field="additionalInformation",
            )
        if len(self.kubeconfig) > MAX_KUBECONFIG:
            raise errors.Invalid(
                f"a kubeconfig has at most {MAX_KUBECONFIG} characters; leave it out, as it is not needed",
                field="kubeconfig",
            )

    def __repr__(self) -> str:
        return f"Contact({self.domain!r}, {self.address!r}, {self.cluster!r})"


NO_CONTACT = Contact()


class Hold(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`count` times `resources` of a flavor, kept for one buyer until `expires_at` at the price of that
    moment."""

    id: HoldId  # knowing it is not enough: the caller must be the buyer
    flavor: Offer  # as it was offered when the hold was made
    buyer: CloudId
    resources: Resources = msgspec.field(name="room")  # of one
    price: Price  # of all of it, for each period
    created_at: float
    expires_at: float
    total: Decimal = Decimal(0)  # of all of it, for all of `duration_s`
    duration_s: float = 3600.0  # of the contract that it becomes
    notice_s: float = 0.0  # notice: a provider reclaims the contract no sooner than this after it said so
    count: int = 1
    ending: EndReason | None = None
    ended_at: float | None = None
    contract: ContractId | None = None  # what it became
    once: str = ""  # names the request that made it, if that may be repeated
    digest: str = ""  # of that request
    contact: Contact = NO_CONTACT
    is_unknown: bool = False  # its buyer was not on the allowlist then: the limits of unknown buyers count it

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        check_cloud(self.buyer, "buyer")
        if self.expires_at <= self.created_at:
            raise errors.Invalid("a hold ends after it begins", field="expires_at")

    @property
    def taken(self) -> Resources:
        """All that it keeps."""
        return self.resources if self.count == 1 else self.resources * self.count

    @property
    def gpus(self) -> int:
        """The GPUs that belong to it."""
        return self.flavor.gpus_in(self.taken)

    @property
    def due_at(self) -> float:
        """When it ends if nothing else happens."""
        return self.expires_at

    def is_live(self, now: float) -> bool:
        """True while it can be bought; at `expires_at` itself it is over."""
        return self.ending is None and now < self.expires_at

    def state(self, now: float) -> str:
        """`held`, or how it has ended by `now`."""
        if self.ending is not None:
            return self.ending.value
        return "held" if self.is_live(now) else EndReason.EXPIRED.value


class Contract(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """`count` times `resources` of a flavor, bought: the terms as they stood when the hold was made."""

    id: ContractId
    hold: HoldId  # a hold is bought once; asking again finds this contract
    flavor: Offer
    buyer: CloudId
    seller: CloudId
    resources: Resources = msgspec.field(name="room")  # of one
    price: Price  # of all of it, for each period
    starts_at: float
    ends_at: float
    ended_at: float | None = None  # over, at its end or before
    total: Decimal = Decimal(0)  # of all of it, from start to end
    notice_s: float = 0.0  # notice: a provider reclaims it no sooner than this after it said so
    count: int = 1
    ending: EndReason | None = None
    reclaim_at: float | None = None  # when the provider reclaims it
    reason: str = ""  # why it does
    renewals: int = 0  # how often it was made longer
    is_unknown: bool = False  # as of the hold

    def __post_init__(self) -> None:
        ids.check_id(self.id)
        check_cloud(self.buyer, "buyer")
        check_cloud(self.seller, "seller")
        if self.ends_at <= self.starts_at:
            raise errors.Invalid("a contract ends after it begins", field="ends_at")

    @property
    def taken(self) -> Resources:
        """All that was bought."""
        return self.resources if self.count == 1 else self.resources * self.count

    @property
    def gpus(self) -> int:
        """The GPUs that belong to it."""
        return self.flavor.gpus_in(self.taken)

    @property
    def due_at(self) -> float:
        """When it ends if nothing else happens."""
        return self.ends_at if self.reclaim_at is None else min(self.ends_at, self.reclaim_at)

    def ending_by(self, now: float) -> EndReason | None:
        """How it has ended by `now`, also if that is not written yet; None if it has not."""
        if self.ending is not None or now < self.due_at:
            return self.ending
        is_reclaimed = self.reclaim_at is not None and self.reclaim_at <= self.ends_at
        return EndReason.WITHDRAWN if is_reclaimed else EndReason.EXPIRED

    def is_live(self, now: float) -> bool:
        """True while its resources belong to the buyer."""
        return self.ended_at is None and self.starts_at <= now < self.due_at

    def state(self, now: float) -> str:
        """`live`, `reclaimed` after the provider has given notice, or how it has ended by `now`."""
        if (ending := self.ending_by(now)) is not None:
            return ending.value
        return "live" if self.reclaim_at is None else "reclaimed"


def _stepped(amount: int, least: int, step: int) -> int:
    if amount < least:
        return 0
    return least + (amount - least) // step * step if step else amount


def _remaining_after(free: Resources, requested: Resources) -> errors.ResourcesExhausted:
    return errors.ResourcesExhausted(
        f"the offer lacks {resources_text(free.lack(requested))} now; request less, or choose another offer"
    )


def resources_text(resources: Resources) -> str:
    """Resources as text, for error messages in every dialect of the market."""
    parts = [f"{_amount(unit, amount)} of {name}" for name, unit, amount in resources.parts() if amount]
    return ", ".join(parts) or "nothing"


def _amount(unit: str, amount: int) -> str:
    """Cpu is in cores: not every dialect knows milli-cores."""
    if unit != "milli-cores":
        return f"{amount} {unit}"
    return "1 core" if amount == 1000 else f"{Decimal(amount).scaleb(-3).normalize():f} cores"


def check_cloud(text: str, field: str) -> CloudId:
    """The name of a buyer or a provider: an id, or the thumbprint of a key, which begins with anything."""
    if not _CLOUD.fullmatch(text):
        raise errors.Invalid(
            f"{field} {text[: ids.MAX_ID]!r} must be 1 to {ids.MAX_ID} letters, digits, '.', '_' or '-'",
            field=field,
        )
    return CloudId(text)
