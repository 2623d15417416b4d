"""Decodes requests to the structs that endpoints declare; strict, and errors name the field.

Pure: bytes and text in, structs out, `Invalid` if they do not match. Errors of the JSON library are turned
into our own, which name the input and the field.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar, get_origin, get_type_hints
from urllib.parse import parse_qsl

from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport.http.responses import HttpError

T = TypeVar("T")

_MAX_PARAMETERS = 64
_FIELD_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_NAMED = re.compile(r"field `([^`]*)`")


def query(query_string: bytes, as_type: type[T]) -> T:
    """The parameters of a URL; each at most once, but for those that are lists."""
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise errors.Invalid("the query is not UTF-8, percent-encoded") from None
    except ValueError:
        raise errors.Invalid(f"the query has more than {_MAX_PARAMETERS} parameters") from None
    lists = _lists_of(as_type)  # type: ignore[arg-type]  # a class can be hashed, whatever it makes
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            values.setdefault(name, []).append(value)
            continue
        if name in values:
            raise errors.Invalid(f"query: `{name}` is given twice; give it once", field=name)
        values[name] = value
    return _convert(values, as_type, "query")


@functools.cache
def _lists_of(as_type: type) -> frozenset[str]:
    hints = get_type_hints(as_type)
    return frozenset(name for name, hint in hints.items() if get_origin(hint) is tuple)


def path(values: Mapping[str, Any], as_type: type[T]) -> T:
    """The named parts of a path."""
    return _convert(dict(values), as_type, "path")


def body(data: bytes, content_type: bytes | None, content_encoding: bytes | None, as_type: type[T]) -> T:
    """A JSON body. No Content-Type is taken as JSON, another one is an error, whatever the bytes are."""
    if not _is_json(content_type):
        raise HttpError(
            415, "wrong-media-type", "the body must be JSON in UTF-8: send Content-Type: application/json"
        )
    if content_encoding not in (None, b"identity"):
        raise HttpError(415, "wrong-media-type", "the body must not be compressed; send it as it is")
    if not data:
        raise errors.Invalid("the body is empty; send JSON as /openapi.json describes it")
    try:
        value = json_codec.decode(data, as_type)
    except json_codec.InvalidJson as error:
        raise explained(str(error), "body") from None
    _refuse_repeated_names(data)
    return value


def _is_json(content_type: bytes | None) -> bool:
    if content_type is None:
        return True
    media, _, parameters = content_type.decode("latin-1").lower().partition(";")
    media = media.strip()
    if media != "application/json" and not (media.startswith("application/") and media.endswith("+json")):
        return False
    _, given, charset = parameters.partition("charset=")
    return not given or charset.strip().strip('"') == "utf-8"


def _convert(values: dict[str, Any], as_type: type[T], part: str) -> T:
    try:
        return json_codec.convert(values, as_type, strict=False)
    except json_codec.InvalidJson as error:
        raise explained(str(error), part) from None


def explained(problem: str, part: str) -> errors.Invalid:
    """An error of the JSON library about `part` of a request, as one that names the field."""
    field_path = _FIELD_PATH.search(problem)
    if field_path is not None:
        field = field_path.group(1)
        text = (
            f"{part}: `{field}`: {problem[: field_path.start()]}"
            if field
            else f"{part}: {problem[: field_path.start()]}"
        )
        return errors.Invalid(text, field=field)
    named = _NAMED.search(problem)
    return errors.Invalid(f"{part}: {problem}", field=named.group(1) if named else "")


def _refuse_repeated_names(data: bytes) -> None:
    """Of two equal names one would win silently, and another reader might take the other."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        seen = set()
        for name, _ in pairs:
            if name in seen:
                raise errors.Invalid(f"body: `{name}` is given twice; give it once", field=name)
            seen.add(name)

    json.loads(data, object_pairs_hook=check)
