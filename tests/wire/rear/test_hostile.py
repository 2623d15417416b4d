"""What a buyer sends who means no good, over the real server: refused, told why, and nothing is written.

What is looked at here is the whole way; every case of a proof, a contract or a quantity on its own is in
`tests/market` and beside the readers of each dialect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.market.terms import request_proofs, signatures
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.model.ids import CloudId
from skerry.model.market_settings import MarketSettings
from tests.support import deals
from tests.support.deals import BUYER, STRANGER
from tests.support.waiting import PATIENCE_S
from tests.transport.http.conftest import serving
from tests.transport.http.talking import Answer
from tests.wire.rear.conftest import PARTS, Market, market_of
from tests.wire.rear.test_messages_xml import BOMB
from tests.wire.rear.test_subscriptions import Subscriber

RESERVE = "/api/reserveflavor"
BODY = b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512}}'


@asynccontextmanager
async def untouched(market: Market) -> AsyncIterator[None]:
    """Whatever happens meanwhile, nothing is written: not an account, not a hold, not a contract."""

    def books() -> tuple[Any, ...]:
        ledger = market.ledger
        return ledger.changes.revision, ledger.flavors(), ledger.holds(), ledger.contracts()

    before = books()
    yield
    assert books() == before
    assert market.ledger.audit() == {}


def says(answer: Answer, status: int, code: str, words: str) -> None:
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    assert words in answer.json["error"]


# Proofs: what is shown instead of a good one for BODY, by the buyer and its key.

Shown = Callable[[Market], str]


def proof(
    market: Market,
    *,
    key: SigningKey = BUYER,
    path: str = RESERVE,
    body: bytes = BODY,
    method: str = "POST",
    audience: CloudId | None = None,
    ahead_s: float = 0.0,
) -> str:
    clock = ManualClock(market.clock.now() + ahead_s)
    return RequestSigner(key, clock).header(audience or market.key.cloud, method, path, body)


def changed(text: str, part: int, change: Callable[[bytes], bytes]) -> str:
    """One of the three parts of the proof, changed, with the signature as it was."""
    scheme, _, token = text.partition(" ")
    parts = token.encode().split(b".")
    parts[part] = deals.encoded(change(deals.decoded(parts[part])))
    return f"{scheme} {b'.'.join(parts).decode()}"


def unsigned(market: Market) -> str:
    text = changed(proof(market), 0, lambda header: header.replace(b'"Ed25519"', b'"none"', 1))
    return text.rpartition(".")[0] + "."


def named_otherwise(market: Market) -> str:
    """A proof whose claims name the buyer, signed by another key, which it names."""
    claims = json.loads(deals.decoded(proof(market).split(".")[1].encode()))
    header = json.dumps(
        {"alg": "Ed25519", "jwk": STRANGER.public.as_jwk(), "typ": request_proofs.TYPE}
    ).encode()
    return f"Skerry-Proof {deals.forged('stranger', header, json.dumps(claims).encode()).decode()}"


BAD_PROOFS: dict[str, tuple[Shown, str]] = {
    "over": (lambda market: proof(market, ahead_s=-71), "ended 11 s ago"),
    "not begun": (lambda market: proof(market, ahead_s=11), "11 s from now"),
    "for another provider": (lambda market: proof(market, audience=STRANGER.cloud), "this provider is"),
    "for another body": (lambda market: proof(market, body=b"{}"), "another body"),
    "for another path": (lambda market: proof(market, path="/api/purchaseflavor"), "another request"),
    "for another method": (lambda market: proof(market, method="GET"), "another request"),
    "with another amount of life": (
        lambda market: changed(proof(market), 1, lambda claims: claims.replace(b'"exp":', b'"exp":9')),
        "not good",
    ),
    "cut off": (lambda market: proof(market)[:-8], "not good"),
    "not signed": (unsigned, "alg is none"),
    "signed by somebody else": (named_otherwise, f"but {STRANGER.cloud} signed it"),
    "signed as something else": (
        lambda market: (
            f"Skerry-Proof {signatures.PayloadSigner(BUYER, signatures.CONTRACT).sign(b'{}').decode()}"
        ),
        "signed as a contract",
    ),
    "nothing": (lambda _: "Skerry-Proof ", "cut off"),
    "very long": (lambda _: "Skerry-Proof " + "A" * 5000, "longer than"),
}


@pytest.mark.parametrize("name", sorted(BAD_PROOFS))
async def test_a_proof_that_is_not_good_is_401_also_for_who_would_need_none(
    market: Market, name: str
) -> None:
    await market.sell()
    shown, words = BAD_PROOFS[name]
    async with untouched(market):
        answer = await market.post(RESERVE, BODY, headers={"Authorization": shown(market)})
        says(answer, 401, "unauthenticated", words)
        assert "Skerry-Proof" in answer.headers["www-authenticate"]


async def test_the_log_tells_whose_key_signed_a_request_and_nothing_that_was_shown(market: Market) -> None:
    await market.sell()
    good, bad = proof(market), proof(market, key=STRANGER, audience=STRANGER.cloud)
    with capture_logs() as logged:
        for shown in (good, bad):
            await market.post(RESERVE, BODY, headers={"Authorization": shown})
    told = [(line["caller"], line["status"]) for line in logged if line["event"] == "request.answered"]
    assert told == [(BUYER.cloud, 200), ("anonymous", 401)]
    assert not any(shown.split(".")[2] in str(logged) for shown in (good, bad))


@pytest.mark.parametrize("path", ["/api/listflavors", "/api/listflavours/selector"])
async def test_who_only_looks_writes_nothing_and_does_not_look_twice_with_one_proof(
    market: Market, path: str
) -> None:
    await market.sell()
    store = market.rear.proofs._store
    before = await store.revision()
    shown = {"Authorization": proof(market, path=path, body=b"{}")}
    assert (await market.post(path, b"{}", headers=shown)).status == 200
    says(await market.post(path, b"{}", headers=shown), 401, "unauthenticated", "used before")
    assert await store.revision() == before


async def test_a_proof_that_something_was_held_with_is_kept_in_the_store(market: Market) -> None:
    await market.sell()
    await market.post(RESERVE, BODY, headers={"Authorization": proof(market)})
    (kept,) = (await market.rear.proofs._store.range(request_proofs.PREFIX)).entries
    assert BUYER.cloud in kept.key


async def test_a_purchase_that_was_overheard_buys_nothing_for_whoever_sends_it_again(market: Market) -> None:
    await market.sell()
    held = await market.post(RESERVE, BODY, headers={"Authorization": proof(market)})
    path, body = "/api/purchaseflavor", b'{"TransactionID":"%s"}' % held.json["TransactionID"].encode()
    overheard = {"Authorization": proof(market, path=path, body=body)}
    assert (await market.post(path, body, headers=overheard)).status == 200
    async with untouched(market):
        says(await market.post(path, body, headers=overheard), 401, "unauthenticated", "used before")
        thief = {"Authorization": proof(market, key=STRANGER, path=path, body=body)}
        says(await market.post(path, body, headers=thief), 403, "forbidden", "not yours")


# Signatures: what a buyer sends back instead of its contract with its signature around it.


async def bought(market: Market, cpu: int = 1) -> Any:
    """A contract of the buyer with a key."""
    part = b'{"FlavorID":"f-1","Partition":{"Cpu":%d,"Memory":512}}' % cpu
    held = await market.post(RESERVE, part, headers={"Authorization": proof(market, body=part)})
    path, body = "/api/purchaseflavor", b'{"TransactionID":"%s"}' % held.json["TransactionID"].encode()
    answer = await market.post(path, body, headers={"Authorization": proof(market, path=path, body=body)})
    return answer.json


async def sign(market: Market, id: str, document: bytes, key: SigningKey = BUYER) -> Answer:
    path, body = f"/api/contracts/{id}/signature", b'{"Document":"%s"}' % document
    return await market.post(
        path, body, headers={"Authorization": proof(market, key=key, path=path, body=body)}
    )


async def test_a_buyer_signs_the_terms_that_were_agreed_on_and_no_others(market: Market) -> None:
    await market.sell()
    contract, other = await bought(market, 1), await bought(market, 2)
    id, text = contract["ContractID"], contract["Document"].encode()
    good = signatures.countersign(BUYER, text)
    cheaper = text.split(b".")
    cheaper[1] = deals.encoded(deals.decoded(cheaper[1]).replace(b'"total":"0.', b'"total":"0.00'))
    async with untouched(market):
        for document, words in (
            (signatures.countersign(BUYER, other["Document"].encode()), "other terms"),
            (signatures.PayloadSigner(BUYER, signatures.COUNTERSIGNED).sign(b".".join(cheaper)), "not good"),
            (
                signatures.PayloadSigner(STRANGER, signatures.COUNTERSIGNED).sign(text),
                f"but {STRANGER.cloud} signed",
            ),
            (text, "lacks the buyer's signature"),
            (deals.with_header(good, alg="none"), "alg is none"),
            (deals.with_header(good, alg="HS256"), "only Ed25519"),
            (good[:-4], "not good"),
            (b"x.y.z", "cannot be read"),
        ):
            says(await sign(market, id, document), 400, "invalid", words)
        says(await sign(market, id, good, STRANGER), 403, "forbidden", "not yours")
        says(await sign(market, "nothing", good), 404, "not-found", "no such contract")
    path, body = f"/api/contracts/{id}/renew", b'{"Duration":"PT1H"}'
    renewed = await market.post(path, body, headers={"Authorization": proof(market, path=path, body=body)})
    async with untouched(market):
        says(await sign(market, id, good), 400, "invalid", "other terms")
    kept = await sign(market, id, signatures.countersign(BUYER, renewed.json["Document"].encode()))
    assert kept.status == 200


# Amounts and names that make no sense, in every dialect and wherever one may be said.

NONSENSE: list[tuple[str, str, bytes, int]] = [
    ("POST", "/api/reserveflavour/f-1", b'{"partition":{"cpu":"-1","memory":"1Gi"}}', 400),
    ("POST", "/api/reserveflavour/f-1", b'{"partition":{"cpu":"1.0001","memory":"1Gi"}}', 400),
    ("POST", "/api/reserveflavour/f-1", b'{"partition":{"cpu":"1e18","memory":"1Gi"}}', 400),
    ("POST", "/api/reserveflavour/f-1", b'{"partition":{"cpu":"1","memory":"9999999Ei"}}', 400),
    ("POST", "/api/v2/reservations", b'{"flavorID":"f-1","configuration":{"data":{"cpu":"-1"}}}', 400),
    ("POST", "/api/v2/reservations", b'{"flavorID":"f-1","configuration":{"data":{"cpu":"0.5m"}}}', 400),
    *(
        (
            "POST",
            "/api/v2/reservations",
            b'{"flavorID":"f-1","configuration":{"data":{"cpu":%b}}}' % cpu,
            status,
        )
        for cpu, status in (
            (b"1", 422),
            (b"-1", 400),
            (b"0.0001", 400),
            (b"1e300", 400),
            (b"9" * 4300, 400),
            (b"true", 400),
            (b"[1]", 400),
        )
    ),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Duration":"PT-1H"}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Duration":"P999999Y"}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Duration":"PT0S"}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Wait":-1}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Wait":1e999}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512,"Count":2147483647}}', 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Partition":{"Cpu":1,"Memory":512,"Count":2}}', 422),
    ("POST", RESERVE, b'{"FlavorID":"f-1","Partition":{"Cpu":2147483,"Memory":2147483647}}', 409),
    ("POST", RESERVE, b'{"FlavorID":"' + b"f" * 129 + b'"}', 400),
    ("POST", RESERVE, b'{"FlavorID":""}', 400),
    ("POST", RESERVE, b'{"FlavorID":"../f-1"}', 404),
    ("POST", RESERVE, '{"FlavorID":"f-1\u0000"}'.encode(), 400),
    ("POST", RESERVE, b'{"FlavorID":"nothing"}', 404),
    ("POST", "/api/reserveflavour/nothing", b"{}", 404),
    ("POST", "/api/v2/reservations", b'{"flavorID":"nothing"}', 404),
    ("POST", RESERVE, b'{"FlavorID":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
    ("POST", RESERVE, b'{"FlavorID":"f-1","x":"' + b"x" * 70_000 + b'"}', 413),
    ("POST", "/api/purchaseflavor", b'{"TransactionID":"nothing"}', 404),
    ("POST", "/api/purchaseflavour/nothing", b"{}", 404),
    ("POST", "/api/v2/transactions/nothing/purchase", b"{}", 404),
    ("DELETE", "/api/reservations/nothing", b"", 404),
    ("POST", "/api/contracts/nothing/release", b"", 404),
    ("POST", "/api/contracts/nothing/renew", b'{"Duration":"PT1H"}', 404),
    ("DELETE", "/api/flavors/nothing", b"", 404),
    ("POST", "/api/flavors", json.dumps({**PARTS, "FlavorID": "f-2", "Count": 0}).encode(), 400),
    ("POST", "/api/flavors", json.dumps({**PARTS, "FlavorID": "f-2", "Count": 2}).encode(), 400),
    ("POST", "/api/flavors", json.dumps({**PARTS, "FlavorID": "a/b"}).encode(), 400),
    *(
        ("POST", "/api/flavors", json.dumps({**PARTS, "FlavorID": "f-2", name: value}).encode(), 400)
        for name, value in (
            ("Characteristics", {"Cpu": -1, "Memory": 512}),
            ("Characteristics", {"Cpu": 1.5, "Memory": 512}),
            ("Characteristics", {"Cpu": 2**31, "Memory": 512}),
            ("Characteristics", {}),
            ("Price", {"Amount": "-0.10", "Currency": "EUR"}),
            ("Price", {"Amount": "NaN", "Currency": "EUR"}),
            ("Price", {"Amount": "1E+999999999", "Currency": "EUR"}),
            ("Price", {"Amount": "0.10", "Currency": "euro"}),
            ("Price", {"Amount": "0.10", "Currency": "EUR", "Period": "PT0S"}),
            ("Policy", {"Aggregatable": {"MinCount": 2, "MaxCount": 1}}),
            ("Policy", {"Partitionable": {"CpuMin": 9}}),
        )
    ),
]


async def test_what_makes_no_sense_is_refused_in_every_dialect(market: Market) -> None:
    await market.sell()
    async with untouched(market):
        for method, path, body, status in NONSENSE:
            answer = await market.ask(method, path, data=body)
            assert answer.status == status, (path, body[:200], answer.body)
            assert answer.json["error"]
            assert "Traceback" not in answer.json["error"]


async def test_terms_of_a_contract_that_make_no_sense_are_refused(market: Market) -> None:
    await market.sell()
    held = await market.reserve(1)
    contract = (await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})).json
    path = f"/api/contracts/{contract['ContractID']}/renew"
    async with untouched(market):
        for duration, status in (("PT-1H", 400), ("soon", 400), ("P2Y", 422), ("P999999Y", 422), ("", 400)):
            answer = await market.post(path, {"Duration": duration})
            assert answer.status == status, (duration, answer.body)


# The socket.


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (BOMB.decode(), "no DOCTYPE"),
        ('<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><SubscribeMessage/>', "no DOCTYPE"),
        ("<a>" * 9 + "</a>" * 9, "inside each other"),
        ("<a>" * 5000 + "</a>" * 5000, "inside each other"),
        ("<SubscribeMessage>" + "<All/>" * 300 + "</SubscribeMessage>", "256 elements"),
        ("<SubscribeMessage><Selector><Cpu>-1</Cpu></Selector></SubscribeMessage>", "Cpu"),
        ("<SubscribeMessage><Selector><Cpu>1.5</Cpu></Selector></SubscribeMessage>", "Cpu"),
        ("<SubscribeMessage><Selector><Cpu>99999999999</Cpu></Selector></SubscribeMessage>", "Cpu"),
        ("<SubscribeMessage><FlavorID>nothing</FlavorID></SubscribeMessage>", "no such flavor"),
    ],
)
async def test_xml_that_means_no_good_is_answered_and_the_connection_stays(
    market: Market, message: str, words: str
) -> None:
    await market.sell()
    client = await Subscriber.of(market, "rear.v1.xml")
    async with untouched(market):
        await client.socket.send_str(message)
        said = await client.socket.receive_str(timeout=PATIENCE_S)
        assert said.startswith("<ErrorMessage>")
        assert words in said
        await client.socket.send_str("<SubscribeMessage><All>true</All></SubscribeMessage>")
        assert (await client.socket.receive_str(timeout=PATIENCE_S)).startswith("<SubscribedMessage>")


# Limits.


async def test_a_buyer_that_holds_everything_and_never_pays_gets_its_share_and_then_nothing(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    settings = MarketSettings(hold_s=60, hold_percent=50, max_holds=3, max_lapsed=4)
    with structlog.testing.capture_logs():
        async with (
            market_of(provider, clock, settings) as (ledger, rear),
            serving(cloud, rear=rear) as site,
        ):
            market = Market(site, await site.session(), ledger, rear, clock, provider)
            await market.sell(Characteristics={"Cpu": 8, "Memory": 16384})
            greedy, honest = await market.buyer(), await market.buyer()

            async def reserve(who: Market, cpu: int) -> Answer:
                body = {"FlavorID": "f-1", "Partition": {"Cpu": cpu, "Memory": 2048 * cpu}}
                return await who.post(RESERVE, body)

            says(await reserve(greedy, 8), 422, "unprocessable", "at most 50 %")
            assert (await reserve(greedy, 4)).status == 200
            async with untouched(market):
                says(await reserve(greedy, 1), 422, "unprocessable", "at most 50 %")
            assert (await reserve(honest, 4)).status == 200, "the other half is for others"
            clock.advance(60)
            for _ in range(3):
                assert (await reserve(greedy, 1)).status == 200
            async with untouched(market):
                full = await reserve(greedy, 1)
                says(full, 429, "overloaded", "3 holds")
                assert int(full.headers["retry-after"]) >= 1
            clock.advance(60)
            await ledger.sweep()
            async with untouched(market):
                says(await reserve(greedy, 1), 429, "overloaded", "let 4 holds expire")
            assert (await reserve(honest, 4)).status == 200
