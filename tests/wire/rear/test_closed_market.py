"""A market that is closed to unknown keys: what they are told in each dialect, and what stays open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import structlog

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model.callers import Role
from skerry.model.ids import CloudId
from skerry.model.market_settings import MarketSettings
from tests.support.deals import BUYER
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import serving
from tests.transport.http.talking import Answer
from tests.wire.rear.conftest import Market, market_of
from tests.wire.rear.test_subscriptions import HANDSHAKE, Subscriber

PART = b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512}}'
LISTS = [
    ("GET", "/api/listflavors", b""),
    ("POST", "/api/listflavors", b"{}"),
    ("GET", "/api/flavors/f-1", b""),
    ("GET", "/api/listflavours", b""),
    ("POST", "/api/listflavours/selector", b"{}"),
    ("GET", "/api/v2/flavors", b""),
    ("GET", "/api/v2/flavors/k8slice", b""),
]
HOLDS = [
    ("POST", "/api/reserveflavor", PART),
    ("POST", "/api/reserveflavour/f-1", b"{}"),
    ("POST", "/api/v2/reservations", b'{"flavorID":"f-1"}'),
]
OWN = [
    ("GET", "/api/reservations", b""),
    ("GET", "/api/contracts", b""),
    ("POST", "/api/purchaseflavor", b'{"TransactionID":"none"}'),
    ("POST", "/api/purchaseflavour/none", b"{}"),
    ("POST", "/api/v2/transactions/none/purchase", b"{}"),
]


@dataclass
class Closed:
    """A market, who it knows, and a buyer with a key."""

    market: Market
    known: set[CloudId]

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        prover = RequestSigner(BUYER, self.market.clock)
        shown = {**self.market.signed(prover, method, path, body), **headers}
        return await self.market.ask(method, path, data=body, headers=shown)


@pytest.fixture
def policy() -> str:
    return "refuse"


@pytest.fixture
async def closed(cloud: pki.CertificateAuthority, provider: SigningKey, policy: str) -> AsyncIterator[Closed]:
    clock, known = ManualClock(), set[CloudId]()
    settings = MarketSettings(unknown_buyers=policy)

    def is_known(buyer: CloudId) -> bool:
        return buyer in known or not buyer.startswith("key.")

    with structlog.testing.capture_logs():
        async with (
            market_of(provider, clock, settings, is_known=is_known) as (ledger, rear),
            serving(cloud, rear=rear) as site,
        ):
            market = Market(site, await site.session(), ledger, rear, clock, provider)
            await market.sell()
            yield Closed(market, known)


def is_told_what_to_do(answer: Answer) -> bool:
    asked = f"ask the provider to allow you: `skerry market buyers add {BUYER.cloud}`"
    return answer.status == 403 and answer.json["code"] == "forbidden" and asked in answer.json["error"]


@pytest.mark.parametrize(("method", "path", "body"), [*LISTS, *HOLDS, *OWN])
async def test_an_unknown_key_is_told_in_every_dialect_what_to_do_and_costs_no_write(
    closed: Closed, method: str, path: str, body: bytes
) -> None:
    store: Any = closed.market.rear.proofs
    before = await store._store.revision()
    assert is_told_what_to_do(await closed.ask(method, path, body))
    assert await store._store.revision() == before
    closed.known.add(BUYER.cloud)
    assert (await closed.ask(method, path, body)).status == (
        404 if "none" in path or b"none" in body else 200
    )


@pytest.mark.parametrize("policy", ["list"])
@pytest.mark.parametrize(("method", "path", "body"), [*LISTS, *HOLDS])
async def test_offers_can_be_shown_to_everybody_and_sold_to_few(
    closed: Closed, method: str, path: str, body: bytes
) -> None:
    answer = await closed.ask(method, path, body)
    assert answer.status == 200 if (method, path, body) in LISTS else is_told_what_to_do(answer)


async def test_a_subscriber_is_let_in_while_it_is_known(closed: Closed) -> None:
    market = closed.market
    assert is_told_what_to_do(await closed.ask("GET", "/api/subscribe", **HANDSHAKE))
    closed.known.add(BUYER.cloud)
    prover = RequestSigner(BUYER, market.clock)
    market.headers = market.signed(prover, "GET", "/api/subscribe")
    client = await Subscriber.of(market)
    market.headers = {}
    await client.subscribe(All=True)
    assert (await client.next())[0] == "RefreshMessage"
    closed.known.clear()
    await market.reserve(1)
    last = await client.socket.receive(timeout=PATIENCE_S)
    assert last.type is aiohttp.WSMsgType.CLOSE, "and it is not told of the change"


async def test_who_is_taken_off_the_list_still_has_what_it_bought(closed: Closed) -> None:
    closed.known.add(BUYER.cloud)
    held = await closed.ask("POST", "/api/reserveflavor", PART)
    body = b'{"TransactionID":"%s"}' % held.json["TransactionID"].encode()
    closed.known.clear()
    bought = await closed.ask("POST", "/api/purchaseflavor", body)
    assert bought.status == 200
    path = f"/api/contracts/{bought.json['ContractID']}"
    assert (await closed.ask("GET", path)).status == 200
    assert is_told_what_to_do(await closed.ask("POST", f"{path}/renew", b'{"Duration":"PT1H"}'))
    assert (await closed.ask("POST", f"{path}/release")).status == 200


async def test_accounts_of_this_cloud_trade_as_ever(closed: Closed) -> None:
    viewer, deployer = (await closed.market.buyer(Role.VIEWER), await closed.market.buyer(Role.DEPLOYER))
    for method, path, body in LISTS:
        assert (await viewer.ask(method, path, data=body)).status == 200
        assert (await closed.market.ask(method, path, data=body)).status == 200
    held = await deployer.post("/api/reserveflavor", PART)
    bought = await deployer.post("/api/purchaseflavor", {"TransactionID": held.json["TransactionID"]})
    assert bought.status == 200
