"""Requests and responses in the document's dialect: cores, MB and GB, in whole numbers.

Pure translation to and from the types of the market, with the names and the casing of the document; Skerry's
own fields come last. A number that is left out or 0 matches anything, as in FLUIDOS' programs. A flavor has
its free capacity, and the price of that.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, ClassVar, Final

import msgspec
from msgspec import Meta, field

from skerry.kit.clock import iso, moment
from skerry.market.provider.ledger.records import ContractRecord
from skerry.market.terms import pricing
from skerry.market.terms.selectors import MAX_PAGE, PAGE, OfferSelector, OfferSnapshot, OfferSort
from skerry.model import errors
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Aggregation, Contract, Hold, Offer, Partition, Price
from skerry.model.resources import MAX_AMOUNT, NO_RESOURCES, Gigabytes, Resources
from skerry.wire.market_inputs import CORE, GB, MB, Cores, Count, Text, parse_resources

# `Decimal` accepts more than that, such as `-0`, `1_0`, `1E2` and digits of other alphabets.
_AMOUNT: Final = re.compile(r"[0-9]+(\.[0-9]+)?")
_SPELLINGS: Final = {"FlavorID": ("flavourID",), "FlavorType": ("flavourType", "type")}


class IdentityDocument(msgspec.Struct, frozen=True, gc=False):
    """A cloud: a provider or a buyer."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"NodeID": ("id",)}

    domain: Text = field(default="", name="Domain")
    node_id: Text = field(default="", name="NodeID")
    ip: Text = field(default="", name="IP")


class PriceDocument(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """A price per period."""

    amount: Annotated[str, Meta(max_length=40, description="A decimal number: `0.10`")]
    currency: Annotated[str, Meta(max_length=3, description="ISO 4217: `EUR`")]
    period: Annotated[str, Meta(max_length=40, description="ISO 8601: `PT1H`")] = "PT1H"

    @classmethod
    def of(cls, price: Price) -> PriceDocument:
        return cls(f"{price.amount:f}", price.currency, price.period)

    def price(self) -> Price:
        if not _AMOUNT.fullmatch(self.amount):
            raise errors.Invalid("an amount is a plain decimal number, such as `0.10`", field="Amount")
        return Price(Decimal(self.amount), self.currency, self.period)


class Characteristics(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """What there is of it."""

    architecture: Text = ""
    cpu: Cores = 0
    memory: MB = 0
    gpu: Annotated[int, Meta(ge=0, le=MAX_AMOUNT)] = 0
    ephemeral_storage: GB = 0
    persistent_storage: GB = 0


class PartitionableBody(msgspec.Struct, frozen=True, rename="pascal"):
    """Partitioning: at least the minimum, and above it in whole steps; a step of 0 allows any amount."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {
        "CpuMin": ("cpuMinimum",),
        "MemoryMin": ("memoryMinimum",),
    }

    cpu_min: Cores = 0
    memory_min: MB = 0
    cpu_step: Cores = 0
    memory_step: MB = 0


class Aggregatable(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """How many may be taken together."""

    min_count: Count = 1
    max_count: Count = 1


class PolicyBody(msgspec.Struct, frozen=True, rename="pascal"):
    """In which parts, and how many at once; null: whole, and one at a time."""

    partitionable: PartitionableBody | None = None
    aggregatable: Aggregatable | None = None


class PartitionableDocument(PartitionableBody, frozen=True, rename="pascal", kw_only=True, gc=False):
    """Each number twice: the document spells it one way in its text and another way in a JSON tag."""

    tagged_cpu_min: int = field(name="cpuMin")
    tagged_memory_min: int = field(name="memoryMin")
    tagged_cpu_step: int = field(name="cpuStep")
    tagged_memory_step: int = field(name="memoryStep")


class PolicyDocument(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """In which parts, and how many at once; null: whole, and one at a time."""

    partitionable: PartitionableDocument | None
    aggregatable: Aggregatable | None


class OptionalFields(msgspec.Struct, frozen=True, gc=False):
    """Whether something of it can be had now, and the node that it is of."""

    availability: bool = field(default=True, name="Availability")
    worker_id: Text = field(default="", name="WorkerID")


class WholeDocument(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The whole of a flavor that is sold in parts, taken or not: the price of a part follows from it."""

    cpu: Cores
    memory: MB
    ephemeral_storage: GB
    price: PriceDocument


class FlavorDocument(msgspec.Struct, frozen=True, gc=False):
    """An offer, with its free capacity and the price of that."""

    flavor_id: str = field(name="FlavorID")
    provider_id: str = field(name="ProviderID")
    flavor_type: str = field(name="FlavorType")
    characteristics: Characteristics = field(name="Characteristics")
    policy: PolicyDocument = field(name="Policy")
    owner: IdentityDocument = field(name="Owner")
    price: PriceDocument = field(name="Price")
    optional_fields: OptionalFields = field(name="OptionalFields")
    version: Annotated[int, Meta(description="Goes up with every change")] = field(name="Version")
    count: Annotated[int, Meta(description="How many are available")] = field(name="Count")
    location: str = field(default="", name="Location")
    expiration_time: str | None = field(default=None, name="ExpirationTime")
    whole: Annotated[WholeDocument | None, Meta(description="Of one that is sold in parts")] = field(
        default=None, name="Whole"
    )


class PartDocument(msgspec.Struct, frozen=True, rename="pascal"):
    """A part of a flavor, and how many. Without amounts: all that is free."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"EphemeralStorage": ("ephemeral-storage",)}

    cpu: Cores = 0
    memory: MB = 0
    ephemeral_storage: GB = 0
    count: Annotated[Count | None, Meta(description="Without it the minimum count")] = None

    @classmethod
    def of(cls, resources: Resources, count: int) -> PartDocument:
        return cls(resources.cpu // CORE, resources.memory, resources.disk, count)

    def resources(self) -> Resources | None:
        resources = parse_resources(self.cpu, self.memory, self.ephemeral_storage)
        return None if resources == NO_RESOURCES else resources


class SelectorBody(msgspec.Struct, frozen=True, rename="pascal"):
    """Which offers; fields that are left out, empty or 0 match anything. All bounds are inclusive."""

    wrapper: ClassVar[str] = "Selector"
    aliases: ClassVar[dict[str, tuple[str, ...]]] = {
        "FlavorType": _SPELLINGS["FlavorType"],
        "EphemeralStorage": ("ephemeral-storage",),
    }

    flavor_type: Text = ""
    architecture: Text = ""
    cpu: Cores = 0
    memory: MB = 0
    ephemeral_storage: GB = 0
    more_than_cpu: Cores = 0
    more_than_memory: MB = 0
    more_than_eph: GB = 0
    less_than_cpu: Cores = 0
    less_than_memory: MB = 0
    less_than_eph: GB = 0
    location: Text = ""
    max_price: Annotated[
        PriceDocument | None, Meta(description="Of all that is free, or of `Partition` if that is given")
    ] = None
    partition: Annotated[
        PartDocument | None, Meta(description="Offers of which this part can be taken, by their policies")
    ] = None
    sort: Annotated[
        str, Meta(pattern="^-?(price|cpu|memory|disk)$", description="With `-` before it: the largest first")
    ] = "price"
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Items in one answer")] = PAGE
    continue_: Annotated[str, Meta(max_length=512, description="`Continue` of the answer before")] = field(
        default="", name="Continue"
    )

    def selector(self) -> OfferSelector:
        part = self.partition
        return OfferSelector(
            kind=self.flavor_type,
            architecture=self.architecture,
            location=self.location,
            cpu=self.cpu * CORE or None,
            memory=self.memory or None,
            disk=self.ephemeral_storage or None,
            least_cpu=self.more_than_cpu * CORE or None,
            least_memory=self.more_than_memory or None,
            least_disk=self.more_than_eph or None,
            most_cpu=self.less_than_cpu * CORE or None,
            most_memory=self.less_than_memory or None,
            most_disk=self.less_than_eph or None,
            most_price=None if self.max_price is None else self.max_price.price(),
            part=None if part is None else part.resources(),
            count=None if part is None else part.count,
            sort=OfferSort(self.sort.removeprefix("-")),
            is_descending=self.sort.startswith("-"),
        )


class ReservationBody(msgspec.Struct, frozen=True):
    """What to hold, and for whom."""

    wrapper: ClassVar[str] = "Reservation"
    aliases: ClassVar[dict[str, tuple[str, ...]]] = {
        "FlavorID": _SPELLINGS["FlavorID"],
        "Buyer": ("buyerID",),
    }

    flavor_id: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="FlavorID")
    buyer: Annotated[IdentityDocument, Meta(description="Yourself; another buyer is refused")] = field(
        default_factory=IdentityDocument, name="Buyer"
    )
    partition: Annotated[
        PartDocument | None, Meta(description="Of the flavor; without it all that is free")
    ] = field(default=None, name="Partition")
    duration: Annotated[
        str, Meta(max_length=40, description="Of the contract, ISO 8601; without it the provider's setting")
    ] = field(default="", name="Duration")
    wait: Annotated[
        float, Meta(ge=0, le=3600, description="Seconds to wait in the queue if it is not free")
    ] = field(default=0.0, name="Wait")

    def duration_s(self) -> float | None:
        return float(parse_duration(self.duration)) if self.duration else None


class PurchaseBody(msgspec.Struct, frozen=True):
    """Which hold to buy."""

    wrapper: ClassVar[str] = "Purchase"

    transaction_id: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="TransactionID")


class TransactionDocument(msgspec.Struct, frozen=True):
    """A hold: a part of a flavor that is reserved for a buyer at a fixed price until it expires."""

    transaction_id: str = field(name="TransactionID")
    flavor_id: str = field(name="FlavorID")
    buyer: IdentityDocument = field(name="Buyer")
    start_time: str = field(name="StartTime")
    expiration_time: str = field(name="ExpirationTime")
    partition: PartDocument = field(name="Partition")
    price: PriceDocument = field(name="Price")
    total: Annotated[
        str, Meta(description="Price of the contract that it would become, from start to end")
    ] = field(name="Total")
    state: Annotated[str, Meta(description="`held`, `bought`, `cancelled` or `expired`")] = field(
        name="State"
    )
    contract_id: str | None = field(default=None, name="ContractID")


class CredentialsDocument(msgspec.Struct, frozen=True):
    """Access to what was bought: a secret of its buyer, because the token suffices."""

    cluster_id: Annotated[str, Meta(description="The seller")] = field(default="", name="clusterID")
    cluster_name: str = field(default="", name="clusterName")
    token: Annotated[str, Meta(description="For `Authorization: Skerry-Contract`")] = ""
    endpoint: Annotated[str, Meta(description="The URL of the contract tunnel")] = ""

    def __repr__(self) -> str:
        return f"Credentials({self.endpoint})"


class ContractDocument(msgspec.Struct, frozen=True):
    """A contract. `Document` has the same terms, signed, and is authoritative."""

    contract_id: str = field(name="ContractID")
    flavor: FlavorDocument = field(name="Flavor")
    buyer: str = field(name="Buyer")
    seller: str = field(name="Seller")
    transaction_id: str = field(name="TransactionID")
    partition: PartDocument = field(name="Partition")
    price: PriceDocument = field(name="Price")
    total: str = field(name="Total")
    start_time: str = field(name="StartTime")
    expiration_time: str = field(name="ExpirationTime")
    notice_seconds: float = field(name="NoticeSeconds")
    document: Annotated[str, Meta(description="A compact JWS of the seller: `skerry contract verify`")] = (
        field(name="Document")
    )
    credentials: Annotated[CredentialsDocument | None, Meta(description="For its buyer only")] = field(
        default=None, name="Credentials"
    )


class ContractStateDocument(ContractDocument, frozen=True, kw_only=True):
    """The contract as it stands now."""

    state: Annotated[
        str,
        Meta(description="`live`, `reclaimed` (ends at `ReclaimTime`), `released`, `withdrawn` or `expired`"),
    ] = field(name="State")
    reclaim_time: str | None = field(default=None, name="ReclaimTime")
    reason: str = field(default="", name="Reason")
    renewals: int = field(default=0, name="Renewals")
    countersigned: Annotated[str | None, Meta(description="With the buyer's signature around it")] = field(
        default=None, name="Countersigned"
    )


class FlavorBody(msgspec.Struct, frozen=True):
    """A flavor to sell."""

    wrapper: ClassVar[str] = "Flavor"
    aliases: ClassVar[dict[str, tuple[str, ...]]] = _SPELLINGS

    characteristics: Characteristics = field(name="Characteristics")
    price: PriceDocument = field(name="Price")
    flavor_id: Annotated[str, Meta(max_length=128, description="Without it one is made up")] = field(
        default="", name="FlavorID"
    )
    flavor_type: Annotated[str, Meta(max_length=128)] = field(default="k8slice", name="FlavorType")
    policy: PolicyBody = field(default_factory=PolicyBody, name="Policy")
    count: Annotated[Count, Meta(description="How many of it there are")] = field(default=1, name="Count")
    location: Text = field(default="", name="Location")
    expiration_time: Annotated[
        str, Meta(max_length=40, description="When the offer expires, ISO 8601; without it never")
    ] = field(default="", name="ExpirationTime")

    def flavor(self, new_id: OfferId, provider: CloudId, now: float) -> Offer:
        has = self.characteristics
        parts, together = self.policy.partitionable, self.policy.aggregatable
        return Offer(
            id=OfferId(self.flavor_id) if self.flavor_id else new_id,
            provider=provider,
            kind=self.flavor_type,
            resources=parse_resources(has.cpu, has.memory, has.ephemeral_storage),
            price=self.price.price(),
            created_at=now,
            architecture=has.architecture,
            gpus=has.gpu,
            persistent=Gigabytes(has.persistent_storage),
            partition=None
            if parts is None
            else Partition(
                parse_resources(parts.cpu_min, parts.memory_min),
                parse_resources(parts.cpu_step, parts.memory_step),
            ),
            aggregation=None if together is None else Aggregation(together.min_count, together.max_count),
            expires_at=parse_time(self.expiration_time, "ExpirationTime") if self.expiration_time else None,
            stock=self.count,
            location=self.location,
        )


def parse_duration(text: str) -> int:
    """The seconds of a `Duration`."""
    try:
        seconds = pricing.seconds_of(text)
    except errors.Invalid:
        seconds = 0
    if not seconds:
        raise errors.Invalid("Duration is one of ISO 8601 above zero, such as `PT2H`", field="Duration")
    return seconds


def parse_time(text: str, name: str) -> float:
    """A time in ISO 8601, in any zone that it names."""
    try:
        return moment(text)
    except ValueError:
        raise errors.Invalid(
            f"{name} is a time with its zone, such as `2026-01-31T12:00:00Z`", field=name
        ) from None


def flavor_document(
    offer: OfferSnapshot, owner: IdentityDocument, *, is_offered: bool = True
) -> FlavorDocument:
    """The offer now. Cores are whole numbers: a part of a core that is free is not shown."""
    flavor, shown = offer.flavor, offer.shown
    return FlavorDocument(
        flavor.id,
        flavor.provider,
        flavor.kind,
        Characteristics(
            flavor.architecture, shown.cpu // CORE, shown.memory, flavor.gpus, shown.disk, flavor.persistent
        ),
        _policy(flavor),
        owner,
        PriceDocument.of(pricing.prorate(flavor, shown)),
        OptionalFields(is_offered and offer.is_available, flavor.worker),
        flavor.version,
        offer.count if is_offered else 0,
        flavor.location,
        None if flavor.expires_at is None else iso(flavor.expires_at),
        None if flavor.partition is None else _whole(flavor),
    )


def _whole(flavor: Offer) -> WholeDocument:
    resources = flavor.resources
    return WholeDocument(
        resources.cpu // CORE, resources.memory, resources.disk, PriceDocument.of(flavor.price)
    )


def _policy(flavor: Offer) -> PolicyDocument:
    together = flavor.aggregation
    return PolicyDocument(
        None if flavor.partition is None else _partitionable(flavor.partition),
        None if together is None else Aggregatable(together.least, together.most),
    )


def _partitionable(parts: Partition) -> PartitionableDocument:
    least, step = parts.least, parts.step
    cpu_min, cpu_step = -(-least.cpu // CORE), -(-step.cpu // CORE)
    return PartitionableDocument(
        cpu_min,
        least.memory,
        cpu_step,
        step.memory,
        tagged_cpu_min=cpu_min,
        tagged_memory_min=least.memory,
        tagged_cpu_step=cpu_step,
        tagged_memory_step=step.memory,
    )


def transaction_document(hold: Hold, now: float, domain: str = "", ip: str = "") -> TransactionDocument:
    return TransactionDocument(
        hold.id,
        hold.flavor.id,
        IdentityDocument(domain, hold.buyer, ip),
        iso(hold.created_at),
        iso(hold.expires_at),
        PartDocument.of(hold.resources, hold.count),
        PriceDocument.of(hold.price),
        f"{hold.total:f}",
        hold.state(now),
        hold.contract,
    )


def contract_document(
    terms: Contract, document: bytes, owner: IdentityDocument, credentials: CredentialsDocument | None = None
) -> ContractDocument:
    """The response to a purchase: made only of the terms at that time, and so always the same."""
    return ContractDocument(
        terms.id,
        flavor_document(OfferSnapshot(terms.flavor, terms.flavor.whole), owner),
        terms.buyer,
        terms.seller,
        terms.hold,
        PartDocument.of(terms.resources, terms.count),
        PriceDocument.of(terms.price),
        f"{terms.total:f}",
        iso(terms.starts_at),
        iso(terms.ends_at),
        terms.notice_s,
        document.decode("ascii"),
        credentials,
    )


def contract_state(
    sale: ContractRecord, owner: IdentityDocument, now: float, credentials: CredentialsDocument | None = None
) -> ContractStateDocument:
    """The contract now, with the document of its present terms."""
    contract = sale.contract
    plain = contract_document(contract, sale.current, owner, credentials)
    return ContractStateDocument(
        **{name: getattr(plain, name) for name in plain.__struct_fields__},
        state=contract.state(now),
        reclaim_time=None if contract.reclaim_at is None else iso(contract.reclaim_at),
        reason=contract.reason,
        renewals=contract.renewals,
        countersigned=sale.countersigned.decode("ascii") or None,
    )
