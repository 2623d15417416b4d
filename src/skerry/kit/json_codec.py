"""JSON in and out, in one place, so that the library behind it can be exchanged.

Callers see `InvalidJson` with a sentence that names the place in the document, never the library's errors.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_canonical = msgspec.json.Encoder(order="sorted")


class InvalidJson(ValueError):
    """The bytes are no JSON, or not of the wanted shape; the text says where and why."""


def encode(value: Any) -> bytes:
    """Compact JSON; structs keep the order of their fields."""
    return _encoder.encode(value)


def encode_canonical(value: Any) -> bytes:
    """Compact JSON with sorted keys: the same value always gives the same bytes."""
    return _canonical.encode(value)


def decode(data: bytes | str, as_type: type[T]) -> T:
    """The value of `as_type` that `data` holds; strict about types."""
    try:
        return msgspec.json.decode(data, type=as_type)
    except msgspec.ValidationError as error:
        raise InvalidJson(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"not valid JSON: {error}") from error
    except RecursionError as error:
        raise InvalidJson("not valid JSON: nested too deeply") from error


def convert(value: Any, as_type: type[T], *, strict: bool = True) -> T:
    """Plain dicts, lists and scalars turned into `as_type`."""
    try:
        return msgspec.convert(value, as_type, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidJson(str(error)) from error
