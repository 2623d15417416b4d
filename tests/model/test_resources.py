"""Room: never negative, never mixed, and plain about what is lacking."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import json_codec
from skerry.model import errors
from skerry.model.resources import (
    MAX_AMOUNT,
    NO_RESOURCES,
    Gigabytes,
    Megabytes,
    Millicores,
    Resources,
    total,
)

# Small amounts meet often enough to be equal; large ones reach the bounds.
AMOUNTS = st.integers(0, 5) | st.integers(0, MAX_AMOUNT)
ROOMS = st.builds(Resources, AMOUNTS, AMOUNTS, AMOUNTS)


def add(left: Resources, right: Resources) -> Resources | None:
    """The sum, or None if it is beyond what can be counted."""
    try:
        return left + right
    except errors.Invalid:
        return None


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


@given(ROOMS, ROOMS)
def test_what_is_left_is_never_negative_and_a_debt_is_refused(have: Resources, ask: Resources) -> None:
    if have.fits(ask):
        left = have - ask
        assert all(amount >= 0 for _, _, amount in left.parts())
        assert left + ask == have
    else:
        with pytest.raises(errors.ResourcesExhausted, match="lacks"):
            _ = have - ask


@given(ROOMS, ROOMS, ROOMS)
def test_addition_is_associative_also_where_it_overflows(a: Resources, b: Resources, c: Resources) -> None:
    left, right = add(a, b), add(b, c)
    assert (left and add(left, c)) == (right and add(a, right))


@given(ROOMS, ROOMS)
def test_addition_is_commutative_and_nothing_adds_nothing(a: Resources, b: Resources) -> None:
    assert add(a, b) == add(b, a)
    assert a + NO_RESOURCES == a


@given(ROOMS, ROOMS)
def test_fits_lack_and_shortfall_agree(have: Resources, ask: Resources) -> None:
    lack = have.lack(ask)
    assert have.fits(ask) == (lack == NO_RESOURCES) == (have.shortfall(ask) == "")
    grown = add(have, lack)
    assert grown is None or grown.fits(ask)
    for name, unit, amount in lack.parts():
        assert (f"{amount} {unit} of {name}" in have.shortfall(ask)) == (amount > 0)


@given(ROOMS, ROOMS, ROOMS)
def test_fitting_is_an_order(a: Resources, b: Resources, c: Resources) -> None:
    assert a.fits(a)
    if a.fits(b) and b.fits(a):
        assert a == b
    if a.fits(b) and b.fits(c):
        assert a.fits(c)


@given(st.lists(st.builds(Resources, *[st.integers(0, 1000)] * 3)))
def test_a_total_is_the_sum_of_each_part(rooms: list[Resources]) -> None:
    together = total(rooms)
    assert together.cpu == sum(one.cpu for one in rooms)
    assert together.memory == sum(one.memory for one in rooms)
    assert together.disk == sum(one.disk for one in rooms)


@given(ROOMS)
def test_room_survives_being_stored(one: Resources) -> None:
    assert json_codec.decode(json_codec.encode(one), Resources) == one


@pytest.mark.parametrize("bad", [-1, MAX_AMOUNT + 1, 1.0, True, "1"])
@pytest.mark.parametrize("field", ["cpu", "memory", "disk"])
def test_amounts_out_of_range_are_refused_by_name(field: str, bad: object) -> None:
    with pytest.raises(errors.Invalid, match=field) as caught:
        Resources(**{field: bad})  # type: ignore[arg-type]
    assert caught.value.field == field


def test_amounts_out_of_range_are_refused_when_decoded_too() -> None:
    with pytest.raises(errors.Invalid, match="cpu must be 0 to"):
        msgspec.json.decode(b'{"cpu": -1}', type=Resources)


def test_a_shortfall_reads_well() -> None:
    have, ask = resources(cpu=1500, memory=64, disk=9), resources(cpu=2000, memory=128, disk=1)
    assert have.shortfall(ask) == "lacks 500 milli-cores of cpu, 64 MB of memory"
