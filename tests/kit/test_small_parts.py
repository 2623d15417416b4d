"""Ids, back-off, clocks, JSON and the heap."""

from __future__ import annotations

import resource

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import json_codec, malloc
from skerry.kit.backoff import Backoff
from skerry.kit.clock import ManualClock, iso
from skerry.kit.ulid import new_id, new_id_after

LATER = st.floats(min_value=0, max_value=2**47 / 1000)


@given(LATER, LATER)
def test_ids_sort_by_the_millisecond_they_were_made_in(one: float, other: float) -> None:
    low, high = sorted((one, other))
    if int(low * 1000) < int(high * 1000):
        assert new_id(low, lambda bits: 2**bits - 1) < new_id(high, lambda bits: 0)


@given(LATER)
def test_ids_are_safe_in_paths_and_names(now: float) -> None:
    made = new_id(now)
    assert len(made) == 26
    assert made.isalnum()
    assert made == made.lower()


def test_ten_thousand_ids_of_one_moment_are_all_different() -> None:
    assert len({new_id(1.0) for _ in range(10_000)}) == 10_000


def test_ids_sort_as_they_were_made_if_that_is_asked_for() -> None:
    made = [""]
    for chance in (5, 3, 3, 2**80 - 1, 9):
        made.append(new_id_after(made[-1], 1.0, lambda _, chance=chance: chance))
    assert made == sorted(set(made))
    assert new_id_after(made[-1], 2.0, lambda _: 0) == new_id(2.0, lambda _: 0)


@given(st.integers(min_value=0, max_value=10_000), st.floats(min_value=0, max_value=1))
def test_a_delay_never_leaves_its_bounds(failures: int, chance: float) -> None:
    schedule = Backoff(first_s=0.1, factor=2, cap_s=30, jitter=0.2)
    delay = schedule.delay(failures, lambda: chance)
    assert 0.1 * 0.8 <= delay <= 30 * 1.2


def test_delays_double_until_the_cap() -> None:
    schedule = Backoff(first_s=1, factor=2, cap_s=5, jitter=0)
    assert [schedule.delay(n) for n in range(5)] == [1, 2, 4, 5, 5]


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (102.5, 2.5)


def test_times_are_written_in_utc_with_milliseconds() -> None:
    assert iso(0.0625) == "1970-01-01T00:00:00.062Z"


class Shape(msgspec.Struct, forbid_unknown_fields=True):
    sides: int


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "not valid JSON"),
        (b'{"sides": 3} x', "not valid JSON"),
        (b'{"sides": "3"}', r"Expected `int`, got `str` - at `\$.sides`"),
        (b'{"sides": 3, "angles": 3}', "unknown field `angles`"),
        (b'{"sides": \xff}', "not valid JSON"),
        (b"[" * 100_000, "Expected `object`, got `array`"),
        (b"{}", "missing required field `sides`"),
    ],
)
def test_bad_json_is_told_with_its_place(data: bytes, complaint: str) -> None:
    with pytest.raises(json_codec.InvalidJson, match=complaint):
        json_codec.decode(data, Shape)


def test_json_that_is_nested_too_deeply_is_told_and_not_a_crash() -> None:
    with pytest.raises(json_codec.InvalidJson, match="nested too deeply"):
        json_codec.decode(b"[" * 100_000, list)


@given(st.dictionaries(st.text(max_size=5), st.integers(min_value=-(2**53), max_value=2**53), max_size=5))
def test_canonical_json_does_not_depend_on_the_order_of_keys(value: dict[str, int]) -> None:
    turned = dict(reversed(list(value.items())))
    assert json_codec.encode_canonical(value) == json_codec.encode_canonical(turned)
    assert json_codec.decode(json_codec.encode_canonical(value), dict) == value


def test_large_pieces_that_are_free_again_are_kept() -> None:
    """Their pages are there the next time, and need not be asked for."""
    assert malloc.raise_malloc_thresholds()
    pieces, size, turns = 4, 800_000, 20

    def work() -> int:
        """Takes some pieces at a time, of which the kernel would get back most."""
        return len([b"x" * (size + number) for number in range(pieces)])

    work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    assert sum(work() for _ in range(turns)) == pieces * turns
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < pieces * turns * size // resource.getpagesize() // 10
