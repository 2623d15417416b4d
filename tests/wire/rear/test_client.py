"""The client of a provider: against the real server, and against servers that are none of the good ones."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from skerry.kit import tls
from skerry.kit.clock import ManualClock
from skerry.market.buyer import provider_client, ranking
from skerry.market.buyer.provider_client import RemoteContractStatus
from skerry.market.buyer.quotes import CapacityRequest, MarketPeer
from skerry.market.terms import signatures
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model import errors
from skerry.model.ids import ContractId, HoldId, InstanceId, OfferId
from skerry.model.node_messages import TunnelRequest
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import InstanceStatus
from skerry.model.streams import GuestStreamRequest, LogStreamRequest
from skerry.transport.tunnels import tunnel_codec
from skerry.wire.rear import client_documents
from skerry.wire.rear.client import RearClient, RearClientPool
from tests.support.certificates import TestAuthority
from tests.support.deals import BUYER, SELLER, resources
from tests.support.waiting import PATIENCE_S
from tests.wire.rear import test_tunnel_server
from tests.wire.rear.conftest import PARTS, WHOLE, Market
from tests.wire.rear.test_tunnel_server import Hall

hall = test_tunnel_server.hall
F1 = OfferId("f-1")


@asynccontextmanager
async def client_of(
    url: str, cloud: str, clock: ManualClock | None = None, *, ca: str = "", timeout_s: float = 5.0
) -> AsyncIterator[RearClient]:
    clients = RearClientPool(RequestSigner(BUYER, clock or ManualClock()), timeout_s=timeout_s)
    try:
        yield clients(MarketPeer("north", url, cloud, ca))
    finally:
        await clients.close()


@asynccontextmanager
async def buyer_at(market: Market) -> AsyncIterator[RearClient]:
    async with client_of(market.site.url, market.key.cloud, market.clock) as client:
        yield client


async def test_from_an_offer_to_a_contract_and_back(market: Market) -> None:
    await market.sell()
    async with buyer_at(market) as client:
        (offer,) = await client.offers(CapacityRequest(resources(2, 1024)))
        assert (offer.flavor.id, offer.flavor.resources, offer.free) == (
            F1,
            resources(8, 16384, 100),
            resources(8, 16384, 100),
        )
        held = await client.reserve(F1, resources(2, 1024), 1, 600.0, key="once")
        assert await client.reserve(F1, resources(2, 1024), 1, 600.0, key="once") == held
        bought = await client.purchase(held.id)
        contract = provider_client.check_contract(
            bought.document,
            seller=market.key.cloud,
            buyer=BUYER.cloud,
            flavor=offer.flavor,
            hold=held,
            duration_s=600.0,
            now=market.clock.now(),
        )
        assert (await client.purchase(held.id)).document == bought.document
        await client.sign(contract.id, signatures.countersign(BUYER, bought.document))
        assert market.ledger.contract(contract.id).countersigned
        until = contract.ends_at + 300
        longer = await client.renew(contract.id, until)
        assert await client.renew(contract.id, until) == longer
        assert (
            provider_client.check_renewed(longer, contract, until=until, most=contract.price).ends_at == until
        )
        assert await client.contract_state(contract.id) == RemoteContractStatus(contract.ends_at + 300)
        await market.ledger.reclaim(contract.id, actor="ed", reason="repairs")
        told = await client.contract_state(contract.id)
        assert (told.reclaim_at, told.reason) == (market.clock.now() + 120, "repairs")
        await client.release(contract.id)
        assert (await client.contract_state(contract.id)).ended == "released"
        other = await client.reserve(F1, resources(1, 512), 1, None, key="twice")
        await client.cancel(other.id)
        assert market.ledger.hold(other.id).ending is not None


async def test_refusals_keep_their_kind_and_their_words(market: Market) -> None:
    await market.sell()
    async with buyer_at(market) as client:
        with pytest.raises(errors.ResourcesExhausted, match=r"peer north: .*lacks"):
            await client.reserve(F1, resources(64, 512), 1, None, key="a")
        with pytest.raises(errors.Unprocessable):
            await client.reserve(F1, resources(1, 513), 1, None, key="b")
        with pytest.raises(errors.NotFound):
            await client.reserve(OfferId("none"), resources(1, 512), 1, None, key="c")
        with pytest.raises(errors.NotFound):
            await client.cancel(HoldId("none"))
        held = await client.reserve(F1, resources(1, 512), 1, None, key="d")
        await client.purchase(held.id)
        with pytest.raises(errors.Conflict):
            await client.cancel(held.id)


async def test_a_proof_for_another_cloud_is_refused_and_is_no_matter_of_our_own_callers(
    market: Market,
) -> None:
    async with client_of(market.site.url, SELLER.cloud, market.clock) as client:
        with pytest.raises(errors.FailedPrecondition, match="the proof is for"):
            await client.offers(CapacityRequest())


async def test_what_a_part_costs_is_known_before_it_is_held(market: Market) -> None:
    await market.sell()
    async with buyer_at(market) as client:
        await client.reserve(F1, resources(1, 8192), 1, None, key="first")  # so that what is free is lopsided
        (offer,) = await client.offers(CapacityRequest(resources(2, 4096)))
        found = ranking.quote_for("north", offer, CapacityRequest(resources(2, 4096)))
        assert found is not None
        held = await client.reserve(F1, found.resources, 1, None, key="second")
        assert held.price == found.price
        provider_client.check_hold(held, resources=found.resources, count=1, most=found.price)


async def test_both_what_fits_exactly_and_what_is_larger_is_listed(market: Market) -> None:
    await market.sell(PARTS)
    await market.sell(WHOLE, FlavorID="whole", Count=3)
    await market.sell(WHOLE, FlavorID="small", Characteristics={"Cpu": 1, "Memory": 512})
    await market.sell(
        WHOLE, FlavorID="arm", Characteristics={"Architecture": "arm64", "Cpu": 9, "Memory": 9000}
    )
    async with buyer_at(market) as client:
        found = {
            offer.flavor.id: offer
            for offer in await client.offers(CapacityRequest(resources(2, 1024), architecture="amd64"))
        }
        assert found.keys() == {"f-1", "whole"}
        whole = found[OfferId("whole")]
        assert (whole.flavor.stock, whole.free, whole.count) == (3, resources(24, 49152, 300), 3)
        assert len(await client.offers(CapacityRequest())) == 4
        odd = CapacityRequest(Resources(Millicores(1500), Megabytes(700), Gigabytes(0)), architecture="amd64")
        assert {offer.flavor.id for offer in await client.offers(odd)} == {"f-1", "whole"}


# Servers that are no good


@asynccontextmanager
async def server(
    answer: Callable[[web.Request], Awaitable[web.StreamResponse]], context: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield f"{'https' if context else 'http'}://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


def saying(body: Any, status: int = 200, **headers: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=data, status=status, headers=headers)

    return answer


ITEM: dict[str, Any] = {
    "FlavorID": "f",
    "FlavorType": "k8slice",
    "ProviderID": SELLER.cloud,
    "Characteristics": {"Cpu": 8, "Memory": 1024},
    "Price": {"Amount": "0.10", "Currency": "EUR", "Period": "PT1H"},
}


@pytest.mark.parametrize(
    ("body", "status", "kind", "words"),
    [
        (b"<html>", 200, errors.FailedPrecondition, "makes no sense: not valid JSON.*; set its URL"),
        ([], 200, errors.FailedPrecondition, "makes no sense"),
        ({"Items": [{**ITEM, "FlavorID": "../x"}]}, 200, errors.FailedPrecondition, "makes no sense"),
        ({"Items": [{**ITEM, "ProviderID": "key.other"}]}, 200, errors.FailedPrecondition, "not of its own"),
        (
            {"Items": [{**ITEM, "Characteristics": {"Cpu": -1}}]},
            200,
            errors.FailedPrecondition,
            "makes no sense",
        ),
        (
            {"Items": [{**ITEM, "Price": {"Amount": "1e999999999", "Currency": "EUR"}}]},
            200,
            errors.FailedPrecondition,
            "makes no sense",
        ),
        ({"Items": [{**ITEM, "Count": 2**31 - 1}]}, 200, errors.FailedPrecondition, "makes no sense"),
        (
            {"error": "who are you", "code": "unauthenticated"},
            401,
            errors.FailedPrecondition,
            "peer north: who are you",
        ),
        ({"error": "a fault", "code": "internal"}, 500, errors.Unavailable, "peer north: a fault"),
        (b"busy", 503, errors.Unavailable, "it answers 503 and does not say why; set its URL"),
        (
            {"error": "line\none\x1b[31m", "code": "no-room"},
            409,
            errors.ResourcesExhausted,
            r"line one \[31m",
        ),
        (b"", 302, errors.FailedPrecondition, "it answers 302"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_words(
    body: Any, status: int, kind: type[errors.SkerryError], words: str
) -> None:
    async with (
        server(saying(body, status, Location="http://127.0.0.1:1/")) as url,
        client_of(url, SELLER.cloud) as client,
    ):
        with pytest.raises(kind, match=words):
            await client.offers(CapacityRequest())


async def test_an_answer_without_end_is_not_read_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skerry.wire.rear.client.MAX_RESPONSE", 100_000)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 10_000)

    async with server(answer) as url, client_of(url, SELLER.cloud) as client:
        with pytest.raises(errors.TooLarge, match="more than 100000 bytes; buy of another"):
            await client.offers(CapacityRequest())


async def test_a_peer_that_hangs_or_is_not_there_says_so() -> None:
    async def hang(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with server(hang) as url, client_of(url, SELLER.cloud, timeout_s=0.1) as client:
        with pytest.raises(errors.TimedOut, match=r"peer north did not answer within 0\.1 s; try again"):
            await client.offers(CapacityRequest())
        with pytest.raises(errors.TimedOut):
            async with client.contract_tunnel(ContractId("c"), "c.secret", lambda _: None):
                pass
    async with client_of(url, SELLER.cloud) as client:
        with pytest.raises(
            errors.Unavailable, match=f"peer north cannot be reached at {url}; set its URL anew"
        ):
            await client.offers(CapacityRequest())


async def test_only_the_peers_own_ca_is_trusted_if_there_is_one(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    good, bad = (TestAuthority(tmp_path_factory.mktemp("ca"), name) for name in ("good", "bad"))
    context = tls.https_server(good.ca.read_bytes())
    pair = good.issue("server", server=True)
    tls.load(context, pair.certificate, pair.key)
    async with server(saying({"Items": []}), context) as url:
        url = url.replace("127.0.0.1", "localhost")
        async with client_of(url, SELLER.cloud, ca=good.ca.read_text()) as client:
            assert await client.offers(CapacityRequest()) == []
        for ca in (bad.ca.read_text(), ""):
            async with client_of(url, SELLER.cloud, ca=ca) as client:
                with pytest.raises(errors.FailedPrecondition, match="is not trusted"):
                    await client.offers(CapacityRequest())
        async with client_of(url.replace("https", "http"), SELLER.cloud) as client:
            with pytest.raises(errors.SkerryError):
                await client.offers(CapacityRequest())


async def test_a_proxy_of_the_environment_is_not_used(
    monkeypatch: pytest.MonkeyPatch, market: Market
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    async with buyer_at(market) as client:
        assert await client.offers(CapacityRequest()) == []


# Doors


async def test_a_door_carries_frames_and_tells_how_the_contract_stands(hall: Hall) -> None:
    told: list[RemoteContractStatus] = []
    async with (
        buyer_at(hall.market) as client,
        client.contract_tunnel(hall.id, hall.token, told.append) as end,
    ):
        await end.send(b"hello")
        assert await end.receive() == b"hello"
        assert (told[0].cell, told[0].ended) == ("running", "")
        contract = hall.market.ledger.contract(hall.id).contract
        assert told[0].ends_at == pytest.approx(contract.ends_at, abs=0.001)
        await hall.market.ledger.release(hall.id, contract.buyer)
        assert await end.receive() is None
        assert told[-1].ended == "released"
        with pytest.raises(errors.Unavailable):
            await end.send(b"more")


async def test_a_door_that_does_not_open_says_why(hall: Hall) -> None:
    async with buyer_at(hall.market) as client:
        with pytest.raises(errors.FailedPrecondition, match="not the credential"):
            async with client.contract_tunnel(hall.id, "c.wrong", lambda _: None):
                pass
        hall.seen(InstanceStatus.SCHEDULING, "no node has room", node=None)
        with pytest.raises(errors.Unavailable, match=r"peer north: .*no node has room"):
            async with client.contract_tunnel(hall.id, hall.token, lambda _: None):
                pass
        contract = hall.market.ledger.contract(hall.id).contract
        await hall.market.ledger.release(hall.id, contract.buyer)
        with pytest.raises(errors.Expired, match="released"):
            async with client.contract_tunnel(hall.id, hall.token, lambda _: None):
                pass


async def test_a_tunnel_says_first_what_is_asked_for(hall: Hall) -> None:
    asked = TunnelRequest("secret id", InstanceId("mine"), LogStreamRequest(tail=2))
    async with buyer_at(hall.market) as client:
        async with client.tunnel(hall.id, hall.token, asked) as end:
            await end.send(b"hello")
            assert await end.receive() == b"hello"
            await end.end()
            assert await end.receive() is None
        assert hall.ways.asks[-1][2] == GuestStreamRequest(InstanceId("mine"), LogStreamRequest(tail=2))

        async def fail(ask: Any, end: Any) -> None:
            raise errors.NotFound("there is no such instance")

        hall.ways.node = fail
        async with client.tunnel(hall.id, hall.token, asked) as end:
            with pytest.raises(errors.NotFound, match="no such instance"):
                await end.receive()


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff",
        b"",
        "no json",
        '{"contract": "c"}',
        '{"contract": "c", "ends": "tomorrow"}',
        '{"contract": "c", "ends": "2030-01-01T00:00:00Z", "reclaim": "9999-12-31T23:59:59-23:59"}',
    ],
)
async def test_what_is_no_frame_and_no_standing_ends_the_conversation(message: bytes | str) -> None:
    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("skerry.door.v1",))
        await socket.prepare(request)
        if isinstance(message, bytes):
            await socket.send_bytes(message)
        else:
            await socket.send_str(message)
        await socket.receive()
        return socket

    async with (
        server(answer) as url,
        client_of(url, SELLER.cloud) as client,
        client.contract_tunnel(ContractId("c"), "c.secret", lambda _: None) as end,
    ):
        with pytest.raises(errors.Invalid):
            await end.receive()


async def test_a_provider_that_never_stops_telling_is_heard_at_a_bearable_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.transport.tunnels.websocket_tunnel._PACE_S", 0.05)
    heard: list[float] = []

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("skerry.door.v1",))
        await socket.prepare(request)
        for _ in range(4):
            await socket.send_str('{"contract": "c", "ends": "2030-01-01T00:00:00Z"}')
        await socket.send_bytes(tunnel_codec.END.SerializeToString())
        await socket.receive()
        return socket

    def told(contract_state: RemoteContractStatus) -> None:
        heard.append(asyncio.get_running_loop().time())

    async with (
        server(answer) as url,
        client_of(url, SELLER.cloud) as client,
        client.contract_tunnel(ContractId("c"), "c.secret", told) as end,
    ):
        assert await end.receive() is None
    assert len(heard) == 4
    assert all(later - before >= 0.05 for before, later in itertools.pairwise(heard))


async def test_a_provider_that_never_stops_sending_does_not_keep_us_from_going(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("skerry.wire.rear.client._CLOSE_S", 0.1)

    async def answer(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("skerry.door.v1",))
        await socket.prepare(request)
        with suppress(ConnectionError):
            while True:
                await socket.send_bytes(tunnel_codec.encode_data(b"x" * 1000).SerializeToString())
        return socket

    async with server(answer) as url, client_of(url, SELLER.cloud) as client, asyncio.timeout(PATIENCE_S):
        async with client.contract_tunnel(ContractId("c"), "c.secret", lambda _: None) as end:
            assert await end.receive() == b"x" * 1000
        with pytest.raises(errors.Unavailable, match="the connection to peer north ended"):
            await end.send(b"y")


async def test_a_door_is_not_found_behind_a_redirect_nor_without_its_protocol() -> None:
    async def elsewhere(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://127.0.0.1:1/")

    async def other(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive()
        return socket

    for answer, words in (
        (elsewhere, "sends us elsewhere"),
        (saying({}), "opens no WebSocket: it answers 200; set its URL"),
        (other, "does not support skerry.door.v1; buy of"),
    ):
        async with server(answer) as url, client_of(url, SELLER.cloud) as client:
            with pytest.raises(errors.FailedPrecondition, match=words):
                async with client.contract_tunnel(ContractId("c"), "c.secret", lambda _: None):
                    pass


def test_secrets_are_not_shown() -> None:
    contract = client_documents.ContractReply("c", "document", client_documents.CredentialsReply("secret"))
    assert "secret" not in repr(client_documents.decode_contract(contract)) + repr(contract)
    with pytest.raises(errors.Invalid):
        client_documents.decode_contract(
            client_documents.ContractReply("c", "document", client_documents.CredentialsReply("two\nlines"))
        )


def test_a_duration_is_no_shorter_than_asked_for() -> None:
    assert [client_documents.format_duration(seconds) for seconds in (1.0, 59.2, 7200)] == [
        "PT1S",
        "PT60S",
        "PT7200S",
    ]


async def test_who_is_asked_whether_it_is_the_peer_may_be_closed_to_us(market: Market) -> None:
    async with buyer_at(market) as client:
        await client.check()

    async def closed(request: web.Request) -> web.Response:
        return web.json_response({"error": "ask to be let in", "code": "forbidden"}, status=403)

    async with server(closed) as url, client_of(url, SELLER.cloud) as client:
        await client.check()


async def test_a_peer_of_another_key_says_whose_it_is(market: Market) -> None:
    async with client_of(market.site.url, SELLER.cloud, market.clock) as client:
        with pytest.raises(errors.FailedPrecondition, match=f"this provider is {market.key.cloud}"):
            await client.check()


async def test_plain_http_to_where_tls_is_spoken_is_refused_with_what_to_do() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(16)
        writer.close()

    listening = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening, client_of(url, SELLER.cloud) as client:
        with pytest.raises(
            errors.FailedPrecondition, match="hangs up on plain http; set its URL anew with https"
        ):
            await client.check()
