"""The span of a request to an HTTP server: begun by its headers, recorded when it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from skerry.kit import traces
from skerry.kit.traces import TraceContext

_TRACEPARENT: Final = b"traceparent"
_SERVER_ERROR: Final = 500
# Polled all day, and of no interest.
_UNTRACED: Final = frozenset({"/healthz", "/livez", "/readyz", "/metrics"})


class RequestTrace(NamedTuple):
    """A request that is recorded."""

    span: TraceContext
    parent: TraceContext | None


def begin(headers: Mapping[bytes, bytes]) -> RequestTrace | None:
    """None if it is not recorded. Traces must be on."""
    assert traces.recorder is not None
    parent = traces.parse_traceparent(headers.get(_TRACEPARENT))
    span = traces.recorder.begin(parent)
    return RequestTrace(span, parent) if span.is_sampled else None


def end(trace: RequestTrace, method: str, route: str, status: int, seconds: float) -> None:
    """It has just been answered."""
    if traces.recorder is None or route in _UNTRACED:
        return
    traces.recorder.end(
        trace.span,
        trace.parent,
        f"{method} {route}",
        seconds,
        kind=traces.SERVER,
        attributes={
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
        },
        error=f"status {status}" if status >= _SERVER_ERROR else None,
    )
