"""JSON with one byte form: what is signed, hashed or compared as bytes is written here.

The form is RFC 8785 (JCS), for the part of JSON that contracts need: text, whole numbers, true, false, null,
lists and objects. Fractions are refused rather than rounded: amounts of money travel as decimal text. Reading
is as strict as writing: a repeated member, a number that other programs would round, a text that is no
Unicode or a document nested too deeply is refused, never repaired.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

MAX_BYTES = 128 * 1024
MAX_DEPTH = 32
MAX_INTEGER = 2**53 - 1  # beyond it, programs that read numbers as doubles would see another one

Json = None | bool | int | str | list["Json"] | dict[str, "Json"]


class NotCanonical(ValueError):
    """No JSON, or JSON that has no canonical form here; the text says why."""


def encode(value: Json) -> bytes:
    """The one byte form of `value`."""
    are_names_plain = _check(value, 0)
    try:
        return _by_code_points(value) if are_names_plain else _as_they_are(_sorted(value))
    except UnicodeEncodeError as error:
        raise NotCanonical("a text holds half of a surrogate pair, which is no character") from error


def decode(data: bytes) -> Json:
    """The value whose byte form is `data`; anything that would be written in another way is refused."""
    value = read(data)
    if encode(value) != data:
        raise NotCanonical(
            "the JSON is not in canonical form (RFC 8785): members sorted, no white space, shortest escapes"
        )
    return value


def read(data: bytes) -> Json:
    """The value in `data`, however it is spaced and sorted, if it could be written here."""
    if len(data) > MAX_BYTES:
        raise NotCanonical(f"the JSON is longer than {MAX_BYTES} bytes")
    try:
        value: Json = _decoder.decode(data.decode("utf-8"))
    except NotCanonical:
        raise
    except UnicodeDecodeError as error:
        raise NotCanonical("the JSON is not UTF-8") from error
    except RecursionError as error:
        raise NotCanonical(_TOO_DEEP) from error
    except ValueError as error:
        raise NotCanonical(f"not valid JSON: {error}") from error
    encode(value)
    return value


_TOO_DEEP = f"the JSON is nested more than {MAX_DEPTH} deep"


def _check(value: Any, depth: int) -> bool:
    """Raise for a value without a canonical form; True if the order of the members' names is the same in
    every encoding."""
    # The exact type decides: True is an int to isinstance, and an enum is a str with other manners.
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return True
    if kind is int:
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            raise NotCanonical(f"a number is beyond {MAX_INTEGER}, where programs round; write it as text")
        return True
    if depth == MAX_DEPTH:
        raise NotCanonical(_TOO_DEEP)
    is_plain = True
    if kind is dict:
        try:
            is_plain = "".join(value).isascii()
        except TypeError as error:
            raise NotCanonical("the name of a member must be text") from error
    elif kind is not list:
        raise NotCanonical(
            f"a {kind.__name__} has no canonical form; use text, whole numbers, lists and objects"
        )
    for item in value.values() if kind is dict else value:
        if not _check(item, depth + 1):
            is_plain = False
    return is_plain


def _sorted(value: Any) -> Any:
    """RFC 8785 sorts by UTF-16 units, which differs from code points above U+FFFF."""
    if type(value) is list:
        return [_sorted(item) for item in value]
    if type(value) is not dict:
        return value
    names = sorted(value, key=lambda name: name.encode("utf-16-be"))
    return {name: _sorted(value[name]) for name in names}


# Both write texts and numbers as RFC 8785 has them.
_by_code_points = msgspec.json.Encoder(order="sorted").encode
_as_they_are = msgspec.json.Encoder().encode


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise NotCanonical(f"the member {twice[:64]!r} is there twice")
    return found


def _refuse_fraction(text: str) -> NoReturn:
    raise NotCanonical(f'{text[:32]} is no whole number; write amounts as text, such as "0.10"')


def _whole(text: str) -> int:
    if len(text) > len(str(-MAX_INTEGER)):
        raise NotCanonical(f"a number is beyond {MAX_INTEGER}, where programs round; write it as text")
    return int(text)


_decoder = json.JSONDecoder(
    object_pairs_hook=_unique,
    parse_float=_refuse_fraction,
    parse_int=_whole,
    parse_constant=_refuse_fraction,
)
