"""JSON with one byte form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.market import canonical

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-canonical.MOST, canonical.MOST) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_reads_as_what_it_was(value: canonical.Json) -> None:
    data = canonical.encode(value)
    assert canonical.decode(data) == value
    assert json.loads(data) == value


def mixed(value: canonical.Json, random: st.DataObject) -> canonical.Json:
    """The same value with the members of its objects in another order."""
    if isinstance(value, dict):
        names = random.draw(st.permutations(list(value)))
        return {name: mixed(value[name], random) for name in names}
    return [mixed(item, random) for item in value] if isinstance(value, list) else value


@given(VALUES, st.data(), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_however_a_value_is_spelled_it_has_one_byte_form(
    value: canonical.Json, random: st.DataObject, ascii_only: bool, indent: int | str | None
) -> None:
    spelled = json.dumps(mixed(value, random), ensure_ascii=ascii_only, indent=indent).encode()
    form = canonical.encode(value)
    assert canonical.encode(canonical.read(spelled)) == form
    if spelled != form:
        with pytest.raises(canonical.NotCanonical, match="canonical form"):
            canonical.decode(spelled)


@given(st.binary(max_size=64) | TEXTS.map(str.encode))
def test_bytes_are_the_one_form_of_their_value_or_refused(data: bytes) -> None:
    try:
        value = canonical.decode(data)
    except canonical.NotCanonical:
        return
    assert canonical.encode(value) == data


def test_the_form_is_that_of_rfc_8785() -> None:
    """The text of its section 3.2.3, and of 3.2.2.2 without what is no whole number."""
    sorting = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\u0080": 6, "\u00f6": 7}
    assert list(json.loads(canonical.encode(sorting)).values()) == [2, 4, 6, 7, 1, 5, 3]
    text = '€$\x0f\nA\'B"\\\\"/'
    assert canonical.encode(text) == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


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
        (b'"' + b"a" * canonical.MAX_BYTES + b'"', "longer than"),
    ],
)
def test_what_two_programs_could_read_in_two_ways_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(canonical.NotCanonical, match=reason):
        canonical.decode(data)


@pytest.mark.parametrize(
    "value", [1.0, 2**53, -(2**53), {1: 2}, {"a": b"b"}, ("a",), "\udc00", {"\udc00": 1}]
)
def test_what_has_no_form_is_not_written(value: canonical.Json) -> None:
    with pytest.raises(canonical.NotCanonical):
        canonical.encode(value)
