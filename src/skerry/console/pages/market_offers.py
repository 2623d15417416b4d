"""The market: offers of all peers and of this cloud, with the price of what one needs, and buying.

Peers are asked when the page is open, not before it is drawn: one that does not answer would hold it up.
"""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Annotated, Any
from urllib.parse import urlencode

import msgspec
from msgspec import Meta

from skerry.console import formats, market_texts
from skerry.console.actions import ActionForm, cli
from skerry.console.components import Action, Badge, Cell, EmptyState, Field, Table, Tone
from skerry.console.context import ConsoleContext
from skerry.console.hub import Topic
from skerry.console.pages import market_sections
from skerry.console.rendering import HTML, PageHead
from skerry.console.tables import ListQuery, TableColumn, TableShape, build_table
from skerry.market.buyer.quotes import BuyProgress, CapacityRequest, OfferQuote
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.transport.access.console_rules import may
from skerry.transport.http.endpoints import RequestContext, Response, endpoint

PATH = market_sections.PATH
BUY = f"POST {PATH}/buy"
_CORE = 1000
_HOUR_S = 3600.0
_MAX = 10**9
_CHANGED = {"hx-trigger-after-swap": '{"live:market": null}'}

_Amount = Annotated[int, Meta(ge=0, le=_MAX)]


class OfferQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one needs; nothing: all offers."""

    cpu: _Amount = 0  # cores
    memory: _Amount = 0  # MB
    disk: _Amount = 0  # GB
    where: Annotated[str, Meta(max_length=200)] = ""
    page: Annotated[int, Meta(ge=1, le=100_000)] = 1

    def request(self) -> CapacityRequest:
        return CapacityRequest(_resources(self.cpu, self.memory, self.disk), where=self.where)

    def href(self, page: int = 1) -> str:
        given = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value and name != "page"
        }
        return f"{PATH}?{urlencode(given | ({'page': page} if page > 1 else {}))}".rstrip("?")


class BuyForm(ActionForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    peer: Annotated[str, Meta(min_length=1, max_length=128)]
    cpu: _Amount = 0
    memory: _Amount = 0
    disk: _Amount = 0
    count: Annotated[int, Meta(ge=1, le=_MAX)] = 1
    hours: Annotated[float, Meta(gt=0, le=87_600)] | None = None
    max_price: Annotated[str, Meta(max_length=40)] = ""  # of all of it, each hour
    currency: Annotated[str, Meta(max_length=3)] = ""

    def request(self) -> CapacityRequest:
        return CapacityRequest(
            _resources(self.cpu, self.memory, self.disk),
            self.count,
            None if self.hours is None else max(1.0, self.hours * _HOUR_S),
            _money(self.max_price),
            self.currency,
            peer=self.peer,
        )


class OffersView(msgspec.Struct, frozen=True):
    """The offers, once peers were asked."""

    table: Table | None
    failures: tuple[str, ...] = ()  # of peers, in a sentence each


class PurchaseView(msgspec.Struct, frozen=True):
    """How a purchase went."""

    outcome: Badge
    steps: tuple[str, ...]
    command: str
    href: str = ""  # of the contract


@endpoint("GET", PATH, summary="Offers", media=HTML, raises=(errors.Invalid, errors.Unavailable))
async def show(context: ConsoleContext, call: RequestContext, query: OfferQuery) -> Response:
    """The page asks for its list when it is open."""
    head = PageHead("Market", f"GET {PATH}", (Topic.MARKET,), offers_command(query))
    view = OffersView(None)
    if call.headers.get(b"hx-target") == b"listing":
        found = await context.market.buyer.offers(query.request(), own=True)
        has_peers = bool(context.market.buyer.peers())
        table = offer_table(found.found, query, call.caller, has_peers=has_peers)
        view = OffersView(table, tuple(one.message for one in found.failures))
    return context.renderer.page(
        call,
        "market_offers.html",
        head,
        view=view,
        query=query,
        tabs=market_sections.tabs("offers"),
        figures=market_sections.figures(context.market),
    )


def offers_command(query: OfferQuery) -> str:
    words = ["market", "offers"]
    for name in ("cpu", "memory", "disk", "where"):
        if value := getattr(query, name):
            words += [f"--{name}", str(value)]
    return cli(*words)


def offer_table(offers: list[OfferQuote], query: OfferQuery, caller: Caller, *, has_peers: bool) -> Table:
    """Offers, the cheapest first; those of this cloud cannot be bought here."""
    columns = (
        TableColumn("From", "", lambda one: 0),
        TableColumn("What", "", lambda one: 0),
        TableColumn("Price", "", lambda one: 0, number=True),
        TableColumn("Free", "", lambda one: 0, minor=True),
        TableColumn("Where", "", lambda one: 0, minor=True),
        TableColumn("", "", lambda one: 0),
    )
    can_buy = may(caller, BUY)

    def cells(one: OfferQuote) -> tuple[Cell, ...]:
        where = ", ".join(filter(None, (one.flavor.location, one.flavor.architecture)))
        number = offers.index(one)
        return (
            Cell(one.peer or "this cloud", note=one.flavor.id),
            Cell(market_texts.amount(one.resources, one.count)),
            Cell(market_texts.price(one.price)),
            Cell(market_texts.amount(one.free)),
            Cell(where or "not said"),
            Cell(actions=(_buy_action(one, number),) if can_buy and one.peer else ()),
        )

    empty = (
        EmptyState("No offer can supply this", "Ask for less, or add another peer.", "skerry market peers")
        if has_peers
        else market_sections.NO_PEERS
    )
    shape = TableShape(
        "offers", "Offers", PATH, columns, lambda one: one.peer, cells, empty, lambda page: query.href(page)
    )
    return build_table(shape, offers, ListQuery(page=query.page))


def _buy_action(one: OfferQuote, number: int) -> Action:
    resources, hourly = one.resources, market_texts.hourly(one.price)
    cpu = max(1, resources.cpu // _CORE) if resources.cpu else 0
    words = ["market", "buy", "--cpu", str(cpu), "--memory", str(resources.memory), "--for", "1h"]
    if resources.disk:
        words += ["--disk", str(resources.disk)]
    words += ["--where", f"peer={one.peer}", "--max-price", f"{hourly:f}", "--currency", one.price.currency]
    return Action(
        f"buy-{number}",
        "Buy",
        f"{PATH}/buy",
        f"Buy {market_texts.amount(resources, one.count)} from {one.peer} "
        f"for {market_texts.price(one.price)}?",
        cli(*words),
        fields=(
            Field("cpu", "Cores", str(cpu), "number", "0", flag="--cpu"),
            Field("memory", "Memory, MB", str(resources.memory), "number", "0", flag="--memory"),
            Field("disk", "Disk, GB", str(resources.disk), "number", "0", flag="--disk"),
            Field("hours", "For hours", "1", "number", "0.01", flag="--for", unit="h"),
            Field(
                "max_price",
                f"At most, {one.price.currency} per hour for all of it",
                f"{hourly:f}",
                is_required=True,
                flag="--max-price",
            ),
            Field("count", "", str(one.count), "hidden"),
            Field("peer", "", one.peer, "hidden"),
            Field("currency", "", one.price.currency, "hidden"),
        ),
        note="The cheapest offer of this peer that supplies it is bought, never for more than the limit. "
        "Its capacity becomes a node of this cloud.",
        target="#answer",
        stem=cli("market", "buy", "--where", f"peer={one.peer}", "--currency", one.price.currency),
    )


@endpoint(
    "POST",
    PATH + "/buy",
    summary="Buy capacity",
    media=HTML,
    streams=True,  # peers have their time limits
    raises=(errors.Invalid, errors.Overloaded, errors.Unavailable),
)
async def buy(context: ConsoleContext, call: RequestContext, body: BuyForm) -> Response:
    """If the browser leaves before the contract is signed, what was begun is undone."""
    request = body.request()
    request.check_amount()
    steps: list[BuyProgress] = []
    problem = ""
    with context.market.purchases.take():
        try:
            async for step in context.market.buyer.buy(request, actor=call.caller.name):
                steps.append(step)  # noqa: PERF401 - those before an error are kept
        except errors.SkerryError as error:
            problem = error.message
    view = purchase_view(steps, problem, buy_command(body))
    return context.renderer.fragment("purchase.html", _CHANGED, view=view)


def buy_command(body: BuyForm) -> str:
    given: dict[str, Any] = {
        "cpu": body.cpu,
        "memory": body.memory,
        "disk": body.disk,
        "count": body.count if body.count > 1 else 0,
        "for": f"{round(body.hours * _HOUR_S)}s" if body.hours is not None else "",
        "max-price": body.max_price,
        "currency": body.currency,
        "where": f"peer={body.peer}",
    }
    words = [word for name, value in given.items() if value for word in (f"--{name}", str(value))]
    return cli("market", "buy", *words)


def purchase_view(steps: list[BuyProgress], problem: str, command: str) -> PurchaseView:
    """The steps, and how it ended."""
    texts = [f"{step.step}: {step.message}" if step.message else step.step for step in steps]
    bought = next((step.borrowed for step in reversed(steps) if step.borrowed is not None), None)
    if problem:
        return PurchaseView(Badge("not bought", Tone.BAD), (*texts, problem), command)
    if bought is None:
        return PurchaseView(Badge("not bought", Tone.BAD), tuple(texts), command)
    ends = formats.money(bought.total, bought.price.currency)
    return PurchaseView(
        Badge("bought", Tone.GOOD),
        (*texts, f"{ends} in all"),
        command,
        f"{market_sections.CONTRACTS}/{bought.id}",
    )


def _resources(cores: int, memory: int, disk: int) -> Resources:
    return Resources(Millicores(cores * _CORE), Megabytes(memory), Gigabytes(disk))


def _money(text: str) -> Decimal | None:
    if not text:
        return None
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or value < 0 or "e" in text.lower():
        raise errors.Invalid("a price is a decimal number such as 0.40", field="max_price")
    return value


ENDPOINTS = (show, buy)
