"""Requests of a buyer to a provider in the document's dialect, and decoding of the responses.

Total: a response gives a value, or `Invalid`. Only the fields that a buyer needs are decoded. Errors keep
their kind and message, so that the caller knows what to do. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import field

from skerry.kit import json_codec
from skerry.market.buyer.provider_client import RemoteContract, RemoteContractStatus, RemoteHold
from skerry.market.buyer.quotes import CapacityRequest
from skerry.market.terms.selectors import MAX_PAGE, OfferSnapshot
from skerry.model import errors, ids
from skerry.model.ids import CloudId, HoldId, OfferId
from skerry.model.market import Aggregation, Offer, Partition
from skerry.model.resources import NO_RESOURCES, Gigabytes, Resources
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.tunnels import tunnel_codec
from skerry.wire.market_inputs import CORE, parse_resources
from skerry.wire.rear.contract_status import ContractStatusMessage
from skerry.wire.rear.documents import (
    Characteristics,
    PartDocument,
    PolicyBody,
    PriceDocument,
    WholeDocument,
    parse_time,
)

_EXACT: Final = 100  # offers of exactly the requested amount: the cheapest are enough
_MAX_TEXT_LENGTH: Final = 300
_MAX_CREDENTIAL: Final = 1024
# Errors of a provider that are passed on as they are; all others are `FailedPrecondition`.
_PASSED_ON: Final = frozenset(
    {"no-room", "not-found", "conflict", "expired", "unprocessable", "overloaded", "unavailable", "timed-out"}
)
_BY_STATUS: Final = {404: "not-found", 409: "conflict", 410: "expired", 429: "overloaded", 503: "unavailable"}
_OVER: Final = frozenset({"expired", "released", "withdrawn"})


class FlavorReply(msgspec.Struct, frozen=True):
    """A flavor in a list."""

    flavor_id: str = field(name="FlavorID")
    flavor_type: str = field(name="FlavorType")
    provider_id: str = field(name="ProviderID")
    characteristics: Characteristics = field(name="Characteristics")
    price: PriceDocument = field(name="Price")
    policy: PolicyBody = field(default_factory=PolicyBody, name="Policy")
    version: int = field(default=1, name="Version")
    count: int = field(default=1, name="Count")
    location: str = field(default="", name="Location")
    whole: WholeDocument | None = field(default=None, name="Whole")


class FlavorListReply(msgspec.Struct, frozen=True):
    items: list[FlavorReply] = field(name="Items")


class TransactionReply(msgspec.Struct, frozen=True):
    """A hold."""

    transaction_id: str = field(name="TransactionID")
    partition: PartDocument = field(name="Partition")
    price: PriceDocument = field(name="Price")


class CredentialsReply(msgspec.Struct, frozen=True):
    """The credential of the contract tunnel, which is at the peer, whatever `endpoint` says."""

    token: str = ""

    def __repr__(self) -> str:
        return "Credentials()"


class ContractReply(msgspec.Struct, frozen=True):
    """A contract; only the signed document is trusted."""

    contract_id: str = field(name="ContractID")
    document: str = field(name="Document")
    credentials: CredentialsReply | None = field(default=None, name="Credentials")


class ContractStateReply(msgspec.Struct, frozen=True):
    """The state of a contract."""

    state: str = field(name="State")
    expiration_time: str = field(name="ExpirationTime")
    reclaim_time: str | None = field(default=None, name="ReclaimTime")
    reason: str = field(default="", name="Reason")


class EmptyReply(msgspec.Struct, frozen=True):
    """A response of which no field is needed."""


class _ErrorReply(msgspec.Struct, frozen=True):
    error: str = ""
    code: str = ""


# Asking


def selectors(request: CapacityRequest) -> Sequence[Mapping[str, Any]]:
    """Selectors of offers: for all; or for the exact amount, and for larger ones."""
    resources = request.resources
    same = {"Architecture": request.architecture, "Location": request.where, "Sort": "price"}
    if resources == NO_RESOURCES:
        return [{**same, "Limit": MAX_PAGE}]
    part = {
        "Cpu": -(-resources.cpu // CORE),
        "Memory": resources.memory,
        "EphemeralStorage": resources.disk,
        "Count": request.count,
    }
    larger = {
        "MoreThanCpu": resources.cpu // CORE,
        "MoreThanMemory": resources.memory,
        "MoreThanEph": resources.disk,
    }
    return [{**same, "Partition": part, "Limit": _EXACT}, {**same, **larger, "Limit": MAX_PAGE}]


def reservation(
    flavor: OfferId, resources: Resources, count: int, duration_s: float | None
) -> Mapping[str, Any]:
    body: dict[str, Any] = {"FlavorID": flavor, "Partition": PartDocument.of(resources, count)}
    if duration_s is not None:
        body["Duration"] = format_duration(duration_s)
    return body


def format_duration(seconds: float) -> str:
    """ISO 8601, in whole seconds, rounded up."""
    return f"PT{math.ceil(seconds)}S"


# Reading


def decode_offer(item: FlavorReply, provider: CloudId) -> OfferSnapshot:
    """The offer, with its total and its free capacity."""
    if item.provider_id != provider:
        raise errors.Invalid(f"it sells something of {item.provider_id[: ids.MAX_ID]!r}, not of its own")
    has = item.characteristics
    shown = whole = parse_resources(has.cpu, has.memory, has.ephemeral_storage)
    price = item.price
    parts, together = item.policy.partitionable, item.policy.aggregatable
    if parts is not None and item.whole is not None:
        whole = parse_resources(item.whole.cpu, item.whole.memory, item.whole.ephemeral_storage)
        price = item.whole.price
    flavor = Offer(
        id=OfferId(item.flavor_id),
        provider=provider,
        kind=item.flavor_type,
        resources=whole,
        price=price.price(),
        created_at=0.0,
        architecture=has.architecture,
        gpus=has.gpu,
        persistent=Gigabytes(has.persistent_storage),
        partition=None
        if parts is None
        else Partition(
            parse_resources(parts.cpu_min, parts.memory_min, 0),
            parse_resources(parts.cpu_step, parts.memory_step, 0),
        ),
        aggregation=None if together is None else Aggregation(together.min_count, together.max_count),
        version=item.version,
        stock=1 if parts is not None else max(1, item.count),
        location=item.location,
    )
    return OfferSnapshot(flavor, shown if parts is not None else shown * max(0, item.count))


def decode_hold(answer: TransactionReply) -> RemoteHold:
    part = answer.partition
    return RemoteHold(
        HoldId(ids.check_id(answer.transaction_id, "TransactionID")),
        parse_resources(part.cpu, part.memory, part.ephemeral_storage),
        part.count or 1,
        answer.price.price(),
    )


def decode_contract(answer: ContractReply) -> RemoteContract:
    credential = "" if answer.credentials is None else answer.credentials.token
    if len(credential) > _MAX_CREDENTIAL or not credential.isascii() or not credential.isprintable():
        raise errors.Invalid("its credential is no header's value", field="Credentials")
    return RemoteContract(
        ids.check_id(answer.contract_id, "ContractID"), answer.document.encode("utf-8"), credential
    )


def decode_contract_state(answer: ContractStateReply) -> RemoteContractStatus:
    return RemoteContractStatus(
        ends_at=parse_time(answer.expiration_time, "ExpirationTime"),
        reclaim_at=None if answer.reclaim_time is None else parse_time(answer.reclaim_time, "ReclaimTime"),
        reason=to_one_line(answer.reason),
        ended=answer.state if answer.state in _OVER else "",
    )


def decode_status_message(text: str) -> RemoteContractStatus:
    """A status message of the contract tunnel."""
    try:
        message = json_codec.decode(text, ContractStatusMessage)
    except json_codec.InvalidJson as error:
        raise errors.Invalid(f"what was said of the contract cannot be read: {error}") from None
    return RemoteContractStatus(
        ends_at=parse_time(message.ends, "ends"),
        reclaim_at=None if message.reclaim is None else parse_time(message.reclaim, "reclaim"),
        reason=to_one_line(message.reason),
        ended=to_one_line(message.ended or ""),
        cell=to_one_line(message.cell),
        cell_reason=to_one_line(message.cell_reason),
    )


def decode_error(peer: str, status: int, text: bytes) -> errors.SkerryError:
    """The error of a provider; errors about credentials are ours, not our caller's."""
    try:
        reply = json_codec.decode(text, _ErrorReply)
    except json_codec.InvalidJson:
        reply = _ErrorReply()
    code = reply.code or _BY_STATUS.get(status, "unavailable" if status >= 500 else "refused")
    reason = (
        to_one_line(reply.error)
        or f"it answers {status} and does not say why; set its URL anew, or ask who runs it"
    )
    if code not in _PASSED_ON:
        code = "unavailable" if status >= 500 else "refused"
    return tunnel_codec.decode_failure(pb.Failure(code=code, message=f"peer {peer}: {reason}"))


def to_one_line(text: str) -> str:
    """A text of another cloud as one line, cut to a maximum length."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_TEXT_LENGTH])
