"""Signals in both directions."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.containers import signals


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("SIGTERM", 15),
        ("TERM", 15),
        ("term", 15),
        ("15", 15),
        (" SIGQUIT ", 3),
        ("IOT", 6),
        ("POLL", signal.SIGIO),
        ("RTMIN", 34),
        ("SIGRTMIN+3", 37),
        ("RTMAX-14", 50),
        ("SIGRTMAX", 64),
        ("64", 64),
    ],
)
def test_a_signal_is_known_by_name_and_by_number(text: str, number: int) -> None:
    assert signals.number_of(text) == number


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SIG",
        "SIGNOTHING",
        "0",
        "00",
        "32",
        "33",
        "65",
        "-9",
        "+9",
        "RTMIN-1",
        "RTMAX+1",
        "RTMIN+31",
        "SIGSIGTERM",
        "1 5",
        "٣",
    ],
)
def test_what_is_no_signal_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="is not a signal; write one such as SIGTERM"):
        signals.number_of(text)


@given(st.sampled_from([*range(1, 32), *range(34, 65)]))
def test_the_name_of_a_number_leads_back_to_it(number: int) -> None:
    assert signals.number_of(signals.name_of(number)) == number
    assert signals.name_of(number).startswith("SIG")


def test_a_number_without_a_name_is_told_as_it_is() -> None:
    assert [signals.name_of(number) for number in (0, 32, 33, 65)] == ["0", "32", "33", "65"]


@given(st.text(max_size=20))
def test_every_text_is_a_signal_or_refused(text: str) -> None:
    try:
        number = signals.number_of(text)
    except errors.Invalid:
        return
    assert 1 <= number <= 64
