"""JSON with one byte form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.market.terms import canonical_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-canonical_json.MAX_INTEGER, canonical_json.MAX_INTEGER) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_reads_as_what_it_was(value: canonical_json.Json) -> None:
    data = canonical_json.encode(value)
    assert canonical_json.decode(data) == value
    assert json.loads(data) == value


def mixed(value: canonical_json.Json, random: st.DataObject) -> canonical_json.Json:
    """The same value with the members of its objects in another order."""
    if isinstance(value, dict):
        names = random.draw(st.permutations(list(value)))
        return {name: mixed(value[name], random) for name in names}
    return [mixed(item, random) for item in value] if isinstance(value, list) else value


@given(VALUES, st.data(), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_however_a_value_is_spelled_it_has_one_byte_form(
    value: canonical_json.Json, random: st.DataObject, ascii_only: bool, indent: int | str | None
) -> None:
    spelled = json.dumps(mixed(value, random), ensure_ascii=ascii_only, indent=indent).encode()
    form = canonical_json.encode(value)
    assert canonical_json.encode(canonical_json.read(spelled)) == form
    if spelled != form:
        with pytest.raises(canonical_json.NotCanonical, match="canonical form"):
            canonical_json.decode(spelled)


@given(st.binary(max_size=64) | TEXTS.map(str.encode))
def test_bytes_are_the_one_form_of_their_value_or_refused(data: bytes) -> None:
    try:
        value = canonical_json.decode(data)
    except canonical_json.NotCanonical:
        return
    assert canonical_json.encode(value) == data


def test_the_form_is_that_of_rfc_8785() -> None:
    """The text of its section 3.2.3, and of 3.2.2.2 without what is no whole number."""
    sorting = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical_json.encode(sorting)).values()) == [2, 4, 6, 7, 1, 5, 3]
    text = '€$\x0f\nA\'B"\\\\"/'
    assert canonical_json.encode(text) == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":1,"a":1}', "'a' is there twice"),
        (b'{"a":{"b":1,"\\u0062":2}}', "'b' is there twice"),
        (b"1.5", "no whole number"),
        (b"1e2", "no whole number"),
        (b"NaN", "no whole number"),
        (b"-0", "canonical form"),
        (b"9007199254740992", "programs round"),
        (b"9" * 5000, "programs round"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xff"', "not UTF-8"),
        (b"\xef\xbb\xbf1", "not valid JSON"),
        (b"[" * 33 + b"]" * 33, "deep"),
        (b"[" * 60_000, "deep"),
        (b"", "not valid JSON"),
        (b"1 2", "not valid JSON"),
        (b'"' + b"a" * canonical_json.MAX_BYTES + b'"', "longer than"),
    ],
)
def test_what_two_programs_could_read_in_two_ways_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(canonical_json.NotCanonical, match=reason):
        canonical_json.decode(data)


@pytest.mark.parametrize(
    "value", [1.0, 2**53, -(2**53), {1: 2}, {"a": b"b"}, ("a",), "\udc00", {"\udc00": 1}]
)
def test_what_has_no_form_is_not_written(value: canonical_json.Json) -> None:
    with pytest.raises(canonical_json.NotCanonical):
        canonical_json.encode(value)
