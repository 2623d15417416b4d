"""The market of this cloud: its key, the ledger of what it offers and has sold, and who may ask for it.

Called by `skerry.daemon.roles` for `up` and `server`. Every server of a cloud sells from the one ledger in
the store; the one that leads minds its deadlines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skerry.control.events import EventLog
from skerry.kit import ids
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.market import provider
from skerry.market.keys import SigningKey
from skerry.market.ledger import Ledger
from skerry.market.proofs import Proofs
from skerry.market.signing import Notary
from skerry.model.settings import MarketSettings
from skerry.store.protocol import Store
from skerry.wire.rear.context import Rear


@dataclass(frozen=True, slots=True)
class Market:
    """The parts that others work with."""

    key: SigningKey
    ledger: Ledger
    rear: Rear


async def start(
    store: Store,
    events: EventLog,
    clock: Clock,
    settings: MarketSettings,
    folder: Path,
    *,
    is_leading: Callable[[], bool],
    domain: str,
    address: str,
    loops: Keeper,
) -> Market:
    """Open the ledger and keep it going. `folder` is that of the keys; `domain` and `address` are where this
    cloud says that it is. Raises if the key is damaged, or the store another cloud's."""
    key = await asyncio.to_thread(provider.load_or_create, folder)
    await provider.claim(store, key)
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
    await ledger.ready()
    rear = Rear.of(
        ledger,
        Proofs(store, clock, key.cloud),
        clock,
        provider=key.cloud,
        new_id=lambda: ids.new_id(clock.now()),
        domain=domain,
        address=address,
    )
    loops.forever("offers", rear.shelf.run)
    return Market(key, ledger, rear)
