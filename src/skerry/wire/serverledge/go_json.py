"""JSON as Serverledge decodes and encodes it, which is as in Go.

Decoding: names of fields in any case, unknown ones are ignored, null is the same as not given, and an empty
body is an empty object. Unlike in Go, data after the object is an error, and so are two spellings of one
name, because another reader could take the other one. Encoding: compact, with a newline at the end, and with
characters escaped that a browser could take for markup. Pure.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from skerry.kit import json_codec
from skerry.model import errors
from skerry.transport.http import decoding

T = TypeVar("T", bound=msgspec.Struct)

_NULL: Final = b"null"
_SPACE: Final = b" \t\r\n"
_INDENT: Final = 2
_ESCAPED: Final = (
    (b"<", rb"\u003c"),
    (b">", rb"\u003e"),
    (b"&", rb"\u0026"),
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
)


class GoJsonReader(Generic[T]):
    """Decodes bodies of one struct: the usual spelling directly, any other by each name."""

    def __init__(self, shape: type[T]) -> None:
        exact = msgspec.defstruct(shape.__name__, [], bases=(shape,), frozen=True, forbid_unknown_fields=True)
        self._exact = msgspec.json.Decoder(exact)
        self._shape = shape
        self._empty = cast(T, exact())
        self._names = {name.lower(): name for name in shape.__struct_encode_fields__}

    def read(self, data: bytes, request: object = None) -> T:
        """The decoded `data`; `Invalid` if it is not valid."""
        if not data:
            return self._empty
        if not data.isascii():
            _check_utf8(data)
        try:
            return cast(T, self._exact.decode(data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self._read_any_spelling(data)

    def _read_any_spelling(self, data: bytes) -> T:
        if not data.strip(_SPACE):
            return self._empty
        try:
            given = json_codec.decode(data, dict[str, msgspec.Raw])
            exact = self._in_the_usual_spelling(given)
            return json_codec.decode(exact, self._shape)
        except json_codec.InvalidJson as error:
            raise decoding.explained(str(error), "body") from None

    def _in_the_usual_spelling(self, given: dict[str, msgspec.Raw]) -> bytes:
        found: dict[str, bytes] = {}
        for spelt, raw in given.items():
            name = self._names.get(spelt.lower())
            if name is None:
                continue
            if name in found:
                raise errors.Invalid(f"body: `{name}` is given twice; give it once", field=name)
            found[name] = bytes(raw)
        return b"{%s}" % b",".join(
            b'"%s":%s' % (name.encode(), raw) for name, raw in found.items() if raw != _NULL
        )


def _check_utf8(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise errors.Invalid(f"body: not valid JSON: byte {error.start} is not UTF-8") from None


def encode_go_json(value: Any, *, is_pretty: bool = False) -> bytes:
    """`value` as Serverledge's program would encode it."""
    data = json_codec.encode(value)
    for character, escape in _ESCAPED:
        if character in data:
            data = data.replace(character, escape)  # these characters occur only in texts
    if is_pretty:
        data = msgspec.json.format(data, indent=_INDENT)
    return data + b"\n"
