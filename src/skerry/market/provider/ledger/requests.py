"""Requests to the ledger about one flavor, as values; `skerry.market.provider.ledger.decisions` answers
them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import NO_CONTACT, Contact, Offer
from skerry.model.resources import Resources

_MAX_KEY: Final = 255


class PublishOffer(msgspec.Struct, frozen=True):
    """Offer a flavor."""

    flavor: Offer
    capacity: Resources
    actor: str


class UpdateOffer(msgspec.Struct, frozen=True):
    """Offer it on other terms, or more or less of it."""

    change: Callable[[Offer], Offer]
    capacity: Resources | None
    actor: str


class WithdrawOffer(msgspec.Struct, frozen=True):
    """Offer it no longer, and take its contracts back if it `reclaims`."""

    reason: str
    reclaims: bool
    actor: str


class CreateHold(msgspec.Struct, frozen=True):
    """Hold `count` times `resources`, or all that is free; `wait_until` if it is to wait for that. Without a
    `count`, as few as may be taken together.
    """

    flavor: OfferId
    buyer: CloudId
    resources: Resources | None = msgspec.field(name="room")
    count: int | None
    duration_s: float
    wait_until: float | None = None
    once: str = ""
    digest: str = ""
    contact: Contact = NO_CONTACT


class ConvertHold(msgspec.Struct, frozen=True):
    """Turn a hold into a contract."""

    hold: HoldId
    buyer: CloudId


class CancelHold(msgspec.Struct, frozen=True):
    """Give a hold up."""

    hold: HoldId
    buyer: CloudId


class ReleaseContract(msgspec.Struct, frozen=True):
    """Release a contract."""

    contract: ContractId
    buyer: CloudId


class RenewContract(msgspec.Struct, frozen=True):
    """Let a contract last longer."""

    contract: ContractId
    buyer: CloudId
    until: float


class CountersignContract(msgspec.Struct, frozen=True):
    """Keep a contract as its buyer signed it, if `over` is still what there was to sign."""

    contract: ContractId
    buyer: CloudId
    document: bytes
    over: bytes


class ReclaimContract(msgspec.Struct, frozen=True):
    """Say that the provider takes a contract back after its notice, or take it back at once."""

    contract: ContractId
    reason: str
    actor: str
    is_at_once: bool = False


class MarkContractOpened(msgspec.Struct, frozen=True):
    """The buyer has opened the contract's tunnel."""

    contract: ContractId


class EndUnusedContract(msgspec.Struct, frozen=True):
    """End a contract that was not signed or not opened in time, counted from `since` at the earliest."""

    contract: ContractId
    since: float


class ExpireDue(msgspec.Struct, frozen=True):
    """Nothing but what is due."""


LedgerRequest = (
    PublishOffer
    | UpdateOffer
    | WithdrawOffer
    | CreateHold
    | ConvertHold
    | CancelHold
    | ReleaseContract
    | RenewContract
    | CountersignContract
    | ReclaimContract
    | MarkContractOpened
    | EndUnusedContract
    | ExpireDue
)


def idempotency_key_for(key: str | None, buyer: CloudId, *what: object) -> tuple[str, str]:
    """The name under which this buyer's request is done once, and the digest of the request."""
    if key is None:
        return "", ""
    if not 0 < len(key) <= _MAX_KEY or not key.isprintable():
        raise errors.Invalid(
            f"an Idempotency-Key is 1 to {_MAX_KEY} printable characters", field="Idempotency-Key"
        )
    name = hashlib.sha256(f"{buyer}\0{key}".encode()).hexdigest()
    return name, hashlib.sha256(json_codec.encode_canonical(what)).hexdigest()
