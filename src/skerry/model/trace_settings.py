"""The settings of traces; a part of `skerry.model.settings`."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class TraceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces of requests and function calls, exported by OTLP over HTTP."""

    endpoint: Annotated[
        str,
        Meta(
            description="URL of an OTLP receiver, such as http://127.0.0.1:4318/v1/traces; empty: no traces"
        ),
    ] = ""
    sample: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Ratio of traces that are recorded, of those that begin here; a caller that sends "
            "`traceparent` decides itself",
        ),
    ] = 1.0
    headers: Annotated[
        str,
        Meta(
            description="File with headers for the receiver, such as `authorization=Bearer ...`, one per "
            "line, which only its owner can read; it is read for every export"
        ),
    ] = ""
    ca: Annotated[
        str, Meta(description="PEM file: the CA of the receiver's certificate; empty: those of this machine")
    ] = ""
