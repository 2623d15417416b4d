"""What a buyer writes to a provider in the document's dialect, and how it reads what comes back.

Total: an answer becomes a noun, or `Invalid` says what of it makes no sense. Only what a buyer needs is read;
the rest may be anything. Of refusals the kind and the words are kept, so that who asked knows what to do.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import field

from skerry.kit import jsonio
from skerry.market.dealing import Bought, Reserved, Standing
from skerry.market.selecting import MAX_PAGE, Offer
from skerry.market.trading import Wish
from skerry.model import errors, ids
from skerry.model.ids import CloudId, FlavorId, HoldId
from skerry.model.market import Aggregation, Flavor, Partition
from skerry.model.room import NOTHING, Gigabytes, Megabytes, Millicores, Room
from skerry.wire.nodes import tunnels
from skerry.wire.proto import nodes_pb2 as pb
from skerry.wire.rear.documents import (
    Characteristics,
    PartDocument,
    Policy,
    PriceDocument,
    WholeDocument,
    moment_of,
)
from skerry.wire.rear.door_texts import StandingText

_CORE: Final = 1000
_EXACT: Final = 100  # offers of exactly the wish: the cheapest are enough
_MAX_WORDS: Final = 300
_MAX_CREDENTIAL: Final = 1024
# What a provider may refuse us with, and we may pass on as it is; everything else is `Refused`.
_PASSED_ON: Final = frozenset(
    {"no-room", "not-found", "conflict", "expired", "unprocessable", "overloaded", "unavailable", "timed-out"}
)
_BY_STATUS: Final = {404: "not-found", 409: "conflict", 410: "expired", 429: "overloaded", 503: "unavailable"}
_OVER: Final = frozenset({"expired", "released", "withdrawn"})


class Item(msgspec.Struct, frozen=True):
    """A flavor in a list."""

    flavor_id: str = field(name="FlavorID")
    flavor_type: str = field(name="FlavorType")
    provider_id: str = field(name="ProviderID")
    characteristics: Characteristics = field(name="Characteristics")
    price: PriceDocument = field(name="Price")
    policy: Policy = field(default_factory=Policy, name="Policy")
    version: int = field(default=1, name="Version")
    count: int = field(default=1, name="Count")
    location: str = field(default="", name="Location")
    whole: WholeDocument | None = field(default=None, name="Whole")


class FlavorList(msgspec.Struct, frozen=True):
    items: list[Item] = field(name="Items")


class Transaction(msgspec.Struct, frozen=True):
    """A hold."""

    transaction_id: str = field(name="TransactionID")
    partition: PartDocument = field(name="Partition")
    price: PriceDocument = field(name="Price")


class Credentials(msgspec.Struct, frozen=True):
    """What opens the contract's door; that is at the peer, whatever its `endpoint` says."""

    token: str = ""

    def __repr__(self) -> str:
        return "Credentials()"


class Contract(msgspec.Struct, frozen=True):
    """A contract; the document is what is believed."""

    contract_id: str = field(name="ContractID")
    document: str = field(name="Document")
    credentials: Credentials | None = field(default=None, name="Credentials")


class ContractState(msgspec.Struct, frozen=True):
    """A contract as it stands."""

    state: str = field(name="State")
    expiration_time: str = field(name="ExpirationTime")
    reclaim_time: str | None = field(default=None, name="ReclaimTime")
    reason: str = field(default="", name="Reason")


class Anything(msgspec.Struct, frozen=True):
    """An answer of which nothing is needed."""


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    code: str = ""


# Asking


def selectors(wish: Wish) -> Sequence[Mapping[str, Any]]:
    """What to list: all of it; or what can be had exactly as wished, and what is larger."""
    room = wish.room
    same = {"Architecture": wish.architecture, "Location": wish.where, "Sort": "price"}
    if room == NOTHING:
        return [{**same, "Limit": MAX_PAGE}]
    part = {
        "Cpu": -(-room.cpu // _CORE),
        "Memory": room.memory,
        "EphemeralStorage": room.disk,
        "Count": wish.count,
    }
    larger = {"MoreThanCpu": room.cpu // _CORE, "MoreThanMemory": room.memory, "MoreThanEph": room.disk}
    return [{**same, "Partition": part, "Limit": _EXACT}, {**same, **larger, "Limit": MAX_PAGE}]


def reservation(flavor: FlavorId, room: Room, count: int, duration_s: float | None) -> Mapping[str, Any]:
    body: dict[str, Any] = {"FlavorID": flavor, "Partition": PartDocument.of(room, count)}
    if duration_s is not None:
        body["Duration"] = duration(duration_s)
    return body


def duration(seconds: float) -> str:
    """ISO 8601, in whole seconds and no less than was asked for."""
    return f"PT{math.ceil(seconds)}S"


# Reading


def offer_of(item: Item, provider: CloudId) -> Offer:
    """The offer, with its whole and what is free of it."""
    if item.provider_id != provider:
        raise errors.Invalid(f"it sells something of {item.provider_id[: ids.MAX_ID]!r}, not of its own")
    has = item.characteristics
    shown = whole = _room(has.cpu, has.memory, has.ephemeral_storage)
    price = item.price
    parts, together = item.policy.partitionable, item.policy.aggregatable
    if parts is not None and item.whole is not None:
        whole = _room(item.whole.cpu, item.whole.memory, item.whole.ephemeral_storage)
        price = item.whole.price
    flavor = Flavor(
        id=FlavorId(item.flavor_id),
        provider=provider,
        kind=item.flavor_type,
        room=whole,
        price=price.price(),
        created_at=0.0,
        architecture=has.architecture,
        gpus=has.gpu,
        persistent=Gigabytes(has.persistent_storage),
        partition=None
        if parts is None
        else Partition(
            _room(parts.cpu_min, parts.memory_min, 0), _room(parts.cpu_step, parts.memory_step, 0)
        ),
        aggregation=None if together is None else Aggregation(together.min_count, together.max_count),
        version=item.version,
        stock=1 if parts is not None else max(1, item.count),
        location=item.location,
    )
    return Offer(flavor, shown if parts is not None else shown * max(0, item.count))


def reserved_of(answer: Transaction) -> Reserved:
    part = answer.partition
    return Reserved(
        HoldId(ids.check_id(answer.transaction_id, "TransactionID")),
        _room(part.cpu, part.memory, part.ephemeral_storage),
        part.count,
        answer.price.price(),
    )


def bought_of(answer: Contract) -> Bought:
    credential = "" if answer.credentials is None else answer.credentials.token
    if len(credential) > _MAX_CREDENTIAL or not credential.isascii() or not credential.isprintable():
        raise errors.Invalid("its credential is no header's value", field="Credentials")
    return Bought(ids.check_id(answer.contract_id, "ContractID"), answer.document.encode("utf-8"), credential)


def standing_of(answer: ContractState) -> Standing:
    return Standing(
        ends_at=moment_of(answer.expiration_time, "ExpirationTime"),
        reclaim_at=None if answer.reclaim_time is None else moment_of(answer.reclaim_time, "ReclaimTime"),
        reason=words(answer.reason),
        ended=answer.state if answer.state in _OVER else "",
    )


def standing_in(text: str) -> Standing:
    """What a text message at the door says."""
    try:
        told = jsonio.decode(text, StandingText)
    except jsonio.Malformed as error:
        raise errors.Invalid(f"what was said of the contract cannot be read: {error}") from None
    return Standing(
        ends_at=moment_of(told.ends, "ends"),
        reclaim_at=None if told.reclaim is None else moment_of(told.reclaim, "reclaim"),
        reason=words(told.reason),
        ended=words(told.ended or ""),
        cell=words(told.cell),
        cell_reason=words(told.cell_reason),
    )


def refusal_of(peer: str, status: int, text: bytes) -> errors.SkerryError:
    """What a provider refused a request with; who we are to our own callers is no matter of it."""
    try:
        said = jsonio.decode(text, _Refusal)
    except jsonio.Malformed:
        said = _Refusal()
    code = said.code or _BY_STATUS.get(status, "unavailable" if status >= 500 else "refused")
    reason = (
        words(said.error) or f"it answers {status} and does not say why; set its URL anew, or ask who runs it"
    )
    if code not in _PASSED_ON:
        code = "unavailable" if status >= 500 else "refused"
    return tunnels.failure_of(pb.Failure(code=code, message=f"peer {peer}: {reason}"))


def words(text: str) -> str:
    """What a stranger says, as one line of a bearable length."""
    return "".join(char if char.isprintable() else " " for char in text[:_MAX_WORDS])


def _room(cores: int, megabytes: int, gigabytes: int) -> Room:
    return Room(Millicores(cores * _CORE), Megabytes(megabytes), Gigabytes(gigabytes))
