"""The market: the ledger of what this cloud offers, and the peers that it buys from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from skerry.console import formats, market_texts
from skerry.console.actions import ActionForm, cli, done
from skerry.console.components import Action, Badge, Bar, Cell, EmptyState, Field, Table, Tone
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages import market_sections
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.market.buyer.quotes import CapacityRequest, MarketPeer, OfferSearchResult, PeerStatus
from skerry.market.provider.ledger.records import OfferRecord
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.ids import OfferId
from skerry.model.resources import Resources
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

LEDGER, PEERS = market_sections.LEDGER, market_sections.PEERS
ADD, REMOVE = f"POST {PEERS}/add", f"POST {PEERS}/{{name}}/remove"
_CHANGE_ERRORS = (
    errors.Invalid,
    errors.NotFound,
    errors.Conflict,
    errors.FailedPrecondition,
    errors.TooLarge,
    errors.Unavailable,
)


class PeerPath(msgspec.Struct, frozen=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]


class PeerForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    url: Annotated[str, Meta(min_length=1, max_length=512)]
    cloud: Annotated[str, Meta(min_length=1, max_length=128)]


@endpoint("GET", LEDGER, summary="Ledger", media=HTML)
async def show_ledger(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """What is offered, held and sold of each offer."""
    head = PageHead("Market", f"GET {market_sections.PATH}", (Topic.MARKET,), "skerry market ledger")
    ledger = context.market.ledger
    return context.renderer.page(
        call,
        "list.html",
        head,
        table=ledger_table(ledger.accounts(), ledger.audit(), query),
        query=query,
        path=LEDGER,
        tabs=market_sections.tabs("ledger"),
        figures=market_sections.figures(context.market),
    )


def ledger_table(
    accounts: Sequence[OfferRecord], wrong: Mapping[OfferId, Sequence[str]], query: ListQuery
) -> Table:
    """Free, held and sold of each offer, and whether they add up."""
    columns = (
        TableColumn("Offer", "offer", lambda one: one.flavor.id),
        TableColumn("Capacity", "", lambda one: 0, minor=True),
        TableColumn("Taken", "taken", lambda one: _share(one)),
        TableColumn("Free", "", lambda one: 0, minor=True),
        TableColumn("Held", "", lambda one: 0, minor=True),
        TableColumn("Sold", "", lambda one: 0, minor=True),
        TableColumn("Price", "", lambda one: 0, number=True, minor=True),
        TableColumn("Balance", "", lambda one: 0),
    )

    def cells(one: OfferRecord) -> tuple[Cell, ...]:
        reasons = wrong.get(one.flavor.id, ())
        balance = Badge("WRONG", Tone.BAD) if reasons else Badge("BALANCED", Tone.GOOD)
        if not reasons and one.withdrawn is not None:
            balance = Badge("WITHDRAWN", Tone.QUIET)
        share = _share(one)
        where = one.flavor.worker or one.flavor.location
        return (
            Cell(one.flavor.id, note=where),
            Cell(market_texts.amount(one.capacity)),
            Cell(bar=Bar("", f"{share * 100:.0f} %", share, None, False)),
            Cell(market_texts.amount(one.free)),
            Cell(market_texts.amount(one.held)),
            Cell(market_texts.amount(one.sold)),
            Cell(market_texts.price(one.flavor.price)),
            Cell(badge=balance, note="; ".join(reasons)),
        )

    shape = TableShape(
        "ledger",
        "Ledger",
        LEDGER,
        columns,
        lambda one: f"{one.flavor.id} {one.flavor.location} {one.flavor.worker}",
        cells,
        EmptyState(
            "Nothing is offered",
            "Offer capacity of this cloud to others; the ledger then shows what is free, held and sold.",
            "skerry market sell --cpu 2 --memory 2048 --price 0.10 --currency EUR",
        ),
    )
    return build_table(shape, accounts, query)


def _share(one: OfferRecord) -> float:
    """What is taken of the resource that is scarcest."""

    def amounts(resources: Resources) -> tuple[int, int, int]:
        return resources.cpu, resources.memory, resources.disk

    taken = amounts(one.held + one.sold)
    return max(
        (used / whole for used, whole in zip(taken, amounts(one.capacity), strict=True) if whole), default=0.0
    )


@endpoint("GET", PEERS, summary="Peers", media=HTML)
async def show_peers(context: ConsoleContext, call: RequestContext, query: ListQuery) -> Response:
    """The clouds that this one buys from, and this one's own id."""
    head = PageHead("Market", f"GET {market_sections.PATH}", (Topic.MARKET,), "skerry market peers list")
    now = context.plane.clock.now()
    return context.renderer.page(
        call,
        "list.html",
        head,
        table=peer_table(context.market.buyer.peers(), query, call.caller, now),
        query=query,
        path=PEERS,
        tabs=market_sections.tabs("peers"),
        figures=market_sections.figures(context.market),
        actions=(add_action(),) if may(call.caller, ADD) else (),
        note=f"This cloud is {context.market.cloud}; others name it so when they add it as a peer.",
    )


def peer_table(peers: Sequence[PeerStatus], query: ListQuery, caller: Caller, now: float) -> Table:
    columns = (
        TableColumn("Name", "name", lambda one: one.peer.name),
        TableColumn("Status", "status", lambda one: str(one.is_reached)),
        TableColumn("Answers in", "latency", lambda one: one.latency_s or 0.0, number=True, minor=True),
        TableColumn("Address", "", lambda one: one.peer.url, minor=True),
        TableColumn("Cloud", "", lambda one: one.peer.cloud, minor=True),
        TableColumn("Checked", "", lambda one: one.at or 0.0, number=True, minor=True),
        TableColumn("", "", lambda one: 0),
    )
    can_remove = may(caller, REMOVE)

    def cells(one: PeerStatus) -> tuple[Cell, ...]:
        return (
            Cell(one.peer.name),
            Cell(badge=peer_badge(one), note=one.message if not one.is_reached else ""),
            Cell(formats.latency(one.latency_s)),
            Cell(one.peer.url, mono=True),
            Cell(one.peer.cloud, mono=True),
            Cell("not yet") if one.at is None else Cell(formats.age(one.at, now), time=one.at),
            Cell(actions=(_remove_action(one.peer),) if can_remove else ()),
        )

    shape = TableShape(
        "peers",
        "Peers",
        PEERS,
        columns,
        lambda one: f"{one.peer.name} {one.peer.url} {one.peer.cloud}",
        cells,
        market_sections.NO_PEERS,
    )
    return build_table(shape, peers, query)


def peer_badge(one: PeerStatus) -> Badge:
    if one.is_reached is None:
        return Badge("NOT ASKED YET", Tone.QUIET)
    return Badge("ANSWERS", Tone.GOOD) if one.is_reached else Badge("SILENT", Tone.BAD)


def _remove_action(peer: MarketPeer) -> Action:
    return Action(
        f"remove-{peer.name}",
        "Remove",
        f"{PEERS}/{peer.name}/remove",
        f"Remove the peer {peer.name}? Nothing more is bought of it.",
        cli("market", "peers", "remove", peer.name),
        is_destructive=True,
    )


def add_action() -> Action:
    return Action(
        "add",
        "Add peer",
        f"{PEERS}/add",
        "Add a cloud to buy from",
        "skerry market peers add NAME https://HOST:1323 --cloud key.…",
        fields=(
            Field("name", "Name, as you call it", is_required=True, is_argument=True),
            Field("url", "Address of its server", "https://", is_required=True, is_argument=True),
            Field(
                "cloud",
                "Its id, which its operator finds with `skerry market`",
                is_required=True,
                flag="--cloud",
            ),
        ),
        stem=cli("market", "peers", "add"),
        note="A CA of its own is given on the command line, with --ca.",
    )


@endpoint("POST", PEERS + "/add", summary="Add a peer", streams=True, raises=_CHANGE_ERRORS)
async def add(context: ConsoleContext, call: RequestContext, body: PeerForm) -> Response:
    """Refused if another cloud answers there. It is asked for its offers at once, so its status is known."""
    peer = MarketPeer(name=body.name, url=body.url, cloud=body.cloud)
    await context.market.buyer.set_peer(peer, actor=call.caller.name)
    found = await context.market.buyer.offers(CapacityRequest(peer=body.name))
    return done(_added_text(body.name, found), reloads=Topic.MARKET)


def _added_text(name: str, found: OfferSearchResult) -> str:
    if found.failures:
        return f"{name} is a peer now, but does not answer yet: {found.failures[0].message}."
    return f"{name} is a peer now, and has {formats.count(len(found.found), 'offer')}."


@endpoint("POST", PEERS + "/{name}/remove", summary="Remove a peer", raises=_CHANGE_ERRORS)
async def remove(context: ConsoleContext, call: RequestContext, path: PeerPath, body: ActionForm) -> Response:
    """Refused while there are contracts with it."""
    await context.market.buyer.remove_peer(path.name, actor=call.caller.name)
    return done(f"{path.name} is no peer any more.")


ENDPOINTS = (show_ledger, show_peers, add, remove)
