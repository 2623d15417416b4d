"""From wire to struct: whatever comes in, it is a value or `Invalid` (or 415), never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from skerry.model import errors
from skerry.transport.http import decoding
from skerry.transport.http.endpoints import RequestContext, endpoint
from skerry.transport.http.responses import HttpError


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    n: int


class Outer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    items: list[Inner] = []
    ratio: Annotated[float, Meta(gt=0)] = 1.0
    on: bool = False
    text: str = ""


def body(data: bytes) -> Outer:
    return decoding.body(data, b"application/json", None, Outer)


def refusal(decode: Callable[[], Outer]) -> str | None:
    """What `decode` says against its input; any error but `Invalid` fails the test."""
    try:
        assert isinstance(decode(), Outer)
    except errors.Invalid as error:
        return error.message
    return None


@given(st.binary())
def test_any_bytes_are_a_value_or_invalid(data: bytes) -> None:
    said = refusal(lambda: body(data))
    assert said is None or said.startswith(("body: ", "the body is empty"))


@given(st.binary(), st.one_of(st.none(), st.binary()), st.one_of(st.none(), st.binary()))
def test_any_headers_are_answered(data: bytes, media: bytes | None, coding: bytes | None) -> None:
    try:
        decoding.body(data, media, coding, Outer)
    except (errors.Invalid, HttpError):
        pass


@given(st.binary())
def test_any_query_is_a_value_or_invalid(data: bytes) -> None:
    said = refusal(lambda: decoding.query(data, Outer))
    assert said is None or "query" in said


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


@given(json_values)
def test_any_json_is_a_value_or_invalid(value: object) -> None:
    said = refusal(lambda: body(json.dumps(value).encode()))
    assert said is None or said.startswith("body: ")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"items":[{"n":1},{"n":"x"}]}', "items[1].n"),
        (b'{"items":[{}]}', "items[0]"),
        (b'{"ratio":0}', "ratio"),
        (b'{"odd":1}', "odd"),
        (b'{"items":[{"n":1,"n":2}]}', "n"),
    ],
)
def test_the_place_is_named(data: bytes, field: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        body(data)
    assert refused.value.field == field
    assert field.rpartition("[")[0] in refused.value.message


def test_text_of_a_query_becomes_what_the_struct_wants() -> None:
    assert decoding.query(b"on=true&ratio=2.5&text=a%20b+c", Outer) == Outer(on=True, ratio=2.5, text="a b c")


@pytest.mark.parametrize(
    "query", [b"on=true&on=false", b"text=%ff", b"ratio=x", b"odd=1", b"&".join([b"a=1"] * 65), b"text=\xff"]
)
def test_a_bad_query_is_invalid(query: bytes) -> None:
    with pytest.raises(errors.Invalid):
        decoding.query(query, Outer)


def test_an_endpoint_whose_path_and_struct_differ_cannot_be_declared() -> None:
    with pytest.raises(AssertionError, match="names"):

        @endpoint("GET", "/thing/{id}", summary="x")
        async def get_thing(own: object, call: RequestContext) -> None: ...
