"""Whatever a request says, a bound caller's handler gets namespaces of its scope, or does not run."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.namespace_scope import WHOLE_CLOUD, NamespaceScope
from skerry.transport.access import namespaces

SHOP, STORE = Namespace("shop"), Namespace("store")
SCOPES = st.sampled_from([NamespaceScope((SHOP,)), NamespaceScope((SHOP, STORE)), NamespaceScope(())])
TEXTS = st.one_of(
    st.sampled_from(
        ["", "*", "shop", "store", "lab", "shop,store", "shop,lab", "lab,shop", "shop,", ",", "SHOP"]
    ),
    st.text(max_size=70),
)


class Object(msgspec.Struct, frozen=True):
    namespace: str = ""


class Listed(msgspec.Struct, frozen=True):
    lists_namespaces: ClassVar[bool] = True
    namespace: str = ""


class Body(msgspec.Struct, frozen=True):
    namespace: str | UnsetType = UNSET


class Other(msgspec.Struct, frozen=True):
    name: str = ""


@given(SCOPES, TEXTS, TEXTS, st.one_of(st.just(UNSET), TEXTS), st.booleans(), st.booleans())
def test_only_namespaces_of_the_scope_pass(scope, in_path, in_query, in_body, is_list, has_path):
    inputs: dict[str, Any] = {
        "query": (Listed if is_list else Object)(in_query),
        "body": Body(in_body),
        **({"path": Object(in_path)} if has_path else {}),
    }
    try:
        namespaces.confine(scope, inputs)
    except (errors.NotFound, errors.Invalid, errors.Forbidden):
        return
    allowed = set(scope.namespaces or ())
    passed = inputs["query"].namespace.split(",") if is_list else [inputs["query"].namespace]
    assert passed
    assert set(passed) <= allowed
    for named in (in_path if has_path else "", in_body if isinstance(in_body, str) else ""):
        assert not named or named in allowed


@pytest.mark.parametrize(
    ("query", "path", "body", "resolved"),
    [
        (Object(), None, None, "shop"),
        (Object(), None, Body("store"), "store"),
        (Object(), Object("store"), None, "store"),
        (Object("store"), None, Body("store"), "store"),
        (Listed(), None, None, "shop"),
        (Listed("*"), None, None, "shop,store"),
        (Listed("store,shop"), None, None, "store,shop"),
    ],
)
def test_what_is_not_named_is_filled_in(query, path, body, resolved):
    inputs = {"query": query, "path": path, "body": body}
    namespaces.confine(NamespaceScope((SHOP, STORE)), inputs)
    assert inputs["query"].namespace == resolved


def test_every_is_of_lists_alone_and_a_bad_query_is_no_way_around():
    scope = NamespaceScope((SHOP,))
    with pytest.raises(errors.Invalid):
        namespaces.confine(scope, {"query": Object("*")})
    with pytest.raises(errors.Invalid, match="unreadable"):
        namespaces.confine(scope, {"query": errors.Invalid("unreadable")})


def test_an_endpoint_without_a_namespace_in_path_or_query_cannot_be_of_one():
    assert namespaces.is_enforceable({"query": Object})
    assert namespaces.is_enforceable({"path": Object, "body": Body})
    assert not namespaces.is_enforceable({"path": Other, "body": Body})
    assert not namespaces.is_enforceable({})


@given(SCOPES, st.lists(TEXTS, max_size=2))
def test_metadata_of_a_bound_call_names_one_of_its_namespaces(scope, named):
    try:
        found = namespaces.grpc_namespace(scope, named)
    except (errors.NotFound, errors.Invalid, errors.Forbidden):
        return
    assert found in (scope.namespaces or ())


def test_an_unbound_call_names_any_namespace_or_none():
    assert namespaces.grpc_namespace(WHOLE_CLOUD, []) is None
    assert namespaces.grpc_namespace(WHOLE_CLOUD, ["lab"]) == "lab"
    for odd in (["*"], [""], ["lab", "lab"]):
        with pytest.raises(errors.Invalid):
            namespaces.grpc_namespace(WHOLE_CLOUD, odd)
