"""One of each noun, with everything in it that a dialect can show."""

from __future__ import annotations

from decimal import Decimal

from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, Contact, Contract, Hold, Offer, Partition, Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.wire.rear.documents import CredentialsDocument, IdentityDocument

START = 1_700_000_000.0
OWNER = IdentityDocument("skerry.example", "key.north", "192.0.2.1:1323")
CREDENTIALS = CredentialsDocument(
    "key.north", "skerry.example", "c-1.c2VjcmV0", "https://192.0.2.1:1323/api/contracts/c-1/door"
)
DOCUMENT = b"eyJhbGciOiJFZDI1NTE5In0.e30.c2lnbmF0dXJl"


def resources(cpu: int, memory: int, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


FLAVOR = Offer(
    id=OfferId("f-1"),
    provider=CloudId("key.north"),
    kind="k8slice",
    resources=resources(8000, 16384, 100),
    price=Price(Decimal("0.10"), "EUR", "PT1H"),
    created_at=START,
    architecture="amd64",
    gpus=2,
    persistent=Gigabytes(500),
    partition=Partition(resources(1000, 512), resources(1000, 512)),
    aggregation=Aggregation(1, 4),
    expires_at=START + 86400,
    version=3,
    location="NO",
    worker="node-1",
)
OFFER = OfferSnapshot(FLAVOR, resources(6000, 12288, 100))
ACCOUNT = OfferRecord(FLAVOR, FLAVOR.whole, held=resources(2000, 4096))
CONTACT = Contact("south.example", "192.0.2.9:30000", "cool-firefly", "e30=")
HOLD = Hold(
    id=HoldId("0123456789abcdef0123456789abcdef"),
    flavor=FLAVOR,
    buyer=CloudId("south"),
    resources=resources(2000, 4096),
    price=Price(Decimal("0.016666666"), "EUR", "PT1H"),
    created_at=START,
    expires_at=START + 60,
    total=Decimal("0.033333332"),
    duration_s=7200.0,
    notice_s=120.0,
    contact=CONTACT,
)
CONTRACT = Contract(
    id=ContractId("c-1"),
    hold=HOLD.id,
    flavor=FLAVOR,
    buyer=HOLD.buyer,
    seller=FLAVOR.provider,
    resources=HOLD.resources,
    price=HOLD.price,
    starts_at=START + 30,
    ends_at=START + 7230,
    total=HOLD.total,
    notice_s=120.0,
)
