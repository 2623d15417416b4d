"""The market: contracts that were bought and sold, with the time that is left, and holds."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, market_texts
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Cell, EmptyState, Fact, Field, Table
from skerry.console.context import ConsoleContext, MarketView
from skerry.console.hub import Topic
from skerry.console.object_pages import ObjectView
from skerry.console.pages import market_sections
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, ObjectQuery, TableColumn, TableShape, build_table
from skerry.market.buyer.quotes import BorrowedContract, BorrowedContractState
from skerry.market.provider.ledger.records import ContractRecord
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.ids import ContractId
from skerry.model.market import Hold, Price
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

CONTRACTS, HOLDS = market_sections.CONTRACTS, market_sections.HOLDS
_HOUR_S = 3600.0
_SIGNATURES = 3  # around the terms, at most
_CHANGE_ERRORS = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.FailedPrecondition,
    errors.Expired,
    errors.Unprocessable,
    errors.Unavailable,
    errors.TimedOut,
)


class ContractPath(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(min_length=1, max_length=128)]


class RenewForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    hours: Annotated[float, Meta(gt=0, le=87_600)]


class ReclaimForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Meta(max_length=256)] = ""


class ContractRow(msgspec.Struct, frozen=True):
    """A contract of either side."""

    id: str
    is_bought: bool
    other: str  # the cloud on the other side
    what: str
    price: Price
    total: Decimal
    starts_at: float
    ends_at: float  # also if it is reclaimed before its end
    state: str
    is_live: bool
    reason: str
    node: str = ""


@endpoint("GET", CONTRACTS, summary="Contracts", media=HTML)
async def show_list(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """Contracts of both sides, live ones first."""
    head = PageHead("Market", f"GET {market_sections.PATH}", (Topic.MARKET,), "skerry market contracts")
    now = context.market.ledger.now()
    rows = contract_rows(context.market.buyer.borrowed(), context.market.ledger.contracts(), now)
    return context.renderer.page(
        call,
        "list.html",
        head,
        table=contract_table(rows, query, now),
        query=query,
        path=CONTRACTS,
        tabs=market_sections.tabs("contracts"),
        figures=market_sections.figures(context.market),
    )


@endpoint("GET", CONTRACTS + "/{id}", summary="A contract", media=HTML, raises=(errors.NotFound,))
async def show(
    context: ConsoleContext, call: RequestContext, path: ContractPath, query: ObjectQuery
) -> Response:
    """With the statement that both sides signed."""
    row, document = await _find(context.market, path.id)
    view = contract_view(row, document, call.caller, context.market.ledger.now())
    head = PageHead(
        f"Contract {row.id}",
        f"GET {market_sections.PATH}",
        (Topic.MARKET,),
        f"{cli('market', 'document', row.id)} | skerry contract verify -",
    )
    return context.renderer.page(call, "object.html", head, view=view)


async def _find(market: MarketView, id: str) -> tuple[ContractRow, str]:
    """The contract, and its signed document. Raises `NotFound`."""
    now = market.ledger.now()
    for one in market.buyer.borrowed():
        if one.id == id:
            return _bought_row(one), one.document
    try:
        sale = await market.ledger.find_contract(ContractId(id))
    except errors.NotFound:
        raise errors.NotFound(f"there is no contract {id[:128]!r}; the list has those there are") from None
    return _sold_row(sale, now), (sale.countersigned or sale.current).decode("ascii")


def contract_rows(
    bought: Iterable[BorrowedContract], sold: Iterable[ContractRecord], now: float
) -> list[ContractRow]:
    """Both sides, live ones first, then the newest."""
    rows = [*map(_bought_row, bought), *(_sold_row(one, now) for one in sold)]
    return sorted(rows, key=lambda one: (not one.is_live, -one.starts_at))


def _bought_row(one: BorrowedContract) -> ContractRow:
    return ContractRow(
        one.id,
        True,
        one.peer,
        market_texts.amount(one.resources, one.count),
        one.price,
        one.total,
        one.starts_at,
        one.due_at if one.ended_at is None else one.ended_at,
        one.state.value,
        one.state is not BorrowedContractState.ENDED,
        one.reason,
        one.node,
    )


def _sold_row(sale: ContractRecord, now: float) -> ContractRow:
    one = sale.contract
    return ContractRow(
        one.id,
        False,
        one.buyer,
        market_texts.amount(one.resources, one.count),
        one.price,
        one.total,
        one.starts_at,
        one.due_at if one.ended_at is None else one.ended_at,
        one.state(now),
        one.is_live(now),
        one.reason,
    )


def contract_table(rows: Sequence[ContractRow], query: ListQuery, now: float) -> Table:
    """The list of contracts."""
    columns = (
        TableColumn("Contract", "", lambda one: one.id),
        TableColumn("Side", "side", lambda one: one.is_bought, minor=True),
        TableColumn("With", "with", lambda one: one.other, minor=True),
        TableColumn("What", "", lambda one: one.what, minor=True),
        TableColumn("Total", "total", lambda one: one.total, number=True, minor=True),
        TableColumn("Status", "status", lambda one: one.state),
        TableColumn("Ends in", "ends", lambda one: one.ends_at, number=True),
    )

    def cells(one: ContractRow) -> tuple[Cell, ...]:
        return (
            Cell(one.id, f"{CONTRACTS}/{one.id}"),
            Cell("bought" if one.is_bought else "sold"),
            Cell(one.other, mono=not one.is_bought),
            Cell(one.what),
            Cell(formats.money(one.total, one.price.currency), note=market_texts.price(one.price)),
            Cell(badge=market_texts.state(one.state), note=one.reason),
            _end(one, now),
        )

    shape = TableShape(
        "contracts",
        "Contracts",
        CONTRACTS,
        columns,
        lambda one: f"{one.id} {one.other} {one.what} {one.state} {'bought' if one.is_bought else 'sold'}",
        cells,
        EmptyState(
            "No contracts yet",
            "Buy capacity of a peer, or offer some of your own.",
            "skerry market buy --cpu 2 --memory 2048 --for 1h",
        ),
    )
    return build_table(shape, rows, query)


def _end(one: ContractRow, now: float) -> Cell:
    if one.is_live:
        return Cell(formats.duration(one.ends_at - now), until=one.ends_at)
    return Cell(formats.age(one.ends_at, now), time=one.ends_at, note="ago")


def contract_view(row: ContractRow, document: str, caller: Caller, now: float) -> ObjectView:
    """The page of one contract, with its statement in plain text."""
    facts = [
        Fact("Side", Cell("bought" if row.is_bought else "sold")),
        Fact("With", Cell(row.other, mono=not row.is_bought)),
        Fact("What", Cell(row.what)),
        Fact("Price", Cell(market_texts.price(row.price))),
        Fact("Total", Cell(formats.money(row.total, row.price.currency), note="from start to end")),
        Fact("Started", Cell(formats.age(row.starts_at, now), time=row.starts_at)),
        Fact("Ends in" if row.is_live else "Ended", _end(row, now)),
    ]
    if row.node:
        facts.append(Fact("Node", Cell(row.node, mono=True)))
    return ObjectView(
        name=row.id,
        namespace="",
        path=f"{CONTRACTS}/{row.id}",
        kind="Contracts",
        list_path=CONTRACTS,
        status=Cell(badge=market_texts.state(row.state)),
        note=row.reason,
        facts=tuple(facts),
        actions=tuple(one for one in _actions(row) if may(caller, f"POST {CONTRACTS}/{{id}}/{one.id}")),
        text=statement(document),
    )


def statement(document: str) -> str:
    """The terms of a signed document, as indented JSON: what both have signed holds what the seller signed.
    `skerry contract verify` checks the signatures."""
    text = document
    try:
        for _ in range(_SIGNATURES):
            if text.count(".") != 2 or text.startswith("{"):
                break
            payload = text.split(".")[1]
            text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode()
        return msgspec.json.format(text, indent=2)
    except (ValueError, msgspec.DecodeError):
        return document


def _actions(row: ContractRow) -> list[Action]:
    if not row.is_live:
        return []
    base = f"{CONTRACTS}/{row.id}"
    if not row.is_bought:
        return [
            Action(
                "reclaim",
                "Reclaim",
                f"{base}/reclaim",
                f"Reclaim contract {row.id} from its buyer? It ends after its notice.",
                cli("market", "reclaim", row.id),
                is_destructive=True,
                fields=(Field("reason", "Reason, which its buyer reads", flag="--reason"),),
                stem=cli("market", "reclaim", row.id),
            )
        ]
    return [
        Action(
            "renew",
            "Renew",
            f"{base}/renew",
            f"Let contract {row.id} last longer, at most at its price of {market_texts.price(row.price)}?",
            cli("market", "renew", row.id, "--for", "1h"),
            fields=(
                Field("hours", "More hours", "1", "number", "0.01", is_required=True, flag="--for", unit="h"),
            ),
            stem=cli("market", "renew", row.id),
        ),
        Action(
            "release",
            "Release",
            f"{base}/release",
            f"Give back {row.what} of {row.other}? What runs on its node moves away first.",
            cli("market", "release", row.id),
            is_destructive=True,
        ),
    ]


@endpoint("POST", CONTRACTS + "/{id}/renew", summary="Renew a contract", streams=True, raises=_CHANGE_ERRORS)
async def renew(
    context: ConsoleContext, call: RequestContext, path: ContractPath, body: RenewForm
) -> Response:
    """Refused if the price is higher than before."""
    after = await context.market.buyer.renew(path.id, body.hours * _HOUR_S, actor=call.caller.name)
    total = formats.money(after.total, after.price.currency)
    return done(f"Contract {path.id} lasts longer; it is {total} in all.")


@endpoint(
    "POST", CONTRACTS + "/{id}/release", summary="Release a contract", streams=True, raises=_CHANGE_ERRORS
)
async def release(
    context: ConsoleContext, call: RequestContext, path: ContractPath, body: ActionForm
) -> Response:
    """Its node is drained first."""
    await context.market.buyer.release(path.id, actor=call.caller.name)
    return done(f"Contract {path.id} is released; its node is drained first.")


@endpoint("POST", CONTRACTS + "/{id}/reclaim", summary="Reclaim a contract", raises=_CHANGE_ERRORS)
async def reclaim(
    context: ConsoleContext, call: RequestContext, path: ContractPath, body: ReclaimForm
) -> Response:
    """It ends after its notice."""
    await context.market.ledger.reclaim(ContractId(path.id), actor=call.caller.name, reason=body.reason)
    return done(f"Contract {path.id} is reclaimed; it ends after its notice.")


@endpoint("GET", HOLDS, summary="Holds", media=HTML)
async def show_holds(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """What buyers reserved of this cloud, live ones first."""
    head = PageHead("Market", f"GET {market_sections.PATH}", (Topic.MARKET,), "skerry market holds")
    now = context.market.ledger.now()
    return context.renderer.page(
        call,
        "list.html",
        head,
        table=hold_table(context.market.ledger.holds(), query, now),
        query=query,
        path=HOLDS,
        tabs=market_sections.tabs("holds"),
        figures=market_sections.figures(context.market),
    )


def hold_table(holds: Sequence[Hold], query: ListQuery, now: float) -> Table:
    columns = (
        TableColumn("Buyer", "buyer", lambda one: one.buyer),
        TableColumn("Offer", "offer", lambda one: one.flavor.id, minor=True),
        TableColumn("What", "", lambda one: 0),
        TableColumn("Price", "", lambda one: 0, number=True, minor=True),
        TableColumn("Status", "status", lambda one: one.state(now)),
        TableColumn("Ends in", "ends", lambda one: one.expires_at, number=True),
    )

    def cells(one: Hold) -> tuple[Cell, ...]:
        is_live = one.is_live(now)
        href = f"{CONTRACTS}/{one.contract}" if one.contract is not None else ""
        return (
            Cell(one.buyer, mono=True),
            Cell(one.flavor.id),
            Cell(market_texts.amount(one.resources, one.count)),
            Cell(market_texts.price(one.price)),
            Cell("contract" if href else "", href, badge=market_texts.state(one.state(now))),
            Cell(formats.duration(one.expires_at - now), until=one.expires_at) if is_live else Cell("–"),
        )

    shape = TableShape(
        "holds",
        "Holds",
        HOLDS,
        columns,
        lambda one: f"{one.buyer} {one.flavor.id} {one.state(now)}",
        cells,
        EmptyState("No holds", "A hold is a part of an offer that a buyer has reserved and not bought yet."),
    )
    ordered = sorted(holds, key=lambda one: (not one.is_live(now), -one.created_at))
    return build_table(shape, ordered, query)


ENDPOINTS = (show_list, show, renew, release, reclaim, show_holds)
