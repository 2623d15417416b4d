"""All endpoints of the market, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.model.settings import Settings
from skerry.transport.http.dispatcher import HttpRoute
from skerry.transport.http.endpoints import Endpoint
from skerry.transport.http.runner import Dialect, build_route
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


_DIALECT = Dialect(
    unavailable="this server has no market; ask another one, or read what its `/about` says is lacking"
)


def build_routes(market: MarketContext | None, settings: Settings) -> Iterator[HttpRoute]:
    for declared in ENDPOINTS:
        yield build_route(declared, _DIALECT, market, settings.http)
