"""The part of this cloud that buys: peers, purchases, and the doors of what was bought.

Called by `skerry.daemon.market` for `up` and `server`. Every server of a cloud buys; the one that leads keeps
the doors open, and undoes what others left behind.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from skerry.control.events.log import EventLog
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.registry import NodeRegistry
from skerry.control.sessions.node_session import NodeSessions
from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.market.buyer.acquisition import ContractBuyer
from skerry.market.buyer.borrowed_node_controller import BorrowedNodeController
from skerry.market.buyer.contract_table import BorrowedContractTable
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.quotes import BuyerPort
from skerry.market.buyer.search import OfferSearch
from skerry.market.buyer.service import BuyerService
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import RequestSigner
from skerry.market.terms.selectors import OfferSnapshot
from skerry.model.market_settings import MarketSettings
from skerry.store.protocol import Store
from skerry.transport.links.nodes.borrowed_session import BorrowedNodeConversations
from skerry.wire.rear.client import RearClientPool


async def start(
    store: Store,
    events: EventLog,
    clock: Clock,
    settings: MarketSettings,
    *,
    key: SigningKey,
    ledger: Ledger,
    nodes: NodeRegistry,
    sessions: NodeSessions,
    leader: LeaderElection,
    loops: TaskSupervisor,
    undo: AsyncExitStack,
) -> BuyerPort:
    """Begin to buy and to borrow, with `key`. What `ledger` offers is shown beside what peers do."""
    peers, loans = MarketPeerTable(store, events, own=key.cloud), BorrowedContractTable(store, events)
    clients = RearClientPool(RequestSigner(key, clock), timeout_s=settings.deal_timeout_s)
    undo.push_async_callback(clients.close)
    # Entered after it, so that it is left before it: these loops must not outlive their connections.
    errands = await undo.enter_async_context(TaskSupervisor("borrowing", clock=clock))
    lister = OfferSearch(
        peers,
        clients,
        clock,
        timeout_s=settings.list_timeout_s,
        own=lambda: [OfferSnapshot(account.flavor, account.free) for account in ledger.flavors()],
    )
    buyer = ContractBuyer(loans, peers, lister, clients, key, clock, settings)
    borrower = BorrowedNodeController(
        loans,
        peers,
        clients,
        sessions,
        nodes,
        clock,
        settings,
        converse=BorrowedNodeConversations(sessions, clock),
    )
    loops.forever("peers", peers.run, critical=True)
    loops.forever("loans", loans.run, critical=True)
    await loops.unless_failed(peers.ready())
    await loops.unless_failed(loans.ready())
    errands.forever("deals", buyer.run)
    for named, run in (("overdue deals", buyer.lead), ("doors", borrower.run)):
        errands.forever(named, partial(leader.run_while_leading, named, run))
    return BuyerService(loans, peers, lister, buyer, clients, key, clock, settings)
