"""The terms of contracts as bytes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.market.terms import canonical_json, contract_document
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, Contract, Offer, Partition, Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from tests.support import deals

AMOUNTS = st.integers(0, 10**6)
ROOMS = st.builds(Resources, AMOUNTS.map(Millicores), AMOUNTS.map(Megabytes), AMOUNTS.map(Gigabytes))
IDS = st.from_regex(r"[a-z0-9]([a-zA-Z0-9._-]{0,20}[a-z0-9])?", fullmatch=True)
MONEY = st.decimals(0, 10**6, places=6) | st.just(Decimal("1E+3")) | st.just(Decimal("0E-9"))
PRICES = st.builds(Price, MONEY, st.sampled_from(["EUR", "USD"]), st.sampled_from(["PT1H", "P1M"]))
TIMES = st.floats(0, 4e9)
FLAVORS = st.builds(
    Offer,
    id=IDS.map(OfferId),
    provider=st.just(deals.SELLER.cloud),
    kind=IDS,
    resources=ROOMS,
    price=PRICES,
    created_at=TIMES,
    architecture=st.sampled_from(["", "amd64"]),
    gpus=st.integers(0, 8),
    persistent=AMOUNTS.map(Gigabytes),
    partition=st.none() | st.builds(Partition, ROOMS, ROOMS),
    aggregation=st.none() | st.builds(Aggregation, st.integers(1, 3), st.integers(3, 9)),
    expires_at=st.none() | TIMES,
    version=st.integers(1, 10**9),
    location=st.text(st.characters(categories=["L", "N"]), max_size=12),
    worker=IDS | st.just(""),
)


@st.composite
def contracts(draw: st.DrawFn) -> Contract:
    starts_at = draw(TIMES)
    return Contract(
        id=ContractId(draw(IDS)),
        hold=HoldId(draw(IDS)),
        flavor=draw(FLAVORS),
        buyer=deals.BUYER.cloud,
        seller=deals.SELLER.cloud,
        resources=draw(ROOMS),
        price=draw(PRICES),
        starts_at=starts_at,
        ends_at=starts_at + draw(st.floats(0.01, 1e8)),
        total=draw(MONEY),
        notice_s=draw(st.floats(0, 1e6)),
        count=draw(st.integers(1, 9)),
        renewals=draw(st.integers(0, 99)),
    )


@settings(max_examples=40)
@given(contracts())
def test_what_is_written_reads_as_a_contract_with_the_same_bytes(contract: Contract) -> None:
    data = contract_document.write(contract)
    found = contract_document.read(data)
    assert contract_document.write(found) == data
    assert (found.id, found.resources, found.count, found.price, found.total) == (
        contract.id,
        contract.resources,
        contract.count,
        contract.price,
        contract.total,
    )
    assert found.starts_at == pytest.approx(contract.starts_at, abs=0.0011)
    assert contract.notice_s <= found.notice_s <= contract.notice_s + 1


def test_a_contract_of_whole_moments_is_read_as_it_was() -> None:
    assert contract_document.read(contract_document.write(deals.CONTRACT)) == deals.CONTRACT


def names(of: type[msgspec.Struct]) -> set[str]:
    return {field.name for field in msgspec.structs.fields(of)}


def test_every_term_is_in_the_document() -> None:
    """Whoever adds a term to a contract or a flavor finds here that both sides should sign it."""
    plain = contract_document.as_plain(deals.CONTRACT)
    renamed = {"starts_at": "starts", "ends_at": "ends", "created_at": "created", "expires_at": "expires"}
    renamed |= {"persistent": "persistent_gb", "resources": "room"}
    no_terms = {"ended_at", "ending", "reclaim_at", "reason", "is_unknown"}
    assert {renamed.get(name, name) for name in names(Contract) - no_terms} == plain.keys() - {"document"}
    assert {renamed.get(name, name) for name in names(Offer)} == plain["flavor"].keys()


def edited(**members: Any) -> bytes:
    """The document with members changed; `flavor.x` is one of the flavor, `...` takes one away."""
    plain = contract_document.as_plain(deals.CONTRACT)
    for path, value in members.items():
        *folders, name = path.split("__")
        target = plain
        for folder in folders:
            target = target[folder]
        if value is ...:
            del target[name]
        else:
            target[name] = value
    return canonical_json.encode(plain)


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"buyer": ...}, "buyer"),
        ({"extra": 1}, "extra"),
        ({"flavor__extra": 1}, "extra"),
        ({"document": "skerry.contract.v2"}, "Invalid enum value"),
        ({"count": "2"}, "int"),
        ({"count": 0}, ">= 1"),
        ({"notice_s": -1}, ">= 0"),
        ({"room__cpu_millicores": -1}, "cpu"),
        ({"room__cpu_millicores": 2**40}, "cpu"),
        ({"price__amount": "1E+2"}, "plain decimal"),
        ({"price__amount": "NaN"}, "0 or more"),
        ({"price__amount": "-1"}, "0 or more"),
        ({"price__amount": "9" * 65}, "plain decimal"),
        ({"price__amount": " 1"}, "one form"),
        ({"total": "one"}, "decimal number"),
        ({"price__currency": "euro"}, "ISO 4217"),
        ({"price__period": "hourly"}, "ISO 8601"),
        ({"starts": "2023-11-14T22:13:20.000+00:00"}, "one form"),
        ({"starts": "2023-11-14T22:13:20Z"}, "one form"),
        ({"starts": "2023-11-14T22:13:20.000"}, "time in UTC"),
        ({"starts": "soon"}, "time in UTC"),
        ({"starts": "0001-01-01T00:00:00.000+23:59"}, "time in UTC"),
        ({"ends": "9999-12-31T23:59:59.000-23:59"}, "time in UTC"),
        ({"ends": "9999-12-31T23:59:59.999999Z"}, "time in UTC"),
        ({"ends": "2023-11-14T22:13:20.000Z"}, "ends after it begins"),
        ({"buyer": "a/b"}, "buyer"),
        ({"flavor__aggregation__least": 0}, "let the least be 1 or more"),
    ],
)
def test_terms_that_are_no_contract_are_refused(members: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason):
        contract_document.read(edited(**members))


def test_terms_in_another_spelling_are_refused() -> None:
    spaced = json.dumps(contract_document.as_plain(deals.CONTRACT), indent=1).encode()
    with pytest.raises(errors.Invalid, match="canonical form"):
        contract_document.read(spaced)
