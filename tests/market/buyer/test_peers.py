"""Peers: which are taken, and which are refused and why."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from skerry.control.events.log import EventLog
from skerry.kit.clock import ManualClock
from skerry.kit.tasks import cancel_and_wait
from skerry.market.buyer import peers
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.quotes import MarketPeer
from skerry.model import errors
from skerry.model.settings import EventSettings
from skerry.store.local.memory import MemoryStore
from tests.market.providers import shop
from tests.support.certificates import TestAuthority
from tests.support.deals import BUYER, SELLER

NORTH = MarketPeer("north", "https://north.example:1323", SELLER.cloud)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"name": "no/name"}, "must be 1 to 128 letters"),
        ({"url": "north.example"}, "must be that of a server"),
        ({"url": "https://"}, "must be that of a server"),
        ({"url": "https://north.example:port"}, "must be that of a server"),
        ({"url": "https://north.example:0"}, "must be that of a server"),
        ({"url": "https://[north"}, "must be that of a server"),
        ({"url": "https://north.example/ x"}, "must be that of a server"),
        ({"url": "https://nörth.example"}, "must be that of a server"),
        ({"url": f"https://{'x' * 600}.example"}, "must be that of a server"),
        ({"url": "ftp://north.example"}, "must begin with https"),
        ({"url": "file://north/etc/passwd"}, "must begin with https"),
        ({"url": "https://ann:secret@north.example"}, "user or a password"),
        ({"url": "https://ann@north.example"}, "user or a password"),
        ({"url": "https://north.example/path"}, "must end after"),
        ({"url": "https://north.example?query"}, "must end after"),
        ({"url": "https://north.example?"}, "must end after"),
        ({"url": "https://north.example#part"}, "must end after"),
        ({"cloud": "north"}, "id on the market"),
        ({"cloud": "key.short"}, "id on the market"),
        ({"cloud": f"{SELLER.cloud}x"}, "id on the market"),
        ({"ca": "no certificate"}, "certificate in PEM"),
        ({"ca": "x" * 100_000}, "more than"),
        ({"url": "http://north.example", "ca": "x"}, "of no use without https"),
    ],
)
def test_a_peer_that_cannot_be_spoken_to_or_believed_is_refused(change: dict[str, str], reason: str) -> None:
    with pytest.raises(errors.Invalid, match=reason):
        peers.check(replace(NORTH, **change))


@pytest.mark.parametrize("url", ["https://north.example", "http://127.0.0.1:1323/", "https://[::1]:8443"])
def test_a_peer_is_a_name_an_address_and_a_key(url: str) -> None:
    peers.check(replace(NORTH, url=url))


def test_a_ca_is_a_certificate(tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = TestAuthority(tmp_path_factory.mktemp("ca"))
    peers.check(replace(NORTH, ca=authority.ca.read_text()))


async def test_peers_are_kept_changed_and_forgotten_with_events() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    events = EventLog(store, clock, EventSettings())
    known = MarketPeerTable(store, events, own=BUYER.cloud)
    running = asyncio.ensure_future(known.run())
    try:
        await known.ready()
        await known.put(NORTH, actor="ann")
        await known.put(NORTH, actor="ann")
        await known.put(replace(NORTH, name="alps"), actor="ann")
        assert [peer.name for peer in known.all()] == ["alps", "north"]
        again = MarketPeerTable(store, events, own=BUYER.cloud)
        reading = asyncio.ensure_future(again.run())
        await again.ready()
        assert again.get("north") == NORTH
        await cancel_and_wait([reading])
        await known.remove("north", actor="bob")
        with pytest.raises(errors.NotFound):
            known.get("north")
        told = [(one.event.kind, one.event.actor) for one in await events.list_after("0")]
        assert told == [("peer.set", "ann"), ("peer.set", "ann"), ("peer.removed", "bob")]
    finally:
        await cancel_and_wait([running])
        await store.close()


async def test_a_peer_that_is_not_who_it_should_be_is_refused_and_one_that_is_away_is_not() -> None:
    async with shop("north") as (mine, north):
        troubles: list[errors.SkerryError] = [errors.FailedPrecondition("peer north is not trusted")]

        async def answer(name: str) -> None:
            raise troubles[-1]

        north.before = answer
        elsewhere = replace(north.peer, url="https://elsewhere.example")
        with pytest.raises(errors.FailedPrecondition, match="not trusted"):
            await mine.desk.set_peer(elsewhere, actor="ed")
        assert mine.desk.peers()[0].peer == north.peer
        for away in (errors.Unavailable("it is away"), errors.TimedOut("it is slow")):
            troubles.append(away)
            await mine.desk.set_peer(elsewhere, actor="ed")
            assert mine.desk.peers()[0].peer == elsewhere
