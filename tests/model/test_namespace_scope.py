"""Scopes: what a bound caller may see, and that nothing is said about the rest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors, ids
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import (
    MAX_NAMESPACES,
    WHOLE_CLOUD,
    NamespaceScope,
    check_bound_namespaces,
    scope_of,
)

SHOP, LAB = Namespace("shop"), Namespace("lab")
BOUND = NamespaceScope((SHOP,))
namespaces = st.from_regex(ids.NAMESPACE_PATTERN, fullmatch=True).filter(
    lambda text: len(text) <= ids.MAX_NAMESPACE and "\n" not in text
)


def test_an_unbound_caller_has_the_whole_cloud():
    assert not WHOLE_CLOUD.is_bound
    assert WHOLE_CLOUD.default == "default"
    assert WHOLE_CLOUD.admits("any")
    assert WHOLE_CLOUD.admits(None)


def test_a_bound_caller_has_its_namespaces_and_nothing_that_has_none():
    assert BOUND.default == SHOP
    assert BOUND.admits(SHOP)
    assert not BOUND.admits(LAB)
    assert not BOUND.admits(None)
    assert not BOUND.admits("")


def test_no_namespace_at_all_is_not_the_whole_cloud():
    nothing = NamespaceScope(())
    assert nothing.is_bound
    assert not nothing.admits(SHOP)
    with pytest.raises(errors.Forbidden):
        _ = nothing.default


@given(namespaces)
def test_the_error_for_any_other_namespace_depends_on_its_name_alone(name):
    if name == SHOP:
        assert BOUND.check(name) == SHOP
        return
    with pytest.raises(errors.NotFound) as caught:
        BOUND.check(name)
    assert caught.value.message.replace(repr(name), "'lab'") == _refusal(LAB)


def _refusal(name: Namespace) -> str:
    with pytest.raises(errors.NotFound) as caught:
        BOUND.check(name)
    return caught.value.message


@given(st.text(max_size=80))
def test_what_is_no_namespace_is_refused_as_that(text):
    if ids._NAMESPACE.fullmatch(text) and len(text) <= ids.MAX_NAMESPACE:
        return
    with pytest.raises(errors.Invalid):
        BOUND.check(text)


@pytest.mark.parametrize(
    ("id", "is_taken"),
    [("", True), ("shop.web", True), ("shop", False), ("shopweb", False), ("lab.web", False), ("web", False)],
)
def test_a_bound_caller_chooses_ids_that_nobody_else_can_have_taken(id, is_taken):
    WHOLE_CLOUD.check_chosen_id(id, SHOP)
    if is_taken:
        BOUND.check_chosen_id(id, SHOP)
        return
    with pytest.raises(errors.Unprocessable, match=r"such as shop\."):
        BOUND.check_chosen_id(id, SHOP)


def test_lists_take_one_namespace_several_or_all():
    assert scope_of(None) is WHOLE_CLOUD
    assert scope_of(SHOP) == BOUND
    assert scope_of(BOUND) is BOUND


def test_a_credential_is_bound_to_each_namespace_once_and_to_valid_ones():
    assert check_bound_namespaces(()) is None
    assert check_bound_namespaces(("shop", "lab", "shop")) == (SHOP, LAB)
    for wrong in (["Shop"], ["*"], ["market"], [f"n{number}" for number in range(MAX_NAMESPACES + 1)]):
        with pytest.raises(errors.Invalid):
            check_bound_namespaces(wrong)
