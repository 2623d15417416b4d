"""Lenient decoding of bodies: names in any case and in any dialect's spelling; unknown ones are reported.

A body may be wrapped in an object with the name of its kind, as in the document. An unknown name is ignored
and reported to the sender (`Skerry-Unknown-Fields`), so that a mistyped one is noticed. Two spellings of one
name are an error unless their values are equal, because another reader could take the other one. Null is the
same as not given, and a quantity may be a bare number, as in Kubernetes. Pure.
"""

from __future__ import annotations

import json
import types
import typing
from typing import Any, Generic, TypeVar

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport.http import decoding
from skerry.wire.rear.quantities import Quantity

T = TypeVar("T", bound=msgspec.Struct)

_MAX_DEPTH = 16
_MAX_REPORTED = 16


class LenientReader(Generic[T]):
    """Decodes bodies of one struct. Its `wrapper` is the name that a body may be wrapped in."""

    def __init__(self, shape: type[T]) -> None:
        self._shape = shape
        self._wrapper = str(getattr(shape, "wrapper", "")).lower()

    def read(self, data: bytes) -> tuple[T, list[str]]:
        """The decoded `data`, and the unknown names in it."""
        if not data.strip():
            if all(not field.required for field in msgspec.structs.fields(self._shape)):
                return json_codec.convert({}, self._shape), []
            raise errors.Invalid("the body is empty; send JSON as /openapi.json describes it")
        return self.convert(parse_json(data))

    def convert(self, given: Any, *, strict: bool = True) -> tuple[T, list[str]]:
        """The same for values that are already parsed; without `strict`, texts of XML, which has no types,
        are converted."""
        unknown: list[str] = []
        given = self._unwrapped(given, unknown)
        known = _normalized(given, self._shape, "", unknown, 0)
        try:
            return json_codec.convert(known, self._shape, strict=strict), unknown
        except json_codec.InvalidJson as error:
            raise decoding.explained(str(error), "body") from None

    def _unwrapped(self, given: Any, unknown: list[str]) -> Any:
        if not self._wrapper or not isinstance(given, dict):
            return given
        inside = [name for name in given if name.lower() == self._wrapper]
        if len(inside) != 1 or not isinstance(given[inside[0]], dict):
            return given
        unknown += [name for name in given if name != inside[0]]
        return given[inside[0]]


def unknown_fields_header(unknown: list[str]) -> tuple[tuple[bytes, bytes], ...]:
    """The header with the unknown names; none if there are none."""
    if not unknown:
        return ()
    shown = [name.encode("ascii", "replace")[:64].decode() for name in unknown[:_MAX_REPORTED]]
    if len(unknown) > _MAX_REPORTED:
        shown.append("...")
    text = ", ".join("".join(c if c.isprintable() and c != "," else "?" for c in name) for name in shown)
    return ((b"skerry-unknown-fields", text.encode()),)


def parse_json(data: bytes) -> Any:
    try:
        json_codec.decode(data, object)  # stricter than the next parser: no NaN, and no lone surrogates
        return json.loads(data, object_pairs_hook=_once)
    except (json_codec.InvalidJson, RecursionError, ValueError) as error:
        raise errors.Invalid(f"body: {str(error) or 'nested too deeply'}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise errors.Invalid(f"body: `{name}` is given twice; give it once", field=name)
        found[name] = value
    return found


def _normalized(given: Any, shape: Any, where: str, unknown: list[str], depth: int) -> Any:
    """`given` with the names spelled as in `shape`."""
    struct = _struct_of(shape)
    if struct is None or not isinstance(given, dict):
        return given
    if depth > _MAX_DEPTH:
        raise errors.Invalid("body: nested too deeply")
    names = _names_of(struct)
    found: dict[str, Any] = {}
    for spelt, value in given.items():
        target = names.get(spelt.lower())
        if target is None:
            unknown.append(where + spelt)
            continue
        name, inner = target
        if value is None:
            continue
        if inner == Quantity and type(value) in (int, float):
            value = str(value)
        value = _normalized(value, inner, f"{where}{name}.", unknown, depth + 1)
        if name in found and found[name] != value:
            raise errors.Invalid(f"body: `{where}{name}` is given twice; give it once", field=name)
        found[name] = value
    return found


_NAMES: dict[type, dict[str, tuple[str, Any]]] = {}


def _names_of(struct: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Every spelling of every field in lower case, with its name in JSON and its type."""
    known = _NAMES.get(struct)
    if known is None:
        hints = typing.get_type_hints(struct, include_extras=True)
        known = _NAMES[struct] = {}
        aliases: dict[str, tuple[str, ...]] = getattr(struct, "aliases", {})
        for field in msgspec.structs.fields(struct):
            target = (field.encode_name, hints[field.name])
            for spelt in (field.encode_name, *aliases.get(field.encode_name, ())):
                known[spelt.lower()] = target
    return known


def _struct_of(shape: Any) -> type[msgspec.Struct] | None:
    """The struct in an annotation such as `Annotated[FlavorBody | None, ...]`."""
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        return shape
    if typing.get_origin(shape) in (typing.Annotated, typing.Union, types.UnionType):
        for inner in typing.get_args(shape):
            if (struct := _struct_of(inner)) is not None:
                return struct
    return None
