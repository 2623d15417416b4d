"""The pages of the market: prices in plain words, what may be bought and by whom, and what ends when."""

from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest

from skerry.console import market_texts
from skerry.console.components import Tone
from skerry.console.pages import market_contracts, market_ledger, market_offers
from skerry.console.tables import ListQuery
from skerry.market.buyer.quotes import (
    BorrowedContract,
    BorrowedContractState,
    BuyProgress,
    MarketPeer,
    OfferQuote,
    PeerStatus,
)
from skerry.market.provider.ledger.records import ContractRecord, OfferRecord
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import ContractId, NodeId, OfferId
from skerry.model.market import Price
from tests.support.deals import CONTRACT, FLAVOR, NOW, changed, encoded, resources

ADMIN = Caller(origin=AuthMethod.TOKEN, name="a", role=Role.ADMIN)
VIEWER = Caller(origin=AuthMethod.TOKEN, name="v", role=Role.VIEWER)
HOURLY = Price(Decimal("0.80"), "EUR", "PT1H")


def quote(peer: str = "north") -> OfferQuote:
    return OfferQuote(peer, FLAVOR, resources(8, 16384, 100), resources(2, 2048), 1, HOURLY)


def bought(**changes: object) -> BorrowedContract:
    made = BorrowedContract(
        id=ContractId("01bought"),
        peer="north",
        cloud="key.north",
        node=NodeId("n1"),
        flavor=OfferId("edge-1"),
        resources=resources(2, 2048),
        count=1,
        price=HOURLY,
        total=Decimal("1.60"),
        starts_at=NOW - 60,
        ends_at=NOW + 7140,
        state=BorrowedContractState.OPEN,
        reclaim_at=None,
        reason="",
        ended_at=None,
        document="",
        actor="ann",
    )
    return msgspec.structs.replace(made, **changes)


def test_amounts_and_prices_are_plain_words() -> None:
    assert market_texts.amount(resources(1, 512)) == "1 core, 512 MB"
    assert market_texts.amount(resources(2, 2048, 20), 3) == "3 × (2 cores, 2 GB, 20 GB disk)"
    assert market_texts.price(HOURLY) == "0.80 EUR per hour"
    assert market_texts.price(Price(Decimal(3), "EUR", "P1D")) == "3.00 EUR per day"


def test_the_price_of_an_hour_is_rounded_up_so_that_a_limit_of_it_suffices() -> None:
    assert market_texts.hourly(Price(Decimal(1), "EUR", "P1D")) == Decimal("0.0417")
    assert market_texts.hourly(HOURLY) == Decimal("0.8")


def test_only_an_admin_can_buy_and_nobody_from_this_cloud() -> None:
    query = market_offers.OfferQuery()
    made = market_offers.offer_table([quote(), quote("")], query, ADMIN, has_peers=True)
    (buy,) = made.rows[0].cells[-1].actions
    assert buy.question == "Buy 2 cores, 2 GB from north for 0.80 EUR per hour?"
    assert {field.name: field.value for field in buy.fields}["max_price"] == "0.8"
    assert made.rows[1].cells[0].text == "this cloud"
    assert made.rows[1].cells[-1].actions == ()
    seen = market_offers.offer_table([quote()], query, VIEWER, has_peers=True)
    assert seen.rows[0].cells[-1].actions == ()


def test_without_peers_the_page_says_how_to_add_one() -> None:
    made = market_offers.offer_table([], market_offers.OfferQuery(), ADMIN, has_peers=False)
    assert made.empty is not None
    assert made.empty.command.startswith("skerry market peers add")


def test_the_form_becomes_a_request_of_that_peer_with_its_limit() -> None:
    form = market_offers.BuyForm(
        peer="north", cpu=2, memory=2048, hours=0.5, max_price="0.80", currency="EUR"
    )
    request = form.request()
    assert (request.resources, request.duration_s) == (resources(2, 2048), 1800.0)
    assert (request.max_price, request.peer, request.currency) == (Decimal("0.80"), "north", "EUR")
    assert market_offers.buy_command(form) == (
        "skerry market buy --cpu 2 --memory 2048 --for 1800s --max-price 0.80 --currency EUR "
        "--where peer=north"
    )


@pytest.mark.parametrize("price", ["x", "-1", "NaN", "Infinity", "1e9"])
def test_a_limit_that_is_no_amount_of_money_is_refused(price: str) -> None:
    with pytest.raises(errors.Invalid, match="decimal number"):
        market_offers.BuyForm(peer="north", cpu=1, max_price=price).request()


def test_a_purchase_that_failed_shows_how_far_it_came() -> None:
    steps = [BuyProgress("listing", "1 offer"), BuyProgress("reserving", "")]
    view = market_offers.purchase_view(steps, "the peer refused", "x")
    assert view.outcome.tone is Tone.BAD
    assert view.steps == ("listing: 1 offer", "reserving", "the peer refused")
    done = market_offers.purchase_view([BuyProgress("done", "", bought())], "", "x")
    assert (done.outcome.text, done.href) == ("bought", "/console/market/contracts/01bought")


def test_contracts_of_both_sides_have_live_ones_first_and_count_down_to_their_end() -> None:
    ended = changed(id=ContractId("01ended"), ended_at=NOW - 10, starts_at=NOW - 7200)
    rows = market_contracts.contract_rows(
        [bought()], [ContractRecord(ended, b"a.b.c"), ContractRecord(CONTRACT, b"a.b.c")], NOW
    )
    assert [row.id for row in rows] == [CONTRACT.id, "01bought", "01ended"]
    made = market_contracts.contract_table(rows, ListQuery(), NOW)
    assert made.rows[1].cells[6].until == NOW + 7140
    assert made.rows[2].cells[6].time == NOW - 10


def test_a_contract_that_is_reclaimed_ends_then() -> None:
    (row,) = market_contracts.contract_rows([bought(reclaim_at=NOW + 30)], [], NOW)
    assert row.ends_at == NOW + 30


def test_a_bought_contract_is_renewed_or_released_and_a_sold_one_reclaimed_by_admins() -> None:
    (own,) = market_contracts.contract_rows([bought()], [], NOW)
    (sold,) = market_contracts.contract_rows([], [ContractRecord(CONTRACT, b"a.b.c")], NOW)
    view = market_contracts.contract_view
    assert [one.id for one in view(own, "", ADMIN, NOW).actions] == ["renew", "release"]
    assert [one.id for one in view(sold, "", ADMIN, NOW).actions] == ["reclaim"]
    assert view(own, "", VIEWER, NOW).actions == ()
    assert view(sold, "", VIEWER, NOW).actions == ()


def test_a_statement_is_the_terms_of_the_signed_document() -> None:
    document = b".".join([encoded(b"{}"), encoded(b'{"total":"0.40"}'), b"sig"]).decode()
    assert market_contracts.statement(document) == '{\n  "total": "0.40"\n}'
    both = b".".join([encoded(b"{}"), encoded(document.encode()), b"sig"]).decode()
    assert market_contracts.statement(both) == '{\n  "total": "0.40"\n}'
    assert market_contracts.statement("no document") == "no document"
    assert market_contracts.statement("a.%%%.c") == "a.%%%.c"


def test_the_ledger_shows_what_is_taken_and_whether_it_adds_up() -> None:
    account = OfferRecord(FLAVOR, resources(8, 16384, 100), held=resources(1, 1024), sold=resources(3, 3072))
    made = market_ledger.ledger_table([account], {}, ListQuery())
    taken = made.rows[0].cells[2].bar
    assert taken is not None
    assert taken.text == "50 %"
    assert made.rows[0].cells[7].badge is not None
    assert made.rows[0].cells[7].badge.text == "BALANCED"
    wrong = market_ledger.ledger_table([account], {FLAVOR.id: ["1 core too many"]}, ListQuery())
    assert wrong.rows[0].cells[7].note == "1 core too many"


def test_a_peer_that_does_not_answer_says_why_and_is_removed_after_a_question() -> None:
    peers = [
        PeerStatus(MarketPeer("north", "https://north", "key.n"), False, "it refused the connection"),
        PeerStatus(MarketPeer("south", "https://south", "key.s"), True, "", 0.02, NOW),
    ]
    made = market_ledger.peer_table(peers, ListQuery(), ADMIN, NOW)
    assert made.rows[0].cells[1].note == "it refused the connection"
    assert made.rows[1].cells[2].text == "20 ms"
    (remove,) = made.rows[0].cells[-1].actions
    assert remove.is_destructive
    assert market_ledger.peer_table(peers, ListQuery(), VIEWER, NOW).rows[0].cells[-1].actions == ()
