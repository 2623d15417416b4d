"""Subscriptions over a real WebSocket: a snapshot, then every change once and in order."""

from __future__ import annotations

import asyncio
import json
from decimal import Decimal
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType
from lxml import etree

from skerry.kit import pki
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.provider.ledger.changelog import OfferChange
from skerry.market.terms.keys import SigningKey
from skerry.model.ids import OfferId
from skerry.model.market import Price
from skerry.model.market_settings import MarketSettings
from skerry.transport.limits import ConcurrencyLimit
from skerry.wire.rear import messages_xml, subscriptions
from skerry.wire.rear.messages import SubscribeMessage
from tests.support.deals import OPEN
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.http.conftest import serving
from tests.wire.rear.conftest import Market, market_of

HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


class Subscriber:
    """A client of the WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    @classmethod
    async def of(cls, market: Market, *protocols: str) -> Subscriber:
        socket = await market.session.ws_connect(
            "/api/subscribe", protocols=protocols, headers=market.headers
        )
        return cls(socket)

    async def send(self, name: str, **fields: Any) -> None:
        await self.socket.send_str(json.dumps({name: fields}))

    async def next(self) -> tuple[str, Any]:
        ((name, fields),) = json.loads(await self.socket.receive_str(timeout=PATIENCE_S)).items()
        return name, fields

    async def subscribe(self, **fields: Any) -> Any:
        """Subscribe, and take the answer."""
        await self.send("SubscribeMessage", **fields)
        name, answer = await self.next()
        assert name == "SubscribedMessage", answer
        return answer


async def test_first_what_there_is_then_every_change_and_the_end(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    answer = await client.subscribe(All=True)
    assert (answer["Resumed"], answer["Flavors"]) == (False, 1)
    name, shown = await client.next()
    assert (name, shown["ModificationDetails"], shown["Flavor"]["FlavorID"]) == ("RefreshMessage", [], "f-1")
    held = await market.reserve(2, 1024)
    name, changed = await client.next()
    details = {
        one["FieldModified"]: (one["OldValue"], one["NewValue"]) for one in changed["ModificationDetails"]
    }
    assert details["Characteristics.Cpu"] == ("8", "6")
    assert details["Characteristics.Memory"] == ("16384", "15360")
    assert set(details) == {"Characteristics.Cpu", "Characteristics.Memory", "Price.Amount"}
    await market.ask("DELETE", f"/api/reservations/{held['TransactionID']}")
    _, freed = await client.next()
    assert freed["Flavor"]["Characteristics"]["Cpu"] == 8
    await market.ask("DELETE", "/api/flavors/f-1?reason=repairs")
    name, last = await client.next()
    assert (name, last["Reason"]["Message"]) == ("WithdrawMessage", "repairs")
    versions = [shown["Version"], changed["Version"], freed["Version"], last["Version"]]
    assert versions == sorted(set(versions))


async def test_after_a_withdrawal_nothing_is_said_until_it_is_offered_again(market: Market) -> None:
    await market.sell()
    held = await market.reserve(2, 1024)
    client = await Subscriber.of(market)
    await client.subscribe(All=True)
    await client.next()
    await market.ask("DELETE", "/api/flavors/f-1")
    assert (await client.next())[0] == "WithdrawMessage"
    bought = await market.post("/api/purchaseflavor", {"TransactionID": held["TransactionID"]})
    assert bought.status == 200  # it keeps its terms
    await market.sell(FlavorID="f-2")
    name, message = await client.next()
    assert (name, message["Flavor"]["FlavorID"]) == ("RefreshMessage", "f-2")


async def test_a_subscription_means_one_flavor_a_type_or_a_selector(market: Market) -> None:
    await market.sell()
    await market.sell(FlavorID="f-2", FlavorType="vm")
    by_id, by_type, by_size = [await Subscriber.of(market) for _ in range(3)]
    assert (await by_id.subscribe(FlavorID="f-2"))["Flavors"] == 1
    assert (await by_type.subscribe(FlavorType="k8slice"))["Flavors"] == 1
    assert (await by_size.subscribe(Selector={"MoreThanCpu": 8, "FlavorType": "k8slice"}))["Flavors"] == 1
    for client, id in ((by_id, "f-2"), (by_type, "f-1"), (by_size, "f-1")):
        assert (await client.next())[1]["Flavor"]["FlavorID"] == id
    await market.reserve(1)
    await market.reserve(1)
    # It no longer matches after the first, which is told; the second is of no interest.
    assert (await by_size.next())[1]["Flavor"]["Characteristics"]["Cpu"] == 7
    assert [(await by_type.next())[1]["Flavor"]["Characteristics"]["Cpu"] for _ in range(2)] == [7, 6]
    await market.reserve(1, FlavorID="f-2")
    assert (await by_id.next())[1]["Flavor"]["FlavorID"] == "f-2"


async def test_what_is_offered_again_is_told_only_to_who_means_it_as_it_is_now(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    await client.subscribe(Selector={"MoreThanCpu": 8})
    await client.next()
    await market.ask("DELETE", "/api/flavors/f-1")
    assert (await client.next())[0] == "WithdrawMessage"
    await market.sell(Characteristics={"Cpu": 4, "Memory": 8192})  # it matched when it was withdrawn
    await market.sell(FlavorID="f-2")
    name, message = await client.next()
    assert (name, message["Flavor"]["FlavorID"]) == ("RefreshMessage", "f-2")


async def test_a_change_that_two_subscriptions_mean_is_told_once(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    for id, scope in (("a", {"All": True}), ("b", {"FlavorID": "f-1"})):
        await client.subscribe(SubscriptionID=id, **scope)
        await client.next()
    await market.reserve(1)
    await market.reserve(2)
    assert [(await client.next())[1]["Flavor"]["Characteristics"]["Cpu"] for _ in range(2)] == [7, 5]
    await client.send("UnsubscribeMessage", SubscriptionID="a")
    assert await client.next() == ("UnsubscribedMessage", {"SubscriptionID": "a"})
    await client.send("UnsubscribeMessage", SubscriptionID="a")
    assert (await client.next())[1]["Code"] == "not-found"


class Ear:
    """A socket that keeps what it is sent."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def send(self, message: bytes) -> None:
        self.heard.append(json.loads(message))

    def versions(self) -> list[int]:
        return [one["RefreshMessage"]["Version"] for one in self.heard if "RefreshMessage" in one]


async def test_a_change_that_a_second_snapshot_shows_is_not_told_again(market: Market) -> None:
    await market.sell()
    ear: Any = Ear()
    subscriber = subscriptions.SubscriptionSession(market.rear, is_xml=False)

    await subscriber._subscribe(ear, SubscribeMessage("a", flavor_type="vm"))
    await market.reserve(1)  # which is not told yet when the next one is shown everything
    await subscriber._subscribe(ear, SubscribeMessage("b", all=True))
    shown = market.ledger.flavors()[0].flavor.version
    assert not await subscriber._send_changes(ear)
    assert ear.versions() == [shown]
    await market.reserve(1)
    assert await subscriber._send_changes(ear)
    assert ear.versions() == [shown, shown + 1]


async def test_what_a_subscription_means_is_told_before_the_snapshot_of_the_next(market: Market) -> None:
    """Else who saw the snapshot's revision and resumes from there has missed what was before it."""
    await market.sell()
    await market.sell(FlavorID="f-2")
    ear: Any = Ear()
    subscriber = subscriptions.SubscriptionSession(market.rear, is_xml=False)
    await subscriber._subscribe(ear, SubscribeMessage("a", flavor_id="f-1"))
    await market.reserve(1)
    await market.reserve(1, FlavorID="f-2")
    await subscriber._subscribe(ear, SubscribeMessage("b", flavor_id="f-2"))
    heard = [next(iter(one.items())) for one in ear.heard]
    names = [name.removesuffix("Message") for name, _ in heard]
    assert names == ["Subscribed", "Refresh", "Refresh", "Subscribed", "Refresh"]
    revisions = [message["Revision"] for _, message in heard]
    assert revisions == sorted(revisions)
    assert heard[2][1]["Flavor"]["Characteristics"]["Cpu"] == 7


async def test_others_have_their_turn_while_much_is_shown(market: Market) -> None:
    for number in range(64):
        await market.sell(FlavorID=f"f-{number}")
    ear: Any = Ear()
    turns: list[int] = []

    async def take_turns() -> None:
        while True:
            turns.append(len(ear.heard))
            await asyncio.sleep(0)

    other = asyncio.ensure_future(take_turns())
    await subscriptions.SubscriptionSession(market.rear, is_xml=False)._subscribe(
        ear, SubscribeMessage("a", all=True)
    )
    await cancel_and_wait([other])
    assert len(ear.heard) == 65
    assert any(0 < heard < 65 for heard in turns)


async def test_who_unsubscribes_and_resumes_is_told_at_once_and_in_order(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    revision = (await client.subscribe(All=True))["Revision"]
    await client.next()
    await market.reserve(1)
    told = await client.next()
    await client.send("UnsubscribeMessage")
    assert (await client.next())[0] == "UnsubscribedMessage"
    assert (await client.subscribe(All=True, Resume=revision))["Resumed"]
    assert await client.next() == told
    await market.reserve(1)
    assert (await client.next())[1]["Flavor"]["Characteristics"]["Cpu"] == 6


async def test_who_resumes_gets_what_it_missed_and_nothing_else(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    revision = (await client.subscribe(All=True))["Revision"]
    await client.socket.close()
    await market.reserve(1)
    await market.reserve(1)
    again = await Subscriber.of(market)
    answer = await again.subscribe(All=True, Resume=revision)
    assert (answer["Resumed"], answer["Revision"]) == (True, revision)
    missed = [(await again.next())[1] for _ in range(2)]
    assert [one["Flavor"]["Characteristics"]["Cpu"] for one in missed] == [7, 6]
    third = await Subscriber.of(market)
    answer = await third.subscribe(All=True, Resume=missed[0]["Revision"])
    assert (await third.next())[1] == missed[1]


async def test_who_resumes_from_nowhere_is_told_and_gets_everything(market: Market) -> None:
    await market.sell()
    client = await Subscriber.of(market)
    answer = await client.subscribe(All=True, Resume=10**9)
    assert (answer["Resumed"], answer["Flavors"]) == (False, 1)
    assert (await client.next())[1]["Flavor"]["FlavorID"] == "f-1"


async def test_who_is_too_slow_is_reset_and_gets_everything_anew(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    async with (
        market_of(provider, clock, MarketSettings(history=3)) as (ledger, rear),
        serving(cloud, rear=rear) as site,
    ):
        market = Market(site, await site.session(), ledger, rear, clock, provider)
        await market.sell()
        client = await Subscriber.of(market)
        await client.subscribe(All=True)
        await client.next()
        account = ledger.flavors()[0]
        for number in range(5):  # at once, so that nobody could read in between
            version = msgspec.structs.replace(account.flavor, version=account.flavor.version + 1 + number)
            after = msgspec.structs.replace(account, flavor=version)
            ledger.changes.append(ledger.changes.revision + 1, [OfferChange(account, after)])
        name, reset = await client.next()
        assert (name, reset["Flavors"]) == ("ResetMessage", 1)
        assert (await client.next())[1]["Flavor"]["FlavorID"] == "f-1"


async def test_silence_is_filled_with_heartbeats(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    async with market_of(provider, clock, OPEN) as (ledger, rear):
        quick = msgspec.structs.replace(rear, heartbeat_s=0.01)
        async with serving(cloud, rear=quick) as site:
            market = Market(site, await site.session(), ledger, quick, clock, provider)
            client = await Subscriber.of(market)
            await client.subscribe(All=True)
            for _ in range(3):
                assert await client.next() == ("HeartbeatMessage", {"Revision": ledger.changes.revision})


async def test_changes_that_others_are_told_of_are_silence_too(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    """The revision in a heartbeat is what keeps a place in a history that others fill."""
    clock = ManualClock()
    async with market_of(provider, clock, OPEN) as (ledger, rear):
        quick = msgspec.structs.replace(rear, heartbeat_s=0.05)
        async with serving(cloud, rear=quick) as site:
            market = Market(site, await site.session(), ledger, quick, clock, provider)
            await market.sell()
            client = await Subscriber.of(market)
            before = (await client.subscribe(FlavorType="vm"))["Revision"]
            account = ledger.flavors()[0]
            beat = asyncio.ensure_future(client.next())
            while not beat.done():
                ledger.changes.append(ledger.changes.revision + 1, [OfferChange(account, account)])
                await asyncio.sleep(0)
            name, message = beat.result()
            assert name == "HeartbeatMessage"
            assert message["Revision"] > before


async def test_xml_says_the_same_as_json(market: Market) -> None:
    await market.sell()
    in_json, in_xml = await Subscriber.of(market, "rear.v1.json"), await Subscriber.of(market, "rear.v1.xml")
    assert (in_json.socket.protocol, in_xml.socket.protocol) == ("rear.v1.json", "rear.v1.xml")
    await in_json.subscribe(All=True)
    await in_xml.socket.send_str("<SubscribeMessage><All>true</All></SubscribeMessage>")
    schema = etree.XMLSchema(etree.fromstring(messages_xml.schema()))
    first = etree.fromstring((await in_xml.socket.receive_str(timeout=PATIENCE_S)).encode())
    assert (first.tag, first.findtext("Flavors")) == ("SubscribedMessage", "1")
    await market.reserve(2)
    await market.ask("DELETE", "/api/flavors/f-1")
    for _ in range(3):
        name, fields = await in_json.next()
        element = etree.fromstring((await in_xml.socket.receive_str(timeout=PATIENCE_S)).encode())
        assert schema.validate(element), schema.error_log
        assert element.tag == name
        assert element.findtext("Flavor/Characteristics/Cpu") == str(
            fields["Flavor"]["Characteristics"]["Cpu"]
        )
        assert element.findtext("Version") == str(fields["Version"])
        assert len(element.findall("ModificationDetails")) == len(fields.get("ModificationDetails", []))
    answer = await market.get("/api/rear.xsd")
    assert (answer.headers["content-type"], answer.body) == ("application/xml", messages_xml.schema())


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("{", "invalid"),
        ("[]", "invalid"),
        ('{"SubscribeMessage": {}}', "invalid"),
        ('{"SubscribeMessage": {"All": true, "FlavorID": "f-1"}}', "invalid"),
        ('{"SubscribeMessage": {"FlavorID": "nothing"}}', "not-found"),
        ('{"SubscribeMessage": {"Selector": {"Cpu": -1}}}', "invalid"),
        ('{"SubscribeMessage": {"All": true, "Sope": 1}}', "invalid"),
        ('{"SubscribeMessage": {"Selector": {"Sort": "cpu", "Limit": 1}}}', "invalid"),
        ('{"RefreshMessage": {}}', "invalid"),
    ],
)
async def test_what_is_wrong_is_answered_and_the_connection_stays(
    market: Market, message: str, code: str
) -> None:
    client = await Subscriber.of(market)
    await client.socket.send_str(message)
    name, error = await client.next()
    assert (name, error["Code"]) == ("ErrorMessage", code)
    assert (await client.subscribe(All=True))["Flavors"] == 0


async def test_bounds_on_subscriptions_mistakes_and_sizes(market: Market) -> None:
    client = await Subscriber.of(market)
    for number in range(64):
        await client.subscribe(SubscriptionID=str(number), All=True)
    for id, code in (("one more", "overloaded"), ("0", "already-exists")):
        await client.send("SubscribeMessage", SubscriptionID=id, All=True)
        assert (await client.next())[1]["Code"] == code
    for _ in range(15):
        await client.socket.send_str("?")
    for _ in range(14):
        assert (await client.next())[0] == "ErrorMessage"
    last = await client.socket.receive(timeout=PATIENCE_S)
    assert (last.type, last.data) == (WSMsgType.CLOSE, 1008)
    large = await Subscriber.of(market)
    await large.socket.send_str("x" * (messages_xml.MAX_BYTES + 1))
    last = await large.socket.receive(timeout=PATIENCE_S)
    assert (last.type, last.data) == (WSMsgType.CLOSE, 1009)
    binary = await Subscriber.of(market)
    await binary.socket.send_bytes(b"{}")
    last = await binary.socket.receive(timeout=PATIENCE_S)
    assert (last.type, last.data) == (WSMsgType.CLOSE, 1003)
    await eventually(lambda: market.rear.subscribers.taken == 0)


async def test_one_buyer_does_not_get_all_connections(
    cloud: pki.CertificateAuthority, provider: SigningKey
) -> None:
    clock = ManualClock()
    async with market_of(provider, clock, OPEN) as (ledger, rear):
        small = msgspec.structs.replace(rear, subscribers=ConcurrencyLimit(8, "subscribers", each=1))
        async with serving(cloud, rear=small) as site:
            market = Market(site, await site.session(), ledger, small, clock, provider)
            await Subscriber.of(market)
            refused = await market.get("/api/subscribe", headers=HANDSHAKE)
            assert (refused.status, refused.json["code"]) == (429, "overloaded")
            other = await Subscriber.of(await market.buyer())
            assert (await other.subscribe(All=True))["Flavors"] == 0


async def test_a_subprotocol_that_is_not_known_is_refused(market: Market) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await Subscriber.of(market, "rear.v9")
    assert refused.value.status == 400
    plain = await market.get("/api/subscribe")
    assert plain.status == 426


async def test_every_change_reaches_every_subscriber_in_order(market: Market) -> None:
    await market.sell(Characteristics={"Cpu": 1000, "Memory": 512000})
    clients = [await Subscriber.of(market) for _ in range(5)]
    for client in clients:
        await client.subscribe(All=True)
        await client.next()
    wanted = 40

    async def versions(client: Subscriber) -> list[int]:
        return [(await client.next())[1]["Version"] for _ in range(wanted)]

    readers = [asyncio.ensure_future(versions(client)) for client in clients]
    for _ in range(wanted):
        await market.reserve(1)
    for seen in await asyncio.gather(*readers):
        assert seen == list(range(seen[0], seen[0] + wanted))


async def test_a_price_that_is_changed_in_place_is_told_as_that(market: Market) -> None:
    await market.sell()
    subscriber = await Subscriber.of(market, "rear.v1.json")
    await subscriber.subscribe(All=True)
    assert (await subscriber.next())[0] == "RefreshMessage"
    price = Price(Decimal("0.30"), "EUR", "PT1H")
    await market.ledger.reprice(OfferId("f-1"), price, actor="ed")
    name, told = await subscriber.next()
    assert (name, told["Version"], told["Flavor"]["Price"]["Amount"]) == ("RefreshMessage", 2, "0.30")
    changed = {one.pop("FieldModified"): one for one in told["ModificationDetails"]}
    assert changed["Price.Amount"] == {"OldValue": "0.10", "NewValue": "0.30"}
