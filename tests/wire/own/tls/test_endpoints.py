"""`/tls/` over HTTP, on the real control plane."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.chains import ChainMaker
from tests.wire.kudo.rest_client import Rest

HOST = "shop.example.org"


@pytest.fixture
def pair(rest: Rest) -> dict[str, str]:
    chain, key = ChainMaker(time.time()).pair(HOST)
    return {"certificate": chain.decode(), "key": key.decode()}


async def test_a_certificate_is_imported_listed_and_deleted_and_its_key_never_shown(
    rest: Rest, pair: dict[str, str]
) -> None:
    canary = pair["key"].splitlines()[1]
    made = await rest.ask("PUT", f"/tls/{HOST}", pair)
    assert made.status == 201, made
    assert (made.body["state"], made.body["source"], made.body["domains"]) == ("READY", "imported", [HOST])
    assert (await rest.ask("PUT", f"/tls/{HOST}", pair)).status == 200
    shown = await rest.get(f"/tls/{HOST}")
    assert (shown["issuer"], shown["key_type"], shown["version"]) == ("middle", "ECDSA P-256", 1)
    listed = await rest.get("/tls/")
    assert (listed["count"], listed["certificates"]) == (1, [shown])
    for path in ("/tls/", f"/tls/{HOST}", "/events?follow=false&since=0", "/metrics"):
        answer = str(await rest.ask("GET", path))
        assert canary not in answer
        assert "PRIVATE" not in answer
    assert (await rest.ask("DELETE", f"/tls/{HOST}")).status == 200
    assert (await rest.ask("DELETE", f"/tls/{HOST}")).status == 404


async def test_what_is_refused_does_not_repeat_the_key(rest: Rest, pair: dict[str, str]) -> None:
    canary = pair["key"].splitlines()[1]
    other = ChainMaker(time.time()).pair(HOST)[1].decode()
    for body in (
        {**pair, "key": other},
        {**pair, "certificate": pair["key"]},
        {"key": pair["key"]},
        {**pair, "password": "x"},
        {**pair, "key": [pair["key"]]},
    ):
        answer = await rest.ask("PUT", f"/tls/{HOST}", body)
        assert answer.status == 400, answer
        assert canary not in json.dumps(answer.body)
    assert (await rest.ask("PUT", f"/tls/{HOST}", {**pair, "key": "x" * 17_000})).status == 413
    assert (await rest.ask("PUT", f"/tls/{HOST}", {**pair, "key": "x" * 400_000})).status == 413
    assert (await rest.ask("PUT", "/tls/a_b", pair)).status == 400


async def test_a_certificate_is_of_its_namespace(rest: Rest, pair: dict[str, str]) -> None:
    assert (await rest.ask("PUT", f"/namespace/shop/tls/{HOST}", pair)).status == 201
    assert (await rest.ask("GET", f"/tls/{HOST}")).status == 404
    assert (await rest.get(f"/namespace/shop/tls/{HOST}"))["namespace"] == "shop"
    assert (await rest.get("/tls/"))["count"] == 0
    assert (await rest.get("/tls/?namespace=*"))["count"] == 1


async def test_a_certificate_is_requested_and_is_pending_until_the_leader_has_it(rest: Rest) -> None:
    made = await rest.ask("POST", "/tls/", {"domain": HOST})
    assert (made.status, made.body["state"], made.body["source"]) == (202, "PENDING", "acme")
    assert (await rest.ask("POST", "/tls/", {"domain": "localhost"})).status == 400
    assert (await rest.ask("POST", "/tls/", {"domain": "*.example.org"})).status == 412
