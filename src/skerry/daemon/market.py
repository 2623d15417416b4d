"""The market of this cloud: its key, the ledger of what it offers and has sold, what it lends and borrows.

Called by `skerry.daemon.server_role`. Every server of a cloud sells from the one ledger in the store, and
buys; the one that leads minds deadlines. Lending is `skerry.daemon.market_provider`, borrowing
`skerry.daemon.market_buyer`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from skerry.control.events.log import EventLog
from skerry.daemon import listeners, market_buyer, market_provider
from skerry.daemon.control_plane import ControlPlaneParts
from skerry.daemon.http import build_plain_app
from skerry.kit import ulid
from skerry.kit.clock import Clock
from skerry.kit.pki import CertificateAuthority
from skerry.kit.tasks import TaskSupervisor
from skerry.market import plain
from skerry.market.provider import cloud_key, node_capacity, node_offers
from skerry.market.provider.allowlist import BuyerAllowlist
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.terms.request_proofs import ProofVerifier
from skerry.market.terms.signatures import ContractSigner
from skerry.model.market import Offer
from skerry.model.market_settings import MarketSettings
from skerry.model.settings import Settings
from skerry.store.protocol import Store
from skerry.transport.http.server import HttpServer
from skerry.wire.own.market.context import MarketContext
from skerry.wire.rear.context import RearContext

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MarketParts:
    """The parts that are served: to other clouds, and to the people of this one."""

    rear: RearContext
    desk: MarketContext


async def start(
    store: Store,
    events: EventLog,
    clock: Clock,
    settings: MarketSettings,
    folder: Path,
    authority: CertificateAuthority,
    fleet: ControlPlaneParts,
    *,
    domain: str,
    url: str,
    loops: TaskSupervisor,
    undo: AsyncExitStack,
) -> MarketParts:
    """Sell, lend, buy and borrow from now on. `folder` is that of the keys; `domain` and `url` are where this
    cloud says that it is. Raises if the key is damaged, or the store another cloud's."""
    key = await asyncio.to_thread(cloud_key.load_or_create, folder, authority.derive)
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
        provider=key.cloud,
        make_contract=ContractSigner(key).sign,
        has_leader=True,
        is_known=allowlist.is_known,
    )
    loops.forever("ledger", ledger.run, critical=True)
    loops.forever("deadlines", lambda: fleet.leader.run_while_leading("deadlines", ledger.lead))
    await loops.unless_failed(ledger.ready())
    porter = market_provider.start(
        store,
        ledger,
        clock,
        settings,
        key=key,
        instance_table=fleet.instance_table,
        instances=fleet.instances,
        standings=fleet.nodes,
        reconciler=fleet.reconciler,
        ways=fleet.ways,
        leader=fleet.leader,
        name=domain,
        url=url,
        loops=loops,
    )
    rear = RearContext.of(
        ledger,
        ProofVerifier(store, clock, key.cloud),
        provider=key.cloud,
        new_id=new_id,
        domain=domain,
        address=urlsplit(url).netloc,
        porter=porter,
    )
    loops.forever("offers", rear.shelf.run)
    trader = await market_buyer.start(
        store,
        events,
        clock,
        settings,
        key=key,
        ledger=ledger,
        nodes=fleet.nodes,
        sessions=fleet.sessions,
        leader=fleet.leader,
        loops=loops,
        undo=undo,
    )

    def shortage(flavor: Offer) -> str:
        return node_offers.shortage(ledger.flavors(), flavor, node_capacity.node_resources(fleet.nodes))

    return MarketParts(rear, MarketContext(ledger, trader, allowlist, key.cloud, new_id, shortage))


class PlainListener:
    """The listener for buyers without credentials, on a socket that is bound already."""

    def __init__(
        self,
        sock: socket.socket,
        settings: Settings,
        clock: Clock,
        rear: RearContext,
        *,
        own_names: Callable[[], frozenset[str]],
    ) -> None:
        self._sock = sock
        self._networks = plain.networks_of(settings.market)
        app = build_plain_app(settings, clock, rear, self._networks, own_names=own_names)
        self._server = HttpServer(app, settings.http, trusted_uids=frozenset())
        self.stop = self._server.stop
        self.failed = self._server.failed

    async def start(self) -> None:
        await self._server.start(self._sock, None, listener="http-plain", networks=self._networks)
        log.warning("market.plain", addresses=[str(network) for network in self._networks])


def bind_plain(settings: MarketSettings, undo: AsyncExitStack) -> socket.socket | None:
    """The socket for buyers without credentials; None if there is to be none, `Invalid` if nobody is named
    who may call there."""
    if not settings.plain_listen:
        return None
    plain.networks_of(settings)
    return undo.enter_context(listeners.bind(settings.plain_listen, "market.plain_listen"))
