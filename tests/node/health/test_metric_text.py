"""Metrics out of pages of Prometheus' text format, also out of what is none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.node.health.metric_text import read_metric

PAGE = b"""# HELP requests_in_flight Requests that are being served
# TYPE requests_in_flight gauge
requests_in_flight{path="/a",odd="} 99 \\" {"} 3
requests_in_flight{path="/b"} 4.5 1700000000000
requests_in_flight{path="/c"} NaN
requests_in_flight_total 1000
other 7
queue 12 # {trace="abc"} 5
broken{path="/
"""


def test_of_several_series_the_sum_counts_and_what_is_no_number_does_not() -> None:
    assert read_metric(PAGE, "requests_in_flight") == 7.5
    assert read_metric(PAGE, "requests_in_flight_total") == 1000
    assert read_metric(PAGE, "other") == 7
    assert read_metric(PAGE, "queue") == 12


def test_what_is_not_there_or_is_no_number_is_none() -> None:
    for name in ("requests", "missing", "broken", "HELP"):
        assert read_metric(PAGE, name) is None
    assert read_metric(b"a NaN\n", "a") is None
    assert read_metric(b"a +Inf\n", "a") is None
    assert read_metric(b"a 1e308\na 1e308\n", "a") is None
    assert read_metric(b"a one\n", "a") is None
    assert read_metric(b"", "a") is None
    assert read_metric(b"\xff\xfe\x00a 1", "a") is None


def test_a_page_made_to_be_slow_is_read_at_once() -> None:
    for page in (b"a{" * 500_000, b'a{x="' + b"\\" * 1_000_000, b'a{b="c"' * 100_000, b"\n" * 1_000_000):
        assert read_metric(page, "a") is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.text(max_size=20))
def test_labels_of_any_value_do_not_matter(values: list[float], label: str) -> None:
    quoted = label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    page = "".join(f'm{{l="{quoted}",n="{n}"}} {value}\n' for n, value in enumerate(values)).encode()
    assert read_metric(page, "m") == sum(values)
