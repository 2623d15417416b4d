"""What comes in and goes out as version 1 of the public program spells it: `flavour`, quantities as texts.

Pure translation. Fields that have no meaning here (`pods`, cluster ids) are read and written, and not minded.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec
from msgspec import field

from skerry.kit.clock import iso
from skerry.market import pricing
from skerry.market.selecting import Offer, Selector, Sort
from skerry.model import errors
from skerry.model.market import Contract, Flavor, Hold
from skerry.model.room import Gigabytes, Megabytes, Millicores, Room
from skerry.wire.rear import documents, quantities
from skerry.wire.rear.documents import Text
from skerry.wire.rear.quantities import Quantity

# What Kubernetes runs on a node unless told otherwise. Here pods are not counted.
PODS: Final = 110
# Go's zero time: a flavour that does not expire.
_NEVER: Final = "0001-01-01T00:00:00Z"
_ANY: Final = ""
NOT_IN_PARTS: Final = "it is not sold in parts"


class IdentityV1(msgspec.Struct, frozen=True):
    """A cloud."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"ID": ("nodeID",), "domain": ("domainName",)}

    id: Text = field(default="", name="ID")
    ip: Text = field(default="", name="IP")
    domain: Text = ""

    @classmethod
    def of(cls, identity: documents.Identity) -> IdentityV1:
        return cls(identity.node_id, identity.ip, identity.domain)


class PriceV1(msgspec.Struct, frozen=True):
    """So much money for each period."""

    amount: str
    currency: str
    period: str


class CharacteristicsV1(msgspec.Struct, frozen=True, rename="camel"):
    """What there is of it."""

    cpu: Quantity
    memory: Quantity
    pods: Quantity
    storage: Quantity
    ephemeral_storage: Quantity
    gpu: Quantity
    architecture: str


class PartitionableV1(msgspec.Struct, frozen=True, rename="camel"):
    """Parts: at least the minimum, and from there in whole steps."""

    cpu_minimum: Quantity
    memory_minimum: Quantity
    pods_minimum: Quantity
    cpu_step: Quantity
    memory_step: Quantity
    pods_step: Quantity


class AggregatableV1(msgspec.Struct, frozen=True, rename="camel"):
    """How many may be taken together."""

    min_count: int
    max_count: int


class PolicyV1(msgspec.Struct, frozen=True, omit_defaults=True):
    """In which parts, and how many at once."""

    partitionable: PartitionableV1 | None = None
    aggregatable: AggregatableV1 | None = None


class OptionalFieldsV1(msgspec.Struct, frozen=True):
    """Whether something of it can be had now, and the node that it is of."""

    availability: bool
    worker_id: str = field(name="workerID")


class Flavour(msgspec.Struct, frozen=True):
    """An offer, with what is free of it now and the price of that."""

    flavour_id: str = field(name="flavourID")
    provider_id: str = field(name="providerID")
    type: str
    characteristics: CharacteristicsV1
    policy: PolicyV1
    owner: IdentityV1
    price: PriceV1
    expiration_time: str = field(name="expirationTime")
    quantity_available: int = field(name="quantityAvailable")
    optional_fields: OptionalFieldsV1 = field(name="optionalFields")


class MatchSelector(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly these amounts; what is left out, or 0, is no matter."""

    cpu: Quantity = _ANY
    memory: Quantity = _ANY
    pods: Quantity = _ANY
    storage: Quantity = _ANY
    ephemeral_storage: Quantity = _ANY
    gpu: Quantity = _ANY


class RangeSelector(msgspec.Struct, frozen=True, rename="camel"):
    """From one amount to another, both inclusive; what is left out, or 0, is no matter."""

    min_cpu: Quantity = _ANY
    min_memory: Quantity = _ANY
    min_pods: Quantity = _ANY
    min_storage: Quantity = _ANY
    min_eph: Quantity = _ANY
    min_gpu: Quantity = _ANY
    max_cpu: Quantity = _ANY
    max_memory: Quantity = _ANY
    max_pods: Quantity = _ANY
    max_storage: Quantity = _ANY
    max_eph: Quantity = _ANY
    max_gpu: Quantity = _ANY


class SelectorV1(msgspec.Struct, frozen=True, rename="camel"):
    """Which offers: by exact amounts or by ranges, and not by both."""

    wrapper: ClassVar[str] = "selector"

    type: Text = ""
    architecture: Text = ""
    range_selector: RangeSelector | None = None
    match_selector: MatchSelector | None = None

    def selector(self) -> Selector:
        if self.range_selector is not None and self.match_selector is not None:
            raise errors.Invalid("send rangeSelector or matchSelector, not both", field="matchSelector")
        exact = self.match_selector or MatchSelector()
        bounds = self.range_selector or RangeSelector()
        for text, name in (
            (exact.gpu, "gpu"),
            (exact.storage, "storage"),
            (bounds.min_gpu, "minGpu"),
            (bounds.max_gpu, "maxGpu"),
            (bounds.min_storage, "minStorage"),
            (bounds.max_storage, "maxStorage"),
        ):
            refuse(text, name, "offers are not selected by it")
        return Selector(
            kind=self.type,
            architecture=self.architecture,
            cpu=_cpu(exact.cpu, "cpu"),
            memory=_memory(exact.memory, "memory"),
            disk=_disk(exact.ephemeral_storage, "ephemeralStorage"),
            least_cpu=_cpu(bounds.min_cpu, "minCpu"),
            least_memory=_memory(bounds.min_memory, "minMemory"),
            least_disk=_disk(bounds.min_eph, "minEph"),
            most_cpu=_cpu(bounds.max_cpu, "maxCpu"),
            most_memory=_memory(bounds.max_memory, "maxMemory"),
            most_disk=_disk(bounds.max_eph, "maxEph"),
            sort=Sort.CPU,
            is_descending=True,
        )


def _cpu(text: str, name: str) -> int | None:
    return (quantities.read(text, quantities.MILLICORE, name) or None) if text else None


def _memory(text: str, name: str) -> int | None:
    return (quantities.read(text, quantities.MEGABYTE, name) or None) if text else None


def _disk(text: str, name: str) -> int | None:
    return (quantities.read(text, quantities.GIGABYTE, name) or None) if text else None


def refuse(text: str, name: str, why: str) -> None:
    """Raise `Unprocessable` if a buyer asks for some of what is not counted here; none of it is no matter."""
    if text and quantities.is_some(text, name):
        raise errors.Unprocessable(f"{name}: {why} here; leave it out")


class PartitionV1(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a flavour."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"ephemeralStorage": ("ephemeral-storage",)}

    cpu: Quantity = "0"
    memory: Quantity = "0"
    pods: Quantity = "0"
    ephemeral_storage: Quantity = "0"
    gpu: Quantity = "0"
    storage: Quantity = "0"
    architecture: Text = ""

    @classmethod
    def of(cls, room: Room, flavor: Flavor) -> PartitionV1:
        return cls(
            quantities.cores(room.cpu),
            quantities.megabytes(room.memory),
            quantities.plain(PODS),
            quantities.gigabytes(room.disk),
            architecture=flavor.architecture,
        )

    def room(self) -> Room | None:
        refuse(self.gpu, "gpu", NOT_IN_PARTS)
        refuse(self.storage, "storage", NOT_IN_PARTS)
        asked = Room(
            Millicores(quantities.read(self.cpu, quantities.MILLICORE, "cpu")),
            Megabytes(quantities.read(self.memory, quantities.MEGABYTE, "memory")),
            Gigabytes(quantities.read(self.ephemeral_storage, quantities.GIGABYTE, "ephemeralStorage")),
        )
        return None if asked == Room() else asked


class ReserveV1(msgspec.Struct, frozen=True):
    """What to hold, and for whom."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"flavourID": ("flavorID",), "buyerID": ("buyer",)}

    flavour_id: Text = field(default="", name="flavourID")
    buyer_id: IdentityV1 = field(default_factory=IdentityV1, name="buyerID")
    cluster_id: Text = field(default="", name="clusterID")
    partition: PartitionV1 | None = None


class PurchaseV1(msgspec.Struct, frozen=True):
    """Which hold to buy: the one of the path."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"flavourID": ("flavorID",)}

    transaction_id: Text = field(default="", name="transactionID")
    flavour_id: Text = field(default="", name="flavourID")
    buyer_id: Text = field(default="", name="buyerID")


class TransactionV1(msgspec.Struct, frozen=True):
    """A hold."""

    transaction_id: str = field(name="transactionID")
    flavour_id: str = field(name="flavourID")
    partition: PartitionV1
    buyer: IdentityV1
    cluster_id: str = field(name="clusterID")
    start_time: str = field(name="startTime")


class ContractV1(msgspec.Struct, frozen=True):
    """A part of a flavour, bought. `extraInformation.document` holds the same terms, signed."""

    contract_id: str = field(name="contractID")
    transaction_id: str = field(name="transactionID")
    flavour: Flavour
    buyer_id: IdentityV1 = field(name="buyerID")
    buyer_cluster_id: str = field(name="buyerClusterID")
    seller: IdentityV1
    seller_credentials: documents.Credentials = field(name="sellerCredentials")
    expiration_time: str = field(name="expirationTime")
    extra_information: dict[str, str] = field(name="extraInformation")
    partition: PartitionV1


class PurchasedV1(msgspec.Struct, frozen=True):
    """The contract, and that it is one."""

    contract: ContractV1
    status: str


def flavour(offer: Offer, owner: documents.Identity) -> Flavour:
    """The offer as it is now."""
    flavor, shown = offer.flavor, offer.shown
    price = pricing.prorate(flavor, shown)
    return Flavour(
        flavor.id,
        flavor.provider,
        flavor.kind,
        CharacteristicsV1(
            quantities.cores(shown.cpu),
            quantities.megabytes(shown.memory),
            quantities.plain(PODS),
            quantities.gigabytes(flavor.persistent),
            quantities.gigabytes(shown.disk),
            quantities.plain(flavor.gpus),
            flavor.architecture,
        ),
        _policy(flavor),
        IdentityV1.of(owner),
        PriceV1(f"{price.amount:f}", price.currency, price.period),
        _NEVER if flavor.expires_at is None else iso(flavor.expires_at),
        offer.count,
        OptionalFieldsV1(offer.is_available, flavor.worker),
    )


def _policy(flavor: Flavor) -> PolicyV1:
    parts, together = flavor.partition, flavor.aggregation
    return PolicyV1(
        None
        if parts is None
        else PartitionableV1(
            quantities.cores(parts.least.cpu),
            quantities.megabytes(parts.least.memory),
            "0",
            quantities.cores(parts.step.cpu),
            quantities.megabytes(parts.step.memory),
            "0",
        ),
        None if together is None else AggregatableV1(together.least, together.most),
    )


def transaction(hold: Hold, cluster: str = "") -> TransactionV1:
    return TransactionV1(
        hold.id,
        hold.flavor.id,
        PartitionV1.of(hold.room, hold.flavor),
        IdentityV1(hold.buyer),
        cluster,
        iso(hold.created_at),
    )


def purchased(
    terms: Contract,
    document: bytes,
    owner: documents.Identity,
    credentials: documents.Credentials | None = None,
) -> PurchasedV1:
    return PurchasedV1(
        ContractV1(
            terms.id,
            terms.hold,
            flavour(Offer(terms.flavor, terms.flavor.whole), owner),
            IdentityV1(terms.buyer),
            "",
            IdentityV1.of(owner),
            credentials or documents.Credentials(),
            iso(terms.ends_at),
            {"document": document.decode("ascii")},
            PartitionV1.of(terms.room, terms.flavor),
        ),
        "Completed",
    )
