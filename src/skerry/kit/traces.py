"""Traces: spans of this process, sampled, and kept in a bounded buffer until they are exported.

One recorder per process, or none: `recorder` is None while traces are off, and then whoever would record a
span does nothing but find that out. The context of a trace is passed between processes as the W3C header
`traceparent`. It also passes along with a request id, so that what is done later for a request is found in
its trace: `request_id` makes such an id, `context_of` reads it.

Spans are recorded when they have ended; nothing here waits or exports.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from skerry.kit import metrics

MAX_SPANS: Final = 8192  # that wait for their export
TRACEPARENT_BYTES: Final = 55
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_REQUEST_ID: Final = re.compile(r"trace-([0-9a-f]{32})-([0-9a-f]{16})")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_LONGEST: Final = 512  # of a header of a later version
_SAMPLED: Final = 1
_MAX_TEXT: Final = 1000
_NANOSECONDS: Final = 1_000_000_000

# Kinds, by their numbers in OTLP.
INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5

Attribute = str | int | float | bool

DROPPED = metrics.counter("skerry_trace_spans_dropped_total", "Spans that were not exported", ["reason"])


class TraceContext(NamedTuple):
    """A span that others are children of."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"

    @property
    def request_id(self) -> str:
        """An id for a request that is this span."""
        return f"trace-{self.trace_id}-{self.span_id}"


class TraceSpan(msgspec.Struct, frozen=True):
    """A span that has ended."""

    context: TraceContext
    parent_id: str  # empty: it has none
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Attribute] = {}
    error: str | None = None  # what went wrong; None: nothing did
    links: tuple[TraceContext, ...] = ()  # spans of other traces that caused it


def parse_traceparent(text: str | bytes | None) -> TraceContext | None:
    """The context in a header; None if there is none that is valid, which is then as if it was not sent."""
    if not text or len(text) > _LONGEST:
        return None
    if isinstance(text, bytes):
        text = text.decode("latin-1")
    found = _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def context_of(request_id: str) -> TraceContext | None:
    """The span that a request id is of; None if it is of none."""
    found = _REQUEST_ID.fullmatch(request_id)
    return None if found is None else TraceContext(found[1], found[2])


class SpanRecorder:
    """Decides which traces are recorded, and keeps their spans until they are taken."""

    def __init__(
        self,
        ratio: float,
        *,
        new_bits: Callable[[int], int] | None = None,
        now_ns: Callable[[], int] = time.time_ns,
        most: int = MAX_SPANS,
    ) -> None:
        """`ratio` of the traces that begin here are recorded; others as their callers decided."""
        self._limit = round(ratio * (1 << 64))
        self._new_bits = new_bits or random.Random(os.urandom(16)).getrandbits  # noqa: S311 - no secrets
        self._now_ns = now_ns
        self._most = most
        self._spans: deque[TraceSpan] = deque()

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """A new span below `parent`, or at the root of a new trace."""
        if parent is not None:
            return parent._replace(span_id=self._new_id(64))
        trace_id = self._new_id(128)
        return TraceContext(trace_id, self._new_id(64), int(trace_id[16:], 16) < self._limit)

    def add(self, span: TraceSpan) -> None:
        """Record a span, if it is sampled. Never waits: it is dropped if too many wait for their export."""
        if not span.context.is_sampled:
            return
        if len(self._spans) >= self._most:
            DROPPED.labels("buffer full").inc()
            return
        self._spans.append(span)

    def end(
        self,
        context: TraceContext,
        parent: TraceContext | None,
        name: str,
        seconds: float,
        *,
        kind: int = INTERNAL,
        attributes: Mapping[str, Attribute] | None = None,
        error: str | None = None,
        links: tuple[TraceContext, ...] = (),
    ) -> None:
        """Record a span that ends now and took `seconds`."""
        end_ns = self._now_ns()
        self.add(
            TraceSpan(
                context,
                "" if parent is None else parent.span_id,
                name,
                kind,
                end_ns - max(0, int(seconds * _NANOSECONDS)),
                end_ns,
                dict(attributes or {}),
                None if error is None else error[:_MAX_TEXT],
                links,
            )
        )

    def take(self, most: int) -> list[TraceSpan]:
        """Up to `most` spans, the oldest first; they are not kept any more."""
        return [self._spans.popleft() for _ in range(min(most, len(self._spans)))]

    def __len__(self) -> int:
        return len(self._spans)

    def _new_id(self, bits: int) -> str:
        return f"{self._new_bits(bits) or 1:0{bits // 4}x}"


recorder: SpanRecorder | None = None


def install(new: SpanRecorder | None) -> None:
    """Record spans from now on, or with None no longer."""
    global recorder
    recorder = new
