"""From an HTTP request to the call of a web function: which function, and what its handler gets to see."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import Namespace
from skerry.wire.own.web_functions import requests
from skerry.wire.own.web_functions.requests import WebTarget


def caller(*namespaces: str) -> Caller:
    bound = tuple(map(Namespace, namespaces)) or None
    return Caller(AuthMethod.TOKEN, "token:x", Role.INVOKER, namespaces=bound)


@pytest.mark.parametrize(
    ("raw", "key", "path", "root"),
    [
        (b"/web/f", "f", "/", "/web/f"),
        (b"/web/f/", "f", "/", "/web/f"),
        (b"/web/f/a%20b//c/", "f", "/a%20b//c/", "/web/f"),
        (b"/web/shop:f/x", "shop:f", "/x", "/web/shop:f"),
        (b"/web/shop%3af/x", "shop:f", "/x", "/web/shop%3af"),
    ],
)
def test_a_path_is_a_key_and_the_rest_as_it_was_sent(raw: bytes, key: str, path: str, root: str) -> None:
    target = WebTarget(raw)
    assert (target.key, target.path, target.root_path) == (key, path, root)


@pytest.mark.parametrize("raw", [b"/web/", b"/web//x", b"/web%2ff", b"*", b"", b"http://x/web/f"])
def test_other_paths_are_of_no_function(raw: bytes) -> None:
    with pytest.raises(errors.NotFound):
        WebTarget(raw)


def test_a_name_is_in_the_namespace_of_its_caller_and_a_key_is_what_it_says() -> None:
    assert requests.key_for(caller(), "f") == "f"
    assert requests.key_for(caller(), "shop:f") == "shop:f"
    assert requests.key_for(caller(), "default:f") == "f"
    assert requests.key_for(caller("shop", "lab"), "f") == "shop:f"
    assert requests.key_for(caller("shop", "lab"), "lab:f") == "lab:f"
    assert requests.exact_key(caller("default"), "f") == "f"
    assert requests.exact_key(None, "shop:f") == "shop:f"
    assert requests.exact_key(None, "f") == "f"


@pytest.mark.parametrize("named", ["default:f", "other:f", ":f", "lab:lab:f"])
def test_a_bound_caller_finds_nothing_elsewhere(named: str) -> None:
    with pytest.raises(errors.NotFound):
        requests.key_for(caller("shop"), named)
    with pytest.raises(errors.NotFound):
        requests.exact_key(caller("shop"), named)


def test_a_route_to_the_default_namespace_is_not_that_of_its_caller() -> None:
    with pytest.raises(errors.NotFound):
        requests.exact_key(caller("shop"), "f")


HEADERS = [
    (b"host", b"a.example"),
    (b"authorization", b"Bearer secret"),
    (b"connection", b"X-Hop"),
    (b"x-hop", b"1"),
    (b"expect", b"100-continue"),
    (b"transfer-encoding", b"chunked"),
    (b"x-skerry-public", b"1"),
    (b"x-skerry-other", b"1"),
    (b"x-forwarded-for", b"6.6.6.6, 192.0.2.9"),
    (b"x-forwarded-proto", b"https"),
    (b"x-forwarded-prefix", b"/shop/"),
    (b"cookie", b"a=1"),
    (b"cookie", b"b=2"),
]


def scope(headers: list[tuple[bytes, bytes]] = HEADERS) -> dict[str, Any]:
    return {
        "method": "GET",
        "query_string": b"a=%20",
        "headers": headers,
        "client": ("192.0.2.1", 1),
        "scheme": "http",
    }


def test_a_client_of_the_server_is_who_connects_and_its_token_stays_here() -> None:
    head = requests.request_head(scope(), WebTarget(b"/web/f/x"), caller())
    assert head.headers == (("host", "a.example"), ("cookie", "a=1"), ("cookie", "b=2"))
    assert (head.client, head.scheme, head.caller) == ("192.0.2.1", "http", "token:x")
    assert (head.path, head.query, head.root_path) == ("/x", "a=%20", "/web/f")


def test_a_client_of_the_proxy_is_who_that_has_seen() -> None:
    public = requests.routed_head(scope(), dict(HEADERS), WebTarget(b"/web/f/x"), None)
    assert (public.client, public.scheme, public.root_path, public.caller) == (
        "192.0.2.9",
        "https",
        "/shop",
        "",
    )
    names = [name for name, _ in public.headers]
    assert "authorization" in names, "on a public route it is the function's"
    assert not {"connection", "x-hop", "expect", "transfer-encoding", "x-skerry-public"} & {*names}
    known = requests.routed_head(scope(), dict(HEADERS), WebTarget(b"/web/f/x"), caller())
    assert "authorization" not in [name for name, _ in known.headers]
    assert known.caller == "token:x"


@given(st.binary())
def test_no_address_that_a_proxy_says_is_more_than_empty(text: bytes) -> None:
    assert isinstance(requests.forwarded_client({b"x-forwarded-for": text}), str)


@pytest.mark.parametrize(("value", "public"), [(b"1", True), (b"0", False), (b"", False), (b"1, 1", False)])
def test_a_route_is_public_by_one_word_only(value: bytes, public: bool) -> None:
    assert requests.is_public({b"x-skerry-public": value}) is public
    assert not requests.is_public({})
