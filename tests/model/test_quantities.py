"""Amounts as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.quantities import parse_cpu, parse_disk, parse_memory
from skerry.model.resources import MAX_AMOUNT


@pytest.mark.parametrize(
    ("parse", "text", "amount"),
    [
        (parse_cpu, "500", 500),
        (parse_cpu, "500m", 500),
        (parse_cpu, "0.5", 500),
        (parse_cpu, ".25", 250),
        (parse_cpu, "2.0", 2000),
        (parse_cpu, "1.125", 1125),
        (parse_memory, "256", 256),
        (parse_memory, "256m", 256),
        (parse_memory, "256M", 256),
        (parse_memory, "512Mi", 512),
        (parse_memory, "256MB", 256),
        (parse_memory, "1g", 1024),
        (parse_memory, "1.5Gi", 1536),
        (parse_memory, "2048k", 2),
        (parse_disk, "10", 10),
        (parse_disk, "10g", 10),
        (parse_disk, "2t", 2048),
        (parse_disk, "2048m", 2),
    ],
)
def test_an_amount_is_read(parse: Callable[[str], int], text: str, amount: int) -> None:
    assert parse(text) == amount


@given(st.integers(0, MAX_AMOUNT))
def test_a_plain_number_is_what_it_always_was(number: int) -> None:
    assert parse_cpu(str(number)) == parse_memory(str(number)) == parse_disk(str(number)) == number


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (parse_cpu, "", "no amount of cpu"),
        (parse_cpu, "-1", "no amount of cpu"),
        (parse_cpu, "1e3", "no amount of cpu"),
        (parse_cpu, "2g", "no amount of cpu"),
        (parse_cpu, "0.0005", "whole parts"),
        (parse_memory, "much", "no amount of memory"),
        (parse_memory, "100k", "whole parts of a MB"),
        (parse_disk, "1.5", "whole parts of a GB"),
        (parse_disk, "500m", "whole parts of a GB"),
        (parse_memory, "9999t", "more memory than there can be"),
    ],
)
def test_what_is_no_amount_is_refused(parse: Callable[[str], int], text: str, why: str) -> None:
    with pytest.raises(errors.Invalid, match=why):
        parse(text)
