"""Offers that follow the nodes, on the server that leads.

What is to be offered is `skerry.market.provider.node_offers`; here it is carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Final

import structlog

from skerry.control.instance_index import InstanceTable
from skerry.control.nodes.conditions import NodeCondition, NodeConditions
from skerry.market.provider import node_offers
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.node_capacity import ChangedNodes, can_have_cells, supply_of
from skerry.market.provider.node_offers import DesiredOffer, NodeSupply
from skerry.model import errors
from skerry.model.ids import CloudId, NodeId
from skerry.model.market_settings import MarketSettings
from skerry.store.protocol import Expect

log = structlog.get_logger(__name__)

ACTOR: Final = "skerry"
# Offers follow changes at most this often, and are tried again after this if they could not.
_PACE_S: Final = 0.2
_RETRY_S: Final = 2.0


class OfferController:
    """Offers follow the nodes: `run` while this server leads."""

    def __init__(
        self,
        ledger: Ledger,
        instance_table: InstanceTable,
        conditions: NodeConditions,
        settings: MarketSettings,
        *,
        provider: CloudId,
    ) -> None:
        self._ledger = ledger
        self._instance_table = instance_table
        self._conditions = conditions
        self._settings = settings
        self._provider = provider
        self._supplies: dict[NodeId, NodeSupply] = {}
        self._unsold: set[NodeId] = set()  # nodes without root, of which that was logged

    async def run(self, fence: Expect) -> None:
        changed = ChangedNodes(self._ledger, self._instance_table, self._conditions)
        try:
            while True:
                changed.moved.clear()
                is_done = await self.follow(changed, fence)
                await asyncio.sleep(_PACE_S)
                try:
                    async with asyncio.timeout(None if is_done else _RETRY_S):
                        await changed.moved.wait()
                except TimeoutError:
                    pass
        finally:
            changed.close()

    async def follow(self, changed: ChangedNodes, fence: Expect | None = None) -> bool:
        """Bring the offers in line with the nodes; False if not all could be done."""
        for node in changed.take():
            condition = self._conditions.condition(node)
            if condition is None or not can_have_cells(condition):
                self._supplies.pop(node, None)
                self._log_unsold(node, condition)
            else:
                sold = self._ledger.live_contracts(node_offers.offer_id_for(node))
                self._supplies[node] = supply_of(condition, self._instance_table.index.on_node(node), sold)
        return await apply_plan(
            self._ledger,
            node_offers.desired_offers(
                self._supplies.values(), self._settings, provider=self._provider, now=self._ledger.now()
            ),
            fence,
        )

    def _log_unsold(self, node: NodeId, condition: NodeCondition | None) -> None:
        """Say once why a node is not for sale though the settings sell nodes."""
        if condition is None:
            self._unsold.discard(node)
        elif self._settings.sell_percent and not condition.view.accepts_guests and node not in self._unsold:
            self._unsold.add(node)
            log.warning("offer.not_made", node=node, reason="it runs without root: nothing of it is sold")


async def apply_plan(ledger: Ledger, offers: Iterable[DesiredOffer], fence: Expect | None = None) -> bool:
    """Carry the plan out; True if all of it was done. What was not is tried with the next."""
    todo = node_offers.plan(ledger.flavors_of_nodes(), offers)
    steps = [
        ledger.publish(one.flavor, actor=ACTOR, capacity=one.capacity, fence=fence) for one in todo.publish
    ]
    steps += [
        ledger.update(
            one.flavor.id,
            partial(node_offers.with_terms, one.flavor),
            actor=ACTOR,
            capacity=one.capacity,
            fence=fence,
        )
        for one in todo.update
    ]
    steps += [
        ledger.withdraw(id, actor=ACTOR, reason="its node is no longer for sale", reclaim=True, fence=fence)
        for id in todo.withdraw
    ]
    is_done = True
    for failure in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(failure, errors.SkerryError):
            log.warning("offer.not_followed", error=failure.message, detail=failure.detail)
            is_done = False
        elif isinstance(failure, BaseException):
            raise failure
    return is_done
