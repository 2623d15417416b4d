"""The market of this cloud: its key, the ledger of what it offers and has sold, what it lends and borrows.

Called by `skerry.daemon.roles` for `up` and `server`. Every server of a cloud sells from the one ledger in
the store, and buys; the one that leads minds deadlines. Lending is `skerry.daemon.lending`, borrowing
`skerry.daemon.borrowing`.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from skerry.control.events import EventLog
from skerry.daemon import borrowing, lending
from skerry.daemon.cluster import Cluster
from skerry.kit import ids
from skerry.kit.clock import Clock
from skerry.kit.pki import Authority
from skerry.kit.tasks import Keeper
from skerry.market import provider
from skerry.market.ledger import Ledger
from skerry.market.proofs import Proofs
from skerry.market.signing import Notary
from skerry.model.settings import MarketSettings
from skerry.store.protocol import Store
from skerry.wire.market.context import MarketDesk
from skerry.wire.rear.context import Rear


@dataclass(frozen=True, slots=True)
class Market:
    """The parts that are served: to other clouds, and to the people of this one."""

    rear: Rear
    desk: MarketDesk


async def start(
    store: Store,
    events: EventLog,
    clock: Clock,
    settings: MarketSettings,
    folder: Path,
    authority: Authority,
    fleet: Cluster,
    *,
    domain: str,
    url: str,
    loops: Keeper,
    undo: AsyncExitStack,
) -> Market:
    """Sell, lend, buy and borrow from now on. `folder` is that of the keys; `domain` and `url` are where this
    cloud says that it is. Raises if the key is damaged, or the store another cloud's."""
    key = await asyncio.to_thread(provider.load_or_create, folder, authority.derive)
    await provider.claim(store, key)

    def is_leading() -> bool:
        return fleet.leader.is_leading

    def new_id() -> str:
        return ids.new_id(clock.now())

    ledger = Ledger(
        store,
        clock,
        settings,
        events,
        provider=key.cloud,
        make_contract=Notary(key).sign,
        owns_deadlines=is_leading,
    )
    loops.forever("ledger", ledger.run, critical=True)
    await loops.unless_failed(ledger.ready())
    porter = lending.start(
        store,
        ledger,
        clock,
        settings,
        key=key,
        mirror=fleet.mirror,
        instances=fleet.instances,
        standings=fleet.nodes,
        reconciler=fleet.reconciler,
        ways=fleet.ways,
        is_leading=is_leading,
        name=domain,
        url=url,
        loops=loops,
    )
    rear = Rear.of(
        ledger,
        Proofs(store, clock, key.cloud),
        provider=key.cloud,
        new_id=new_id,
        domain=domain,
        address=urlsplit(url).netloc,
        porter=porter,
    )
    loops.forever("offers", rear.shelf.run)
    trader = await borrowing.start(
        store,
        events,
        clock,
        settings,
        key=key,
        ledger=ledger,
        nodes=fleet.nodes,
        sessions=fleet.sessions,
        is_leading=is_leading,
        loops=loops,
        undo=undo,
    )
    return Market(rear, MarketDesk(ledger, trader, key.cloud, new_id))
