"""The same deal in each dialect: what differs is the spelling, and the ledger ends up the same."""

from __future__ import annotations

from typing import Any

import pytest

from skerry.model.resources import Resources
from tests.wire.rear.conftest import WHOLE, Market

# Reserve two cores and a gigabyte of `f-1`, and buy them, as each dialect says it.
PART = {"cpu": "2", "memory": "1Gi"}
BUYER = {"ID": "south", "IP": "192.0.2.9:30000", "domain": "south.example"}


async def by_the_document(market: Market) -> Any:
    reservation = {"FlavorID": "f-1", "Buyer": {"NodeID": "south"}, "Partition": {"Cpu": 2, "Memory": 1024}}
    held = await market.post("/api/reserveflavor", {"Reservation": reservation})
    bought = await market.post("/api/purchaseflavor", {"TransactionID": held.json["TransactionID"]})
    return bought.json["ContractID"]


async def by_v1(market: Market) -> Any:
    held = await market.post(
        "/api/reserveflavour/f-1",
        {"flavourID": "f-1", "buyerID": BUYER, "clusterID": "cool-firefly", "partition": PART},
    )
    assert held.json["clusterID"] == "cool-firefly"
    id = held.json["transactionID"]
    bought = await market.post(f"/api/purchaseflavour/{id}", {"transactionID": id})
    assert bought.json["status"] == "Completed"
    return bought.json["contract"]["contractID"]


async def by_v2(market: Market) -> Any:
    held = await market.post(
        "/api/v2/reservations",
        {
            "flavorID": "f-1",
            "buyerID": {**BUYER, "additionalInformation": {"liqoID": "cool-firefly", "kubeconfig": "e30="}},
            "configuration": {"type": "k8slice", "data": {**PART, "pods": "10"}},
        },
    )
    assert (held.json["clusterID"], held.json["buyer"]["ID"]) == ("cool-firefly", "south")
    bought = await market.post(f"/api/v2/transactions/{held.json['transactionID']}/purchase", {})
    return bought.json["contractID"]


@pytest.mark.parametrize("deal", [by_the_document, by_v1, by_v2], ids=lambda deal: deal.__name__)
async def test_a_deal_is_the_same_in_every_dialect(market: Market, deal: Any) -> None:
    await market.sell()
    id = await deal(market)
    contract = market.ledger.contract(id).contract
    assert (contract.buyer, contract.resources, contract.count) == ("south", Resources(2000, 1024, 0), 1)
    account = market.ledger.flavors()[0]
    assert (account.held, account.sold) == (Resources(), Resources(2000, 1024, 0))


async def test_without_a_part_every_dialect_takes_all_that_is_free(market: Market) -> None:
    for path, body in (
        ("/api/reserveflavor", {"FlavorID": "f-1"}),
        ("/api/reserveflavor", {"FlavorID": "f-1", "Partition": {}}),
        ("/api/reserveflavour/f-1", {}),
        ("/api/v2/reservations", {"flavorID": "f-1"}),
    ):
        await market.sell()
        held = await market.post(path, body)
        assert held.status == 200
        (hold,) = [hold for hold in market.ledger.holds() if hold.ending is None]
        assert hold.resources == Resources(8000, 16384, 100)
        await market.ask("DELETE", f"/api/reservations/{hold.id}")


async def test_v1_knows_the_largest_flavour_or_none(market: Market) -> None:
    assert (await market.get("/api/listflavours")).status == 204
    await market.sell()
    await market.sell(FlavorID="f-2", Characteristics={"Cpu": 16, "Memory": 1024, "Architecture": "arm64"})
    assert (await market.get("/api/listflavours")).json["flavourID"] == "f-2"

    async def select(**selector: Any) -> str | None:
        answer = await market.post("/api/listflavours/selector", selector)
        return answer.json["flavourID"] if answer.status == 200 else str(answer.status)

    assert await select(matchSelector={"cpu": "8", "memory": "16Gi"}) == "f-1"
    assert await select(matchSelector={"cpu": "7"}) == "204"
    assert await select(rangeSelector={"minMemory": "1Gi", "maxCpu": "16000m"}) == "f-2"
    assert await select(rangeSelector={"minMemory": "1025Mi"}) == "f-1"
    assert await select(architecture="arm64", type="k8slice") == "f-2"
    assert await select(matchSelector={"cpu": "8"}, rangeSelector={"minCpu": "1"}) == "400"
    assert await select(matchSelector={"gpu": "1"}) == "204"
    assert await select(rangeSelector={"minStorage": "10Gi"}) == "204"
    assert await select(rangeSelector={"minStorage": "0", "minCpu": "16"}) == "f-2"
    assert await select(matchSelector={"cpu": "eight"}) == "400"


async def test_v1_wants_path_and_body_to_agree(market: Market) -> None:
    await market.sell()
    assert (await market.post("/api/reserveflavour/f-1", {"flavourID": "f-2"})).status == 409
    held = (await market.post("/api/reserveflavour/f-1", {})).json
    wrong = await market.post(f"/api/purchaseflavour/{held['transactionID']}", {"transactionID": "other"})
    assert wrong.status == 409


async def test_v2_lists_and_filters(market: Market) -> None:
    assert (await market.get("/api/v2/flavors")).status == 204
    assert (await market.get("/api/v2/flavors/k8slice")).json == []
    await market.sell()
    await market.sell(FlavorID="f-2", Characteristics={"Cpu": 2, "Memory": 1024}, Location="NO")
    await market.sell(FlavorID="f-3", FlavorType="vm")
    assert [one["flavorID"] for one in (await market.get("/api/v2/flavors")).json] == ["f-1", "f-2", "f-3"]

    async def select(**filters: str) -> Any:
        answer = await market.get("/api/v2/flavors/k8slice", params=filters)
        return [one["flavorID"] for one in answer.json] if answer.status == 200 else answer.status

    assert await select() == ["f-1", "f-2"]
    assert await select(**{"filter[cpu][range][min]": "3"}) == ["f-1"]
    assert await select(**{"filter[cpu][range][min]": "2", "filter[memory][range][max]": "1Gi"}) == ["f-2"]
    assert await select(**{"filter[memory][match]": "16Gi"}) == ["f-1"]
    assert await select(**{"filter[architecture][match]": "arm64"}) == []
    assert await select(**{"filter[location][match]": "NO"}) == ["f-2"]
    assert await select(**{"filter[pods][range][min]": "111"}) == []
    assert await select(**{"filter[pods][match]": "110"}) == ["f-1", "f-2"]
    assert await select(**{"filter[cpu][range]": "3"}) == 400
    assert await select(**{"filter[cpu][match]": "-3"}) == 400
    assert await select(**{"filter[price][match]": "3"}) == 400


async def test_v2_tells_kinds_apart_and_lists_each_by_its_name_or_the_plural(market: Market) -> None:
    await market.sell()
    await market.sell(WHOLE, FlavorID="f-2", FlavorType="vm")
    listed = (await market.get("/api/v2/flavors")).json
    assert {one["flavorID"]: one["type"]["name"] for one in listed} == {"f-1": "k8slice", "f-2": "vm"}
    for path, found in (("k8slice", ["f-1"]), ("k8slices", ["f-1"]), ("vm", ["f-2"]), ("service", [])):
        answer = await market.get(f"/api/v2/flavors/{path}")
        assert (answer.status, [one["flavorID"] for one in answer.json]) == (200, found)
    held = (await market.post("/api/v2/reservations", {"flavorID": "f-2"})).json
    assert held["configuration"]["type"] == "vm"
    bought = (await market.post(f"/api/v2/transactions/{held['transactionID']}/purchase")).json
    assert (bought["flavor"]["type"]["name"], bought["configuration"]["type"]) == ("vm", "vm")


async def test_v2_sells_parts_of_slices_only(market: Market) -> None:
    await market.sell()
    body = {"flavorID": "f-1", "configuration": {"type": "vm", "data": {"cpu": "1"}}}
    assert (await market.post("/api/v2/reservations", body)).status == 422
    body["configuration"] = {"type": "k8slice", "data": {"cpu": "1.0001", "memory": "1Gi"}}
    assert (await market.post("/api/v2/reservations", body)).status == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/reserveflavour/f-1", {"partition": {**PART, "gpu": "1"}}),
        ("/api/reserveflavour/f-1", {"partition": {**PART, "storage": "10Gi"}}),
        ("/api/v2/reservations", {"configuration": {"data": {**PART, "gpu": {"cores": "1"}}}}),
        ("/api/v2/reservations", {"configuration": {"data": {**PART, "gpu": {"memory": "1Gi"}}}}),
    ],
)
async def test_nobody_is_sold_a_part_without_the_gpu_that_it_asks_for(
    market: Market, path: str, body: dict[str, Any]
) -> None:
    await market.sell()
    answer = await market.post(path, {"flavorID": "f-1", **body})
    assert (answer.status, "not sold in parts" in answer.json["error"]) == (422, True)
    assert market.ledger.holds() == []


async def test_a_part_with_no_gpu_is_sold_as_it_is(market: Market) -> None:
    await market.sell()
    none = {**PART, "gpu": {"model": "", "cores": "0", "memory": "0"}}
    body = {"flavorID": "f-1", "configuration": {"data": none}}
    assert (await market.post("/api/v2/reservations", body)).status == 200
    part = {**PART, "gpu": "0", "storage": "0"}
    assert (await market.post("/api/reserveflavour/f-1", {"partition": part})).status == 200


async def test_quantities_may_be_bare_numbers_as_in_kubernetes(market: Market) -> None:
    await market.sell()
    await market.sell(FlavorID="f-2", Characteristics={"Cpu": 3, "Memory": 1024}, Policy={})
    found = await market.post("/api/listflavours/selector", {"matchSelector": {"cpu": 3, "memory": 2**30}})
    assert found.json["flavourID"] == "f-2"
    part = {"cpu": 2.0, "memory": 1024 * 2**20, "pods": 10, "gpu": 0}
    held = await market.post("/api/reserveflavour/f-1", {"partition": part})
    assert held.json["partition"]["cpu"] == "2"
    part = {"cpu": 1, "memory": "1Gi", "gpu": {"cores": 0}}
    held = await market.post("/api/v2/reservations", {"flavorID": "f-1", "configuration": {"data": part}})
    assert held.json["configuration"]["data"]["cpu"] == "1"
