"""This cloud as a provider: what it has sold is lent, what it promised is kept, what is free is offered.

Called by `skerry.daemon.market`. The parts are those of `skerry.market.provider`: every server keeps what is
promised; the one that leads does the rest.
"""

from __future__ import annotations

from functools import partial

from skerry.control.instance_index import InstanceTable
from skerry.control.instances.registry import InstanceRegistry
from skerry.control.leadership.election import LeaderElection
from skerry.control.nodes.conditions import NodeConditions
from skerry.control.placement.reconciler import Reconciler
from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.market.provider import node_offers
from skerry.market.provider.contract_cell_controller import ContractCellController, ContractCells
from skerry.market.provider.heartbeats import BuyerHeartbeats
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.node_capacity import NodeCapacity, ReservedCapacitySync
from skerry.market.provider.offer_controller import OfferController
from skerry.market.terms.contract_credentials import ContractCredentials
from skerry.market.terms.keys import SigningKey
from skerry.model.market_settings import MarketSettings
from skerry.store.protocol import Store
from skerry.transport.links.nodes.tunnel_router import TunnelDialer
from skerry.wire.rear.tunnel_server import ContractTunnelServer


def start(
    store: Store,
    ledger: Ledger,
    clock: Clock,
    settings: MarketSettings,
    *,
    key: SigningKey,
    instance_table: InstanceTable,
    instances: InstanceRegistry,
    standings: NodeConditions,
    reconciler: Reconciler,
    ways: TunnelDialer,
    leader: LeaderElection,
    name: str,
    url: str,
    loops: TaskSupervisor,
) -> ContractTunnelServer:
    """Lend what is sold, keep what is promised and offer what is free, from now on; gives who lets buyers in.
    The mirrors and the ledger must be ready. `name` and `url` are those of this server. Raises `Invalid` if
    the settings name no price.
    """
    if settings.sell_percent:
        node_offers.price_of(settings)
    ReservedCapacitySync(ledger, reconciler.keep).follow()
    NodeCapacity(ledger, instance_table, standings).follow()
    lender = ContractCellController(ledger, ContractCells(instances, instance_table, clock))
    offering = OfferController(ledger, instance_table, standings, settings, provider=key.cloud)
    visits = BuyerHeartbeats(store, ledger, settings)
    for named, run in (("lending", lender.run), ("offering", offering.run), ("visits", visits.run)):
        loops.forever(named, partial(leader.run_while_leading, named, run))
    return ContractTunnelServer(
        ledger, ContractCredentials(key), instances, ways, visits, provider=key.cloud, name=name, url=url
    )
