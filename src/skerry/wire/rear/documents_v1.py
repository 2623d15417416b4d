"""Requests and responses of version 1 of the public program: `flavour`, quantities as texts.

Pure translation. Fields without a meaning here (`pods`, cluster ids) are accepted and written, and otherwise
ignored.
"""

from __future__ import annotations

from fractions import Fraction
from typing import ClassVar, Final, NamedTuple, Self

import msgspec
from msgspec import field

from skerry.kit.clock import iso
from skerry.market.terms import pricing
from skerry.market.terms.selectors import OfferSelector, OfferSnapshot, OfferSort
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import NO_CONTACT, Contact, Contract, Hold, Offer
from skerry.model.resources import MAX_AMOUNT, Resources
from skerry.wire.market_inputs import Text
from skerry.wire.rear import documents, quantities
from skerry.wire.rear.kubernetes_names import kubernetes_name
from skerry.wire.rear.quantities import Quantity

# The default maximum of Kubernetes on a node. Pods are not counted here.
PODS: Final = 110
# Go's zero time: a flavour that does not expire.
_NEVER: Final = "0001-01-01T00:00:00Z"
_ANY: Final = ""
# The name of a slice of a cluster in this version.
_KIND_V1: Final = "k8s-fluidos"
_KIND: Final = "k8slice"
NOT_IN_PARTS: Final = "it is not sold in parts"


class IdentityV1(msgspec.Struct, frozen=True):
    """A cloud."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"ID": ("nodeID",), "domain": ("domainName",)}

    id: Text = field(default="", name="ID")
    ip: Text = field(default="", name="IP")
    domain: Text = ""

    @classmethod
    def of(cls, identity: documents.IdentityDocument) -> Self:
        return cls(kubernetes_name(identity.node_id), identity.ip, identity.domain)

    @classmethod
    def of_buyer(cls, buyer: CloudId, contact: Contact) -> Self:
        """The buyer's contact, under its identity here."""
        return cls(contact.node or buyer, contact.address, contact.domain)


class PriceV1(msgspec.Struct, frozen=True):
    """A price per period."""

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
    """Partitioning: at least the minimum, and above it in whole steps."""

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


class FlavourV1(msgspec.Struct, frozen=True):
    """An offer, with its free capacity and the price of that."""

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


class MatchSelectorV1(msgspec.Struct, frozen=True, rename="camel"):
    """Exactly these amounts; fields that are left out, or 0, match anything."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"ephemeralStorage": ("ephemeral-storage",)}

    cpu: Quantity = _ANY
    memory: Quantity = _ANY
    pods: Quantity = _ANY
    storage: Quantity = _ANY
    ephemeral_storage: Quantity = _ANY
    gpu: Quantity = _ANY


class RangeSelectorV1(msgspec.Struct, frozen=True, rename="camel"):
    """Ranges of amounts, inclusive; fields that are left out, or 0, match anything."""

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


Range = tuple[int, int]  # both inclusive


class Search(NamedTuple):
    """A search for offers: by what the catalog has an index of, and by what is checked for each."""

    selector: OfferSelector
    gpus: Range = (0, MAX_AMOUNT)
    persistent: Range = (0, MAX_AMOUNT)

    @property
    def is_plain(self) -> bool:
        """True if nothing is checked for each offer."""
        return self.gpus == self.persistent == (0, MAX_AMOUNT)

    def matches(self, flavor: Offer) -> bool:
        (least_gpus, most_gpus), (least, most) = self.gpus, self.persistent
        return least_gpus <= flavor.gpus <= most_gpus and least <= flavor.persistent <= most


class SelectorV1(msgspec.Struct, frozen=True, rename="camel"):
    """Which offers: by exact amounts or by ranges, and not by both."""

    wrapper: ClassVar[str] = "selector"

    type: Text = ""
    architecture: Text = ""
    range_selector: RangeSelectorV1 | None = None
    match_selector: MatchSelectorV1 | None = None

    def search(self) -> Search | None:
        """The search; None if nothing can match."""
        if self.range_selector is not None and self.match_selector is not None:
            raise errors.Invalid("send rangeSelector or matchSelector, not both", field="matchSelector")
        exact = self.match_selector or MatchSelectorV1()
        bounds = self.range_selector or RangeSelectorV1()
        found = (
            _within(exact.cpu, bounds.min_cpu, bounds.max_cpu, quantities.MILLICORE, "cpu"),
            _within(exact.memory, bounds.min_memory, bounds.max_memory, quantities.MEGABYTE, "memory"),
            _within(
                exact.ephemeral_storage,
                bounds.min_eph,
                bounds.max_eph,
                quantities.GIGABYTE,
                "ephemeralStorage",
            ),
            _within(exact.gpu, bounds.min_gpu, bounds.max_gpu, quantities.ONE, "gpu"),
            _within(exact.storage, bounds.min_storage, bounds.max_storage, quantities.GIGABYTE, "storage"),
        )
        ranges = [each for each in found if each is not None]
        if len(ranges) < len(found):
            return None
        (cpu, memory, disk, gpus, persistent) = ranges
        selector = OfferSelector(
            kind=_KIND if self.type == _KIND_V1 else self.type,
            architecture=self.architecture,
            least_cpu=cpu[0],
            most_cpu=cpu[1],
            least_memory=memory[0],
            most_memory=memory[1],
            least_disk=disk[0],
            most_disk=disk[1],
            sort=OfferSort.CPU,
            is_descending=True,
        )
        return Search(selector, gpus, persistent)


def _within(exact: str, least: str, most: str, unit: Fraction, name: str) -> Range | None:
    """As `quantities.within`; 0 is the same as none."""

    def requested(text: str) -> str:
        return text if text and quantities.is_some(text, name) else ""

    return quantities.within(requested(exact), requested(least), requested(most), unit, name)


def reject_unsupported(text: str, name: str, why: str) -> None:
    """Raise `Unprocessable` if a buyer requests something that is not sold here; 0 of it is accepted."""
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
    def of(cls, resources: Resources, flavor: Offer) -> PartitionV1:
        return cls(
            quantities.cores(resources.cpu),
            quantities.megabytes(resources.memory),
            quantities.plain(PODS),
            quantities.gigabytes(resources.disk),
            architecture=flavor.architecture,
        )

    def resources(self) -> Resources | None:
        reject_unsupported(self.gpu, "gpu", NOT_IN_PARTS)
        reject_unsupported(self.storage, "storage", NOT_IN_PARTS)
        requested = quantities.read_resources(
            self.cpu, self.memory, self.ephemeral_storage, "ephemeralStorage"
        )
        return None if requested == Resources() else requested


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
    """A contract. `extraInformation.document` has the same terms, signed."""

    contract_id: str = field(name="contractID")
    transaction_id: str = field(name="transactionID")
    flavour: FlavourV1
    buyer_id: IdentityV1 = field(name="buyerID")
    buyer_cluster_id: str = field(name="buyerClusterID")
    seller: IdentityV1
    seller_credentials: documents.CredentialsDocument = field(name="sellerCredentials")
    expiration_time: str = field(name="expirationTime")
    extra_information: dict[str, str] = field(name="extraInformation")
    partition: PartitionV1


class PurchaseResultV1(msgspec.Struct, frozen=True):
    """The contract, and its status."""

    contract: ContractV1
    status: str


def flavour_v1(offer: OfferSnapshot, owner: documents.IdentityDocument) -> FlavourV1:
    """The offer now."""
    flavor, shown = offer.flavor, offer.shown
    price = pricing.prorate(flavor, shown)
    return FlavourV1(
        kubernetes_name(flavor.id),
        kubernetes_name(flavor.provider),
        _KIND_V1 if flavor.kind == _KIND else flavor.kind,
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


def _policy(flavor: Offer) -> PolicyV1:
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


def transaction_v1(hold: Hold) -> TransactionV1:
    return TransactionV1(
        hold.id,
        kubernetes_name(hold.flavor.id),
        PartitionV1.of(hold.taken, hold.flavor),
        IdentityV1.of_buyer(hold.buyer, hold.contact),
        hold.contact.cluster,
        iso(hold.created_at),
    )


def purchase_result_v1(
    terms: Contract,
    document: bytes,
    owner: documents.IdentityDocument,
    credentials: documents.CredentialsDocument | None = None,
    contact: Contact = NO_CONTACT,
) -> PurchaseResultV1:
    return PurchaseResultV1(
        ContractV1(
            terms.id,
            terms.hold,
            flavour_v1(OfferSnapshot(terms.flavor, terms.flavor.whole), owner),
            IdentityV1.of_buyer(terms.buyer, contact),
            contact.cluster,
            IdentityV1.of(owner),
            credentials or documents.CredentialsDocument(),
            iso(terms.ends_at),
            {"document": document.decode("ascii")},
            PartitionV1.of(terms.taken, terms.flavor),
        ),
        "Completed",
    )
