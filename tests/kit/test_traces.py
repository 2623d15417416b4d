"""Contexts, sampling, and the bounded buffer of spans."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit import traces
from skerry.kit.traces import SpanRecorder, TraceContext, context_of, parse_traceparent
from skerry.model import ids

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN, False)),
        (f"00-{TRACE}-{SPAN}-ff", TraceContext(TRACE, SPAN, True)),
        (f" 00-{TRACE}-{SPAN}-01 ".encode(), TraceContext(TRACE, SPAN, True)),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", TraceContext(TRACE, SPAN, True)),
    ],
)
def test_a_traceparent_is_read(text: str | bytes, context: TraceContext) -> None:
    assert parse_traceparent(text) == context


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-zz",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 600}",
        b"\xff\xfe",
    ],
)
def test_a_malformed_traceparent_is_as_if_it_was_not_sent(text: str | bytes | None) -> None:
    assert parse_traceparent(text) is None


@given(st.text(max_size=80))
def test_nothing_that_is_sent_raises(text: str) -> None:
    parse_traceparent(text)
    parse_traceparent(text.encode())
    context_of(text)


def test_a_context_survives_the_header_and_the_request_id() -> None:
    context = SpanRecorder(1.0).begin(None)
    assert parse_traceparent(context.traceparent) == context
    assert len(context.traceparent) == traces.TRACEPARENT_BYTES
    assert context_of(context.request_id) == context
    assert ids.is_request_id(context.request_id)
    assert context_of("a1b2c3d400000001") is None


def test_a_child_is_in_the_trace_of_its_parent_whose_decision_holds() -> None:
    recorder = SpanRecorder(0.0)
    parent = TraceContext(TRACE, SPAN, True)
    child = recorder.begin(parent)
    assert (child.trace_id, child.is_sampled) == (TRACE, True)
    assert child.span_id != SPAN
    assert not SpanRecorder(1.0).begin(parent._replace(is_sampled=False)).is_sampled


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.0, 0, 0), (0.25, 150, 350), (1.0, 1000, 1000)])
def test_the_ratio_of_new_traces_is_recorded(ratio: float, least: int, most: int) -> None:
    recorder = SpanRecorder(ratio, new_bits=random.Random(7).getrandbits)
    assert least <= sum(recorder.begin(None).is_sampled for _ in range(1000)) <= most


def test_spans_that_are_not_sampled_are_not_kept_and_too_many_are_dropped_and_counted() -> None:
    recorder = SpanRecorder(1.0, most=2, now_ns=lambda: 5_000_000_000)
    recorder.end(TraceContext(TRACE, SPAN, False), None, "unsampled", 1.0)
    before = traces.DROPPED.labels("buffer full")._value.get()
    for number in range(4):
        recorder.end(TraceContext(TRACE, SPAN), None, str(number), 1.5)
    assert traces.DROPPED.labels("buffer full")._value.get() == before + 2
    assert [(span.name, span.start_ns, span.end_ns) for span in recorder.take(10)] == [
        ("0", 3_500_000_000, 5_000_000_000),
        ("1", 3_500_000_000, 5_000_000_000),
    ]
    assert len(recorder) == 0
