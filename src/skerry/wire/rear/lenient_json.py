"""How bodies are read: names in any case and in the other dialects' spelling, and what is unknown reported.

A body may be wrapped in an object with the name of its kind, as the document writes it. An unknown name is
passed over and told to the sender (`Skerry-Unknown-Fields`), so that a mistyped one does not go unseen. Two
spellings of one name are an error unless they say the same: of two readers each could believe another one.
Null is the same as not given, and a quantity may be a bare number, as in Kubernetes. Pure.
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
    """Reads bodies of one struct. `wrapper` of that struct is the name that it may be wrapped in."""

    def __init__(self, shape: type[T]) -> None:
        self._shape = shape
        self._wrapper = str(getattr(shape, "wrapper", "")).lower()
        self._may_lack = all(not field.required for field in msgspec.structs.fields(shape))

    def read(self, data: bytes) -> tuple[T, list[str]]:
        """What `data` holds, and the names in it that are not known."""
        if not data.strip():
            if self._may_lack:
                return json_codec.convert({}, self._shape), []
            raise errors.Invalid("the body is empty; send JSON as /openapi.json describes it")
        return self.convert(parse_json(data))

    def convert(self, given: Any, *, strict: bool = True) -> tuple[T, list[str]]:
        """The same of values that were read otherwise; not `strict`: texts of XML, which has no types."""
        unknown: list[str] = []
        given = self._unwrapped(given, unknown)
        known = _known(given, self._shape, "", unknown, 0)
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
    """The header that tells of unknown names; none if there are none."""
    if not unknown:
        return ()
    shown = [name.encode("ascii", "replace")[:64].decode() for name in unknown[:_MAX_REPORTED]]
    if len(unknown) > _MAX_REPORTED:
        shown.append("...")
    text = ", ".join("".join(c if c.isprintable() and c != "," else "?" for c in name) for name in shown)
    return ((b"skerry-unknown-fields", text.encode()),)


def parse_json(data: bytes) -> Any:
    try:
        json_codec.decode(data, object)  # stricter than what follows: no NaN, and no half of a character
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


def _known(given: Any, shape: Any, where: str, unknown: list[str], depth: int) -> Any:
    """`given` with the names that `shape` has, as it spells them."""
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
        value = _known(value, inner, f"{where}{name}.", unknown, depth + 1)
        if name in found and found[name] != value:
            raise errors.Invalid(f"body: `{where}{name}` is given twice; give it once", field=name)
        found[name] = value
    return found


_NAMES: dict[type, dict[str, tuple[str, Any]]] = {}


def _names_of(struct: type[msgspec.Struct]) -> dict[str, tuple[str, Any]]:
    """Every spelling of every field in lower case, with its name on the wire and its type."""
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
