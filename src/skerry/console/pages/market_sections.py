"""What the pages of the market share: their addresses, tabs and figures."""

from __future__ import annotations

from skerry.console import formats
from skerry.console.components import EmptyState, Figure, Tab
from skerry.console.context import MarketView
from skerry.console.pages.overview import market_figures

PATH = "/console/market"
CONTRACTS = f"{PATH}/contracts"
HOLDS = f"{PATH}/holds"
LEDGER = f"{PATH}/ledger"
PEERS = f"{PATH}/peers"
_SECTIONS = (
    ("offers", "Offers", PATH),
    ("contracts", "Contracts", CONTRACTS),
    ("holds", "Holds", HOLDS),
    ("ledger", "Ledger", LEDGER),
    ("peers", "Peers", PEERS),
)

NO_PEERS = EmptyState(
    "No peers yet",
    "A peer is another cloud that this one buys from. Its operator finds its id with `skerry market`.",
    "skerry market peers add north https://north.example:1323 --cloud key.…",
)


def tabs(current: str) -> tuple[Tab, ...]:
    return tuple(Tab(title, path, key == current) for key, title, path in _SECTIONS)


def figures(market: MarketView) -> tuple[Figure, ...]:
    """Money in and out, and who can be bought from."""
    now = market.ledger.now()
    peers = market.buyer.peers()
    silent = sum(one.is_reached is False for one in peers)
    held = sum(one.is_live(now) for one in market.ledger.holds())
    return (
        *market_figures(market, now),
        Figure(
            "Offered here",
            f"{len(market.ledger.flavors()):,}",
            formats.count(held, "live hold"),
            LEDGER,
        ),
        Figure("Peers", f"{len(peers):,}", f"{silent} not answering" if silent else "", PEERS),
    )
