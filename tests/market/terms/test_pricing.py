"""Parts cost what they are of the whole, to the last digit, and never more together than the whole."""

from __future__ import annotations

import itertools
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.market.terms import pricing
from skerry.model import errors
from skerry.model.market import Price
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from tests.market.markets import ANN, flavor, market, resources

amounts = st.decimals(0, 10_000, places=4)


def test_a_quarter_of_everything_costs_a_quarter() -> None:
    assert pricing.prorate(flavor(), resources(2, 2000)) == Price(Decimal("0.2"), "EUR", "PT1H")
    assert pricing.prorate(flavor(), resources(1, 1000), count=3) == Price(Decimal("0.3"), "EUR", "PT1H")


def test_all_of_it_costs_the_price_as_it_was_written() -> None:
    price = pricing.prorate(flavor(), flavor().resources)
    assert str(price.amount) == "0.80"


def test_resources_count_the_same_and_those_that_the_whole_has_not_do_not() -> None:
    assert Fraction(*pricing.share(resources(8, 8000), resources(8, 0))) == Fraction(1, 2)
    assert Fraction(*pricing.share(resources(8, 8000, 10), resources(8, 8000, 0))) == Fraction(2, 3)
    assert Fraction(*pricing.share(resources(8), resources(2))) == Fraction(1, 4)


@given(amount=amounts, cuts=st.lists(st.integers(1, 999), min_size=1, max_size=8, unique=True))
def test_parts_never_cost_more_than_the_whole_nor_less_by_more_than_rounding(
    amount: Decimal, cuts: list[int]
) -> None:
    whole = Resources(Millicores(1000), Megabytes(3000), Gigabytes(0))
    one = flavor(resources=whole, partition=None, price=Price(amount, "EUR", "PT1H"))
    edges = [0, *sorted(cuts), 1000]
    parts = [
        Resources(Millicores(b - a), Megabytes(3 * (b - a)), Gigabytes(0))
        for a, b in itertools.pairwise(edges)
    ]
    together = sum((pricing.prorate(one, part).amount for part in parts), Decimal(0))
    assert amount - len(parts) * Decimal("1e-9") <= together <= amount


@given(amount=amounts, hours=st.integers(1, 10_000))
def test_whole_periods_cost_exactly_so_many_times_the_price(amount: Decimal, hours: int) -> None:
    price = Price(amount, "EUR", "PT1H")
    assert pricing.total_for(price, 3600.0 * hours) == amount * hours


@given(
    amount=st.decimals(0, 10**6, places=12),
    seconds=st.floats(0.001, 1e8),
    period=st.sampled_from(["PT7S", "P1M"]),
)
def test_a_total_is_the_exact_product_rounded_down_once(amount: Decimal, seconds: float, period: str) -> None:
    total = pricing.total_for(Price(amount, "EUR", period), seconds)
    exact = Fraction(amount) * Fraction(seconds) / pricing.seconds_of(period)
    assert 0 <= exact - Fraction(total) < Fraction(1, 10**12)
    assert total.as_tuple().exponent <= 0  # `1E+3` is no way to write money


def test_the_longest_amount_is_not_rounded_to_what_decimals_usually_have() -> None:
    amount = Decimal("123456789012345678.123456789012345678")
    price = Price(amount, "EUR", "PT1H")
    assert pricing.total_for(price, 7200.0) == Decimal("246913578024691356.246913578024691356")
    half = pricing.prorate(flavor(price=price), resources(4, 4000)).amount
    assert half == Decimal("61728394506172839.061728394506172839")


async def test_a_long_total_is_renewed_to_the_last_digit() -> None:
    price = Price(Decimal("123456789012345678.000000000000000001"), "EUR", "PT1H")
    async with market() as m:
        await m.publish(price=price)
        sale = await m.buy(ANN, cpu=8, duration_s=3600.0)
        renewed = await m.ledger.renew(sale.contract.id, ANN, sale.contract.ends_at + 3600)
        assert renewed.contract.total == Decimal("246913578024691356.000000000000000002")


@pytest.mark.parametrize(
    ("period", "seconds"),
    [
        ("PT1S", 1),
        ("PT90M", 5400),
        ("P1DT12H", 129_600),
        ("P2W", 1_209_600),
        ("P12M", 31_556_952),
        ("P1Y", 31_556_952),
        ("P1Y2M", 36_816_444),
        ("PT31536000S", 31_536_000),
        ("PT0S", 0),
    ],
)
def test_a_period_has_one_length(period: str, seconds: int) -> None:
    assert pricing.seconds_of(period) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1", "1D", "P1W2D", "PT0.5S", "-P1D", "P\uff11D", "p1d", "P1D\n", f"P{'9' * 5000}D"],
)
def test_what_is_no_duration_is_refused_wherever_it_comes_from(text: str) -> None:
    with pytest.raises(errors.Invalid, match="no ISO 8601 duration"):
        pricing.seconds_of(text)
    with pytest.raises(errors.Invalid, match="a period is an ISO 8601 duration"):
        Price(Decimal(1), "EUR", text)
