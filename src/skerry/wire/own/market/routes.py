"""Every endpoint of this room, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model import errors
from skerry.model.settings import Settings
from skerry.transport.access import rules
from skerry.transport.http.asgi import ASGIApp, Receive, Scope, Send
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import Endpoint, EndpointRunner
from skerry.wire.own.market import borrowed_contracts, buyers, offers, overview, peers, quotes, sold_contracts
from skerry.wire.own.market.context import MarketContext

ENDPOINTS: tuple[Endpoint, ...] = (
    overview.about,
    peers.list_peers,
    peers.show,
    peers.set_peer,
    peers.remove,
    quotes.offers,
    quotes.buy,
    borrowed_contracts.list_borrowed,
    borrowed_contracts.show,
    borrowed_contracts.release,
    borrowed_contracts.renew,
    offers.sell,
    offers.reprice,
    offers.withdraw,
    offers.show_ledger,
    sold_contracts.list_holds,
    sold_contracts.list_contracts,
    sold_contracts.show,
    sold_contracts.reclaim,
    buyers.list_buyers,
    buyers.allow,
    buyers.remove,
)


def build_routes(desk: MarketContext | None, settings: Settings) -> Iterator[HttpRoute]:
    for declared in ENDPOINTS:
        app: ASGIApp = _say_there_is_none if desk is None else EndpointRunner(declared, desk)
        yield HttpRoute(
            method=declared.method,
            template=declared.path,
            app=app,
            row=rules.HTTP_RULES[declared.name],
            max_body_bytes=min(declared.max_body_bytes, settings.http.max_body_bytes),
            timeout_s=None if declared.streams else settings.http.request_timeout_s,
            is_quiet=declared.is_quiet,
        )


async def _say_there_is_none(scope: Scope, receive: Receive, send: Send) -> None:
    raise errors.Unavailable(
        "this server has no market; ask another one, or read what its `/about` says is lacking"
    )
