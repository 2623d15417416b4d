"""The listener for buyers without credentials: who is served what, in which amounts, and who is not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
import structlog
from msgspec.structs import replace

from skerry.daemon.http import build_plain_app
from skerry.kit.clock import ManualClock, SystemClock
from skerry.market import plain
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model import errors
from skerry.model.ids import CloudId
from skerry.model.market_settings import MarketSettings
from skerry.model.settings import HttpSettings, Settings
from skerry.transport.access import rules
from skerry.transport.http.server import HttpServer
from skerry.wire.rear import routes
from skerry.wire.rear.documents import FlavorBody
from skerry.wire.rear.lenient_json import LenientReader
from tests.support.deals import BUYER as KEY
from tests.support.waiting import eventually
from tests.transport.http.talking import Answer
from tests.wire.rear.conftest import PARTS, market_of
from tests.wire.rear.test_fluidos import BUYER, PART

HOME, OTHER, UNNAMED = "127.0.0.1", "127.0.0.2", "127.0.1.1"
SETTINGS = MarketSettings(
    plain_listen="127.0.0.1:0", plain_addresses=("127.0.0.0/28",), plain_percent=50, unknown_buyers="refuse"
)


@dataclass
class Plain:
    """A market behind that listener, and clients at several addresses."""

    server: HttpServer
    ledger: Ledger
    clock: ManualClock
    sessions: AsyncExitStack

    async def ask(
        self, method: str, path: str, body: Any = None, *, at: str = HOME, **headers: str
    ) -> Answer:
        connector = aiohttp.TCPConnector(local_addr=(at, 0), force_close=True)
        host, port = self.server.address
        async with (
            aiohttp.ClientSession(f"http://{host}:{port}", connector=connector) as session,
            session.request(
                method,
                path,
                data=None if body is None else json.dumps(body).encode(),
                headers={name.replace("_", "-"): value for name, value in headers.items()},
                skip_auto_headers=["Content-Type"],
            ) as reply,
        ):
            found = {name.lower(): value for name, value in reply.headers.items()}
            return Answer(reply.status, found, await reply.read())

    async def reserve(self, cpu: str = "1", memory: str = "1Gi", **options: Any) -> Answer:
        part = {"type": "k8slice", "data": {"cpu": cpu, "memory": memory, "pods": "10"}}
        body = {"flavorID": "f-1", "buyerID": BUYER, "configuration": part}
        return await self.ask("POST", "/api/v2/reservations", body, **options)

    async def buy(self, held: Answer, **options: Any) -> Answer:
        return await self.ask(
            "POST", f"/api/v2/transactions/{held.json['transactionID']}/purchase", {}, **options
        )


@asynccontextmanager
async def plain_market(
    provider: SigningKey, http: HttpSettings | None = None, **changes: Any
) -> AsyncIterator[Plain]:
    clock, market = ManualClock(), replace(SETTINGS, **changes)
    settings = Settings(http=http or HttpSettings(), market=market)
    async with AsyncExitStack() as sessions:
        sessions.enter_context(structlog.testing.capture_logs())
        ledger, rear = await sessions.enter_async_context(market_of(provider, clock, market))
        offer, _ = LenientReader(FlavorBody).convert(PARTS)
        await ledger.publish(offer.flavor(None, provider.cloud, clock.now()), actor="ed")  # type: ignore[arg-type]  # it has an id
        networks = plain.networks_of(market)
        app = build_plain_app(settings, SystemClock(), rear, networks)
        server = HttpServer(app, settings.http)
        await server.start(socket.create_server((HOME, 0)), None, listener="http-plain", networks=networks)
        sessions.push_async_callback(server.stop, 5.0)
        yield Plain(server, ledger, clock, sessions)


@pytest.fixture
async def shop(provider: SigningKey) -> AsyncIterator[Plain]:
    async with plain_market(provider) as made:
        yield made


async def test_fluidos_buyer_lists_reserves_and_buys_with_nothing_to_show(shop: Plain) -> None:
    (flavor,) = (await shop.ask("GET", "/api/v2/flavors")).json
    query = "filter[cpu][range][min]=1&filter[memory][range][min]=1Gi"
    assert (await shop.ask("GET", f"/api/v2/flavors/k8slice?{query}")).json == [flavor]
    body = {"flavorID": flavor["flavorID"], "buyerID": BUYER, "configuration": PART}
    held = await shop.ask("POST", "/api/v2/reservations", body)
    assert (held.status, held.json["buyer"], held.json["clusterID"]) == (200, BUYER, "cool-firefly")
    bought = await shop.buy(held)
    assert (bought.status, bought.json["buyerID"]) == (200, BUYER)
    assert (await shop.buy(held)).body == bought.body
    contract = shop.ledger.contract(bought.json["contractID"]).contract
    assert (contract.buyer, contract.is_unknown) == ("plain.127.0.0.1", True)


async def test_the_same_in_version_1(shop: Plain) -> None:
    assert (await shop.ask("GET", "/api/listflavours")).json["flavourID"] == "f-1"
    selector = {"type": "k8s-fluidos", "rangeSelector": {"minCpu": "1", "minMemory": "1Gi"}}
    flavour = (await shop.ask("POST", "/api/listflavours/selector", selector)).json
    buyer = {"ID": "rd5ks7x9yz", "IP": "172.19.0.5:30000", "domain": "fluidos.eu"}
    body = {"flavourID": flavour["flavourID"], "buyerID": buyer, "clusterID": "c", "partition": PART["data"]}
    held = await shop.ask("POST", f"/api/reserveflavour/{flavour['flavourID']}", body)
    assert (held.status, held.json["buyer"]) == (200, buyer)
    request = {"transactionID": held.json["transactionID"], "flavourID": "f-1", "buyerID": "rd5ks7x9yz"}
    bought = await shop.ask("POST", f"/api/purchaseflavour/{held.json['transactionID']}", request)
    assert (bought.status, bought.json["contract"]["buyerID"]) == (200, buyer)


async def test_who_calls_from_elsewhere_is_cut_off_whatever_it_says(shop: Plain) -> None:
    for headers in ({}, {"X_Forwarded_For": HOME}, {"Forwarded": f"for={HOME}"}, {"X_Real_IP": HOME}):
        with pytest.raises(aiohttp.ClientConnectionError):
            await shop.ask("GET", "/api/v2/flavors", at=UNNAMED, **headers)
    assert (await shop.ask("GET", "/api/v2/flavors", at=OTHER)).status == 200


async def test_a_crowd_from_elsewhere_locks_no_named_address_out(shop: Plain) -> None:
    async def knock() -> None:
        with pytest.raises(aiohttp.ClientConnectionError):
            await shop.ask("GET", "/api/v2/flavors", at=UNNAMED)

    async def shown() -> bool:
        return (await shop.ask("GET", "/api/v2/flavors")).status == 200

    *_, first, second = await asyncio.gather(*(knock() for _ in range(100)), shown(), shown())
    assert first
    assert second


async def test_nothing_else_is_served_to_anybody(shop: Plain) -> None:
    served = {target.name for target in routes.PLAIN}
    assert served == set(rules.PLAIN)
    for name in rules.HTTP_RULES:
        method, path = name.split(" ")
        answer = await shop.ask(method, path.replace("{kind}", "k8slice"), {} if method == "POST" else None)
        if name in served:
            assert answer.status in (200, 400, 404, 422), name
        else:
            assert answer.status in (404, 405), name


@pytest.mark.parametrize("header", ["Forwarded", "Via", "X-Forwarded-For", "X-Real-IP", "X-Forwarded-Proto"])
async def test_what_a_proxy_passes_on_is_refused(shop: Plain, header: str) -> None:
    answer = await shop.ask("GET", "/api/v2/flavors", **{header: HOME})
    assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert (await shop.reserve(**{header: HOME})).status == 403


async def test_no_credentials_are_taken_and_root_on_this_machine_is_a_buyer_like_any(shop: Plain) -> None:
    proof = RequestSigner(KEY, shop.clock).header(CloudId("key.any"), "GET", "/api/v2/flavors", b"")
    for shown in ("Bearer skerry_x_y", proof, "Basic eDp5", ""):
        answer = await shop.ask("GET", "/api/v2/flavors", Authorization=shown)
        assert (answer.status, answer.json["code"]) == (403, "forbidden"), shown
    held = await shop.reserve()
    assert shop.ledger.hold(held.json["transactionID"]).buyer == "plain.127.0.0.1"
    web_page = await shop.ask("GET", "/api/v2/flavors", Origin="http://evil.example")
    assert web_page.status == 403
    assert (await shop.ask("GET", "/api/v2/flavors", Host="evil.example")).status == 403


async def test_a_name_in_a_body_makes_nobody_of_it(shop: Plain) -> None:
    for name in ("key.friend", "token.1", "user.0", "plain.127.0.0.2", "../x", "x" * 200):
        body = {"flavorID": "f-1", "buyerID": {"ID": name}, "configuration": PART}
        held = await shop.ask("POST", "/api/v2/reservations", body)
        assert (held.status, held.json["buyer"]["ID"]) == (200, name)
        hold = shop.ledger.hold(held.json["transactionID"])
        assert hold.buyer == "plain.127.0.0.1"
        await shop.ledger.cancel(hold.id, hold.buyer)


async def test_an_address_cannot_buy_what_another_holds(shop: Plain) -> None:
    held = await shop.reserve()
    stolen = await shop.buy(held, at=OTHER)
    assert (stolen.status, stolen.json["code"]) == (403, "forbidden")
    assert (await shop.buy(held)).status == 200


async def test_large_holds_are_refused_for_one_address_and_for_all_together(shop: Plain) -> None:
    too_much = await shop.reserve("3", "1Gi")
    assert too_much.status == 422
    assert "a buyer without credentials may have 2 cores" in too_much.json["error"]
    assert (await shop.reserve("1", "5Gi")).status == 422
    whole = await shop.ask("POST", "/api/v2/reservations", {"flavorID": "f-1", "buyerID": BUYER})
    assert whole.status == 422, "who names no part asks for all of it"
    assert (await shop.reserve("2", "2Gi")).status == 200
    assert (await shop.reserve("1", "1Gi")).status == 422, "what is held counts"
    assert (await shop.reserve("2", "2Gi", at=OTHER)).status == 200
    shared = await shop.reserve("1", "1Gi", at="127.0.0.3")
    assert (shared.status, shared.json["code"]) == (409, "no-room"), "half of the offer is theirs"
    assert "buyers without credentials may have 50 %" in shared.json["error"]
    assert not [hold for hold in shop.ledger.holds() if hold.taken.cpu > 2000]


async def test_many_holds_are_refused_however_they_ended(provider: SigningKey) -> None:
    async with plain_market(provider, plain_holds=2, plain_total_holds=3) as shop:
        for _ in range(2):
            assert (await shop.reserve()).status == 200
            shop.clock.advance(61)
        refused = await shop.reserve()
        assert (refused.status, "retry-after" in refused.headers) == (429, True)
        assert (await shop.reserve(at=OTHER)).status == 200
        together = await shop.reserve(at="127.0.0.3")
        assert together.status == 429
        assert "all buyers together without credentials" in together.json["error"]


async def test_contracts_are_short_and_the_limits_of_unknown_keys_are_counted_apart(
    provider: SigningKey,
) -> None:
    limits = {"unknown_buyers": "buy", "unknown_total_holds": 1, "plain_contract_s": 60.0}
    async with plain_market(provider, **limits) as shop:
        stranger = CloudId("key.stranger")
        await shop.ledger.reserve(stranger, shop.ledger.flavors()[0].flavor.id, resources=await a_core(shop))
        bought = await shop.buy(await shop.reserve())
        contract = shop.ledger.contract(bought.json["contractID"]).contract
        assert contract.ends_at - contract.starts_at == 60.0
        with pytest.raises(errors.Overloaded):
            await shop.ledger.reserve(stranger, contract.flavor.id, resources=contract.resources)


async def a_core(shop: Plain) -> Any:
    partition = shop.ledger.flavors()[0].flavor.partition
    assert partition is not None
    return partition.least


async def test_such_a_buyer_is_never_known_and_has_nothing_where_there_is_no_such_listener(
    provider: SigningKey,
) -> None:
    async with market_of(provider, ManualClock(), MarketSettings(), is_known=lambda _: True) as (ledger, _):
        with pytest.raises(errors.Forbidden, match="without credentials"):
            ledger.check_access(CloudId("plain.127.0.0.1"), is_read=True)


async def test_connections_of_one_address_are_bounded(provider: SigningKey) -> None:
    http = HttpSettings(max_connections=8, max_connections_per_source=4)
    async with plain_market(provider, http) as shop:
        held = []
        try:
            for _ in range(10):
                reader, writer = await asyncio.open_connection(*shop.server.address, local_addr=(OTHER, 0))
                held.append((reader, writer))
            assert (await shop.ask("GET", "/api/v2/flavors", at=HOME)).status in (200, 503)
            await eventually(lambda: sum(reader.at_eof() for reader, _ in held) >= 1, what="some are let go")
        finally:
            for _, writer in held:
                writer.close()


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ((), "name them in market.plain_addresses"),
        (("everybody",), "no address and no network"),
        (("192.0.2.7/24",), "no address and no network"),
        (("0.0.0.0/0",), "is every address"),
        (("192.0.2.1", "::/0"), "is every address"),
    ],
)
def test_who_may_call_must_be_named(named: tuple[str, ...], why: str) -> None:
    with pytest.raises(errors.Invalid, match=why):
        plain.networks_of(MarketSettings(plain_listen="0.0.0.0:3004", plain_addresses=named))


def test_addresses_have_one_name_each() -> None:
    assert plain.buyer_at("192.0.2.7") == "plain.192.0.2.7"
    assert plain.buyer_at("2001:db8::1") == "plain.2001-db8--1"
