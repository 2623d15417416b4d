"""The part of this cloud that buys: peers, purchases, and the doors of what was bought.

Called by `skerry.daemon.market` for `up` and `server`. Every server of a cloud buys; the one that leads keeps
the doors open, and undoes what others left behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack

from skerry.control.events import EventLog
from skerry.control.nodes import Nodes
from skerry.control.sessions import Sessions
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.market.buying import Buyer
from skerry.market.keys import SigningKey
from skerry.market.ledger import Ledger
from skerry.market.listing import Lister
from skerry.market.loans import Loans
from skerry.market.peers import Peers
from skerry.market.proofs import Prover
from skerry.market.selecting import Offer
from skerry.market.traders import Desk
from skerry.market.trading import Trader
from skerry.model.settings import MarketSettings
from skerry.store.protocol import Store
from skerry.wire.rear.borrowing import Borrower
from skerry.wire.rear.client import Clients


async def start(
    store: Store,
    events: EventLog,
    clock: Clock,
    settings: MarketSettings,
    *,
    key: SigningKey,
    ledger: Ledger,
    nodes: Nodes,
    sessions: Sessions,
    is_leading: Callable[[], bool],
    loops: Keeper,
    undo: AsyncExitStack,
) -> Trader:
    """Begin to buy and to borrow, with `key`. What `ledger` offers is shown beside what peers do."""
    peers, loans = Peers(store, events, own=key.cloud), Loans(store, events)
    clients = Clients(Prover(key, clock), timeout_s=settings.deal_timeout_s)
    undo.push_async_callback(clients.close)
    # Entered after it, so that it is left before it: these loops must not outlive their connections.
    errands = await undo.enter_async_context(Keeper("borrowing", clock=clock))
    lister = Lister(
        peers,
        clients,
        clock,
        timeout_s=settings.list_timeout_s,
        own=lambda: [Offer(account.flavor, account.free) for account in ledger.flavors()],
    )
    buyer = Buyer(loans, peers, lister, clients, key, clock, settings, is_leading=is_leading)
    borrower = Borrower(loans, peers, clients, sessions, nodes, clock, settings, is_leading=is_leading)
    loops.forever("peers", peers.run, critical=True)
    loops.forever("loans", loans.run, critical=True)
    await loops.unless_failed(peers.ready())
    await loops.unless_failed(loans.ready())
    errands.forever("deals", buyer.run)
    errands.forever("doors", borrower.run)
    return Desk(loans, peers, lister, buyer, clients, key, clock, settings)
