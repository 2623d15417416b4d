"""From an offer to a contract and back, in the document's dialect, over the real server and ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from msgspec.structs import replace

from skerry.kit import pki
from skerry.kit.clock import ManualClock, iso
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider import node_offers
from skerry.market.provider.node_offers import NodeSupply
from skerry.market.terms import signatures
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model.callers import Role
from skerry.model.ids import CloudId, NodeId, OfferId
from skerry.model.market import EndReason
from skerry.model.resources import Megabytes, Millicores, Resources
from skerry.store.local.memory import MemoryStore
from tests.support.deals import OPEN
from tests.support.waiting import eventually
from tests.transport.http.conftest import serving
from tests.wire.rear.conftest import PARTS, WHOLE, Market, market_of
from tests.wire.rear.nouns import FLAVOR


async def test_a_flavor_is_listed_reserved_and_bought(market: Market) -> None:
    await market.sell()
    listed = (await market.get("/api/listflavors")).json
    assert [item["FlavorID"] for item in listed["Items"]] == ["f-1"]
    held = await market.reserve(
        2, 1024, Buyer={"Domain": "south.example", "NodeID": "south", "IP": "192.0.2.9"}
    )
    assert held["Buyer"] == {"Domain": "south.example", "NodeID": "south", "IP": "192.0.2.9"}
    assert held["State"] == "held"
    bought = await market.post("/api/purchaseflavor", {"Purchase": {"TransactionID": held["TransactionID"]}})
    assert bought.status == 200
    assert bought.json["Partition"] == {"Cpu": 2, "Memory": 1024, "EphemeralStorage": 0, "Count": 1}
    assert (bought.json["Buyer"], bought.json["Seller"]) == ("south", market.key.cloud)
    verified = signatures.verify(bought.json["Document"].encode())
    assert (verified.contract.id, verified.seller.cloud) == (bought.json["ContractID"], market.key.cloud)
    account = market.ledger.flavor(verified.contract.flavor.id)
    assert (account.sold.cpu, account.held, account.free.cpu) == (2000, Resources(), 6000)


async def test_a_purchase_sent_again_is_the_same_to_the_byte_also_after_a_renewal(market: Market) -> None:
    await market.sell()
    wanted = {"TransactionID": (await market.reserve(2))["TransactionID"]}
    answers = await asyncio.gather(*(market.post("/api/purchaseflavor", wanted) for _ in range(5)))
    assert {answer.body for answer in answers} == {answers[0].body}
    id = answers[0].json["ContractID"]
    renewed = await market.post(f"/api/contracts/{id}/renew", {"Duration": "PT2H"})
    assert (renewed.status, renewed.json["Renewals"]) == (200, 1)
    assert renewed.json["ExpirationTime"] > answers[0].json["ExpirationTime"]
    assert (await market.post("/api/purchaseflavor", wanted)).body == answers[0].body
    assert (await market.get(f"/api/contracts/{id}")).json["Document"] == renewed.json["Document"]


async def bought_of(market: Market) -> Any:
    held = await market.reserve(2)
    return (await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})).json


async def test_a_renewal_until_a_time_may_be_sent_again(market: Market) -> None:
    await market.sell()
    bought = await bought_of(market)
    until = iso(market.clock.now() + 7 * 86400)
    path = f"/api/contracts/{bought['ContractID']}/renew"
    first = await market.post(path, {"ExpirationTime": until})
    again = await market.post(path, {"ExpirationTime": until})
    assert (first.status, first.json["ExpirationTime"], first.json["Renewals"]) == (200, until, 1)
    assert again.body == first.body


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"Duration": ""},
        {"Duration": "P"},
        {"Duration": "PT0S"},
        {"Duration": "-PT1H"},
        {"Duration": "PT1H", "ExpirationTime": "2099-01-01T00:00:00Z"},
        {"ExpirationTime": "2099-01-01"},
    ],
)
async def test_a_renewal_that_says_no_time_is_400(market: Market, body: dict[str, str]) -> None:
    await market.sell()
    bought = await bought_of(market)
    answer = await market.post(f"/api/contracts/{bought['ContractID']}/renew", body)
    assert (answer.status, answer.json["field"] in ("Duration", "ExpirationTime")) == (400, True)
    assert market.ledger.contracts()[0].contract.renewals == 0


async def test_what_is_taken_is_409_and_free_again_when_the_hold_is_given_up(market: Market) -> None:
    await market.sell(Characteristics={"Cpu": 8, "Memory": 16384})
    first = await market.reserve(8, 16384)
    taken = await market.post(
        "/api/reserveflavor", {"FlavorID": "f-1", "Partition": {"Cpu": 1, "Memory": 512}}
    )
    assert (taken.status, taken.json["code"]) == (409, "no-room")
    assert (await market.get("/api/listflavors")).json["Items"] == []
    gone = await market.ask("DELETE", f"/api/reservations/{first['TransactionID']}")
    assert (gone.status, gone.json["State"]) == (200, "cancelled")
    assert (await market.reserve(8, 16384))["State"] == "held"


async def test_what_is_free_is_listed_at_the_price_of_that(market: Market) -> None:
    await market.sell(Characteristics={"Cpu": 8, "Memory": 16384})
    await market.reserve(4, 8192)
    (item,) = (await market.get("/api/listflavors")).json["Items"]
    assert (item["Characteristics"]["Cpu"], item["Characteristics"]["Memory"]) == (4, 8192)
    assert item["Price"]["Amount"] == "0.05"
    rest = await market.reserve()
    assert (rest["Partition"]["Cpu"], rest["Partition"]["Memory"]) == (4, 8192)


async def test_404_409_410_and_422_are_apart(market: Market) -> None:
    await market.sell()

    async def reserve(**body: Any) -> int:
        return (await market.post("/api/reserveflavor", {"FlavorID": "f-1", **body})).status

    assert await reserve(FlavorID="nothing") == 404
    assert await reserve(Partition={"Cpu": 1, "Memory": 100}) == 422
    assert await reserve(Partition={"Cpu": 9, "Memory": 512}) == 409
    held = await market.reserve(1)
    market.clock.advance(3600)
    late = await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})
    assert (late.status, late.json["code"]) == (410, "expired")
    assert (await market.post("/api/purchaseflavor", {"TransactionID": "f" * 32})).status == 404
    await market.ask("DELETE", "/api/flavors/f-1?reason=repairs")
    assert await reserve() == 410
    assert (await market.ask("DELETE", "/api/flavors/f-2")).status == 404


async def test_a_hold_that_was_bought_cannot_be_cancelled_and_its_contract_is_released(
    market: Market,
) -> None:
    await market.sell()
    held = await market.reserve(2)
    bought = (await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})).json
    refused = await market.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    shown = (await market.get(f"/api/transactions/{held['TransactionID']}")).json
    assert (shown["State"], shown["ContractID"]) == ("bought", bought["ContractID"])
    released = await market.post(f"/api/contracts/{bought['ContractID']}/release")
    assert (released.status, released.json["State"]) == (200, "released")
    (item,) = (await market.get("/api/listflavors")).json["Items"]
    assert item["Characteristics"]["Cpu"] == 8


@pytest.mark.parametrize(
    "part",
    [
        b'{"Cpu": -1, "Memory": 512}',
        b'{"Cpu": 1.5, "Memory": 512}',
        b'{"Cpu": 99999999999999999999, "Memory": 512}',
        b'{"Cpu": 2147484, "Memory": 512}',
        b'{"Cpu": "2", "Memory": 512}',
        b'{"Cpu": 1, "Memory": 512, "Count": 0}',
        b'{"Cpu": NaN}',
        b'{"Cpu": 1, "cpu": 2}',
    ],
)
async def test_amounts_that_make_no_sense_are_400_and_change_nothing(market: Market, part: bytes) -> None:
    await market.sell()
    answer = await market.post("/api/reserveflavor", b'{"FlavorID": "f-1", "Partition": %s}' % part)
    assert (answer.status, answer.json["code"]) == (400, "invalid")
    assert market.ledger.flavors()[0].held == Resources()


async def test_unknown_names_are_passed_over_and_told_of(market: Market) -> None:
    await market.sell()
    answer = await market.post(
        "/api/reserveflavor", {"flavourid": "f-1", "Partitoin": {}, "Buyer": {"nodeid": "south", "x,\n": 1}}
    )
    assert answer.status == 200
    assert answer.headers["skerry-unknown-fields"] == "Partitoin, Buyer.x??"
    assert answer.json["Buyer"]["NodeID"] == "south"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/listflavours/selector", {"matchSelecter": {"cpu": "3"}, "architecture": "arm64"}, 204),
        ("/api/reserveflavor", {"FlavorID": "f-2", "matchSelecter": {}}, 404),
        ("/api/reserveflavor", {"FlavorID": "f-1", "matchSelecter": {}, "Partition": {"Cpu": 9}}, 409),
    ],
)
async def test_unknown_names_are_told_of_whatever_the_answer(
    market: Market, path: str, body: dict[str, Any], status: int
) -> None:
    await market.sell()
    answer = await market.post(path, body)
    assert (answer.status, answer.headers["skerry-unknown-fields"]) == (status, "matchSelecter")


async def test_an_idempotency_key_makes_one_hold_and_another_body_with_it_is_422(market: Market) -> None:
    await market.sell()
    key = {"Idempotency-Key": "order-7"}
    body = {"FlavorID": "f-1", "Partition": {"Cpu": 1, "Memory": 512}}
    first = await market.post("/api/reserveflavor", body, headers=key)
    again = await market.post("/api/reserveflavor", body, headers=key)
    assert again.json["TransactionID"] == first.json["TransactionID"]
    body["Partition"] = {"Cpu": 2, "Memory": 512}
    assert (await market.post("/api/reserveflavor", body, headers=key)).status == 422


async def test_who_waits_in_line_gets_what_is_given_up(market: Market) -> None:
    await market.sell(WHOLE)
    first = await market.reserve()
    waiting = asyncio.ensure_future(market.reserve(Wait=20))
    assert (await market.get("/api/listflavors")).json["Items"] == []
    assert not waiting.done()
    await market.ask("DELETE", f"/api/reservations/{first['TransactionID']}")
    assert (await waiting)["State"] == "held"


async def test_who_hangs_up_is_no_longer_in_line(market: Market) -> None:
    await market.sell(WHOLE)
    first = await market.reserve()
    queues = market.ledger._service._queues
    waiting = asyncio.ensure_future(market.reserve(Wait=20))
    await eventually(lambda: any(queue.line for queue in queues.values()))
    await cancel_and_wait([waiting])
    await eventually(lambda: not queues)
    await market.ask("DELETE", f"/api/reservations/{first['TransactionID']}")
    assert [hold.ending for hold in market.ledger.holds()] == [EndReason.CANCELLED]
    assert (await market.reserve())["State"] == "held"


class Tardy:
    """Another server's store, whose news come only when somebody looks for something."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._looked = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def get(self, key: str) -> Any:
        self._looked.set()
        return await self._store.get(key)

    @asynccontextmanager
    async def watch(self, prefix: str, *, since: int) -> AsyncIterator[Any]:
        await self._looked.wait()
        async with self._store.watch(prefix, since=since) as batches:
            yield batches


@pytest.mark.parametrize(
    ("method", "path", "body", "state"),
    [
        ("GET", "/api/reservations/{hold}", None, "bought"),
        ("POST", "/api/v2/transactions/{hold}/purchase", {}, None),
        ("GET", "/api/contracts/{contract}", None, "live"),
        ("POST", "/api/contracts/{contract}/renew", {"Duration": "PT1H"}, "live"),
        ("POST", "/api/contracts/{contract}/release", None, "released"),
    ],
)
async def test_what_was_made_at_another_server_just_now_is_known_here(
    cloud: pki.CertificateAuthority,
    provider: SigningKey,
    method: str,
    path: str,
    body: Any,
    state: str | None,
) -> None:
    clock, settings = ManualClock(), OPEN
    store = MemoryStore(clock)
    async with (
        market_of(provider, clock, settings, store) as (other, _),
        market_of(provider, clock, settings, cast(Any, Tardy(store))) as (ledger, rear),
        serving(cloud, rear=rear) as site,
    ):
        here = Market(site, await site.session(), ledger, rear, clock, provider)
        await other.publish(replace(FLAVOR, provider=provider.cloud, partition=None), actor="ed")
        hold = await other.reserve(CloudId("south"), OfferId("f-1"))
        sale = await other.purchase(hold.id, CloudId("south"))
        data = None if body is None else json.dumps(body).encode()
        answer = await here.ask(method, path.format(hold=hold.id, contract=sale.contract.id), data=data)
        assert answer.status == 200, answer.body
        assert answer.json.get("State") == state


async def test_a_stolen_transaction_is_good_for_nobody_but_its_buyer(market: Market) -> None:
    await market.sell()
    south, thief = await market.buyer(), await market.buyer()
    id = (await south.reserve(1))["TransactionID"]
    for stolen in (
        await thief.post("/api/purchaseflavor", {"TransactionID": id}),
        await thief.ask("DELETE", f"/api/reservations/{id}"),
        await thief.get(f"/api/reservations/{id}"),
        await market.post("/api/purchaseflavor", {"TransactionID": id}),  # not even who runs the server
    ):
        assert (stolen.status, stolen.json["code"]) == (403, "forbidden")
    assert (await thief.get("/api/reservations")).json["Items"] == []
    assert [item["TransactionID"] for item in (await market.get("/api/reservations")).json["Items"]] == [id]
    bought = await south.post("/api/purchaseflavor", {"TransactionID": id})
    assert bought.status == 200
    contract = bought.json["ContractID"]
    for path in (f"/api/contracts/{contract}/release", f"/api/contracts/{contract}/renew"):
        assert (await thief.post(path, {"Duration": "PT1H"})).status == 403
    assert (await thief.get("/api/contracts")).json["Items"] == []
    assert len((await south.get("/api/contracts")).json["Items"]) == 1


async def test_a_body_cannot_name_another_buyer(market: Market) -> None:
    await market.sell()
    south = await market.buyer()
    spoofed = await south.post("/api/reserveflavor", {"FlavorID": "f-1", "Buyer": {"NodeID": "north"}})
    assert (spoofed.status, spoofed.json["code"]) == (403, "forbidden")
    for proven in ("key.abc", "token.1", "certificate.x"):
        named = await market.post("/api/reserveflavor", {"FlavorID": "f-1", "Buyer": {"NodeID": proven}})
        assert named.status == 403
    assert market.ledger.holds() == []


async def test_a_buyer_with_a_key_signs_each_request_and_the_contract(market: Market) -> None:
    await market.sell()
    key = SigningKey.generate()
    prover = RequestSigner(key, market.clock)

    async def ask(method: str, path: str, body: bytes = b"") -> Any:
        return await market.ask(method, path, data=body, headers=market.signed(prover, method, path, body))

    assert (await ask("GET", "/api/listflavors?limit=5")).status == 200
    held = await ask("POST", "/api/reserveflavor", b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512}}')
    assert (held.status, held.json["Buyer"]["NodeID"]) == (200, key.cloud)
    bought = await ask(
        "POST", "/api/purchaseflavor", b'{"TransactionID":"%s"}' % held.json["TransactionID"].encode()
    )
    both = signatures.countersign(key, bought.json["Document"].encode())
    path = f"/api/contracts/{bought.json['ContractID']}/signature"
    kept = await ask("POST", path, b'{"Document":"%s"}' % both)
    assert (kept.status, kept.json["Countersigned"]) == (200, both.decode())
    stranger = signatures.countersign(key, bought.json["Document"].encode())[:-4] + b"AAAA"
    assert (await ask("POST", path, b'{"Document":"%s"}' % stranger)).status == 400


async def test_a_proof_is_good_once_and_for_its_request_only(market: Market) -> None:
    await market.sell()
    prover = RequestSigner(SigningKey.generate(), market.clock)
    body = b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512}}'
    path = "/api/reserveflavor"
    proof = market.signed(prover, "POST", path, body)
    other = await market.post(path, body.replace(b"1,", b"2,"), headers=proof)
    assert (other.status, other.json["code"]) == (401, "unauthenticated")
    assert other.headers["www-authenticate"]
    assert (await market.post(path, body, headers=proof)).status == 200
    assert (await market.post(path, body, headers=proof)).status == 401
    elsewhere = {"Authorization": prover.header(SigningKey.generate().cloud, "POST", path, body)}
    assert (await market.post(path, body, headers=elsewhere)).status == 401
    assert len(market.ledger.holds()) == 1


async def test_a_key_opens_nothing_but_the_market(market: Market) -> None:
    prover = RequestSigner(SigningKey.generate(), market.clock)
    for path in ("/about", "/node/", "/token/"):
        assert (await market.get(path, headers=market.signed(prover, "GET", path))).status == 401
    sold = await market.post(
        "/api/flavors", b"{}", headers=market.signed(prover, "POST", "/api/flavors", b"{}")
    )
    assert sold.status == 401


async def test_roles_may_do_what_the_table_says(market: Market) -> None:
    await market.sell()
    viewer, deployer = await market.buyer(Role.VIEWER), await market.buyer()
    assert (await viewer.get("/api/listflavors")).status == 200
    assert (await viewer.post("/api/reserveflavor", {"FlavorID": "f-1"})).status == 403
    assert (await deployer.post("/api/flavors", WHOLE)).status == 403


async def test_a_server_without_a_market_says_so(cloud: pki.CertificateAuthority) -> None:
    async with serving(cloud) as site:
        session = await site.session()
        for path in ("/api/listflavors", "/api/v2/flavors", "/api/listflavours", "/api/contracts"):
            async with session.get(path) as answer:
                assert answer.status == 503
                assert "no market" in (await answer.json())["error"]


async def test_a_renewal_into_the_past_is_refused_and_changes_nothing(market: Market) -> None:
    await market.sell()
    bought = await bought_of(market)
    path = f"/api/contracts/{bought['ContractID']}"
    for until in (market.clock.now(), market.clock.now() - 3600, 0.0):
        refused = await market.post(f"{path}/renew", {"ExpirationTime": iso(until)})
        assert (refused.status, refused.json["code"]) == (422, "unprocessable")
    shown = (await market.get(path)).json
    assert (shown["ExpirationTime"], shown["Renewals"]) == (bought["ExpirationTime"], 0)


async def test_who_names_no_count_takes_as_few_as_may_be_taken_together(market: Market) -> None:
    several = {"Aggregatable": {"MinCount": 2, "MaxCount": 4}}
    await market.sell(WHOLE, Count=8, Policy=several)
    await market.sell(FlavorID="parts", Policy={**PARTS["Policy"], **several})
    for body, count in (
        ({"FlavorID": "f-1"}, 2),
        ({"FlavorID": "f-1", "Partition": {"Count": 3}}, 3),
        ({"FlavorID": "parts", "Partition": {"Cpu": 1, "Memory": 512}}, 2),
    ):
        held = await market.post("/api/reserveflavor", body)
        assert (held.status, held.json["Partition"]["Count"]) == (200, count), body
    one = await market.post("/api/reserveflavor", {"FlavorID": "f-1", "Partition": {"Count": 1}})
    assert one.status == 422, "who names a number is held to it"
    part = {"cpu": "1", "memory": "1Gi"}
    for path, body in (
        ("/api/reserveflavour/f-1", {}),
        ("/api/v2/reservations", {"flavorID": "parts", "configuration": {"data": part}}),
    ):
        held = await market.post(path, body)
        assert held.status == 200, held.body
        assert market.ledger.hold(held.json["transactionID"]).count == 2


async def test_all_that_is_free_in_several_equal_parts_is_as_much_as_these_can_be(market: Market) -> None:
    await market.sell(Policy={**PARTS["Policy"], "Aggregatable": {"MinCount": 3, "MaxCount": 4}})
    held = await market.reserve()
    assert held["Partition"] == {"Cpu": 2, "Memory": 5120, "EphemeralStorage": 33, "Count": 3}


async def test_a_year_may_be_bought_where_365_days_may(market: Market) -> None:
    await market.sell()
    for duration, status in (("P365D", 200), ("P1Y", 200), ("P12M", 200), ("P1Y1D", 400), ("P366D", 400)):
        body = {"FlavorID": "f-1", "Partition": {"Cpu": 1, "Memory": 512}, "Duration": duration}
        assert (await market.post("/api/reserveflavor", body)).status == status, duration


async def test_a_contract_may_be_renewed_up_to_a_year(market: Market) -> None:
    await market.sell()
    bought = await bought_of(market)
    path = f"/api/contracts/{bought['ContractID']}/renew"
    year = market.ledger.contract(bought["ContractID"]).contract.starts_at + 31_556_952
    assert (await market.post(path, {"ExpirationTime": iso(year + 1)})).status == 422
    assert (await market.post(path, {"ExpirationTime": iso(year)})).status == 200


async def test_a_part_that_would_strand_the_rest_is_422_and_not_found_by_a_selector(market: Market) -> None:
    """In a small market and in a large one, whose offers are looked at by columns."""
    await market.sell()
    for many in (1, 600):
        for number in range(1, many):
            await market.sell(FlavorID=f"more-{number}")
        for cpu, memory, disk, is_sold in (
            (8, 512, 0, False),
            (1, 16384, 0, False),
            (8, 16384, 0, False),
            (8, 16384, 100, True),
            (7, 15872, 100, True),
        ):
            part = {"Cpu": cpu, "Memory": memory, "EphemeralStorage": disk}
            found = await market.post("/api/listflavors", {"Partition": part, "Limit": 1000})
            assert len(found.json["Items"]) == many * is_sold, part
            if many == 1 and not is_sold:
                refused = await market.post("/api/reserveflavor", {"FlavorID": "f-1", "Partition": part})
                assert (refused.status, refused.json["code"]) == (422, "unprocessable"), part


async def test_what_no_node_can_deliver_is_said_when_it_is_asked_for(market: Market) -> None:
    await market.sell()
    has = Resources(Millicores(4000), Megabytes(8192))
    node = NodeSupply(NodeId("n"), has, has)
    supplies = [node]
    market.ledger.follow_nodes(
        lambda offer, asked, unplaced: node_offers.check_placement(supplies, asked, unplaced())
    )
    refused = await market.post(
        "/api/reserveflavor", {"FlavorID": "f-1", "Partition": {"Cpu": 5, "Memory": 512}}
    )
    assert (refused.status, refused.json["code"]) == (409, "no-room")
    assert "no node of this provider has 5 cores of cpu, 512 MB of memory free now" in refused.json["error"]
    held = await market.reserve(2)
    assert held["State"] == "held"
    purchase = {"TransactionID": held["TransactionID"]}
    more = {"FlavorID": "f-1", "Partition": {"Cpu": 2, "Memory": 512}}
    silent = replace(node, is_schedulable=False, is_silent=True)
    lack = "no node of this provider has 2 cores of cpu, 512 MB of memory free now, as "
    for supplies[:], status, code, why in (
        ([], 409, "no-room", "it has no node; choose another offer"),
        ([silent], 503, "unavailable", "its nodes are silent; try again in a moment"),
    ):
        for body in (more, {**more, "Wait": 20}):
            refused = await market.post("/api/reserveflavor", body)
            assert (refused.status, refused.json["code"]) == (status, code)
            assert refused.json["error"].startswith(lack + why)
    supplies.clear()
    assert (await market.post("/api/purchaseflavor", purchase)).status == 200, "a hold is honoured"
