"""Numbers as pages write them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from skerry.console import formats


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (formats.duration(-3), "0s"),
        (formats.duration(59.9), "59s"),
        (formats.duration(7200), "2h"),
        (formats.duration(200_000), "2d"),
        (formats.latency(None), "–"),
        (formats.latency(0.0004), "0.4 ms"),
        (formats.latency(0.012), "12 ms"),
        (formats.latency(1.84), "1.8 s"),
        (formats.cores(250), "0.25"),
        (formats.latencies(0.052, 0.2444), "52 / 244 ms"),
        (formats.latencies(0.052, 1.84), "52 ms / 1.8 s"),
        (formats.latencies(None, None), "– / –"),
        (formats.cores(2000), "2"),
        (formats.cores(12_340), "12.3"),
        (formats.cores(4_596_200), "4,596"),
        (formats.megabytes(512), "512 MB"),
        (formats.megabytes(1536), "1.5 GB"),
        (formats.megabytes(150_528), "147 GB"),
        (formats.gigabytes(2048), "2 TB"),
        (formats.rate(0), "0"),
        (formats.rate(0.44), "0.4"),
        (formats.rate(3210), "3.2k"),
        (formats.count(1, "copy", "copies"), "1 copy"),
        (formats.count(1200, "copy", "copies"), "1,200 copies"),
        (formats.money(Decimal("1234.5"), "EUR"), "1,234.50 EUR"),
        (formats.money(Decimal("0.000125"), "EUR"), "0.000125 EUR"),
    ],
)
def test_a_number_is_short_and_has_its_unit(text: str, expected: str) -> None:
    assert text == expected
