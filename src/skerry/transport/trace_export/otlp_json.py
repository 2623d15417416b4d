"""Spans as OTLP's JSON encoding has them: ids in hex, 64-bit numbers as text, enums as numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from skerry.kit import json_codec
from skerry.kit.traces import Attribute, TraceSpan

_SCOPE: Final = "skerry"
_ERROR: Final = 2  # the status code
_SAMPLED: Final = 1


def encode(spans: Sequence[TraceSpan], resource: Mapping[str, Attribute], version: str) -> bytes:
    """The body of an export."""
    document = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [
                    {"scope": {"name": _SCOPE, "version": version}, "spans": [_span(each) for each in spans]}
                ],
            }
        ]
    }
    return json_codec.encode(document)


def _span(span: TraceSpan) -> dict[str, Any]:
    document: dict[str, Any] = {
        "traceId": span.context.trace_id,
        "spanId": span.context.span_id,
        "flags": _SAMPLED,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        document["parentSpanId"] = span.parent_id
    if span.error is not None:
        document["status"] = {"code": _ERROR, "message": span.error}
    if span.links:
        document["links"] = [
            {"traceId": each.trace_id, "spanId": each.span_id, "flags": _SAMPLED} for each in span.links
        ]
    return document


def _attributes(values: Mapping[str, Attribute]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Attribute) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    return {"stringValue": value}
