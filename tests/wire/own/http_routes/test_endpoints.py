"""`/route/` over HTTP, on the real control plane: places, names, credentials, and tenants."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry.model.callers import Role
from tests.wire.kudo.rest_client import Rest

SHOP: dict[str, Any] = {"host": "shop.example.org", "to": "service/web:8080"}


async def test_a_route_is_made_shown_changed_listed_and_deleted(rest: Rest) -> None:
    made = await rest.ask("PUT", "/route/", {**SHOP, "path": "/api", "rate": "10/s", "headers": {"X-V": "2"}})
    assert made.status == 201, made
    assert made.headers["Location"] == "/namespace/default/route/shop.example.org-api"
    document = made.body
    assert (document["path"], document["to"], document["rate"]) == ("/api", "service/web:8080", "10/s")
    assert document["headers"] == {"x-v": "2"}
    again = {**SHOP, "path": "/api", "rate": "10/s", "headers": {"x-v": "2"}}
    assert (await rest.ask("PUT", "/route/", again)).status == 200
    assert (await rest.ask("PUT", "/route/", {**again, "rate": "9/s"})).error[:2] == (409, "already-exists")
    for name in (document["name"], document["id"]):
        assert await rest.get(f"/route/{name}") == document
    changed = await rest.ask(
        "PATCH", f"/route/{document['name']}", {"rate": None, "methods": ["GET"], "to": "fn/hello"}
    )
    assert (changed.body["rate"], changed.body["methods"], changed.body["to"]) == ("", ["GET"], "fn/hello")
    listed = await rest.get("/route/")
    assert (listed["count"], listed["routes"]) == (1, [changed.body])
    assert (await rest.ask("DELETE", f"/route/{document['name']}")).status == 200
    assert (await rest.ask("GET", f"/route/{document['name']}")).status == 404
    assert (await rest.ask("PUT", "/route/", SHOP)).status == 201, "its place is free again"


async def test_no_two_routes_have_the_same_place(rest: Rest) -> None:
    assert (await rest.ask("PUT", "/route/", SHOP)).status == 201
    taken = await rest.ask("PUT", "/route/", {**SHOP, "name": "other"})
    assert taken.error[:2] == (409, "already-exists")
    assert "'shop.example.org'" in taken.body["error"], "it is a route of the caller's own namespace"
    beside = {**SHOP, "name": "beta", "headers": {"x-beta": "1"}}
    assert (await rest.ask("PUT", "/route/", beside)).status == 201
    moved = await rest.ask("PATCH", "/route/beta", {"headers": None})
    assert moved.status == 409
    assert (await rest.ask("PATCH", "/route/beta", {"host": "beta.example.org"})).status == 200
    assert (await rest.ask("PATCH", "/route/beta", {"headers": None})).status == 200


async def test_concurrent_requests_for_one_place_have_one_winner(rest: Rest) -> None:
    answers = await asyncio.gather(
        *(rest.ask("PUT", "/route/", {**SHOP, "name": f"r{number}"}) for number in range(8))
    )
    assert sorted(one.status for one in answers) == [201] + [409] * 7


async def test_a_host_belongs_to_one_namespace_and_others_learn_nothing_of_it(rest: Rest) -> None:
    mine = await rest.ask("PUT", "/namespace/lab/route/", {**SHOP, "name": "secret-name"})
    assert mine.status == 201
    for body in (
        {**SHOP, "path": "/admin"},
        {**SHOP, "host": "*.example.org"},
    ):
        refused = await rest.ask("PUT", "/namespace/shop/route/", body)
        assert refused.status == 409
        assert "lab" not in refused.body["error"]
        assert "secret-name" not in refused.body["error"]
    assert (await rest.ask("PUT", "/namespace/shop/route/", {**SHOP, "host": "example.org"})).status == 201
    wide = {**SHOP, "host": "*.example.net"}
    assert (await rest.ask("PUT", "/namespace/shop/route/", wide)).status == 201
    assert (await rest.ask("PUT", "/namespace/lab/route/", {**SHOP, "host": "x.example.net"})).status == 409
    for host in ("*", "*.org", "*.localhost"):
        everything = await rest.ask("PUT", "/namespace/lab/route/", {**SHOP, "host": host})
        assert everything.status == 412, host
        assert (await rest.ask("PUT", "/route/", {**SHOP, "host": host})).status == 201
    assert (await rest.ask("DELETE", "/namespace/shop/route/secret-name")).status == 404
    assert (await rest.ask("DELETE", "/namespace/lab/route/secret-name")).status == 200
    assert (await rest.ask("PUT", "/namespace/shop/route/", SHOP)).status == 201


async def test_credentials_are_stored_as_digests_and_shown_to_nobody(rest: Rest) -> None:
    made = await rest.ask("PUT", "/route/", {**SHOP, "basic": {"user": "ann", "password": "long-password"}})
    assert made.body["protection"] == {"kind": "basic", "user": "ann"}
    assert "password" not in str(made.body)
    stored = await rest.site.control.store.range("route/")
    assert all(b"long-password" not in entry.value for entry in stored.entries)
    changed = await rest.ask("PATCH", "/route/shop.example.org", {"token": "long-token-text"})
    assert changed.body["protection"] == {"kind": "token", "user": ""}
    assert (await rest.ask("PATCH", "/route/shop.example.org", {"rate": "1/s"})).body["protection"]
    opened = await rest.ask("PATCH", "/route/shop.example.org", {"token": None})
    assert opened.body["protection"] is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"to": "service/web"}, "host"),
        ({**SHOP, "host": "Shop.example.org"}, "host"),
        ({**SHOP, "host": "shop.example.org:80"}, "host"),
        ({**SHOP, "host": "a.*.org"}, "host"),
        ({**SHOP, "host": "x" * 300}, "host"),
        ({**SHOP, "host": "a b"}, "host"),
        ({**SHOP, "host": "a\nbind :1"}, "host"),
        ({**SHOP, "path": "api"}, "path"),
        ({**SHOP, "path": "/api/"}, "path"),
        ({**SHOP, "path": "/a/../b"}, "path"),
        ({**SHOP, "path": "/a b"}, "path"),
        ({**SHOP, "path": "/a'b"}, "path"),
        ({**SHOP, "path": "/" + "x" * 600}, "path"),
        ({"host": "a.org"}, "to"),
        ({**SHOP, "to": "web"}, "to"),
        ({**SHOP, "to": "service/web:0"}, "to"),
        ({**SHOP, "to": "service/web:70000"}, "port"),
        ({**SHOP, "to": "fn/x:80"}, "port"),
        ({**SHOP, "to": "service/../x"}, "to"),
        ({**SHOP, "redirect": "https://x.org"}, "redirect"),
        ({"host": "a.org", "redirect": "javascript:alert(1)"}, "redirect"),
        ({"host": "a.org", "redirect": "https://x.org/' evil"}, "redirect"),
        ({"host": "a.org", "redirect": "https://"}, "redirect"),
        ({**SHOP, "methods": ["get"]}, "methods"),
        ({**SHOP, "methods": ["GET", "GET"]}, "methods"),
        ({**SHOP, "headers": {"x y": "1"}}, "header"),
        ({**SHOP, "headers": {"x": "a'b"}}, "header"),
        ({**SHOP, "headers": {"x": "a\nb"}}, "header"),
        ({**SHOP, "headers": {"x": "-f"}}, "header"),
        ({**SHOP, "headers": {f"x{n}": "1" for n in range(9)}}, "headers"),
        ({**SHOP, "rate": "10"}, "rate"),
        ({**SHOP, "rate": "0/s"}, "rate"),
        ({**SHOP, "cors": ["app.example.org"]}, "cors"),
        ({**SHOP, "cors": ["*", "https://a.org"]}, "cors"),
        ({**SHOP, "basic": {"user": "a b", "password": "long-password"}}, "user"),
        ({**SHOP, "basic": {"user": "ann", "password": "short"}}, "credential"),
        ({**SHOP, "token": "with space and more"}, "token"),
        ({**SHOP, "token": "a" * 20, "basic": {"user": "a", "password": "b" * 20}}, "both"),
        ({**SHOP, "public": True}, "public"),
        ({**SHOP, "to": "fn/x", "token": "a" * 20}, "public"),
        ({**SHOP, "timeout_s": 0}, "timeout_s"),
        ({**SHOP, "idle_timeout_s": 1e12}, "idle_timeout_s"),
        ({**SHOP, "protocol": "spdy"}, "protocol"),
        ({**SHOP, "http_only": True, "redirect": "https"}, "https"),
        ({**SHOP, "name": "../x"}, "name"),
        ({**SHOP, "nonsense": 1}, "nonsense"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(rest: Rest, body: dict[str, Any], field: str) -> None:
    refused = await rest.ask("PUT", "/route/", body)
    assert refused.status == 400, refused
    assert field in refused.body["error"]


async def test_viewers_read_and_deployers_write(rest: Rest) -> None:
    assert (await rest.ask("PUT", "/route/", SHOP)).status == 201
    viewer = await rest.site.bearer(Role.VIEWER)
    assert (await rest.ask("GET", "/route/shop.example.org", headers=viewer)).status == 200
    assert (await rest.ask("DELETE", "/route/shop.example.org", headers=viewer)).status == 403
