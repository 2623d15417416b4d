"""Peers, offers and purchases: what is asked of the trader, and what is told of it."""

from __future__ import annotations

import itertools
import json
import os
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from skerry.market.buyer.peers import MAX_CA, MAX_URL
from skerry.market.buyer.quotes import BorrowedContractState, BuyProgress, CapacityRequest, PeerStatus
from skerry.model import errors
from skerry.wire.own.market.context import MAX_PURCHASES
from tests.support.deals import resources
from tests.support.waiting import eventually
from tests.transport.http.talking import post
from tests.wire.own.market.conftest import Shop
from tests.wire.own.market.fakes import BORROWED, NORTH, START, STEPS

WISH = {"cpu": 4, "memory": 8192}


def lines(body: bytes) -> list[Any]:
    assert body.endswith(b"\n")
    return [json.loads(line) for line in body.splitlines()]


async def test_a_peer_is_set_shown_and_removed(shop: Shop) -> None:
    wish = {"url": NORTH.url, "cloud": NORTH.cloud, "mesh": True}
    made = await shop.ask("PUT", "/market/peers/north", wish)
    assert made.status == 200
    assert made.json == {
        **wish,
        "name": "north",
        "ca": "",
        "is_reached": None,
        "message": "",
        "latency_s": None,
        "at": None,
    }
    assert await shop.get("/market/peers") == {"peers": [made.json]}
    assert await shop.get("/market/peers/north") == made.json
    assert (await shop.ask("DELETE", "/market/peers/north")).status == 204
    assert await shop.get("/market/peers") == {"peers": []}
    assert (await shop.ask("GET", "/market/peers/north")).status == 404
    assert shop.trader.actors == [f"uid:{os.geteuid()}"]


async def test_why_a_peer_cannot_be_removed_is_told(shop: Shop) -> None:
    shop.trader.failing = errors.Conflict("there are contracts with north; release them first")
    refused = await shop.ask("DELETE", "/market/peers/north")
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert refused.json["error"] == "there are contracts with north; release them first"


async def test_a_peer_that_is_too_long_or_not_known_in_its_parts_is_refused(shop: Shop) -> None:
    good = {"url": NORTH.url, "cloud": NORTH.cloud}
    wrong: list[dict[str, Any]] = [
        {"url": ""},
        {"url": "x" * (MAX_URL + 1)},
        {"cloud": "k" * 129},
        {"ca": "x" * (MAX_CA + 1)},
        {"more": 1},
    ]
    refused = [(await shop.ask("PUT", "/market/peers/north", {**good, **change})).status for change in wrong]
    refused.append((await shop.ask("PUT", "/market/peers/" + "n" * 129, good)).status)
    assert refused == [400] * 6
    assert shop.trader.known == {}


async def test_offers_of_an_amount_are_asked_for_with_all_that_was_wished(shop: Shop) -> None:
    shop.trader.known["north"] = PeerStatus(NORTH, None)
    asked = "cpu=4&memory=8192&disk=20&count=2&duration_s=60&max_price=0.50&currency=EUR"
    found = await shop.get(f"/market/offers?{asked}&where=Torino&architecture=arm64&peer=north")
    assert shop.trader.wishes == [
        CapacityRequest(resources(4, 8192, 20), 2, 60.0, Decimal("0.50"), "EUR", "Torino", "arm64", "north")
    ]
    [offer] = found["offers"]
    assert (offer["peer"], offer["flavor"]["id"], offer["count"]) == ("north", "edge-1", 1)
    assert offer["free"] == {"cpu": 6, "memory": 12288, "disk": 100}
    assert offer["room"] == {"cpu": 4, "memory": 8192, "disk": 0}
    assert offer["price"] == {"amount": "0.40", "currency": "EUR", "period": "PT1H"}
    assert offer["flavor"]["parts"] == {
        "min": {"cpu": 1, "memory": 512, "disk": 0},
        "step": {"cpu": 1, "memory": 512, "disk": 0},
    }
    assert offer["flavor"]["location"] == "Torino"


async def test_without_an_amount_all_offers_are_listed_and_peers_that_fail_are_named(shop: Shop) -> None:
    found = await shop.get("/market/offers")
    assert shop.trader.wishes == [CapacityRequest()]
    assert [offer["peer"] for offer in found["offers"]] == ["north"]
    assert found["failures"] == [{"peer": "south", "message": "peer south: no answer within 3 s"}]
    own = await shop.get("/market/offers?own=true")
    assert [offer["peer"] for offer in own["offers"]] == ["north", ""]


async def test_offers_can_be_narrowed_without_an_amount(shop: Shop) -> None:
    for named in ("where=Oslo", "architecture=amd64", "currency=NOK", "peer=north"):
        await shop.get(f"/market/offers?{named}")
    narrowed = [
        CapacityRequest(where="Oslo"),
        CapacityRequest(architecture="amd64"),
        CapacityRequest(currency="NOK"),
        CapacityRequest(peer="north"),
    ]
    assert shop.trader.wishes == narrowed


async def test_a_peer_that_is_none_is_told(shop: Shop) -> None:
    shop.trader.failing = errors.NotFound("there is no peer west")
    refused = await shop.ask("GET", "/market/offers?peer=west")
    assert (refused.status, refused.json["error"]) == (404, "there is no peer west")


async def test_what_has_no_price_or_is_no_amount_is_refused(shop: Shop) -> None:
    for query in ("max_price=0.50", "count=2", "duration_s=60", "cpu=1&max_price=1e9", "cpu=-1"):
        refused = await shop.ask("GET", f"/market/offers?{query}")
        assert (refused.status, refused.json["code"]) == (400, "invalid"), query
    assert shop.trader.wishes == []


async def test_a_purchase_is_told_step_by_step_and_ends_with_the_contract(shop: Shop) -> None:
    answer = await shop.post("/market/buy", {**WISH, "duration_s": 7200, "max_price": "0.50"})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    told = lines(answer.body)
    assert [step["step"] for step in told] == ["listing", "reserving", "opening", "done"]
    assert [step["borrowed"] and step["borrowed"]["state"] for step in told] == [
        None,
        None,
        "opening",
        "open",
    ]
    bought = told[-1]["borrowed"]
    assert (bought["id"], bought["peer"], bought["node"]) == ("01c0ntract", "north", "borrowed-01c0ntract")
    assert (bought["total"], bought["state"], bought["ends_at"]) == ("0.80", "open", START + 7200)
    assert "document" not in bought
    assert shop.trader.wishes == [
        CapacityRequest(resources(4, 8192), duration_s=7200.0, max_price=Decimal("0.50"))
    ]
    assert shop.trader.undone == 0


async def test_a_purchase_that_fails_ends_with_the_error_and_its_code(shop: Shop) -> None:
    shop.trader.steps = STEPS[:2]
    shop.trader.failing = errors.ResourcesExhausted("north has sold it to somebody else; try again")
    answer = await shop.post("/market/buy", WISH)
    *_, last = lines(answer.body)
    assert last == {
        "error": "north has sold it to somebody else; try again",
        "code": "no-room",
        "request_id": answer.headers["x-request-id"],
    }
    assert shop.trader.undone == 1


async def test_whoever_goes_away_while_a_step_is_under_way_has_bought_nothing(shop: Shop) -> None:
    shop.trader.steps, shop.trader.hangs = STEPS[:2], True
    wire = await shop.site.wire()
    await wire.send(post("/market/buy", json.dumps(WISH).encode()))
    await wire.reader.readuntil(b'"reserving"')
    assert shop.trader.undone == 0
    wire.vanish()
    await eventually(lambda: shop.trader.undone == 1)
    await eventually(lambda: shop.desk.purchases.taken == 0)


async def test_whoever_goes_away_between_two_steps_has_bought_nothing(shop: Shop) -> None:
    shop.trader.steps = itertools.repeat(BuyProgress("listing", "x" * 65536))  # more than anybody takes
    wire = await shop.site.wire()
    await wire.send(post("/market/buy", json.dumps(WISH).encode()))
    await wire.reader.readuntil(b'"listing"')
    wire.vanish()
    await eventually(lambda: shop.trader.undone == 1)


async def test_a_server_that_stops_undoes_a_purchase_and_says_so(shop: Shop) -> None:
    shop.trader.steps, shop.trader.hangs = STEPS[:1], True
    async with shop.session.post("/market/buy", json=WISH) as reply:
        first = json.loads(await reply.content.readline())
        assert first["step"] == "listing"
        await shop.site.server.stop(5.0)
        last = json.loads(await reply.content.readline())
    assert last["code"] == "unavailable"
    assert shop.trader.undone == 1


WRONG: list[dict[str, Any]] = [
    {},
    {"cpu": 0, "memory": 0},
    {"cpu": -1},
    {"cpu": 0.5},
    {"cpu": 2**31},
    {"cpu": 1, "count": 0},
    {"cpu": 1, "duration_s": 0},
    {"cpu": 1, "max_price": "-1"},
    {"cpu": 1, "max_price": "NaN"},
    {"cpu": 1, "max_price": "1E+999999999"},
    {"cpu": 1, "currency": "euros"},
    {"cpu": 1, "where": "x" * 257},
    {"cpu": 1, "colour": "red"},
]


async def test_a_wish_that_cannot_be_is_refused_before_anything_is_begun(shop: Shop) -> None:
    for body in WRONG:
        refused = await shop.post("/market/buy", body)
        assert (refused.status, refused.json["code"]) == (400, "invalid"), body
    assert shop.trader.wishes == []
    assert shop.desk.purchases.taken == 0


async def test_purchases_at_once_are_limited(shop: Shop) -> None:
    with ExitStack() as others:
        for _ in range(MAX_PURCHASES):
            others.enter_context(shop.desk.purchases.take())
        refused = await shop.post("/market/buy", WISH)
    assert (refused.status, refused.json["code"]) == (429, "overloaded")


async def test_what_was_bought_is_listed_with_what_lives_first(shop: Shop) -> None:
    ended = replace(
        BORROWED, id="01later", starts_at=START + 9, state=BorrowedContractState.ENDED, ended_at=START + 10
    )
    younger = replace(BORROWED, id="01young", starts_at=START + 5)
    shop.trader.contracts = {one.id: one for one in (ended, BORROWED, younger)}
    listed = await shop.get("/market/borrowed")
    assert [one["id"] for one in listed["borrowed"]] == ["01young", "01c0ntract", "01later"]
    assert (listed["count"], listed["cursor"]) == (3, None)


async def test_a_list_is_read_page_by_page_without_gap_or_repeat(shop: Shop) -> None:
    ids = [f"01c{number:03d}" for number in range(10)]
    shop.trader.contracts = {id: replace(BORROWED, id=id) for id in ids}
    seen: list[str] = []
    query = "limit=3"
    while True:
        page = await shop.get(f"/market/borrowed?{query}")
        seen += [one["id"] for one in page["borrowed"]]
        if page["cursor"] is None:
            break
        query = f"limit=3&cursor={page['cursor']}"
        # One that comes in between at the front changes nothing behind.
        shop.trader.contracts.setdefault("01new", replace(BORROWED, id="01new", starts_at=START + 1))
    assert seen == ids
    refused = await shop.ask("GET", "/market/borrowed?cursor=nonsense")
    assert (refused.status, refused.json["field"]) == (400, "cursor")


async def test_a_contract_is_shown_with_its_document_released_and_renewed(shop: Shop) -> None:
    shop.trader.contracts[BORROWED.id] = BORROWED
    shown = await shop.get("/market/borrowed/01c0ntract")
    assert shown["document"] == "header.payload.signature"
    assert shown["contract"]["actor"] == "uid:0"
    renewed = await shop.post("/market/borrowed/01c0ntract/renew", {"duration_s": 10800})
    assert (renewed.json["ends_at"], renewed.json["total"]) == (START + 10800, "1.20")
    released = await shop.post("/market/borrowed/01c0ntract/release")
    assert released.json["state"] == "draining"
    assert (await shop.get("/market/borrowed/01c0ntract"))["contract"]["state"] == "ended"
    assert (await shop.post("/market/borrowed/01c0ntract/renew", {"duration_s": 0})).status == 400
    for path in ("", "/release"):
        missing = await shop.ask("POST" if path else "GET", f"/market/borrowed/01other{path}")
        assert (missing.status, missing.json["code"]) == (404, "not-found")
