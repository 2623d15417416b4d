"""Offers, holds and contracts: exact money, parts that obey the policy, lives that end."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, HoldId, OfferId
from skerry.model.market import Aggregation, Contract, EndReason, Hold, Offer, Partition, Price
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources

PRICE = Price(Decimal("0.05"), "EUR", "PT1H")


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def flavor(**changes: Any) -> Offer:
    basics: dict[str, Any] = {
        "id": OfferId("f-1"),
        "provider": CloudId("north"),
        "kind": "k8slice",
        "resources": resources(8000, 8000, 100),
        "price": PRICE,
        "created_at": 1.0,
    }
    return Offer(**basics | changes)


def hold(**changes: Any) -> Hold:
    basics: dict[str, Any] = {
        "id": HoldId("h-1"),
        "flavor": flavor(),
        "buyer": CloudId("south"),
        "resources": resources(1000, 1000),
        "price": PRICE,
        "created_at": 10.0,
        "expires_at": 30.0,
    }
    return Hold(**basics | changes)


def contract(**changes: Any) -> Contract:
    basics: dict[str, Any] = {
        "id": ContractId("c-1"),
        "hold": HoldId("h-1"),
        "flavor": flavor(),
        "buyer": CloudId("south"),
        "seller": CloudId("north"),
        "resources": resources(1000, 1000),
        "price": PRICE,
        "starts_at": 20.0,
        "ends_at": 100.0,
    }
    return Contract(**basics | changes)


def test_deals_survive_being_stored_to_the_last_digit() -> None:
    exact = Price(Decimal("0.100000000000000001"), "EUR", "P1M")
    partition = Partition(least=resources(500, 512), step=resources(250, 256))
    for noun in (flavor(price=exact, partition=partition), hold(price=exact), contract(price=exact)):
        assert json_codec.decode(json_codec.encode(noun), type(noun)) == noun


@pytest.mark.parametrize(
    "amount", ["-0.01", "NaN", "Infinity", "1E+999999999", "1E-19", "1000000000000000000"]
)
def test_amounts_that_are_no_money_are_refused(amount: str) -> None:
    with pytest.raises(errors.Invalid, match="amount"):
        Price(Decimal(amount), "EUR", "PT1H")


@pytest.mark.parametrize("currency", ["", "eur", "EURO", "€", "E1R"])
def test_a_currency_is_three_letters(currency: str) -> None:
    with pytest.raises(errors.Invalid, match="ISO 4217"):
        Price(Decimal(1), currency, "PT1H")


@pytest.mark.parametrize("period", ["PT1H", "P1D", "P1M", "P1Y2M3DT4H5M6S", "P2W", "PT90S", "P1DT12H"])
def test_periods_that_are_understood(period: str) -> None:
    assert Price(Decimal(1), "EUR", period).period == period


@pytest.mark.parametrize(
    "period", ["", "P", "PT", "P1", "1H", "P1H", "PT1D", "P1DT", "PT0S", "P0D", "P1W1D", "hour", "-P1D"]
)
def test_periods_that_are_not(period: str) -> None:
    with pytest.raises(errors.Invalid, match="ISO 8601"):
        Price(Decimal(1), "EUR", period)


PARTITION = Partition(least=resources(1000, 1024), step=resources(500, 512))
SMALL = st.integers(0, 12)


@given(
    asked=st.builds(lambda c, m: resources(c * 250, m * 256), SMALL, SMALL),
    free=st.builds(lambda c, m: resources(c * 250, m * 256), SMALL, SMALL),
)
def test_a_part_is_taken_exactly_if_it_fits_is_in_steps_and_leaves_enough_or_nothing(
    asked: Resources, free: Resources
) -> None:
    def is_good(ask: int, have: int, least: int, step: int) -> bool:
        return least <= ask <= have and (ask - least) % step == 0

    cpu, memory = free.cpu - asked.cpu, free.memory - asked.memory
    is_left_enough = (cpu >= 1000 and memory >= 1024) or (cpu < 500 and memory < 512)
    expected = (
        is_good(asked.cpu, free.cpu, 1000, 500)
        and is_good(asked.memory, free.memory, 1024, 512)
        and is_left_enough
    )
    try:
        PARTITION.check(asked, free)
    except (errors.ResourcesExhausted, errors.Unprocessable):
        assert not expected
    else:
        assert expected


def test_whoever_takes_all_of_one_resource_takes_all_of_the_others() -> None:
    """What is left of them could be sold to nobody."""
    for ask in (resources(8000, 1024), resources(1000, 8192)):
        with pytest.raises(errors.Unprocessable, match="too little to sell"):
            PARTITION.check(ask, resources(8000, 8192))
    PARTITION.check(resources(8000, 8192), resources(8000, 8192))
    PARTITION.check(resources(7000, 7168), resources(8000, 8192))


@given(free=st.builds(lambda c, m: resources(c * 250, m * 256), SMALL, SMALL))
def test_of_whatever_is_left_that_is_enough_the_largest_part_may_be_taken(free: Resources) -> None:
    """Also where capacity was changed to what is no whole number of steps."""
    if free.fits(PARTITION.least):
        PARTITION.check(PARTITION.largest(free), free)


@pytest.mark.parametrize(
    ("ask", "kind", "says"),
    [
        (resources(9000, 1024), errors.ResourcesExhausted, "lacks 1 core of cpu now; request less"),
        (resources(500, 1024), errors.Unprocessable, "at least 1 core of cpu, 1024 MB of memory"),
        (
            resources(1250, 1024),
            errors.Unprocessable,
            "1 core and whole steps of 0.5 cores are available; request 1 core or 1.5 cores",
        ),
        (
            resources(7500, 1024),
            errors.Unprocessable,
            r"0.5 cores of cpu, 7168 MB of memory would be left, .* take all \(8 cores of cpu, 8192 MB of "
            "memory\\), or leave at least 1 core of cpu, 1024 MB of memory",
        ),
    ],
)
def test_a_part_that_cannot_be_had_is_refused_with_what_can(
    ask: Resources, kind: type[errors.SkerryError], says: str
) -> None:
    with pytest.raises(kind, match=says):
        flavor(partition=PARTITION).check_part(ask, resources(8000, 8192))


def test_an_offer_without_a_partition_is_sold_whole() -> None:
    whole = flavor()
    whole.check_part(whole.resources, whole.resources)
    with pytest.raises(errors.Unprocessable, match="sold whole"):
        whole.check_part(resources(1000, 1000), whole.resources)
    with pytest.raises(errors.ResourcesExhausted):
        whole.check_part(whole.resources, NO_RESOURCES)


def test_nothing_cannot_be_bought() -> None:
    with pytest.raises(errors.Invalid, match="no amount was requested"):
        flavor().check_part(NO_RESOURCES, flavor().resources)


def test_an_aggregation_holds_to_its_counts() -> None:
    several = Aggregation(least=2, most=4)
    for count in (2, 3, 4):
        several.check(count)
    for count in (0, 1, 5):
        with pytest.raises(errors.Unprocessable, match="2 to 4"):
            several.check(count)
    for least, most in ((0, 1), (3, 2)):
        with pytest.raises(errors.Invalid):
            Aggregation(least, most)


@pytest.mark.parametrize(("now", "live"), [(10.0, True), (29.9, True), (30.0, False), (31.0, False)])
def test_a_hold_is_over_at_its_deadline_and_not_after_it(now: float, live: bool) -> None:
    assert hold().is_live(now) is live


@pytest.mark.parametrize(("now", "live"), [(19.9, False), (20.0, True), (99.9, True), (100.0, False)])
def test_a_contract_lives_between_its_ends(now: float, live: bool) -> None:
    assert contract().is_live(now) is live
    assert not contract(ended_at=50.0).is_live(now)


def test_a_hold_and_a_contract_say_how_they_stand_before_anybody_wrote_it() -> None:
    assert [hold().state(now) for now in (29.9, 30.0)] == ["held", "expired"]
    assert hold(ending=EndReason.CANCELLED).state(29.9) == "cancelled"
    assert [contract().state(now) for now in (99.9, 100.0)] == ["live", "expired"]
    assert [contract(reclaim_at=50.0).state(now) for now in (49.9, 50.0)] == ["reclaimed", "withdrawn"]
    assert contract(ending=EndReason.RELEASED).state(30.0) == "released"


def test_what_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="after it begins"):
        hold(expires_at=10.0)
    with pytest.raises(errors.Invalid, match="after it begins"):
        contract(ends_at=20.0)


@pytest.mark.parametrize(
    "changes", [{"id": "a/b"}, {"provider": ""}, {"kind": " "}, {"gpus": -1}, {"persistent": -1}]
)
def test_an_offer_of_bad_parts_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(errors.Invalid):
        flavor(**changes)
