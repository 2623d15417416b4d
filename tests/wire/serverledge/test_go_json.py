"""Bodies in any spelling, and what is written back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.wire.serverledge import go_json
from skerry.wire.serverledge.dialect import wants_pretty
from skerry.wire.serverledge.documents import FunctionBody, InvokeBody

INVOKE = go_json.GoJsonReader(InvokeBody)
READERS: tuple[go_json.GoJsonReader[Any], ...] = (INVOKE, go_json.GoJsonReader(FunctionBody))
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
fields: dict[str, st.SearchStrategy[Any]] = {
    "Params": st.none() | st.dictionaries(texts, values, max_size=3),
    "QoSClass": st.integers(0, 255),
    "QoSMaxRespT": st.floats(-1, 1000),
    "CanDoOffloading": st.booleans(),
    "Async": st.booleans(),
    "ReturnOutput": st.booleans(),
}
DEFAULTS = {
    "Params": None,
    "QoSClass": 0,
    "QoSMaxRespT": 0.0,
    "CanDoOffloading": True,
    "Async": False,
    "ReturnOutput": False,
}


def read_or_refused(reader: go_json.GoJsonReader[Any], data: bytes) -> Any:
    try:
        return reader.read(data)
    except errors.Invalid as error:
        return error


def said(body: InvokeBody) -> dict[str, Any]:
    return {
        "Params": json.loads(bytes(body.params)),
        "QoSClass": body.qos_class,
        "QoSMaxRespT": body.qos_max_resp_t,
        "CanDoOffloading": body.can_do_offloading,
        "Async": body.is_async,
        "ReturnOutput": body.return_output,
    }


@given(
    st.fixed_dictionaries({}, optional=fields),
    st.randoms(use_true_random=False),
    st.dictionaries(texts, values),
)
def test_the_case_of_names_and_fields_that_nobody_knows_change_nothing(
    sent: dict[str, Any], chance: Any, others: dict[str, Any]
) -> None:
    names = {name.lower() for name in fields}
    strange = {name: value for name, value in others.items() if name.lower() not in names}
    spelt = {
        "".join(chance.choice((letter.lower(), letter.upper())) for letter in name): value
        for name, value in sent.items()
    }
    pairs = list({**strange, **spelt}.items())
    chance.shuffle(pairs)
    expected = {**DEFAULTS, **sent}
    assert said(INVOKE.read(json.dumps(sent).encode())) == expected
    assert said(INVOKE.read(json.dumps(dict(pairs), ensure_ascii=False).encode())) == expected


@given(st.sampled_from(sorted(fields)), values)
def test_a_field_is_read_or_refused_by_its_name_and_never_something_else(name: str, value: Any) -> None:
    found = read_or_refused(INVOKE, json.dumps({name: value}).encode())
    if name == "QoSMaxRespT" and isinstance(value, int):
        value = float(value)  # which is what it is read as, with the precision of that
    if isinstance(found, InvokeBody):
        assert said(found) == {**DEFAULTS, **({} if value is None else {name: value})}
    else:
        assert (found.field, name in found.message) == (name, True)


@given(values)
def test_parameters_are_an_object_or_nothing_and_are_carried_as_they_are(value: Any) -> None:
    body = INVOKE.read(b'{"Params": %s}' % json.dumps(value).encode())
    if value is None or isinstance(value, dict):
        assert body.to_call_request("f").params == json.dumps(value).encode()
    else:
        with pytest.raises(errors.Invalid, match="`Params` must be an object"):
            body.to_call_request("f")


@given(st.binary(max_size=64))
def test_bytes_of_any_kind_are_read_or_refused(data: bytes) -> None:
    for reader in READERS:
        found = read_or_refused(reader, data)
        if isinstance(found, errors.Invalid):
            assert found.message.startswith("body: ")
        else:
            assert not data.strip(b" \t\r\n") or isinstance(json.loads(data), dict)


@given(st.binary(min_size=1, max_size=8))
def test_nothing_may_follow_the_object(data: bytes) -> None:
    if data.strip(b" \t\r\n"):
        with pytest.raises(errors.Invalid):
            INVOKE.read(b"{}" + data)
    else:
        assert said(INVOKE.read(b"{}" + data)) == DEFAULTS


@given(st.sampled_from(sorted(fields)))
def test_null_is_the_same_as_nothing(name: str) -> None:
    assert said(INVOKE.read(b'{"%s":null}' % name.encode())) == DEFAULTS
    assert said(INVOKE.read(b'{"%s": null }' % name.lower().encode())) == DEFAULTS


def test_two_spellings_of_one_name_are_refused_even_if_one_is_null() -> None:
    with pytest.raises(errors.Invalid, match="`Async` is given twice"):
        INVOKE.read(b'{"Async":true,"async":null}')


@given(values)
def test_what_is_written_is_the_same_value_without_markup(value: Any) -> None:
    for is_pretty in (False, True):
        data = go_json.encode_go_json(value, is_pretty=is_pretty)
        assert json.loads(data) == value
        assert data.endswith(b"\n")
        assert not set(data) & set(b"<>&")
        assert "\u2028".encode() not in data


@pytest.mark.parametrize(
    ("query", "wanted"),
    [(b"pretty", True), (b"x=1&pretty=no", True), (b"Pretty", False), (b"x=pretty", False)],
)
def test_pretty_is_a_parameter_whatever_its_value(query: bytes, wanted: bool) -> None:
    assert wants_pretty(query) is wanted
