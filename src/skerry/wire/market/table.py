"""Every endpoint of this room, and how each is served."""

from __future__ import annotations

from collections.abc import Iterator

from starlette.types import ASGIApp, Receive, Scope, Send

from skerry.model import errors
from skerry.model.settings import Settings
from skerry.wire import access
from skerry.wire.http.endpoints import Endpoint, Served
from skerry.wire.http.front import Target
from skerry.wire.market import borrowed, buying, overview, peers, selling, sold
from skerry.wire.market.context import MarketDesk

ENDPOINTS: tuple[Endpoint, ...] = (
    overview.about,
    peers.list_peers,
    peers.show,
    peers.set_peer,
    peers.remove,
    buying.offers,
    buying.buy,
    borrowed.list_borrowed,
    borrowed.show,
    borrowed.release,
    borrowed.renew,
    selling.sell,
    selling.withdraw,
    selling.show_ledger,
    sold.list_holds,
    sold.list_contracts,
    sold.show,
    sold.reclaim,
)


def behind(desk: MarketDesk | None, settings: Settings) -> Iterator[Target]:
    for declared in ENDPOINTS:
        app: ASGIApp = _say_there_is_none if desk is None else Served(declared, desk)
        yield Target(
            method=declared.method,
            template=declared.path,
            app=app,
            row=access.HTTP[declared.name],
            max_body_bytes=min(declared.max_body_bytes, settings.http.max_body_bytes),
            timeout_s=None if declared.streams else settings.http.request_timeout_s,
            is_quiet=declared.is_quiet,
        )


async def _say_there_is_none(scope: Scope, receive: Receive, send: Send) -> None:
    raise errors.Unavailable(
        "this server has no market; ask another one, or read what its `/about` says is lacking"
    )
