"""Amounts, prices and flavors of Skerry's own market routes: cores, MB, GB, and money as decimal text.

Pure translation to and from the types of the market; nothing is spelled as in REAR. Times are seconds since
the epoch, as on all of Skerry's own routes.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skerry.market.buyer.quotes import BorrowedContract
from skerry.model import errors
from skerry.model.market import Contract, Hold, Offer, Price
from skerry.model.resources import Resources
from skerry.wire.market_inputs import CORE

_MONEY = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?")


class ResourcesInfo(msgspec.Struct, frozen=True):
    """An amount of resources."""

    cpu: Annotated[float, Meta(description="Cores")]
    memory: Annotated[int, Meta(description="MB")]
    disk: Annotated[int, Meta(description="GB")]

    @classmethod
    def of(cls, resources: Resources) -> ResourcesInfo:
        cores, rest = divmod(resources.cpu, CORE)
        return cls(resources.cpu / CORE if rest else cores, resources.memory, resources.disk)


class PriceInfo(msgspec.Struct, frozen=True):
    """A price per period."""

    amount: Annotated[str, Meta(description="A decimal number: `0.10`")]
    currency: Annotated[str, Meta(description="ISO 4217: `EUR`")]
    period: Annotated[str, Meta(description="ISO 8601: `PT1H`")]

    @classmethod
    def of(cls, price: Price) -> PriceInfo:
        return cls(f"{price.amount:f}", price.currency, price.period)


class PartitionInfo(msgspec.Struct, frozen=True):
    """Partitioning: at least the minimum, and above it in whole steps; a step of 0 allows any amount."""

    min: ResourcesInfo
    step: ResourcesInfo


class OfferInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A flavor, without its free capacity. Without `parts` it is sold whole."""

    id: str
    provider: str
    resources: Annotated[ResourcesInfo, Meta(description="Of one")] = msgspec.field(name="room")
    stock: Annotated[int, Meta(description="How many of it there are in all")]
    price: PriceInfo
    parts: PartitionInfo | None
    max_count: Annotated[int, Meta(description="How many may be taken together")]
    location: str
    architecture: str
    node: Annotated[str, Meta(description="The node whose free capacity it follows, if any")]
    expires_at: float | None
    version: int
    gpus: Annotated[int, Meta(description="Of each whole one")] = 0


def offer_facts(flavor: Offer) -> dict[str, Any]:
    """The fields of `OfferInfo`, for it and its subclasses."""
    parts = flavor.partition
    return {
        "id": flavor.id,
        "provider": flavor.provider,
        "resources": ResourcesInfo.of(flavor.resources),
        "stock": flavor.stock,
        "price": PriceInfo.of(flavor.price),
        "parts": None
        if parts is None
        else PartitionInfo(ResourcesInfo.of(parts.least), ResourcesInfo.of(parts.step)),
        "max_count": 1 if flavor.aggregation is None else flavor.aggregation.most,
        "location": flavor.location,
        "architecture": flavor.architecture,
        "node": flavor.worker,
        "expires_at": flavor.expires_at,
        "version": flavor.version,
        "gpus": flavor.gpus,
    }


def deal_facts(deal: Hold | Contract | BorrowedContract) -> dict[str, Any]:
    """The reserved or bought amount, and its price."""
    return {
        "resources": ResourcesInfo.of(deal.resources),
        "price": PriceInfo.of(deal.price),
        "total": f"{deal.total:f}",
    }


def parse_money(text: str, field: str) -> Decimal:
    """An amount of money in plain decimal notation; `1e9` is refused."""
    if not _MONEY.fullmatch(text):
        raise errors.Invalid(
            f"{field} is a decimal number such as `0.10`, with at most 18 digits on either side of the point",
            field=field,
        )
    return Decimal(text)
