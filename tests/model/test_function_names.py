"""Keys of functions: one per namespace and name, and none that a name can spell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors, ids
from skerry.model.function_names import (
    check_function_key,
    display_name,
    function_key,
    namespace_of,
    plain_name,
)

names = st.text(alphabet="ab:/.-_%\x00", max_size=12)
namespaces = st.sampled_from(["", "default", "shop", "lab", "a", "b-a"])


@given(namespaces, names, namespaces, names)
def test_two_namespaces_never_have_the_same_key(one, name, other, another):
    same = (one or "default") == (other or "default")
    if not same:
        assert function_key(one, name) != function_key(other, another) or not _is_key(function_key(one, name))
    elif name != another:
        assert function_key(one, name) != function_key(other, another)


@given(namespaces, names)
def test_a_key_that_a_function_has_leads_back_to_its_namespace_and_name(namespace, name):
    key = function_key(namespace, name)
    if not _is_key(key):
        return
    assert (namespace_of(key), plain_name(key)) == (namespace or "default", name)
    assert ids.check_id(name) == name


def test_the_default_namespace_has_the_keys_of_before_there_were_others():
    assert function_key("", "hello") == function_key("default", "hello") == "hello"
    assert function_key("shop", "hello") == "shop:hello"
    assert display_name("shop:hello") == "shop/hello"
    assert plain_name("shop:hello-01hx-abc") == "hello-01hx-abc"


@pytest.mark.parametrize("key", [":hello", "shop:", "Shop:hello", "shop:a:b", ":shop:a", "a/b", ""])
def test_what_no_function_can_be_called_is_refused(key):
    with pytest.raises(errors.Invalid):
        check_function_key(key)


def _is_key(key: str) -> bool:
    try:
        check_function_key(key)
    except errors.Invalid:
        return False
    return True
