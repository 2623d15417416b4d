"""This cloud as a provider: what it has sold is lent, what it promised is kept, what is free is offered.

Called by `skerry.daemon.market` where there are a control plane and a market, which know nothing of each
other: here the ledger's contracts become cells among the instances, its promises room that the scheduler
keeps, and nodes flavors. Every server keeps the promises; the one that leads does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Final

import structlog

from skerry.control.census import Known, Mirror
from skerry.control.instances import Instances
from skerry.control.reconciling import Reconciler
from skerry.control.standings import Standing, Standings
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.market import lending, offers
from skerry.market.accounts import Account
from skerry.market.credentials import Credentials
from skerry.market.keys import SigningKey
from skerry.market.ledger import Ledger
from skerry.market.lending import Lender
from skerry.market.offers import Supply
from skerry.market.visits import Visits
from skerry.model import errors
from skerry.model.ids import CloudId, ContractId, FlavorId, InstanceId, NodeId
from skerry.model.market import Contract
from skerry.model.room import NOTHING, Room, total
from skerry.model.settings import MarketSettings
from skerry.model.statuses import FINAL, Desired
from skerry.model.workloads import Kind
from skerry.store.protocol import Store
from skerry.wire.rear.keeper import Ways
from skerry.wire.rear.porter import Porter

log = structlog.get_logger(__name__)

ACTOR: Final = "market"
# A cell that came to its end stays for so long, for people and buyers to see why, before it is made again.
_AGAIN_S: Final = 10.0
# Offers follow what moves at most this often, and are looked at again after this if they could not.
_PACE_S: Final = 0.2
_RETRY_S: Final = 2.0


class Cells:
    """The cells of contracts among the instances: `skerry.market.lending.Estate`."""

    def __init__(self, instances: Instances, mirror: Mirror, clock: Clock) -> None:
        self._instances = instances
        self._mirror = mirror
        self._clock = clock

    def lent(self) -> Mapping[ContractId, bool]:
        cells = [known.value for known in self._mirror.census.behind(None, lending.NAMESPACE)]
        found = [(lending.contract_of(cell.id), cell) for cell in cells if cell.spec.kind is Kind.CELL]
        return {
            id: cell.desired is Desired.RUNNING and cell.observed.status not in FINAL
            for id, cell in found
            if id is not None and cell.desired is not Desired.DESTROYED
        }

    async def lend(self, contract: Contract) -> None:
        id = lending.cell_of(contract.id)
        known = self._mirror.census.get(id)
        if known is None:
            await self._instances.create(
                lending.spec_of(contract), actor=ACTOR, namespace=lending.NAMESPACE, id=id
            )
            log.info("contract.lent", contract=contract.id, node=contract.flavor.worker)
            return
        cell = known.value
        if cell.desired is Desired.DESTROYED:
            return  # once it is gone it is made again
        if cell.observed.status not in FINAL:
            await self._instances.start(id, actor=ACTOR)
        elif self._clock.now() - cell.observed.since >= _AGAIN_S:
            await self._instances.destroy(id, actor=ACTOR)

    async def take_back(self, id: ContractId) -> None:
        with suppress(errors.NotFound):
            await self._instances.destroy(lending.cell_of(id), actor=ACTOR)

    def listen(self, changed: Callable[[], None]) -> Callable[[], None]:
        def heard(before: Known | None, after: Known | None) -> None:
            known = after or before
            if known is not None and known.value.namespace == lending.NAMESPACE:
                changed()

        return self._mirror.listen(heard)


class Promises:
    """What is held and sold of the nodes, kept by whoever places instances."""

    def __init__(self, ledger: Ledger, keep: Callable[[NodeId, Mapping[InstanceId, Room]], None]) -> None:
        self._ledger = ledger
        self._keep = keep

    def follow(self) -> Callable[[], None]:
        """Keep what there is now, and from now on every change in the step in which it happens; the result
        ends that."""
        self._moved([account.flavor.id for account in self._ledger.flavors_of_nodes()])
        return self._ledger.listen(self._moved)

    def _moved(self, flavors: Iterable[FlavorId]) -> None:
        for id in flavors:
            node = offers.node_of(id)
            if node is not None:
                self._keep(node, self._promised(id, node))

    def _promised(self, id: FlavorId, node: NodeId) -> Mapping[InstanceId, Room]:
        try:
            account = self._ledger.flavor(id)
        except errors.NotFound:
            return {}
        return promised(account, self._ledger.live_contracts(id)) if account.flavor.worker == node else {}


def promised(account: Account, contracts: Iterable[Contract]) -> Mapping[InstanceId, Room]:
    """Who is to have how much of an account's node: the cell of each contract, and for holds nobody yet."""
    parts = {lending.cell_of(contract.id): contract.taken for contract in contracts}
    if account.held != NOTHING:
        parts[InstanceId(f"{account.flavor.id}+held")] = account.held  # no instance can be called that
    return parts


class Offering:
    """`run` for ever: offers follow the nodes, on the server that leads."""

    def __init__(
        self,
        ledger: Ledger,
        mirror: Mirror,
        standings: Standings,
        settings: MarketSettings,
        *,
        provider: CloudId,
        is_leading: Callable[[], bool],
    ) -> None:
        self._ledger = ledger
        self._mirror = mirror
        self._standings = standings
        self._settings = settings
        self._provider = provider
        self._is_leading = is_leading
        self._supplies: dict[NodeId, Supply] = {}
        self._stale: dict[NodeId, None] = {}
        self._moved = asyncio.Event()

    async def run(self) -> None:
        stops = (
            self._mirror.listen(self._hear),
            self._standings.listen(self._see),
            self._ledger.listen(self._hear_of_flavors),
        )
        for standing in self._standings.standings():
            self._see(standing.view.id)
        try:
            while True:
                self._moved.clear()
                is_done = self._is_leading() and await self.follow()
                await asyncio.sleep(_PACE_S)
                try:
                    async with asyncio.timeout(None if is_done else _RETRY_S):
                        await self._moved.wait()
                except TimeoutError:
                    pass
        finally:
            for stop in stops:
                stop()

    async def follow(self) -> bool:
        """Bring the offers in line with the nodes; False if not all could be done."""
        for node in self._stale:
            standing = self._standings.standing(node)
            if standing is None or standing.view.is_borrowed:
                self._supplies.pop(node, None)
            else:
                sold = self._ledger.live_contracts(offers.flavor_of(node))
                self._supplies[node] = supply_of(standing, self._mirror.census.on_node(node), sold)
        self._stale.clear()
        return await offers.follow(
            self._ledger,
            offers.wanted(
                self._supplies.values(), self._settings, provider=self._provider, now=self._ledger.now()
            ),
        )

    def _see(self, node: NodeId) -> None:
        self._stale[node] = None
        self._moved.set()

    def _hear(self, before: Known | None, after: Known | None) -> None:
        for known in (before, after):
            if known is not None and known.value.node is not None:
                self._see(known.value.node)

    def _hear_of_flavors(self, flavors: Collection[FlavorId]) -> None:
        for flavor in flavors:
            node = offers.node_of(flavor)
            if node is not None:
                self._see(node)


def supply_of(standing: Standing, known: Iterable[Known], sold: Iterable[Contract]) -> Supply:
    """A node as the market sees it. Cells of its own flavor's live contracts are no use of it by others; one
    whose contract is over is, until it is gone."""
    own = {lending.cell_of(contract.id) for contract in sold}
    there = (one.value for one in known)
    used = total(
        (one.leaving or one.spec).room
        for one in there
        if one.observed.status not in FINAL and one.id not in own
    )
    view = standing.view
    return Supply(
        node=view.id,
        room=view.room,
        machine=standing.machine,
        used=used,
        takes_work=view.takes_work,
        architecture=view.architecture,
        labels=view.labels,
    )


def start(
    store: Store,
    ledger: Ledger,
    clock: Clock,
    settings: MarketSettings,
    *,
    key: SigningKey,
    mirror: Mirror,
    instances: Instances,
    standings: Standings,
    reconciler: Reconciler,
    ways: Ways,
    is_leading: Callable[[], bool],
    name: str,
    url: str,
    loops: Keeper,
) -> Porter:
    """Lend what is sold, keep what is promised and offer what is free, from now on; gives who lets buyers in.
    The mirrors and the ledger must be ready. `name` and `url` are those of this server. Raises `Invalid` if
    the settings name no price.
    """
    if settings.sell_percent:
        offers.price_of(settings)
    Promises(ledger, reconciler.keep).follow()
    lender = Lender(ledger, Cells(instances, mirror, clock), is_leading=is_leading)
    offering = Offering(ledger, mirror, standings, settings, provider=key.cloud, is_leading=is_leading)
    visits = Visits(store, ledger, silence_s=settings.buyer_silence_s, is_leading=is_leading)
    loops.forever("lending", lender.run)
    loops.forever("offering", offering.run)
    loops.forever("visits", visits.run)
    return Porter(ledger, Credentials(key), instances, ways, visits, provider=key.cloud, name=name, url=url)
