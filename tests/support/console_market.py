"""What the made-up cloud of `tests.support.console_records` buys and sells."""

from __future__ import annotations

import math
from decimal import Decimal

from skerry.market.buyer.quotes import (
    BorrowedContract,
    BorrowedContractState,
    MarketPeer,
    OfferQuote,
    PeerFailure,
    PeerStatus,
)
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model.ids import CloudId, ContractId, HoldId, NodeId, OfferId
from skerry.model.market import Contract, Hold, Offer, Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from tests.support.console_records import DAY, HOUR, Amount

_HOURLY = Price(Decimal("0.24"), "EUR", "PT1H")


def _offer(index: int, now: float) -> Offer:
    return Offer(
        OfferId(f"edge-{index + 1}"),
        CloudId("key.seller"),
        "k8slice",
        Resources(Millicores(4000), Megabytes(8192), Gigabytes(50)),
        _HOURLY,
        now - DAY,
        architecture="amd64",
        location=("Turin", "Oslo", "Graz")[index % 3],
    )


def offers(amount: Amount) -> list[OfferQuote]:
    part = Resources(Millicores(2000), Megabytes(2048))
    return [
        OfferQuote(
            ("south", "north", "")[index % 3],
            _offer(index, amount.now),
            _offer(index, 0).resources,
            part,
            1,
            _HOURLY,
        )
        for index in range(amount.number)
    ]


def failures(amount: Amount) -> list[PeerFailure]:
    return [PeerFailure("east", "peer east: no answer within 3 s")] if amount.has_any else []


def peers(amount: Amount) -> list[PeerStatus]:
    return [
        PeerStatus(
            MarketPeer(name, f"https://{name}.example.org:1323", "key.seller"),
            index % 5 != 4,
            "" if index % 5 != 4 else "no answer within 3 s",
            0.012,
            amount.now - 20,
        )
        for index, name in amount.names(("south", "north", "west", "lab", "east", "campus"))
    ]


def borrowed(amount: Amount) -> list[BorrowedContract]:
    return [
        BorrowedContract(
            ContractId(f"01bought{index:05}"),
            ("south", "north")[index % 2],
            "key.seller",
            NodeId(f"borrowed-{index:05}"),
            OfferId("edge-1"),
            Resources(Millicores(2000), Megabytes(2048)),
            1,
            _HOURLY,
            Decimal("2.88"),
            amount.now - 5 * HOUR,
            amount.now + 7 * HOUR + index * 60,
            BorrowedContractState.OPEN,
            None,
            "",
            None,
            '{"contract": "signed by both sides"}',
            "ann",
        )
        for index in range(math.ceil(amount.number / 3))
    ]


def sold(amount: Amount) -> list[ContractRecord]:
    return [
        ContractRecord(
            Contract(
                id=ContractId(f"01sold{index:05}"),
                hold=HoldId(f"h{index}"),
                flavor=_offer(index, amount.now),
                buyer=CloudId("key.buyer"),
                seller=CloudId("key.seller"),
                resources=Resources(Millicores(1000), Megabytes(1024)),
                count=1,
                price=_HOURLY,
                total=Decimal("1.20"),
                starts_at=amount.now - 2 * HOUR,
                ends_at=amount.now + 3 * HOUR + index * 60,
                notice_s=120.0,
            ),
            b"e30.e30.e30",
        )
        for index in range(math.ceil(amount.number / 3))
    ]


def holds(amount: Amount) -> list[Hold]:
    return [
        Hold(
            HoldId(f"{index:032x}"),
            _offer(index, amount.now),
            CloudId("key.buyer"),
            Resources(Millicores(1000), Megabytes(512)),
            _HOURLY,
            amount.now - 20,
            amount.now + 100 + index,
        )
        for index in range(math.ceil(amount.number / 3))
    ]


def accounts(amount: Amount) -> list[OfferRecord]:
    return [
        OfferRecord(
            _offer(index, amount.now),
            _offer(index, 0).resources,
            Resources(Millicores(500), Megabytes(512)),
            Resources(Millicores(index % 4 * 1000), Megabytes(index % 4 * 2000)),
        )
        for index in range(amount.number)
    ]
