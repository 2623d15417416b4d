"""Requests and responses of version 2 of the public program.

Its misspellings are kept: `charateristics`, and `location.altitude` for the country.

Quantities are texts, as in Kubernetes. Flavors of every kind have the shape of a slice of a cluster
(`k8slice`). Pure translation.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any, ClassVar, Final, Self

import msgspec
from msgspec import Meta, field

from skerry.kit import json_codec
from skerry.kit.clock import iso
from skerry.market.terms import pricing
from skerry.market.terms.selectors import OfferSelector, OfferSnapshot
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market import MAX_KUBECONFIG, NO_CONTACT, Contact, Contract, Hold, Offer
from skerry.model.resources import Resources
from skerry.wire.market_inputs import MAX_TEXT, Text
from skerry.wire.rear import documents, quantities
from skerry.wire.rear.documents_v1 import NOT_IN_PARTS, PODS, IdentityV1, PriceV1, reject_unsupported
from skerry.wire.rear.kubernetes_names import kubernetes_name
from skerry.wire.rear.quantities import Quantity

K8SLICE: Final = "k8slice"


# Fields of a buyer's contact that a peering by Liqo needs.
_CLUSTER: Final = "liqoID"
_KUBECONFIG: Final = "kubeconfig"
_MAX_DEPTH: Final = 8


class IdentityV2(IdentityV1, frozen=True):
    """A cloud."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"ID": ("nodeID",)}

    additional_information: Annotated[
        dict[str, Any] | msgspec.UnsetType,
        Meta(description="Such as `liqoID` and `kubeconfig`; stored with the deal, and not interpreted"),
    ] = field(default=msgspec.UNSET, name="additionalInformation")

    @classmethod
    def of_buyer(cls, buyer: CloudId, contact: Contact) -> Self:
        """The buyer's contact, under its identity here."""
        return cls(contact.node or buyer, contact.address, contact.domain, _details_of(contact))

    def contact(self) -> Contact:
        given = self.additional_information
        if given is msgspec.UNSET:
            return Contact(self.domain, self.ip)
        details = {name: value for name, value in given.items() if value is not None}
        _check_depth(details, _MAX_DEPTH)
        cluster = _text_of(details, _CLUSTER, MAX_TEXT)
        _text_of(details, _KUBECONFIG, MAX_KUBECONFIG)
        text = json_codec.encode(details).decode() if details else ""
        return Contact(self.domain, self.ip, cluster, details=text)


def _details_of(contact: Contact) -> dict[str, Any] | msgspec.UnsetType:
    if contact.details:
        return json_codec.decode(contact.details.encode(), dict[str, Any])
    both = {_CLUSTER: contact.cluster, _KUBECONFIG: contact.kubeconfig}
    return {name: text for name, text in both.items() if text} or msgspec.UNSET


def _text_of(details: dict[str, Any], name: str, most: int) -> str:
    """The text of that name, in any case; empty if there is none."""
    found = [value for spelt, value in details.items() if spelt.lower() == name.lower()]
    if any(not isinstance(value, str) or len(value) > most or value != found[0] for value in found):
        raise errors.Invalid(
            f"body: `additionalInformation.{name}` is one text of at most {most} characters", field=name
        )
    return str(found[0]) if found else ""


def _check_depth(value: Any, levels: int) -> None:
    if not isinstance(value, (dict, list)):
        return
    if levels == 0:
        raise errors.Invalid(
            f"body: `additionalInformation` is nested deeper than {_MAX_DEPTH} levels; send it flat",
            field="additionalInformation",
        )
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, levels - 1)


class GpuV2(msgspec.Struct, frozen=True):
    """Of one kind."""

    model: Text = ""
    cores: Quantity = "0"
    memory: Quantity = "0"


class CharacteristicsV2(msgspec.Struct, frozen=True):
    """What there is of it."""

    architecture: str
    cpu: Quantity
    memory: Quantity
    pods: Quantity
    storage: Quantity
    gpu: GpuV2 | msgspec.UnsetType = msgspec.UNSET


class PartitionabilityV2(msgspec.Struct, frozen=True, rename="camel"):
    """Partitioning: at least the minimum, and above it in whole steps; without it, the whole is the
    minimum."""

    cpu_min: Quantity
    memory_min: Quantity
    pods_min: Quantity
    cpu_step: Quantity
    memory_step: Quantity
    pods_step: Quantity


class PoliciesV2(msgspec.Struct, frozen=True):
    """In which parts it is sold."""

    partitionability: PartitionabilityV2


class SliceV2(msgspec.Struct, frozen=True):
    """A slice of a cluster."""

    charateristics: CharacteristicsV2
    properties: dict[str, Any]
    policies: PoliciesV2


class TypeV2(msgspec.Struct, frozen=True):
    """The kind of a flavor, and its data."""

    name: str
    data: SliceV2


class LocationV2(msgspec.Struct, frozen=True):
    """The location; the public program has the country in this field."""

    altitude: str


class FlavorV2(msgspec.Struct, frozen=True):
    """An offer, with its free capacity and the price of that."""

    flavor_id: str = field(name="flavorID")
    provider_id: str = field(name="providerID")
    type: TypeV2
    timestamp: str
    price: PriceV1
    owner: IdentityV2
    availability: bool
    location: LocationV2 | msgspec.UnsetType = msgspec.UNSET


def _filter(name: str, operator: str) -> Any:
    return field(default="", name=f"filter[{name}][{operator}]")


class FlavorFilterQueryV2(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which offers; filters that are left out match anything, and ranges are inclusive."""

    architecture: Text = _filter("architecture", "match")
    location: Text = _filter("location", "match")
    cpu: Quantity = _filter("cpu", "match")
    cpu_min: Quantity = _filter("cpu", "range][min")
    cpu_max: Quantity = _filter("cpu", "range][max")
    memory: Quantity = _filter("memory", "match")
    memory_min: Quantity = _filter("memory", "range][min")
    memory_max: Quantity = _filter("memory", "range][max")
    pods: Quantity = _filter("pods", "match")
    pods_min: Quantity = _filter("pods", "range][min")
    pods_max: Quantity = _filter("pods", "range][max")
    storage: Quantity = _filter("storage", "match")
    storage_min: Quantity = _filter("storage", "range][min")
    storage_max: Quantity = _filter("storage", "range][max")
    category: Text = _filter("category", "match")  # of services, which are not sold here
    tags: Text = _filter("tags", "match")

    def selector(self, kind: str) -> OfferSelector | None:
        """None if nothing can match: all flavors have the same number of pods, and none has a category or
        tags."""
        if self.category or self.tags:
            return None
        within, of = quantities.within, "filter[{}]".format
        pods = within(self.pods, self.pods_min, self.pods_max, quantities.ONE, of("pods"))
        cpu = within(self.cpu, self.cpu_min, self.cpu_max, quantities.MILLICORE, of("cpu"))
        memory = within(self.memory, self.memory_min, self.memory_max, quantities.MEGABYTE, of("memory"))
        disk = within(self.storage, self.storage_min, self.storage_max, quantities.GIGABYTE, of("storage"))
        if pods is None or cpu is None or memory is None or disk is None:
            return None
        if not pods[0] <= PODS <= pods[1]:
            return None
        return OfferSelector(
            kind=kind,
            architecture=self.architecture,
            location=self.location,
            least_cpu=cpu[0],
            most_cpu=cpu[1],
            least_memory=memory[0],
            most_memory=memory[1],
            least_disk=disk[0],
            most_disk=disk[1],
        )


class SliceConfigurationV2(msgspec.Struct, frozen=True):
    """A part of a slice."""

    cpu: Quantity = "0"
    memory: Quantity = "0"
    pods: Quantity = "0"
    gpu: GpuV2 | msgspec.UnsetType = msgspec.UNSET
    storage: Quantity = "0"


class ConfigurationV2(msgspec.Struct, frozen=True):
    """Which part, of which kind of flavor."""

    data: SliceConfigurationV2
    type: Text = K8SLICE

    @classmethod
    def of(cls, resources: Resources, flavor: Offer) -> ConfigurationV2:
        return cls(
            SliceConfigurationV2(
                quantities.cores(resources.cpu),
                quantities.megabytes(resources.memory),
                quantities.plain(PODS),
                storage=quantities.gigabytes(resources.disk),
            ),
            flavor.kind,
        )

    def resources(self) -> Resources:
        if self.type.lower() != K8SLICE:
            raise errors.Unprocessable(f"only a {K8SLICE} can be taken in part, and this says {self.type!r}")
        data = self.data
        if data.gpu is not msgspec.UNSET:
            reject_unsupported(data.gpu.cores, "gpu.cores", NOT_IN_PARTS)
            reject_unsupported(data.gpu.memory, "gpu.memory", NOT_IN_PARTS)
        return quantities.read_resources(data.cpu, data.memory, data.storage, "storage")


class ReserveV2(msgspec.Struct, frozen=True):
    """What to hold, and for whom."""

    aliases: ClassVar[dict[str, tuple[str, ...]]] = {"flavorID": ("flavourID",), "buyerID": ("buyer",)}

    flavor_id: Annotated[str, Meta(min_length=1, max_length=128)] = field(name="flavorID")
    buyer_id: IdentityV2 = field(default_factory=IdentityV2, name="buyerID")
    configuration: ConfigurationV2 | None = None


class PurchaseV2(msgspec.Struct, frozen=True):
    """What the public program sends; nothing of it is needed here."""

    liqo_credentials: dict[str, Any] | None = field(default=None, name="liqoCredentials")
    ingress_telemetry_endpoint: dict[str, Any] | None = field(default=None, name="ingressTelemetryEndpoint")


class TransactionV2(msgspec.Struct, frozen=True):
    """A hold."""

    transaction_id: str = field(name="transactionID")
    flavor_id: str = field(name="flavorID")
    configuration: ConfigurationV2
    buyer: IdentityV2
    cluster_id: str = field(name="clusterID")
    expiration_time: str = field(name="expirationTime")


class CredentialsV2(msgspec.Struct, frozen=True):
    """Access to what was bought: secrets of its buyer."""

    cluster_id: str = field(default="", name="clusterID")
    kubeconfig: Annotated[
        str,
        Meta(
            description="Base64; its cluster's server is the contract tunnel, its user's token the credential"
        ),
    ] = ""

    def __repr__(self) -> str:
        return f"CredentialsV2({self.cluster_id})"

    @classmethod
    def of(cls, credentials: documents.CredentialsDocument | None) -> CredentialsV2:
        if credentials is None:
            return cls()
        name = credentials.cluster_id
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": {"server": credentials.endpoint}}],
            "users": [{"name": name, "user": {"token": credentials.token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
        return cls(name, base64.b64encode(json_codec.encode(config)).decode("ascii"))


class ContractV2(msgspec.Struct, frozen=True):
    """A contract. `extraInformation.document` has the same terms, signed."""

    contract_id: str = field(name="contractID")
    transaction_id: str = field(name="transactionID")
    flavor: FlavorV2
    buyer_id: IdentityV2 = field(name="buyerID")
    buyer_cluster_id: str = field(name="buyerClusterID")
    seller: IdentityV2
    peering_target_credentials: CredentialsV2 = field(name="peeringTargetCredentials")
    expiration_time: str = field(name="expirationTime")
    extra_information: dict[str, str] = field(name="extraInformation")
    configuration: ConfigurationV2


def flavor_v2(offer: OfferSnapshot, owner: documents.IdentityDocument) -> FlavorV2:
    """The offer now."""
    flavor, shown = offer.flavor, offer.shown
    price = pricing.prorate(flavor, shown)
    return FlavorV2(
        kubernetes_name(flavor.id),
        kubernetes_name(flavor.provider),
        TypeV2(
            flavor.kind,
            SliceV2(
                CharacteristicsV2(
                    flavor.architecture,
                    quantities.cores(shown.cpu),
                    quantities.megabytes(shown.memory),
                    quantities.plain(PODS),
                    quantities.gigabytes(shown.disk),
                    GpuV2(cores=quantities.plain(flavor.gpus)) if flavor.gpus else msgspec.UNSET,
                ),
                {},
                PoliciesV2(_partitionability(flavor)),
            ),
        ),
        iso(flavor.created_at),
        PriceV1(f"{price.amount:f}", price.currency, price.period),
        IdentityV2.of(owner),
        offer.is_available,
        LocationV2(flavor.location) if flavor.location else msgspec.UNSET,
    )


def _partitionability(flavor: Offer) -> PartitionabilityV2:
    parts = flavor.partition
    least = flavor.resources if parts is None else parts.least
    step = flavor.resources if parts is None else parts.step
    return PartitionabilityV2(
        quantities.cores(least.cpu),
        quantities.megabytes(least.memory),
        "0",
        quantities.cores(step.cpu),
        quantities.megabytes(step.memory),
        "0",
    )


def transaction_v2(hold: Hold) -> TransactionV2:
    return TransactionV2(
        hold.id,
        kubernetes_name(hold.flavor.id),
        ConfigurationV2.of(hold.taken, hold.flavor),
        IdentityV2.of_buyer(hold.buyer, hold.contact),
        hold.contact.cluster,
        iso(hold.expires_at),
    )


def contract_v2(
    terms: Contract,
    document: bytes,
    owner: documents.IdentityDocument,
    credentials: documents.CredentialsDocument | None = None,
    contact: Contact = NO_CONTACT,
) -> ContractV2:
    return ContractV2(
        terms.id,
        terms.hold,
        flavor_v2(OfferSnapshot(terms.flavor, terms.flavor.whole), owner),
        IdentityV2.of_buyer(terms.buyer, contact),
        contact.cluster,
        IdentityV2.of(owner),
        CredentialsV2.of(credentials),
        iso(terms.ends_at),
        {"document": document.decode("ascii")},
        ConfigurationV2.of(terms.taken, terms.flavor),
    )
