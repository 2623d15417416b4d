"""The requests of FLUIDOS's buyer, in its order and with what it sends, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from skerry.model.market import MAX_DETAILS, MAX_KUBECONFIG
from skerry.wire.rear import kubernetes_names
from tests.wire.rear.conftest import Market

KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
BUYER = {
    "ID": "rd5ks7x9yz",
    "IP": "172.19.0.5:30000",
    "domain": "fluidos.eu",
    "additionalInformation": {"liqoID": "cool-firefly", "kubeconfig": "YXBpVmVyc2lvbjogdjE="},
}
PART = {"type": "k8slice", "data": {"cpu": "1", "memory": "1Gi", "pods": "10", "storage": "0"}}


async def found(market: Market, kind: str = "k8slice", **filters: str) -> list[str]:
    answer = await market.get(f"/api/v2/flavors/{kind}", params={f"filter{k}": v for k, v in filters.items()})
    assert answer.status == 200, answer.body
    return [one["flavorID"] for one in answer.json]


async def test_a_contract_names_its_buyer_as_the_buyer_does_also_when_it_is_asked_for_again(
    market: Market,
) -> None:
    await market.sell()
    (flavor,) = (await market.get("/api/v2/flavors/k8slice")).json
    reservation = {"flavorID": flavor["flavorID"], "buyerID": BUYER, "configuration": PART}
    held = await market.post("/api/v2/reservations", reservation)
    assert (held.json["buyer"], held.json["clusterID"]) == (BUYER, "cool-firefly")
    path = f"/api/v2/transactions/{held.json['transactionID']}/purchase"
    bought = await market.post(path, {})
    assert (bought.json["buyerID"], bought.json["buyerClusterID"]) == (BUYER, "cool-firefly")
    assert "YXBpVmVyc2lvbjogdjE=" not in repr(market.ledger.hold(held.json["transactionID"]))
    assert (await market.post(path, {"liqoCredentials": None})).body == bought.body


async def test_version_1_names_its_buyer_as_the_buyer_does(market: Market) -> None:
    await market.sell()
    buyer = {"ID": "rd5ks7x9yz", "IP": "172.19.0.5:30000", "domain": "fluidos.eu"}
    body = {"flavourID": "f-1", "buyerID": buyer, "clusterID": "cool-firefly", "partition": PART["data"]}
    held = (await market.post("/api/reserveflavour/f-1", body)).json
    assert (held["buyer"], held["clusterID"]) == (buyer, "cool-firefly")
    contract = (await market.post(f"/api/purchaseflavour/{held['transactionID']}", {})).json["contract"]
    assert (contract["buyerID"], contract["buyerClusterID"]) == (buyer, "cool-firefly")


async def test_a_kubeconfig_has_a_bound(market: Market) -> None:
    await market.sell()
    more = {"kubeconfig": "x" * (MAX_KUBECONFIG + 1)}
    body = {"flavorID": "f-1", "buyerID": {"ID": "south", "additionalInformation": more}}
    assert (await market.post("/api/v2/reservations", body)).status == 400
    assert market.ledger.holds() == []


async def test_what_a_buyer_says_of_itself_is_carried_as_it_is_within_a_bound(market: Market) -> None:
    await market.sell()
    said: Any = {
        "liqoID": "cool-firefly",
        "gateway": {"ports": [80, 443], "zone": "\u00f8st"},
        "isEdge": True,
        "n": 10**30,
    }

    async def reserve(more: Any) -> Any:
        body = {"flavorID": "f-1", "buyerID": {"ID": "south", "additionalInformation": more}}
        return await market.post("/api/v2/reservations", body | {"configuration": PART})

    held = (await reserve(said)).json
    assert (held["buyer"]["additionalInformation"], held["clusterID"]) == (said, "cool-firefly")
    path = f"/api/v2/transactions/{held['transactionID']}/purchase"
    bought = await market.post(path, {})
    assert bought.json["buyerID"]["additionalInformation"] == said
    assert (await market.post(path, {})).body == bought.body
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    for bad in (
        {"note": "x" * MAX_DETAILS},
        {"note": "\u00f8" * (MAX_DETAILS // 2)},
        {"liqoID": 7},
        {"liqoID": "a", "LiqoID": "b"},
        {"liqoID": "x" * 257},
        {"deep": deep},
        [],
    ):
        assert (await reserve(bad)).status == 400, bad
    assert len(market.ledger.holds()) == 1


async def test_many_buyers_that_say_much_of_themselves_at_once_are_all_served(market: Market) -> None:
    """More than one transaction of the store could hold."""
    several = {"Policy": {"Partitionable": {"CpuMin": 1, "MemoryMin": 1, "CpuStep": 1, "MemoryStep": 1}}}
    await market.sell(Characteristics={"Cpu": 200, "Memory": 2000}, **several)
    more = {"liqoID": "x", "kubeconfig": "x" * MAX_KUBECONFIG}
    part = {"type": "k8slice", "data": {"cpu": "1", "memory": "1Mi"}}

    async def deal(number: int) -> int:
        buyer = {"ID": f"buyer-{number}", "additionalInformation": more}
        body = {"flavorID": "f-1", "buyerID": buyer, "configuration": part}
        held = await market.post("/api/v2/reservations", body)
        path = f"/api/v2/transactions/{held.json['transactionID']}/purchase"
        return (await market.post(path, {})).status

    assert set(await asyncio.gather(*(deal(number) for number in range(100)))) == {200}


@pytest.mark.parametrize("id", ["f-1", "Spare_1", "spare_1", "SPARE.1", "a..b", "0", "A"])
async def test_ids_are_names_for_kubernetes_and_what_they_name_can_be_bought(market: Market, id: str) -> None:
    await market.sell(FlavorID=id)
    (flavor,) = (await market.get("/api/v2/flavors")).json
    name = flavor["flavorID"]
    assert (await market.get("/api/listflavours")).json["flavourID"] == name
    held = await market.post("/api/v2/reservations", {"flavorID": name, "configuration": PART})
    assert held.status == 200, held.body
    bought = (await market.post(f"/api/v2/transactions/{held.json['transactionID']}/purchase", {})).json
    clouds = {flavor["providerID"], flavor["owner"]["ID"], bought["seller"]["ID"]}
    assert len(clouds) == 1, "one cloud has one name"
    for text in (name, held.json["transactionID"], held.json["flavorID"], bought["contractID"], *clouds):
        assert KUBERNETES_NAME.fullmatch(f"peeringcandidate-{text}"), text
    assert market.ledger.contract(bought["contractID"]).contract.flavor.id == id
    also: Any = {"partition": {"cpu": "1", "memory": "512Mi"}}
    assert (await market.post(f"/api/reserveflavour/{name}", also)).status == 200


def test_clouds_have_names_for_kubernetes_whatever_their_keys_are() -> None:
    for id in ("key.-OsVKW9B3lCXU_", "key.north", "key.__--", "_", "A"):
        assert KUBERNETES_NAME.fullmatch(kubernetes_names.kubernetes_name(id)), id
    assert kubernetes_names.kubernetes_name("key.north") == "key.north"


def test_no_two_ids_have_one_name() -> None:
    ids: Any = ["spare-1", "Spare-1", "SPARE-1", "spare_1", "spare.1", "spare..1"]
    assert len({kubernetes_names.kubernetes_name(id) for id in ids}) == len(ids)


async def test_what_nothing_can_meet_is_an_empty_list_and_no_error(market: Market) -> None:
    await market.sell()
    for kind in ("service", "vm", "sensors", "nothing-known"):
        assert await found(market, kind) == []
    assert await found(market, "service", **{"[category][match]": "database", "[tags][match]": "sql"}) == []
    for filters in (
        {"[memory][match]": "1500k"},
        {"[memory][match]": "1"},
        {"[memory][range][min]": "9E"},
        {"[cpu][range][min]": "1000000000"},
        {"[cpu][match]": "1n"},
        {"[memory][range][min]": "2Gi", "[memory][range][max]": "1Gi"},
        {"[pods][match]": "500m"},
    ):
        assert await found(market, **filters) == [], filters


async def test_a_kind_that_nobody_offers_is_an_empty_list_whatever_its_filters_are(market: Market) -> None:
    await market.sell()
    assert await found(market, "service", **{"[hostingPolicies][match]": "Shared"}) == []
    assert await found(market, "vm", **{"[cpu][match]": "much", "[tags][match]": "x" * 1000}) == []
    twice = "filter[tags][match]=a&filter[tags][match]=b&filter%5Bx"
    answer = await market.get(f"/api/v2/flavors/service?{twice}")
    assert (answer.status, answer.json) == (200, [])
    bad = {"filter[hostingPolicies][match]": "Shared"}
    assert (await market.get("/api/v2/flavors/k8slice", params=bad)).status == 400
    await market.sell(FlavorID="f-2", FlavorType="vm")
    assert (await market.get("/api/v2/flavors/vm", params=bad)).status == 400
    assert await found(market, "vm") == ["f-2"]


async def test_version_1_selectors_compare_exactly_and_what_nothing_can_meet_is_204(market: Market) -> None:
    await market.sell()
    size = 16384 * 2**20  # of the flavor, in bytes

    async def best(**selector: str) -> str:
        name = "rangeSelector" if next(iter(selector)).startswith(("min", "max")) else "matchSelector"
        answer = await market.post("/api/listflavours/selector", {name: selector})
        return answer.json["flavourID"] if answer.status == 200 else str(answer.status)

    for text in (str(size), f"{size}000m", "16384Mi", "16Gi", "0"):
        assert await best(memory=text) == "f-1", text
    for text in ("1500k", "17G", "9E", "1"):
        assert await best(memory=text) == "204", text
    assert await best(cpu="1n") == "204"
    assert await best(cpu="99999999999E") == "204"
    assert await best(minMemory=str(size), maxMemory=str(size)) == "f-1"
    assert await best(minMemory=str(size + 1)) == "204"
    assert await best(maxMemory=str(size - 1)) == "204"
    assert await best(maxMemory="9E", maxCpu="9E", minCpu="1n") == "f-1"
    assert await best(minMemory="2Gi", maxMemory="1Gi") == "204"
    assert await best(memory="much") == "400"


async def test_version_1_selects_by_gpu_and_storage(market: Market) -> None:
    for number in range(3):
        has = {"Cpu": 8 - number, "Memory": 1024, "Gpu": number, "PersistentStorage": 10 * number}
        await market.sell(FlavorID=f"f-{number}", Characteristics=has)

    async def best(body: Any) -> str:
        answer = await market.post("/api/listflavours/selector", body)
        return answer.json["flavourID"] if answer.status == 200 else str(answer.status)

    assert await best({"rangeSelector": {"minGpu": "1"}}) == "f-1"
    assert await best({"matchSelector": {"gpu": "2", "storage": "20Gi"}}) == "f-2"
    assert await best({"rangeSelector": {"minStorage": "10737418241"}}) == "f-2"
    assert await best({"matchSelector": {"gpu": "2", "cpu": "8"}}) == "204"
    assert await best({"matchSelector": {"gpu": "500m"}}) == "204"
    assert await best({"matchSelector": {"gpu": "some"}}) == "400"


async def test_amounts_compare_exactly_in_any_unit(market: Market) -> None:
    await market.sell()
    size = 16384 * 2**20  # of the flavor, in bytes
    for unit, text in (("bytes", size), ("m", f"{size}000m"), ("Mi", "16384Mi"), ("Gi", "16Gi")):
        assert await found(market, **{"[memory][match]": str(text)}) == ["f-1"], unit
    for edge, least, most in ((0, 1, 1), (-1, 1, 0), (1, 0, 1)):
        bound = str(size + edge)
        assert len(await found(market, **{"[memory][range][min]": bound})) == least, bound
        assert len(await found(market, **{"[memory][range][max]": bound})) == most, bound
    assert await found(market, **{"[memory][range][min]": "17G"}) == ["f-1"]
    assert await found(market, **{"[memory][range][min]": "17179869185"}) == []
    assert await found(market, **{"[memory][range][max]": "9E"}) == ["f-1"]


async def test_what_is_no_amount_is_an_error_still(market: Market) -> None:
    for text in ("much", "-1", "1 Gi", ""):
        answer = await market.get("/api/v2/flavors/k8slice", params={"filter[memory][match]": text})
        assert answer.status == (200 if text == "" else 400), text


async def test_version_1_calls_a_slice_by_its_old_name_and_takes_both_spellings_of_storage(
    market: Market,
) -> None:
    await market.sell()
    flavour = (await market.get("/api/listflavours")).json
    assert (flavour["type"], flavour["characteristics"]["ephemeralStorage"]) == ("k8s-fluidos", "100Gi")
    for kind in ("k8s-fluidos", "k8slice"):
        for storage in ("ephemeralStorage", "ephemeral-storage"):
            body = {"type": kind, "matchSelector": {"cpu": "8", "pods": "0", "gpu": "0", storage: "100Gi"}}
            answer = await market.post("/api/listflavours/selector", body)
            assert (answer.status, answer.json["flavourID"]) == (200, "f-1"), body
    for storage in ("ephemeralStorage", "ephemeral-storage"):
        part = {"cpu": "1", "memory": "1Gi", storage: "10Gi"}
        held = await market.post("/api/reserveflavour/f-1", {"partition": part})
        assert held.json["partition"]["ephemeralStorage"] == "10Gi"
