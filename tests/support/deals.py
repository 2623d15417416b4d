"""Keys and contracts for tests of the market: the same every time."""

from __future__ import annotations

import base64
import hashlib
import json
from decimal import Decimal
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from skerry.market.terms.keys import SigningKey
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, Contract, Offer, Partition, Price
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import MAX_AMOUNT, Gigabytes, Megabytes, Millicores, Resources

NOW = 1_700_000_000.0
# Every key may buy whatever there is, as long as there is any.
OPEN = MarketSettings(
    unknown_buyers="buy",
    unknown_percent=100,
    unknown_cpu=MAX_AMOUNT // 1000,
    unknown_memory=MAX_AMOUNT,
    unknown_disk=MAX_AMOUNT,
    unknown_contract_s=MarketSettings().max_contract_s,
    unknown_holds=1_000_000,
    unknown_total_holds=1_000_000,
)


def key(name: str) -> SigningKey:
    """A key that follows from its name."""
    return SigningKey(private(name))


def private(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


SELLER = key("seller")
BUYER = key("buyer")
STRANGER = key("stranger")


def resources(cores: int, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cores * 1000), Megabytes(memory), Gigabytes(disk))


FLAVOR = Offer(
    id=OfferId("edge-1"),
    provider=SELLER.cloud,
    kind="k8slice",
    resources=resources(8, 16384, 100),
    price=Price(Decimal("0.80"), "EUR", "PT1H"),
    created_at=NOW - 60.0,
    architecture="arm64",
    partition=Partition(resources(1, 512), resources(1, 512)),
    aggregation=Aggregation(1, 4),
    expires_at=NOW + 86400.0,
    version=7,
    location="Torino",
)
CONTRACT = Contract(
    id=ContractId("01hf7yat00c0ntract"),
    hold=HoldId("01hf7yat00h01d"),
    flavor=FLAVOR,
    buyer=BUYER.cloud,
    seller=SELLER.cloud,
    resources=resources(1, 2048),
    count=2,
    price=Price(Decimal("0.20"), "EUR", "PT1H"),
    total=Decimal("0.40"),
    starts_at=NOW,
    ends_at=NOW + 7200.0,
    notice_s=120.0,
)


def changed(**changes: Any) -> Contract:
    return msgspec.structs.replace(CONTRACT, **changes)


def encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decoded(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def with_header(text: bytes, **members: Any) -> bytes:
    """The JWS with members of its header changed (None takes one away); its signature stays as it is."""
    start, rest = text.split(b".", 1)
    header = json.loads(decoded(start)) | members
    plain = {name: value for name, value in header.items() if value is not None}
    return encoded(json.dumps(plain).encode()) + b"." + rest


def forged(signer: str, header: bytes, payload: bytes) -> bytes:
    """A JWS that is signed over exactly these bytes, whatever they are."""
    text = encoded(header) + b"." + encoded(payload)
    return text + b"." + encoded(private(signer).sign(text))
