"""Listing, selecting and selling over HTTP, in the document's dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skerry.kit import pki
from skerry.kit.clock import ManualClock, iso
from skerry.kit.tasks import cancel_and_wait
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.selectors import EVERYTHING, OfferSnapshot
from skerry.model import errors
from skerry.model.market_settings import MarketSettings
from skerry.model.resources import NO_RESOURCES
from skerry.wire.rear import flavors, offer_document_cache
from tests.support.waiting import eventually
from tests.transport.http.conftest import serving
from tests.wire.rear.conftest import PARTS, WHOLE, Market, market_of


async def chosen(market: Market, **selector: Any) -> list[str]:
    answer = await market.post("/api/listflavors", selector)
    assert answer.status == 200, answer.body
    return [item["FlavorID"] for item in answer.json["Items"]]


async def sell_some(market: Market) -> None:
    await market.sell(Location="Oslo")
    await market.sell(
        WHOLE, FlavorID="f-2", Characteristics={"Architecture": "arm64", "Cpu": 4, "Memory": 4096}
    )
    await market.sell(FlavorID="f-3", Price={"Amount": "0.01", "Currency": "EUR", "Period": "PT1H"})


async def test_nothing_is_an_empty_list_and_no_best_match(market: Market) -> None:
    assert (await market.get("/api/listflavors")).json == {"Items": [], "Continue": None}
    selected = (await market.post("/api/listflavors", {"Cpu": 1})).json
    assert (selected["Items"], selected["Flavor"]) == ([], None)


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ({}, ["f-3", "f-1", "f-2"]),
        ({"Cpu": 0, "FlavorType": "", "Architecture": None}, ["f-3", "f-1", "f-2"]),
        ({"Architecture": "arm64"}, ["f-2"]),
        ({"Cpu": 4}, ["f-2"]),
        ({"MoreThanCpu": 8}, ["f-3", "f-1"]),
        ({"LessThanCpu": 4}, ["f-2"]),
        ({"Memory": 16384, "EphemeralStorage": 100}, ["f-3", "f-1"]),
        ({"MoreThanMemory": 4097, "LessThanEph": 100, "MoreThanEph": 100}, ["f-3", "f-1"]),
        ({"Location": "Oslo"}, ["f-1"]),
        ({"MaxPrice": {"Amount": "0.02", "Currency": "EUR", "Period": "PT1H"}}, ["f-3"]),
        ({"Partition": {"Cpu": 4, "Memory": 4096}}, ["f-3", "f-1", "f-2"]),
        ({"Partition": {"Cpu": 2, "Memory": 1024}}, ["f-3", "f-1"]),
        ({"Partition": {"Count": 2}}, []),
        ({"Sort": "-cpu"}, ["f-1", "f-3", "f-2"]),
        ({"FlavorType": "vm"}, []),
    ],
)
async def test_a_selector_finds_what_it_says(
    market: Market, selector: dict[str, Any], found: list[str]
) -> None:
    await sell_some(market)
    assert await chosen(market, **selector) == found
    assert await chosen(market, Selector=selector) == found
    best = (await market.post("/api/listflavors", selector)).json["Flavor"]
    assert (best or {}).get("FlavorID") == (found[0] if found else None)


async def test_lists_are_read_in_pages(market: Market) -> None:
    await sell_some(market)
    first = (await market.get("/api/listflavors?limit=2")).json
    assert [item["FlavorID"] for item in first["Items"]] == ["f-3", "f-1"]
    second = (await market.get("/api/listflavors", params={"limit": 2, "continue": first["Continue"]})).json
    assert ([item["FlavorID"] for item in second["Items"]], second["Continue"]) == (["f-2"], None)
    page = await market.post("/api/listflavors", {"Limit": 1, "Continue": first["Continue"]})
    assert [item["FlavorID"] for item in page.json["Items"]] == ["f-2"]
    assert page.json["Flavor"]["FlavorID"] == "f-3"  # the best match is that of the whole list


@pytest.mark.parametrize(
    "selector",
    [
        b'{"Cpu": -1}',
        b'{"Cpu": 1.5}',
        b'{"MoreThanMemory": 4294967296}',
        b'{"Sort": "beauty"}',
        b'{"Limit": 0}',
        b'{"Limit": 100000}',
        b'{"Continue": "?"}',
        b'{"MaxPrice": {"Amount": "much", "Currency": "EUR"}}',
        b'{"MaxPrice": {"Amount": "NaN", "Currency": "EUR"}}',
        b'{"MaxPrice": {"Amount": "1", "Currency": "euro"}}',
        b'{"Location": "\\ud800"}',
        b'{"Cpu": 1, "Cpu": 1}',
        b'{"Selector": {"Cpu": 1, "CPU": 2}}',
        b'{"Cpu": NaN}',
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b"\xff",
        b"[]",
    ],
    ids=lambda body: body[:40].decode("latin-1"),
)
async def test_a_selector_that_makes_no_sense_is_400(market: Market, selector: bytes) -> None:
    answer = await market.post("/api/listflavors", selector)
    assert answer.status in (400, 413)
    assert answer.json["error"]


async def test_who_asks_the_same_again_is_told_what_has_changed(market: Market) -> None:
    await market.sell()
    selector = {"MoreThanCpu": 1}
    first = await market.post("/api/listflavors", selector)
    assert (await market.post("/api/listflavors", selector)).body == first.body
    held = await market.reserve(2)
    assert (await market.post("/api/listflavors", selector)).json["Flavor"]["Characteristics"]["Cpu"] == 6
    await market.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
    again = (await market.post("/api/listflavors", selector)).json
    assert again["Flavor"]["Version"] > first.json["Flavor"]["Version"]
    await market.ask("DELETE", "/api/flavors/f-1")
    assert (await market.post("/api/listflavors", selector)).json["Items"] == []


async def test_the_spelling_of_the_programs_is_understood_too(market: Market) -> None:
    await sell_some(market)
    answer = await market.post("/api/listflavors", {"type": "k8slice", "morethancpu": 8, "pods": 3})
    assert [item["FlavorID"] for item in answer.json["Items"]] == ["f-3", "f-1"]
    assert answer.headers["skerry-unknown-fields"] == "pods"


async def test_the_same_put_up_again_is_no_change_and_another_under_its_id_is_409(market: Market) -> None:
    first = await market.sell()
    assert (await market.sell())["Version"] == first["Version"]
    other = {**PARTS, "Price": {"Amount": "9", "Currency": "EUR", "Period": "PT1H"}}
    assert (await market.post("/api/flavors", {"Flavor": other})).status == 409


async def test_a_flavor_without_an_id_gets_one(market: Market) -> None:
    made = await market.sell(FlavorID="")
    assert (await market.get(f"/api/flavors/{made['FlavorID']}")).json == made


async def test_one_that_is_withdrawn_is_not_listed_but_can_be_looked_at(market: Market) -> None:
    await market.sell()
    gone = await market.ask("DELETE", "/api/flavors/f-1")
    assert (await market.get("/api/listflavors")).json["Items"] == []
    for shown in (gone, await market.get("/api/flavors/f-1")):
        assert (shown.status, shown.json["OptionalFields"]["Availability"], shown.json["Count"]) == (
            200,
            False,
            0,
        )
    assert (await market.get("/api/flavors/f-2")).status == 404


async def test_what_changes_is_taken_in_also_if_nobody_looks_and_if_it_is_no_longer_kept(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    async with (
        market_of(provider, clock, MarketSettings(history=2)) as (ledger, rear),
        serving(cloud, rear=rear) as site,
    ):
        market = Market(site, await site.session(), ledger, rear, clock, provider)
        for number in range(6):  # more than is kept
            await market.sell(FlavorID=f"f-{number}")
        await market.ask("DELETE", "/api/flavors/f-1")
        await market.reserve(3, FlavorID="f-2")
        listed = (await market.get("/api/listflavors")).json["Items"]
        assert [(item["FlavorID"], item["Characteristics"]["Cpu"]) for item in listed] == [
            ("f-2", 5),
            ("f-0", 8),
            ("f-3", 8),
            ("f-4", 8),
            ("f-5", 8),
        ]
        for id in ("f-0", "f-3", "f-4"):
            await market.ask("DELETE", f"/api/flavors/{id}")
        following = asyncio.ensure_future(rear.offers.run())
        await eventually(lambda: len(rear.offers._catalog) == 2)
        await cancel_and_wait([following])
        listed = (await market.get("/api/listflavors")).json["Items"]
        assert [item["FlavorID"] for item in listed] == ["f-2", "f-5"]


async def test_one_flavor_more_than_may_be_offered_is_413_as_is_said(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    async with (
        market_of(provider, clock, MarketSettings(max_flavors=1)) as (ledger, rear),
        serving(cloud, rear=rear) as site,
    ):
        market = Market(site, await site.session(), ledger, rear, clock, provider)
        await market.sell()
        refused = await market.post("/api/flavors", {**PARTS, "FlavorID": "f-2"})
        assert (refused.status, refused.json["code"]) == (413, "too-large")
        assert errors.TooLarge in flavors.publish.raises


async def test_an_offer_that_ends_is_gone_at_that_moment_and_hides_no_other(market: Market) -> None:
    await market.sell()
    ends = iso(market.clock.now() + 60)
    sold = await market.sell(
        FlavorID="f-2", Characteristics={"Cpu": 64, "Memory": 16384}, ExpirationTime=ends
    )
    assert sold["ExpirationTime"] == ends
    assert (await market.get("/api/listflavours")).json["flavourID"] == "f-2"
    assert await chosen(market, Sort="-cpu", Limit=1) == ["f-2"]
    market.clock.advance(60)
    assert (await market.get("/api/listflavours")).json["flavourID"] == "f-1"
    assert await chosen(market, Sort="-cpu", Limit=1) == ["f-1"]
    assert [one["flavorID"] for one in (await market.get("/api/v2/flavors")).json] == ["f-1"]
    assert (await market.post("/api/reserveflavor", {"FlavorID": "f-2"})).status == 410
    assert (await market.get("/api/flavors/f-2")).json["OptionalFields"]["Availability"] is False


async def test_setting_the_machines_clock_ends_neither_an_offer_nor_a_hold_nor_a_contract(
    market: Market,
) -> None:
    await market.sell(ExpirationTime=iso(market.clock.now() + 60))
    bought = await market.post("/api/purchaseflavor", await market.reserve(1))
    held = await market.reserve(1)
    for ahead_s in (86400.0, -2 * 86400.0):
        market.clock._now += ahead_s
        (item,) = (await market.get("/api/listflavors")).json["Items"]
        assert (await market.get("/api/flavors/f-1")).json == item
        assert item["OptionalFields"]["Availability"] is True
        assert (await market.get(f"/api/reservations/{held['TransactionID']}")).json["State"] == "held"
        assert (await market.get(f"/api/contracts/{bought.json['ContractID']}")).json["State"] == "live"
        assert (await market.reserve(1))["State"] == "held"


@pytest.mark.parametrize(
    "amount", ["-0", "-1", " 1", "1_0", "1e2", "\u0661", "NaN", "", ".5", "0x1", "1" * 30]
)
async def test_an_amount_of_money_is_a_plain_number(market: Market, amount: str) -> None:
    price = {"Amount": amount, "Currency": "EUR", "Period": "PT1H"}
    answer = await market.post("/api/flavors", {**PARTS, "Price": price})
    assert (answer.status, answer.json["code"]) == (400, "invalid")


@pytest.mark.parametrize("ends", ["soon", "2099-01-01T00:00:00", "1999-01-01T00:00:00Z"])
async def test_an_offer_ends_at_a_time_that_is_to_come(market: Market, ends: str) -> None:
    answer = await market.post("/api/flavors", {**PARTS, "ExpirationTime": ends})
    assert (answer.status, answer.json["code"]) == (400, "invalid")


async def test_several_whole_ones_are_taken_together(market: Market) -> None:
    await market.sell(WHOLE, Count=3, Policy={"Aggregatable": {"MinCount": 1, "MaxCount": 2}})
    (item,) = (await market.get("/api/listflavors")).json["Items"]
    assert (item["Characteristics"]["Cpu"], item["Count"]) == (8, 3)
    held = await market.reserve(Partition={"Cpu": 8, "Memory": 16384, "EphemeralStorage": 100, "Count": 2})
    assert (held["Partition"]["Count"], held["Price"]["Amount"]) == (2, "0.2")
    (item,) = (await market.get("/api/listflavors")).json["Items"]
    assert item["Count"] == 1
    too_many = await market.post("/api/reserveflavor", {"FlavorID": "f-1", "Partition": {"Count": 3}})
    assert too_many.status == 422


async def test_a_part_without_a_count_finds_what_reserving_it_without_a_count_takes(market: Market) -> None:
    three = {"Aggregatable": {"MinCount": 3, "MaxCount": 4}}
    await market.sell()
    await market.sell(FlavorID="f-2", Policy={**PARTS["Policy"], **three})
    await market.sell(WHOLE, FlavorID="f-3", Count=3, Policy=three)
    part, large = {"Cpu": 2, "Memory": 1024}, {"Cpu": 3, "Memory": 1024}
    whole = {"Cpu": 8, "Memory": 16384, "EphemeralStorage": 100}
    assert await chosen(market, Partition=part) == ["f-1", "f-2"]
    assert await chosen(market, Partition={**part, "Count": 1}) == ["f-1"]
    assert await chosen(market, Partition=large) == ["f-1"], "three of these are more than there is"
    assert await chosen(market, Partition=whole) == ["f-1", "f-3"]
    assert await chosen(market, Partition={}) == ["f-1", "f-2", "f-3"]
    price = {"Currency": "EUR", "Period": "PT1H"}
    each = {"FlavorID": "f-2", "Partition": part}
    held = (await market.post("/api/reserveflavor", each)).json
    assert held["Partition"]["Count"] == 3
    for amount, found in ((held["Price"]["Amount"], ["f-1", "f-2"]), ("0.02", ["f-1"])):
        await market.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
        assert await chosen(market, Partition=part, MaxPrice={**price, "Amount": amount}) == found, amount


async def test_an_offer_that_changed_while_others_were_encoded_is_not_remembered_as_it_was(
    market: Market,
) -> None:
    await market.sell()
    offers = market.rear.offers
    (current,) = offers.find(EVERYTHING).offers
    outdated = OfferSnapshot(current.flavor, NO_RESOURCES)

    def free_cpu(offer: OfferSnapshot) -> int:
        return offer.free.cpu

    assert await offers.written_in_turns([outdated], "test", free_cpu) == [b"0"]
    assert await offers.written_in_turns([current], "test", free_cpu) == [b"8000"]
    assert offers.written([current], "test", str) == [b"8000"]  # this one is


async def test_encoded_offers_that_are_asked_for_again_are_kept_and_others_are_dropped(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offer_document_cache, "_MAX_WRITTEN", 2)
    await sell_some(market)
    offers = market.rear.offers
    first, second, third = offers.find(EVERYTHING).offers
    for offer in (first, second, first, third):
        offers.written([offer], "test", lambda offer: 1)
    assert offers.written([first, third], "test", lambda offer: 2) == [b"1", b"1"]
    assert offers.written([second], "test", lambda offer: 2) == [b"2"]
