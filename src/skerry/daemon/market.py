"""The market of this cloud: its key, the ledger of what it offers and has sold, what it lends and borrows.

Called by `skerry.daemon.server_role`. Every server of a cloud sells from the one ledger in the store,
reserves what is sold, and buys; the leader checks deadlines, creates contract cells, publishes offers, keeps
sessions with borrowed nodes, and undoes abandoned deals.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from urllib.parse import urlsplit

import msgspec

from skerry.control.volumes.conditions import ConditionsWithoutVolumes
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.server_base import ServerBase
from skerry.kit import ulid
from skerry.kit.tasks import TaskSupervisor
from skerry.market.buyer.acquisition import ContractBuyer
from skerry.market.buyer.borrowed_node_controller import BorrowedNodeController
from skerry.market.buyer.contract_table import BorrowedContractTable
from skerry.market.buyer.peers import MarketPeerTable
from skerry.market.buyer.quotes import BuyerPort
from skerry.market.buyer.search import OfferSearch
from skerry.market.buyer.service import BuyerService
from skerry.market.provider import cloud_key, node_capacity, node_offers
from skerry.market.provider.allowlist import BuyerAllowlist
from skerry.market.provider.contract_cell_controller import ContractCellController, ContractCells
from skerry.market.provider.heartbeats import BuyerHeartbeats
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.node_capacity import NodeCapacity, ReservedCapacitySync
from skerry.market.provider.offer_controller import OfferController
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.market.terms.keys import SigningKey
from skerry.market.terms.request_proofs import ProofVerifier, RequestSigner
from skerry.market.terms.selectors import OfferSnapshot
from skerry.market.terms.signatures import ContractSigner
from skerry.model.market import Offer
from skerry.model.mesh import MeshEncryption
from skerry.transport.links.nodes.borrowed_session import BorrowedNodeConversations
from skerry.wire.own.market.context import MarketContext
from skerry.wire.rear.client import RearClientPool
from skerry.wire.rear.context import RearContext
from skerry.wire.rear.tunnel_server import ContractTunnelServer


class MarketParts(msgspec.Struct, frozen=True):
    """The parts that are served: to other clouds, and to the people of this one."""

    rear: RearContext
    context: MarketContext


async def start(base: ServerBase, fleet: ControlPlaneParts) -> MarketParts:
    """Sell, lend, buy and borrow from now on. Raises if the key is damaged, or the store another cloud's."""
    store, events, clock, loops, settings = (
        base.store,
        base.events,
        base.clock,
        base.loops,
        base.settings.market,
    )
    key = await asyncio.to_thread(cloud_key.load_or_create, base.folder / "pki", base.authority.derive)
    await cloud_key.claim(store, key)

    def new_id() -> str:
        return ulid.new_id(clock.now())

    allowlist = BuyerAllowlist(store, events, clock, named=settings.buyers)
    loops.forever("allowlist", allowlist.run, critical=True)
    await loops.unless_failed(allowlist.ready())
    ledger = Ledger(
        store,
        clock,
        settings,
        events,
        signer=ContractSigner(key),
        has_leader=True,
        is_known=allowlist.is_known,
    )
    loops.forever("ledger", ledger.run, critical=True)
    loops.forever("deadlines", lambda: fleet.leader.run_while_leading("deadlines", ledger.lead))
    await loops.unless_failed(ledger.ready())
    domain, url = socket.gethostname().lower(), base.addresses.url
    rear = RearContext.of(
        ledger,
        ProofVerifier(store, clock, key.cloud),
        provider=key.cloud,
        new_id=new_id,
        domain=domain,
        address=urlsplit(url).netloc,
        tunnels=start_provider(base, fleet, ledger, key, name=domain, url=url),
    )
    loops.forever("offers", rear.offers.run)
    buyer = await _start_buyer(base, fleet, ledger, key)

    def shortage(flavor: Offer) -> str:
        nodes, gpus = node_capacity.node_resources(fleet.nodes), node_capacity.node_gpus(fleet.nodes)
        return node_offers.shortage(ledger.flavors(), flavor, nodes, gpus)

    refusal = partial(node_capacity.sale_refusal, fleet.nodes)
    return MarketParts(rear, MarketContext(ledger, buyer, allowlist, key.cloud, new_id, shortage, refusal))


def start_provider(
    base: ServerBase, fleet: ControlPlaneParts, ledger: Ledger, key: SigningKey, *, name: str, url: str
) -> ContractTunnelServer:
    """Create contract cells, reserve what is sold and publish offers, from now on; returns the tunnel server
    for buyers. The tables and the ledger must be ready. `name` and `url` are those of this server. Raises
    `Invalid` if the settings name no price.
    """
    settings = base.settings.market
    if settings.sell_percent:
        node_offers.price_of(settings)
    ReservedCapacitySync(ledger, fleet.reconciler.reserve).follow()
    conditions = ConditionsWithoutVolumes(fleet.nodes, fleet.volumes.table)
    NodeCapacity(ledger, fleet.instance_table, conditions).follow()
    lender = ContractCellController(ledger, ContractCells(fleet.instances, fleet.instance_table, base.clock))
    offering = OfferController(ledger, fleet.instance_table, conditions, settings, provider=key.cloud)
    heartbeats = BuyerHeartbeats(base.store, ledger, settings)
    for named, run in (("lending", lender.run), ("offering", offering.run), ("visits", heartbeats.run)):
        base.loops.forever(named, partial(fleet.leader.run_while_leading, named, run))
    return ContractTunnelServer(
        ledger,
        ContractCredentials(key),
        fleet.instances,
        fleet.tunnels,
        heartbeats,
        provider=key.cloud,
        name=name,
        url=url,
    )


async def _start_buyer(
    base: ServerBase, fleet: ControlPlaneParts, ledger: Ledger, key: SigningKey
) -> BuyerPort:
    """Begin to buy and to borrow, with `key`. What `ledger` offers is shown beside what peers do."""
    store, events, clock, settings = base.store, base.events, base.clock, base.settings.market
    peers, contracts = MarketPeerTable(store, events, own=key.cloud), BorrowedContractTable(store, events)
    clients = RearClientPool(RequestSigner(key, clock), timeout_s=settings.deal_timeout_s)
    base.undo.push_async_callback(clients.close)
    # Entered after it, so that it is left before it: these loops must not outlive their connections.
    loops = await base.undo.enter_async_context(TaskSupervisor("borrowing", clock=clock))
    lister = OfferSearch(
        peers,
        clients,
        clock,
        timeout_s=settings.list_timeout_s,
        own=lambda: [OfferSnapshot(account.flavor, account.free) for account in ledger.flavors()],
    )
    buyer = ContractBuyer(contracts, peers, lister, clients, key, clock, settings)
    borrower = BorrowedNodeController(
        contracts,
        peers,
        clients,
        fleet.sessions,
        fleet.nodes,
        clock,
        settings,
        # Without encryption everybody between the two clouds could read and send what they like.
        converse=BorrowedNodeConversations(
            fleet.sessions, clock, has_mesh=base.settings.mesh.encryption == MeshEncryption.WIREGUARD
        ),
    )
    base.loops.forever("peers", peers.run, critical=True)
    base.loops.forever("loans", contracts.run, critical=True)
    await base.loops.unless_failed(peers.ready())
    await base.loops.unless_failed(contracts.ready())
    loops.forever("deals", buyer.run)
    for named, run in (("overdue deals", buyer.lead), ("doors", borrower.run)):
        loops.forever(named, partial(fleet.leader.run_while_leading, named, run))
    return BuyerService(contracts, peers, lister, buyer, clients, key, clock, settings)
