"""How requests are decoded and responses encoded: by `go_json`, whatever the Content-Type."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import BodyReader, Dialect
from skerry.wire.serverledge import error_texts, go_json

_PRETTY = "pretty"


def wants_pretty(query_string: bytes) -> bool:
    """True if the query has `pretty`, whatever its value."""
    pairs = parse_qsl(query_string.decode("latin-1"), keep_blank_values=True)
    return any(name == _PRETTY for name, _ in pairs)


def _body_reader(declared: Endpoint) -> BodyReader:
    return go_json.GoJsonReader(declared.inputs["body"]).read


def _encode(value: Any, query_string: bytes) -> bytes:
    return go_json.encode_go_json(value, is_pretty=bool(query_string) and wants_pretty(query_string))


DIALECT = Dialect(
    error_response=error_texts.error_response,
    body_reader=_body_reader,
    encode=_encode,
    media=error_texts.JSON,
    at_once=True,
    unavailable="this node runs no functions, because it cannot run containers; its log says at its start "
    "what is lacking. Call another node, or a server",
)
