"""Flavors, the ledger, holds and contracts of this cloud, over the real ledger."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import structlog
from msgspec.structs import replace

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.market.provider import node_offers
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Aggregation, Partition
from tests.support.deals import BUYER, OPEN, resources
from tests.transport.http.conftest import serving
from tests.wire.own.market.conftest import Shop, desk_of
from tests.wire.own.market.fakes import BORROWED, NORTH, FakeTrader
from tests.wire.rear.conftest import market_of

WHOLE = {"id": "small", "cpu": 8, "memory": 16384, "price": "0.10", "currency": "EUR"}
PARTS = {**WHOLE, "cpu_min": 1, "cpu_step": 1, "memory_min": 512, "memory_step": 512}
NONE = {"cpu": 0, "memory": 0, "disk": 0}


async def sell(shop: Shop, wish: dict[str, Any]) -> Any:
    answer = await shop.post("/market/flavors", wish)
    assert answer.status == 201, answer.body
    return answer.json


async def test_a_flavor_is_sold_whole_if_nothing_says_in_which_parts(shop: Shop) -> None:
    made = await sell(shop, {**WHOLE, "disk": 100, "location": "Torino", "architecture": "arm64", "stock": 3})
    assert made["capacity"] == made["free"] == {"cpu": 24, "memory": 49152, "disk": 300}
    assert made["held"] == made["sold"] == NONE
    assert made["parts"] is None
    assert made["price"] == {"amount": "0.10", "currency": "EUR", "period": "PT1H"}
    flavor = shop.ledger.flavor(OfferId("small")).flavor
    assert (flavor.resources, flavor.stock, flavor.partition) == (resources(8, 16384, 100), 3, None)
    assert (flavor.provider, flavor.location, flavor.architecture) == (shop.desk.provider, "Torino", "arm64")


async def test_minima_and_steps_say_in_which_parts_and_a_count_how_many(shop: Shop) -> None:
    await sell(shop, {**PARTS, "max_count": 4})
    flavor = shop.ledger.flavor(OfferId("small")).flavor
    assert flavor.partition == Partition(resources(1, 512), resources(1, 512))
    assert flavor.aggregation == Aggregation(1, 4)


async def test_the_same_again_is_no_change_and_other_terms_are_refused(shop: Shop) -> None:
    first = await sell(shop, WHOLE)
    shop.clock.advance(5)
    assert await sell(shop, WHOLE) == first
    refused = await shop.post("/market/flavors", {**WHOLE, "price": "0.20"})
    assert (refused.status, refused.json["code"]) == (409, "already-exists")


async def test_a_flavor_without_an_id_is_given_one(shop: Shop) -> None:
    wish = {name: value for name, value in WHOLE.items() if name != "id"}
    assert (await sell(shop, wish))["id"] == "flavor-1"
    assert (await sell(shop, wish))["id"] == "flavor-2"


WRONG: list[dict[str, Any]] = [
    {"cpu": 0, "memory": 0},
    {"cpu": -1},
    {"cpu": 1.5},
    {"cpu": 2**31},
    {"price": "free"},
    {"price": "1E+99"},
    {"price": "-1"},
    {"currency": "eur"},
    {"period": "hourly"},
    {"period": "PT0S"},
    {"id": "../up"},
    {"location": "x" * 257},
    {"location": "two\nlines"},
    {"stock": 0},
    {"cpu_min": 1, "stock": 2},
    {"cpu_min": 3, "cpu_step": 3},
    {"cpu": 2_000_000, "stock": 2},
    {"colour": "red"},
]


async def test_an_offer_that_cannot_be_is_refused_and_nothing_is_offered(shop: Shop) -> None:
    for change in WRONG:
        refused = await shop.post("/market/flavors", {**WHOLE, **change})
        assert (refused.status, refused.json["code"]) == (400, "invalid"), change
    assert shop.ledger.flavors() == []


async def test_a_minimum_above_all_of_it_is_refused_in_the_seller_s_own_words(shop: Shop) -> None:
    for field, least, why in (
        ("cpu_min", 9, "cpu_min is 9, and all of it is 8; lower it"),
        ("memory_min", 16385, "memory_min is 16385, and all of it is 16384; lower it"),
    ):
        refused = await shop.post("/market/flavors", {**WHOLE, field: least})
        assert (refused.status, refused.json["error"]) == (400, why)


async def test_the_ledger_shows_where_capacity_is_and_that_it_adds_up(shop: Shop) -> None:
    await sell(shop, PARTS)
    buyer = BUYER.cloud
    await shop.ledger.reserve(buyer, OfferId("small"), resources=resources(2, 1024))
    hold = await shop.ledger.reserve(buyer, OfferId("small"), resources=resources(1, 512), count=1)
    await shop.ledger.purchase(hold.id, buyer)
    book = await shop.get("/market/ledger")
    [account] = book["flavors"]
    assert account["capacity"] == {"cpu": 8, "memory": 16384, "disk": 0}
    assert account["held"] == {"cpu": 2, "memory": 1024, "disk": 0}
    assert account["sold"] == {"cpu": 1, "memory": 512, "disk": 0}
    assert account["free"] == {"cpu": 5, "memory": 14848, "disk": 0}
    assert (book["is_balanced"], book["wrong"], book["count"]) == (True, {}, 1)


async def test_a_ledger_that_does_not_add_up_says_why(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shop.ledger, "audits", lambda: iter([(OfferId("small"), ["held is 1, but makes 2"])]))
    book = await shop.get("/market/ledger")
    assert (book["is_balanced"], book["wrong"]) == (False, {"small": ["held is 1, but makes 2"]})


async def test_a_withdrawn_flavor_is_shown_while_something_of_it_is_sold(shop: Shop) -> None:
    await sell(shop, PARTS)
    await sell(shop, {**WHOLE, "id": "unsold"})
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    sale = await shop.ledger.purchase(hold.id, BUYER.cloud)
    for id in ("small", "unsold"):
        gone = await shop.ask("DELETE", f"/market/flavors/{id}?reason=needed+at+home")
        assert gone.json["withdrawn"]["reason"] == "needed at home"
    book = await shop.get("/market/ledger")
    assert [account["id"] for account in book["flavors"]] == ["small"]
    await shop.ledger.release(sale.contract.id, BUYER.cloud)
    assert (await shop.get("/market/ledger"))["flavors"] == []
    assert (await shop.ask("DELETE", "/market/flavors/nothing")).status == 404


async def test_contracts_of_a_withdrawn_flavor_are_taken_back_only_if_that_is_said(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    await shop.ledger.purchase(hold.id, BUYER.cloud)
    await shop.ask("DELETE", "/market/flavors/small")
    assert (await shop.get("/market/contracts"))["contracts"][0]["state"] == "live"
    await shop.ask("DELETE", "/market/flavors/small?reclaim=true")
    assert (await shop.get("/market/contracts"))["contracts"][0]["state"] == "reclaimed"


async def test_holds_are_listed_with_the_live_ones_first(shop: Shop) -> None:
    await sell(shop, PARTS)
    kept = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(2, 1024), count=1)
    shop.clock.advance(1)
    dropped = await shop.ledger.reserve(CloudId("carol"), OfferId("small"), resources=resources(1, 512))
    await shop.ledger.cancel(dropped.id, CloudId("carol"))
    listed = await shop.get("/market/holds")
    assert [(one["id"], one["state"]) for one in listed["holds"]] == [
        (kept.id, "held"),
        (dropped.id, "cancelled"),
    ]
    [first, _] = listed["holds"]
    assert (first["flavor"], first["buyer"], first["total"]) == ("small", BUYER.cloud, f"{kept.total:f}")
    assert first["expires_at"] == kept.expires_at
    shop.clock.advance(3600)
    assert {one["state"] for one in (await shop.get("/market/holds"))["holds"]} == {"expired", "cancelled"}


async def test_a_contract_is_taken_back_after_its_notice_and_its_buyer_is_told_why(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    sale = await shop.ledger.purchase(hold.id, BUYER.cloud)
    path = f"/market/contracts/{sale.contract.id}/reclaim"
    taken = await shop.post(path, {"reason": "needed at home"})
    assert taken.status == 200
    assert taken.json["reclaim_at"] == shop.clock.now() + sale.contract.notice_s
    assert (taken.json["state"], taken.json["reason"]) == ("reclaimed", "needed at home")
    assert (await shop.get("/market/contracts"))["contracts"] == [taken.json]
    assert (await shop.post(path)).status == 200
    unknown = await shop.post("/market/contracts/nothing/reclaim")
    assert unknown.status == 404
    assert unknown.json["error"] == "no contract 'nothing' was sold; list contracts to see those that were"
    assert (await shop.post(path, {"reason": "x" * 257})).status == 400
    shop.clock.advance(3600)
    over = await shop.post(path)
    assert (over.status, over.json["state"]) == (200, "withdrawn")


async def test_a_seller_has_the_document_that_both_have_signed(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    sale = await shop.ledger.purchase(hold.id, BUYER.cloud)
    path = f"/market/contracts/{sale.contract.id}"
    assert (await shop.get(path))["document"] == sale.document.decode()
    both = signatures.countersign(BUYER, sale.document)
    await shop.ledger.countersign(sale.contract.id, BUYER.cloud, both, over=sale.document)
    found = await shop.get(path)
    assert found["document"] == both.decode()
    assert found["contract"] == (await shop.get("/market/contracts"))["contracts"][0]
    assert (await shop.ask("GET", "/market/contracts/nothing")).status == 404


async def test_the_market_tells_the_id_of_this_cloud_and_counts_what_is_live(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    await shop.ledger.purchase(hold.id, BUYER.cloud)
    await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    shop.trader.contracts[BORROWED.id] = BORROWED
    await shop.trader.set_peer(NORTH, actor="test")
    assert await shop.get("/market") == {
        "cloud": shop.desk.provider,
        "flavors": 1,
        "holds": 1,
        "sold": 1,
        "borrowed": 1,
        "peers": 1,
    }


async def test_setting_the_machines_clock_ends_nothing(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    await shop.ledger.purchase(hold.id, BUYER.cloud)
    await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    for ahead_s in (86400.0, -2 * 86400.0):
        shop.clock._now += ahead_s
        about = await shop.get("/market")
        assert (about["holds"], about["sold"]) == (1, 1)
        assert (await shop.get("/market/holds"))["holds"][0]["state"] == "held"
        assert (await shop.get("/market/contracts"))["contracts"][0]["state"] == "live"


async def test_a_server_without_a_market_says_so(cloud: pki.CertificateAuthority) -> None:
    with structlog.testing.capture_logs():
        async with serving(cloud) as site, (await site.session()).get("/market") as reply:
            assert reply.status == 503
            assert "no market" in (await reply.json())["error"]


async def test_a_price_is_changed_in_place_and_what_is_left_out_stays(shop: Shop) -> None:
    first = await sell(shop, WHOLE)
    changed = await shop.ask("PATCH", "/market/flavors/small", {"price": "0.25"})
    assert (changed.status, changed.json["price"]) == (
        200,
        {"amount": "0.25", "currency": "EUR", "period": "PT1H"},
    )
    assert shop.ledger.flavor(OfferId("small")).flavor.version == first["version"] + 1
    body = {"price": "3", "currency": "USD", "period": "P1D"}
    assert (await shop.ask("PATCH", "/market/flavors/small", body)).json["price"] == {
        "amount": "3",
        "currency": "USD",
        "period": "P1D",
    }
    for wrong in ({}, {"price": "free"}, {"price": "1", "currency": "eur"}, {"price": "1", "period": "day"}):
        assert (await shop.ask("PATCH", "/market/flavors/small", wrong)).status == 400, wrong
    assert (await shop.ask("PATCH", "/market/flavors/none", {"price": "1"})).status == 404


async def test_a_hold_keeps_its_price_when_that_of_the_flavor_changes(shop: Shop) -> None:
    await sell(shop, PARTS)
    hold = await shop.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512))
    assert (await shop.ask("PATCH", "/market/flavors/small", {"price": "9"})).status == 200
    sale = await shop.ledger.purchase(hold.id, BUYER.cloud)
    assert sale.contract.price == hold.price


async def test_the_price_of_what_follows_a_node_is_that_of_the_settings(shop: Shop) -> None:
    await sell(shop, WHOLE)
    flavor = shop.ledger.flavor(OfferId("small")).flavor
    await shop.ledger.publish(replace(flavor, id=OfferId("node-n1"), worker="n1"), actor="skerry")
    refused = await shop.ask("PATCH", "/market/flavors/node-n1", {"price": "9"})
    assert (refused.status, refused.json["code"]) == (412, "refused")
    assert "market.sell_price" in refused.json["error"]


async def test_who_sells_what_the_nodes_cannot_deliver_is_warned(cloud: pki.CertificateAuthority) -> None:
    clock, key = ManualClock(), SigningKey.generate()
    nodes = [resources(8, 16384), resources(8, 16384)]
    async with market_of(key, clock, OPEN) as (ledger, _):
        desk = msgspec.structs.replace(
            desk_of(ledger, key.cloud),
            shortage=lambda one: node_offers.shortage(ledger.flavors(), one, nodes),
        )
        async with serving(cloud, desk=desk) as site:
            shop = Shop(site, await site.session(), ledger, FakeTrader(), clock, desk)
            assert (await sell(shop, {**WHOLE, "id": "fits", "stock": 2}))["warning"] == ""
            big = await sell(shop, {**WHOLE, "id": "big", "cpu": 9})
            assert "no node has 9 cores of cpu" in big["warning"]
            assert (await shop.ask("DELETE", "/market/flavors/big")).status == 200
            more = (await sell(shop, {**PARTS, "id": "more", "cpu": 2, "memory": 1024}))["warning"]
            assert "all nodes together lack 2 cores of cpu, 1024 MB of memory" in more


async def test_where_every_node_runs_without_root_selling_is_refused_with_the_reason(
    cloud: pki.CertificateAuthority,
) -> None:
    clock, key = ManualClock(), SigningKey.generate()
    async with market_of(key, clock, OPEN) as (ledger, _):
        desk = msgspec.structs.replace(
            desk_of(ledger, key.cloud), sale_refusal=lambda: "all nodes run without root"
        )
        async with serving(cloud, desk=desk) as site:
            shop = Shop(site, await site.session(), ledger, FakeTrader(), clock, desk)
            refused = await shop.ask("POST", "/market/flavors", WHOLE)
            assert (refused.status, refused.json["error"]) == (412, "all nodes run without root")
            assert ledger.flavors() == []
