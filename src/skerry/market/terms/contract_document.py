"""Contracts as documents: the terms that both sides sign, in one byte form.

`write` and `read` are each other's inverse on bytes: what `read` accepts, `write` would have written, so a
document says one thing in one way. Units are in the names, amounts of money are decimal text, times are in
UTC. What happens to a contract later (release, reclaim) is no part of it; a renewal is a new document
of the same contract with a higher count. Signatures are `skerry.market.terms.signatures`.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Final, Literal

import msgspec

from skerry.kit import json_codec
from skerry.kit.clock import iso, moment
from skerry.market.terms import canonical_json
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, Contract, Offer, Partition, Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources

VERSION: Final = "skerry.contract.v1"


class _Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cpu_millicores: int
    memory_mb: int
    disk_gb: int


class _Rate(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    amount: str
    currency: str
    period: str


class _Parts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    least: _Amounts
    step: _Amounts


class _Counts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    least: int
    most: int


class _Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    version: int
    provider: str
    kind: str
    architecture: str
    location: str
    worker: str
    resources: _Amounts = msgspec.field(name="room")
    stock: int
    gpus: int
    persistent_gb: int
    price: _Rate
    partition: _Parts | None
    aggregation: _Counts | None
    created: str
    expires: str | None


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The members of a contract's document, all of them always there."""

    document: Literal["skerry.contract.v1"]
    id: str
    hold: str
    seller: str
    buyer: str
    flavor: _Offer
    resources: _Amounts = msgspec.field(name="room")
    count: Annotated[int, msgspec.Meta(ge=1)]
    price: _Rate
    total: str
    starts: str
    ends: str
    notice_s: Annotated[int, msgspec.Meta(ge=0)]
    renewals: Annotated[int, msgspec.Meta(ge=0)]


def write(contract: Contract) -> bytes:
    """The terms of the contract."""
    flavor = contract.flavor
    document = _Document(
        document=VERSION,
        id=contract.id,
        hold=contract.hold,
        seller=contract.seller,
        buyer=contract.buyer,
        flavor=_Offer(
            id=flavor.id,
            version=flavor.version,
            provider=flavor.provider,
            kind=flavor.kind,
            architecture=flavor.architecture,
            location=flavor.location,
            worker=flavor.worker,
            resources=_amounts(flavor.resources),
            stock=flavor.stock,
            gpus=flavor.gpus,
            persistent_gb=flavor.persistent,
            price=_rate(flavor.price),
            partition=_parts(flavor.partition),
            aggregation=_counts(flavor.aggregation),
            created=iso(flavor.created_at),
            expires=None if flavor.expires_at is None else iso(flavor.expires_at),
        ),
        resources=_amounts(contract.resources),
        count=contract.count,
        price=_rate(contract.price),
        total=f"{contract.total:f}",
        starts=iso(contract.starts_at),
        ends=iso(contract.ends_at),
        notice_s=math.ceil(contract.notice_s),  # the term of a buyer is never rounded down
        renewals=contract.renewals,
    )
    try:
        return canonical_json.encode(msgspec.to_builtins(document))
    except canonical_json.NotCanonical as error:
        raise errors.Invalid(f"the contract cannot be written down: {error}") from error


def read(data: bytes) -> Contract:
    """The contract with the terms in `data`; `Invalid` if they are not valid."""
    try:
        found = json_codec.convert(canonical_json.decode(data), _Document)
    except (canonical_json.NotCanonical, json_codec.InvalidJson) as error:
        raise errors.Invalid(f"these are no terms of a contract: {error}") from error
    contract = Contract(
        id=ContractId(found.id),
        hold=HoldId(found.hold),
        flavor=_flavor(found.flavor),
        buyer=CloudId(found.buyer),
        seller=CloudId(found.seller),
        resources=_decode_resources(found.resources),
        count=found.count,
        price=_price(found.price),
        total=_decimal(found.total, "total"),
        starts_at=_moment(found.starts, "starts"),
        ends_at=_moment(found.ends, "ends"),
        notice_s=float(found.notice_s),
        renewals=found.renewals,
    )
    # Such as 1E+2 for 100, or +00:00 for Z: the same value written in another way is another text to sign.
    if write(contract) != data:
        raise errors.Invalid("the terms are not in the one form of a contract: a time or an amount is not")
    return contract


def as_plain(contract: Contract) -> dict[str, Any]:
    """The document as JSON values, for people and scripts that read it."""
    plain: dict[str, Any] = json_codec.decode(write(contract), dict)
    return plain


def _amounts(resources: Resources) -> _Amounts:
    return _Amounts(resources.cpu, resources.memory, resources.disk)


def _decode_resources(amounts: _Amounts) -> Resources:
    return Resources(
        Millicores(amounts.cpu_millicores), Megabytes(amounts.memory_mb), Gigabytes(amounts.disk_gb)
    )


def _rate(price: Price) -> _Rate:
    return _Rate(f"{price.amount:f}", price.currency, price.period)


def _price(rate: _Rate) -> Price:
    return Price(_decimal(rate.amount, "amount"), rate.currency, rate.period)


def _parts(partition: Partition | None) -> _Parts | None:
    return None if partition is None else _Parts(_amounts(partition.least), _amounts(partition.step))


def _partition(parts: _Parts | None) -> Partition | None:
    return None if parts is None else Partition(_decode_resources(parts.least), _decode_resources(parts.step))


def _counts(aggregation: Aggregation | None) -> _Counts | None:
    return None if aggregation is None else _Counts(aggregation.least, aggregation.most)


def _aggregation(counts: _Counts | None) -> Aggregation | None:
    return None if counts is None else Aggregation(counts.least, counts.most)


def _flavor(offer: _Offer) -> Offer:
    return Offer(
        id=OfferId(offer.id),
        provider=CloudId(offer.provider),
        kind=offer.kind,
        resources=_decode_resources(offer.resources),
        price=_price(offer.price),
        created_at=_moment(offer.created, "created"),
        architecture=offer.architecture,
        gpus=offer.gpus,
        persistent=Gigabytes(offer.persistent_gb),
        partition=_partition(offer.partition),
        aggregation=_aggregation(offer.aggregation),
        expires_at=None if offer.expires is None else _moment(offer.expires, "expires"),
        version=offer.version,
        stock=offer.stock,
        location=offer.location,
        worker=offer.worker,
    )


def _decimal(text: str, name: str) -> Decimal:
    # The length is checked first: a short text with an exponent is a number with a billion digits.
    if len(text) > 64 or "e" in text.lower():
        raise errors.Invalid(f"{name} must be a plain decimal number, such as `0.10`", field=name)
    try:
        number = Decimal(text)
    except InvalidOperation as error:
        raise errors.Invalid(f"{name} must be a decimal number, such as `0.10`", field=name) from error
    if not number.is_finite() or number < 0:
        raise errors.Invalid(f"{name} must be 0 or more", field=name)
    return number


def _moment(text: str, name: str) -> float:
    try:
        return moment(text)
    except ValueError as error:
        raise errors.Invalid(
            f"{name} must be a time in UTC, such as `2026-01-31T12:00:00.000Z`", field=name
        ) from error
