"""Amounts as Kubernetes writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.resources import MAX_AMOUNT
from skerry.wire.rear import quantities


@pytest.mark.parametrize(
    ("text", "millicores"),
    [
        ("2", 2000),
        ("500m", 500),
        ("0.5", 500),
        ("1k", 1_000_000),
        ("1e3", 1_000_000),
        ("+2", 2000),
        ("2.", 2000),
    ],
)
def test_cpu_is_read_in_millicores(text: str, millicores: int) -> None:
    assert quantities.read(text, quantities.MILLICORE, "cpu") == millicores


@pytest.mark.parametrize(
    ("text", "megabytes"), [("8Gi", 8192), ("512Mi", 512), ("1048576", 1), ("0.5Gi", 512)]
)
def test_memory_is_read_in_megabytes(text: str, megabytes: int) -> None:
    assert quantities.read(text, quantities.MEGABYTE, "memory") == megabytes


@pytest.mark.parametrize(
    "text", ["", "-1", "1 Gi", "Gi", "1Xi", "0x10", "NaN", "1e999", "9" * 30, "1.5.2", "²"]
)
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="no amount"):
        quantities.read(text, quantities.ONE, "cpu")


@pytest.mark.parametrize(("text", "said"), [("1u", "finer"), ("1G", "finer"), ("1Ei", "more than")])
def test_what_is_too_fine_or_too_much_is_refused(text: str, said: str) -> None:
    unit = quantities.MILLICORE if text == "1u" else quantities.MEGABYTE
    with pytest.raises(errors.Invalid, match=said):
        quantities.read(text, unit, "x")


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (quantities.cores(500), "500m"),
        (quantities.cores(2000), "2"),
        (quantities.cores(2_000_000), "2k"),
        (quantities.cores(0), "0"),
        (quantities.megabytes(8192), "8Gi"),
        (quantities.megabytes(8193), "8193Mi"),
        (quantities.gigabytes(2048), "2Ti"),
        (quantities.megabytes(0), "0"),
        (quantities.plain(110), "110"),
    ],
)
def test_amounts_are_written_as_short_as_kubernetes_does(written: str, text: str) -> None:
    assert written == text


@given(st.integers(0, MAX_AMOUNT))
def test_what_is_written_is_read_back(amount: int) -> None:
    assert quantities.read(quantities.cores(amount), quantities.MILLICORE, "cpu") == amount
    assert quantities.read(quantities.megabytes(amount), quantities.MEGABYTE, "memory") == amount
    assert quantities.read(quantities.gigabytes(amount), quantities.GIGABYTE, "disk") == amount
