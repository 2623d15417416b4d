"""What may be asked of the ledger about one flavor, as values; `skerry.market.decisions` answers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

import msgspec

from skerry.kit import jsonio
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, FlavorId, HoldId
from skerry.model.market import Flavor
from skerry.model.room import Room

_MAX_KEY: Final = 255


class Publish(msgspec.Struct, frozen=True):
    """Offer a flavor."""

    flavor: Flavor
    capacity: Room
    actor: str


class Update(msgspec.Struct, frozen=True):
    """Offer it on other terms, or more or less of it."""

    change: Callable[[Flavor], Flavor]
    capacity: Room | None
    actor: str


class Withdraw(msgspec.Struct, frozen=True):
    """Offer it no longer, and take its contracts back if it `reclaims`."""

    reason: str
    reclaims: bool
    actor: str


class Reserve(msgspec.Struct, frozen=True):
    """Hold `count` times `room`, or all that is free; `wait_until` if it is to wait for that."""

    flavor: FlavorId
    buyer: CloudId
    room: Room | None
    count: int
    duration_s: float
    wait_until: float | None = None
    once: str = ""
    digest: str = ""


class Purchase(msgspec.Struct, frozen=True):
    """Turn a hold into a contract."""

    hold: HoldId
    buyer: CloudId


class Cancel(msgspec.Struct, frozen=True):
    """Give a hold up."""

    hold: HoldId
    buyer: CloudId


class Release(msgspec.Struct, frozen=True):
    """Give the room of a contract back."""

    contract: ContractId
    buyer: CloudId


class Renew(msgspec.Struct, frozen=True):
    """Let a contract last longer."""

    contract: ContractId
    buyer: CloudId
    until: float


class Countersign(msgspec.Struct, frozen=True):
    """Keep a contract as its buyer signed it, if `over` is still what there was to sign."""

    contract: ContractId
    buyer: CloudId
    document: bytes
    over: bytes


class Reclaim(msgspec.Struct, frozen=True):
    """Say that the provider takes a contract back after its notice, or take it back at once."""

    contract: ContractId
    reason: str
    actor: str
    is_at_once: bool = False


class Look(msgspec.Struct, frozen=True):
    """Nothing but what is due."""


Request = (
    Publish | Update | Withdraw | Reserve | Purchase | Cancel | Release | Renew | Countersign | Reclaim | Look
)


def once_only(key: str | None, buyer: CloudId, *what: object) -> tuple[str, str]:
    """The name under which this buyer's request is done once, and the digest of the request."""
    if key is None:
        return "", ""
    if not 0 < len(key) <= _MAX_KEY or not key.isprintable():
        raise errors.Invalid(
            f"an Idempotency-Key is 1 to {_MAX_KEY} printable characters", field="Idempotency-Key"
        )
    name = hashlib.sha256(f"{buyer}\0{key}".encode()).hexdigest()
    return name, hashlib.sha256(jsonio.encode_canonical(what)).hexdigest()
