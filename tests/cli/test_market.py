"""`skerry market`, against the real routes over a real ledger and a trader that buys of nobody."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import pytest
from msgspec.structs import replace

from skerry.cli.commands.market import market
from skerry.cli.market_options import DurationParam, offer_filter, span
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.market.buyer.quotes import (
    BorrowedContractState,
    BuyProgress,
    CapacityRequest,
    OfferSearchResult,
    PeerFailure,
    PeerStatus,
)
from skerry.market.terms.keys import SigningKey
from skerry.model import errors
from skerry.model.ids import OfferId
from skerry.model.market import Partition
from tests.support.deals import BUYER, FLAVOR, OPEN, resources
from tests.support.nodes import Command, read_until
from tests.support.server_threads import ServerThread
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.http.conftest import serving
from tests.wire.own.market.conftest import desk_of
from tests.wire.own.market.fakes import BORROWED, FOUND, NORTH, STEPS, FakeTrader
from tests.wire.rear.conftest import market_of

T = TypeVar("T")

SELL = ("sell", "--id", "small", "--cpu", "8", "--memory", "16384", "--price", "0.10", "--currency", "EUR")
PARTS = ("--cpu-min", "1", "--cpu-step", "1", "--memory-min", "512", "--memory-step", "512")


class Stall(ServerThread):
    """A server with a market."""

    group = "market"

    def __init__(self, folder: Path, authority: pki.CertificateAuthority) -> None:
        super().__init__(folder, authority)
        self.trader = FakeTrader()

    async def serve(self) -> None:
        clock, key = SystemClock(), SigningKey.generate()
        async with market_of(key, clock, OPEN) as (self.ledger, _):
            desk = desk_of(self.ledger, key.cloud, self.trader)
            async with serving(self.authority, desk=desk) as site:
                self.id = key.cloud
                await self.started(site.url)

    def rows(self, *arguments: str) -> list[list[str]]:
        """The cells of a table, without its header."""
        return [line.split() for line in self.say(*arguments).splitlines()[1:]]

    def json(self, *arguments: str) -> Any:
        return json.loads(self.say(*arguments, "-o", "json"))

    def contract(self) -> str:
        """Somebody buys a part of what is for sale."""
        hold = self.do(self.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(1, 512)))
        return self.do(self.ledger.purchase(hold.id, BUYER.cloud)).contract.id


@pytest.fixture
def stall(tmp_path: Path, cloud_authority: pki.CertificateAuthority) -> Iterator[Stall]:
    with Stall(tmp_path, cloud_authority) as running:
        yield running


def test_without_a_verb_the_id_of_this_cloud_is_shown(stall: Stall) -> None:
    stall.trader.contracts[BORROWED.id] = BORROWED
    rows = dict(line.rsplit(None, 1) for line in stall.say().splitlines())
    assert (rows["id"], rows["live contracts bought"], rows["peers"]) == (stall.id, "1", "0")
    assert json.loads(stall.say("-o", "json"))["cloud"] == stall.id


def test_buyers_are_allowed_listed_and_removed(stall: Stall) -> None:
    assert stall.say("buyers", "add", "key.home", "--note", "home") == "added key.home\n"
    named, home = stall.rows("buyers")
    assert named[:2] == ["key.named", "market.buyers"]
    assert (home[0], home[-2:]) == ("key.home", ["ago", "home"])
    assert stall.json("buyers", "list")["buyers"][1]["id"] == "key.home"
    assert stall.say("buyers", "rm", "key.home") == "removed key.home\n"
    gone = stall.cli("buyers", "remove", "key.home")
    assert (gone.exit_code, "there is no such buyer" in gone.stderr) == (1, True)


def test_a_peer_is_added_with_its_ca_and_asked_at_once(stall: Stall) -> None:
    ca = stall.folder / "north.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    result = stall.cli("peers", "add", "north", NORTH.url, "--cloud", NORTH.cloud, "--ca", str(ca))
    assert (result.exit_code, result.stdout) == (0, "added north\n")
    assert "It is reachable and has 1 offer." in result.stderr
    [state] = stall.trader.peers()
    assert state.peer == replace(NORTH, ca="-----BEGIN CERTIFICATE-----\n")


def test_a_peer_that_does_not_answer_is_added_and_that_is_said(stall: Stall) -> None:
    stall.trader.listing = OfferSearchResult([], [PeerFailure("north", "no answer within 3 s")])
    result = stall.cli("peers", "add", "north", NORTH.url, "--cloud", NORTH.cloud)
    assert (result.exit_code, result.stdout) == (0, "added north\n")
    assert "no answer within 3 s" in result.stderr


def test_a_peer_that_is_another_cloud_is_not_added_and_the_reason_is_said(stall: Stall) -> None:
    stall.trader.failing = errors.FailedPrecondition("peer north: this provider is key.south")
    result = stall.cli("peers", "add", "north", NORTH.url, "--cloud", NORTH.cloud)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "this provider is key.south" in result.stderr
    assert stall.trader.peers() == []


def test_peers_are_listed_with_how_they_were_found_and_removed(stall: Stall) -> None:
    now = time.time()
    for name, state in (
        ("north", PeerStatus(NORTH, True, "", 0.012, now)),
        ("south", PeerStatus(replace(NORTH, name="south"), False, "connection refused", None, now)),
        ("west", PeerStatus(replace(NORTH, name="west"), None)),
    ):
        stall.trader.known[name] = state
    north, south, west = stall.say("peers").splitlines()[1:]
    assert north.startswith("north")
    assert re.search(r" yes, \d+s ago, 12ms$", north)
    assert re.search(r"no, \d+s ago +connection refused$", south)
    assert west.endswith("not asked yet")
    assert [one["name"] for one in stall.json("peers")["peers"]] == ["north", "south", "west"]
    result = stall.cli("peers", "rm", "north", "nobody", "west")
    assert result.exit_code == 1
    assert result.stdout == "removed north\nremoved west\n"
    assert "there is no such peer" in result.stderr
    assert json.loads(stall.say("peers", "rm", "south", "-o", "json")) == {"removed": "south"}


def test_a_ca_that_cannot_be_read_is_wrong_usage(stall: Stall) -> None:
    result = stall.cli("peers", "add", "north", NORTH.url, "--cloud", NORTH.cloud, "--ca", "/nowhere.pem")
    assert result.exit_code == 2
    assert "/nowhere.pem" in result.stderr
    assert stall.trader.known == {}


def test_offers_show_who_what_and_for_how_much_and_name_who_does_not_answer(stall: Stall) -> None:
    result = stall.cli("offers")
    header, row = result.stdout.splitlines()
    assert header == "PEER   FLAVOR  CPU  MEMORY   DISK   SOLD AS  PRICE     PERIOD  LOCATION  ARCH"
    assert row.split() == [
        "north",
        "edge-1",
        "6",
        "12288MB",
        "100GB",
        "parts",
        "0.40",
        "EUR",
        "PT1H",
        "Torino",
        "arm64",
    ]
    assert result.stderr == "peer south: no answer within 3 s\n"
    assert stall.trader.wishes == [CapacityRequest()]


def test_of_an_offer_that_is_sold_whole_one_is_shown_and_how_many_are_left(stall: Stall) -> None:
    whole = replace(FOUND.flavor, partition=None, resources=resources(2, 4096), stock=4)
    shown = replace(FOUND, flavor=whole, free=resources(6, 12288), resources=whole.resources)
    stall.trader.listing = OfferSearchResult([shown], [])
    [row] = stall.rows("offers")
    assert row[2:7] == ["2", "4096MB", "-", "3", "whole"]


def test_a_currency_may_be_written_small_and_what_is_none_is_wrong_usage(stall: Stall) -> None:
    assert stall.json("sell", "--cpu", "2", "--price", "3", "--currency", "eur")["price"]["currency"] == "EUR"
    stall.json("offers", "--cpu", "1", "--currency", "nok")
    assert [wish.currency for wish in stall.trader.wishes if wish is not None] == ["NOK"]
    for verb in (("sell", "--cpu", "2", "--price", "3"), ("offers",), ("buy", "--cpu", "2")):
        result = stall.cli(*verb, "--currency", "euro")
        assert result.exit_code == 2
        assert "'euro' is not a currency; write an ISO 4217 code" in result.stderr


def verbs_of(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for word, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from verbs_of(command, f"{name} {word}")
        else:
            yield f"{name} {word}", command


def test_every_verb_has_an_example_and_prints_json() -> None:
    verbs = dict(verbs_of(market, "skerry market"))
    assert len(verbs) >= 14
    for name, command in verbs.items():
        assert re.search(rf"^ +{name}\b", command.help or "", re.MULTILINE), name
        assert any("--output" in option.opts for option in command.params), name


def test_offers_can_be_asked_for_by_amount_price_and_place(stall: Stall) -> None:
    amount = ("--cpu", "4", "--memory", "8192", "--count", "2", "--max-price", "0.50", "--currency", "EUR")
    stall.trader.known["north"] = PeerStatus(NORTH, None)
    place = ("--where", "Torino", "--where", "architecture=arm64", "--where", "peer=north")
    assert len(stall.json("offers", *amount, *place)["offers"]) == 1
    [wish] = stall.trader.wishes
    assert wish is not None
    assert (wish.resources, wish.count, str(wish.max_price), wish.currency) == (
        resources(4, 8192),
        2,
        "0.50",
        "EUR",
    )
    assert (wish.where, wish.architecture, wish.peer) == ("Torino", "arm64", "north")


def test_who_has_no_peers_learns_how_to_add_one(stall: Stall) -> None:
    stall.trader.listing = OfferSearchResult([], [])
    assert "skerry market peers add" in stall.cli("offers").stderr


@pytest.mark.parametrize("given", [("colour=red",), ("peer=a", "peer=b"), ("Oslo", "location=Torino")])
def test_a_place_that_cannot_be_is_wrong_usage(given: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError, match="--where"):
        offer_filter(given)


def test_a_purchase_tells_its_steps_and_prints_the_contract(stall: Stall) -> None:
    ends = replace(BORROWED, ends_at=time.time() + 7210)
    stall.trader.steps = [*STEPS[:-1], BuyProgress("done", "bought", ends)]
    result = stall.cli("buy", "--cpu", "4", "--memory", "8192", "--for", "2h")
    assert (result.exit_code, result.stdout) == (0, "01c0ntract\n")
    *steps, last = result.stderr.splitlines()
    assert [line.partition(":")[0] for line in steps] == ["listing", "reserving", "opening"]
    assert last == (
        "4 cores, 8192MB from north as node borrowed-01c0ntract; ends in 2h, "
        "0.40 EUR per PT1H, 0.80 EUR in total"
    )
    assert stall.trader.wishes == [CapacityRequest(resources(4, 8192), duration_s=7200.0)]


def test_a_script_gets_the_contract_as_one_object(stall: Stall) -> None:
    result = stall.cli("buy", "--cpu", "4", "-o", "json")
    assert result.stderr == ""
    assert json.loads(result.stdout)["node"] == "borrowed-01c0ntract"


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("90s", 90.0),
        ("30m", 1800.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("PT2H", 7200.0),
        ("p1dt12h", 129600.0),
    ],
)
def test_a_time_is_written_as_people_or_as_iso_8601_do(given: str, seconds: float) -> None:
    assert DurationParam().convert(given, None, None) == seconds


@pytest.mark.parametrize("given", ["soon", "0s", "P", "PT0S", "PT", "2 weeks"])
def test_a_time_that_is_none_is_wrong_usage(given: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a duration; write"):
        DurationParam().convert(given, None, None)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.6, "1s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (90, "1m 30s"),
        (3599.7, "1h"),
        (7199, "2h"),
        (5400, "1h 30m"),
        (86399, "1d"),
        (90000, "1d 1h"),
    ],
)
def test_a_time_is_told_in_the_two_units_that_matter(seconds: float, said: str) -> None:
    assert span(seconds) == said


def test_a_purchase_that_fails_says_why_and_exits_with_1(stall: Stall) -> None:
    stall.trader.steps = STEPS[:2]
    stall.trader.failing = errors.ResourcesExhausted("north has sold it to somebody else; try again")
    result = stall.cli("buy", "--cpu", "4")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "Error: north has sold it to somebody else; try again"


def test_a_purchase_without_an_amount_is_refused_in_words(stall: Stall) -> None:
    result = stall.cli("buy", "--for", "2h")
    assert result.exit_code == 1
    assert "how much is to be had? name cpu, memory or disk" in result.stderr
    assert "name an amount of cpu, memory or disk" in stall.cli("buy").stderr


def test_a_purchase_that_is_broken_off_is_undone(stall: Stall) -> None:
    stall.trader.steps, stall.trader.hangs = STEPS[:2], True
    with Command(stall, "market", "buy", "--cpu", "4") as buying:
        read_until(buying.stderr, b"reserving")
        buying.send_signal(signal.SIGINT)
        assert buying.wait(PATIENCE_S) == 130
    stall.do(eventually(lambda: stall.trader.undone == 1))


def test_capacity_is_put_up_for_sale_and_its_id_printed(stall: Stall) -> None:
    result = stall.cli(*SELL, *PARTS, "--location", "Torino", "--max-count", "2")
    assert (result.exit_code, result.stdout) == (0, "small\n")
    assert result.stderr == "8 cores, 16384MB, in parts, at 0.10 EUR per PT1H\n"
    flavor = stall.ledger.flavor(OfferId("small")).flavor
    assert (flavor.resources, flavor.location) == (resources(8, 16384), "Torino")
    assert flavor.partition == Partition(resources(1, 512), resources(1, 512))
    whole = stall.json(
        "sell", "--cpu", "2", "--price", "3", "--currency", "EUR", "--period", "P1D", "--stock", "4"
    )
    assert (whole["parts"], whole["capacity"]["cpu"], whole["price"]["period"]) == (
        None,
        8,
        "P1D",
    )


def test_a_price_is_changed_in_place(stall: Stall) -> None:
    stall.say(*SELL)
    assert stall.say("reprice", "small", "0.25") == "small: 0.25 EUR per PT1H\n"
    changed = stall.json("reprice", "small", "3", "--currency", "usd", "--period", "P1D")
    assert changed["price"] == {"amount": "3", "currency": "USD", "period": "P1D"}
    assert "there is no such flavor" in stall.cli("reprice", "none", "1").stderr


def test_the_ledger_shows_each_resource_and_says_that_it_adds_up(stall: Stall) -> None:
    stall.say(*SELL, *PARTS)
    stall.contract()
    header, *rows, last = stall.say("ledger").splitlines()
    assert header.split() == ["FLAVOR", "RESOURCE", "CAPACITY", "FREE", "HELD", "SOLD", "STATUS"]
    assert [row.split() for row in rows] == [
        ["small", "cpu", "8", "7", "0", "1", "offered"],
        ["memory", "16384MB", "15872MB", "0MB", "512MB"],
    ]
    assert last.startswith("Balanced: ")
    assert stall.json("ledger")["is_balanced"] is True


def test_a_ledger_that_does_not_add_up_is_an_error(stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    stall.say(*SELL)
    monkeypatch.setattr(stall.ledger, "audits", lambda: iter([("small", ["sold is 1, but makes 2"])]))
    result = stall.cli("ledger")
    assert result.exit_code == 1
    assert "small: sold is 1, but makes 2" in result.stderr
    assert stall.cli("ledger", "-o", "json").exit_code == 1


def test_holds_and_contracts_of_both_sides_are_listed(stall: Stall) -> None:
    stall.say(*SELL, *PARTS)
    sold = stall.contract()
    stall.do(stall.ledger.reserve(BUYER.cloud, OfferId("small"), resources=resources(2, 1024)))
    held, bought_hold = stall.say("holds").splitlines()[1:]
    assert re.search(rf"small +{BUYER.cloud} +2 cores, 1024MB +.* in \w+ +held$", held)
    assert re.search(r" - +bought$", bought_hold)
    stall.trader.contracts[BORROWED.id] = replace(BORROWED, ends_at=time.time() + 7210)
    first, second = stall.say("contracts").splitlines()[1:]
    assert re.search("^bought +01c0ntract +north +4 cores, 8192MB +0.40 EUR +PT1H +in 2h +open$", first)
    assert re.search(f"^sold +{sold} +{BUYER.cloud} +1 core, 512MB .* live$", second)
    found = stall.json("contracts")["contracts"]
    assert [(one["side"], one["id"]) for one in found] == [("bought", "01c0ntract"), ("sold", sold)]


def test_a_long_list_is_cut_and_that_is_said(stall: Stall) -> None:
    stall.trader.contracts = {id: replace(BORROWED, id=id) for id in (f"01c{number}" for number in range(5))}
    result = stall.cli("contracts", "--limit", "3")
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr == "2 more; --limit 5 shows all.\n"
    stall.say(*SELL, *PARTS)
    for _ in range(4):
        stall.contract()
    assert stall.cli("contracts", "--limit", "3").stderr == "3 more; --limit 5 shows all.\n"
    assert stall.cli("holds", "--limit", "3").stderr == "1 more; --limit 4 shows all.\n"
    assert stall.cli("contracts", "--limit", "5").stderr == ""


def test_a_contract_is_renewed_released_and_its_document_printed(stall: Stall) -> None:
    stall.trader.contracts[BORROWED.id] = BORROWED
    assert stall.say("document", "01c0ntract") == "header.payload.signature\n"
    assert stall.say("renew", "01c0ntract", "--for", "3h").endswith("1.20 EUR in total\n")
    result = stall.cli("release", "01c0ntract", "01other")
    assert result.exit_code == 1
    assert result.stdout == "01c0ntract: ended\n"
    assert "there is no such contract" in result.stderr
    assert stall.trader.contracts["01c0ntract"].state is BorrowedContractState.ENDED
    assert stall.say("release", "-d", "01c0ntract") == "01c0ntract: draining\n"


def test_what_was_sold_is_taken_back_with_notice_and_flavors_are_withdrawn(stall: Stall) -> None:
    stall.say(*SELL, *PARTS)
    sold = stall.contract()
    assert stall.say("reclaim", sold, "--reason", "needed at home").startswith(f"{sold} ends in ")
    assert stall.say("document", sold) == f"{stall.ledger.contract(sold).document.decode()}\n"
    contract = stall.ledger.contract(sold).contract
    assert (contract.reason, contract.reclaim_at is None) == ("needed at home", False)
    assert stall.say("withdraw", "small") == "withdrew small; 1 core, 512MB of it remain sold\n"
    assert stall.ledger.flavors() == []
    missing = stall.cli("withdraw", "nothing")
    assert missing.exit_code == 1
    assert "there is no such flavor" in missing.stderr


def test_who_withdraws_what_follows_a_node_learns_that_it_comes_back(stall: Stall) -> None:
    stall.do(
        stall.ledger.publish(
            replace(FLAVOR, provider=stall.id, worker="edge-7", expires_at=None), actor="test"
        )
    )
    result = stall.cli("withdraw", FLAVOR.id)
    assert (result.exit_code, result.stdout) == (0, f"withdrew {FLAVOR.id}\n")
    assert "'skerry node cordon edge-7' ends that" in result.stderr
    stall.say(*SELL)
    assert stall.cli("withdraw", "small").stderr == ""


def test_what_is_over_already_is_said_to_be(stall: Stall) -> None:
    stall.say(*SELL, *PARTS)
    sold = stall.contract()
    stall.do(stall.ledger.release(sold, BUYER.cloud))
    assert re.fullmatch(rf"{sold} ended \w+ ago\n", stall.say("reclaim", sold))
    missing = stall.cli("document", "none")
    assert (missing.exit_code, missing.stderr.count("no contract 'none'")) == (1, 1)


def test_a_withdrawal_can_take_contracts_back_too(stall: Stall) -> None:
    stall.say(*SELL, *PARTS)
    sold = stall.contract()
    assert stall.json("withdraw", "small", "--reclaim", "--reason", "moving")["withdrawn"]["reclaims"] is True
    assert stall.ledger.contract(sold).contract.reason == "moving"
