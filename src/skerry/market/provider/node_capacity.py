"""What nodes have for the market, and what is held and sold of them.

`ReservedCapacitySync` tells whoever places instances what is held and sold; `NodeCapacity` says whether the
nodes can take what is asked for. Every server does both. `ChangedNodes` is what both offers and it follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from skerry.control.instance_index import InstanceRecord, InstanceTable
from skerry.control.nodes.conditions import NodeCondition, NodeConditions
from skerry.market.provider import contract_cells, node_offers
from skerry.market.provider.ledger.change import UnplacedDemand
from skerry.market.provider.ledger.ledger import Ledger
from skerry.market.provider.ledger.records import OfferRecord
from skerry.market.provider.node_offers import NodeSupply
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId, OfferId
from skerry.model.market import Contract, Offer
from skerry.model.nodes import Liveness
from skerry.model.resources import NO_RESOURCES, Resources, total
from skerry.model.statuses import TERMINAL


class ReservedCapacitySync:
    """What is held and sold of the nodes, kept by whoever places instances."""

    def __init__(
        self, ledger: Ledger, keep: Callable[[NodeId, Mapping[InstanceId, Resources]], None]
    ) -> None:
        self._ledger = ledger
        self._keep = keep

    def follow(self) -> Callable[[], None]:
        """Keep what there is now, and from now on every change in the step in which it happens; the result
        ends that."""
        self._moved([account.flavor.id for account in self._ledger.flavors_of_nodes()])
        return self._ledger.listen(self._moved)

    def _moved(self, flavors: Iterable[OfferId]) -> None:
        for id in flavors:
            node = node_offers.node_id_for(id)
            if node is not None:
                self._keep(node, self._reserved(id, node))

    def _reserved(self, id: OfferId, node: NodeId) -> Mapping[InstanceId, Resources]:
        try:
            account = self._ledger.flavor(id)
        except errors.NotFound:
            return {}
        return (
            reserved_resources(account, self._ledger.live_contracts(id))
            if account.flavor.worker == node
            else {}
        )


def reserved_resources(account: OfferRecord, contracts: Iterable[Contract]) -> Mapping[InstanceId, Resources]:
    """Who is to have how much of an account's node: the cell of each contract, and for holds nobody yet."""
    parts = {contract_cells.cell_id_for(contract.id): contract.taken for contract in contracts}
    if account.held != NO_RESOURCES:
        parts[InstanceId(f"{account.flavor.id}+held")] = account.held  # no instance can be called that
    return parts


def supply_of(
    condition: NodeCondition, known: Iterable[InstanceRecord], sold: Iterable[Contract]
) -> NodeSupply:
    """A node as the market sees it. Cells of its own flavor's live contracts are no use of it by others; one
    whose contract is over is, until it is gone."""
    own = {contract_cells.cell_id_for(contract.id) for contract in sold}
    there = (one.value for one in known)
    used = total(
        one.reserved_spec.resources
        for one in there
        if one.observed.status not in TERMINAL and one.id not in own
    )
    view = condition.view
    return NodeSupply(
        node=view.id,
        resources=view.resources,
        machine=condition.machine,
        used=used,
        is_schedulable=view.is_schedulable,
        is_silent=condition.liveness is not Liveness.LIVE,
        architecture=view.architecture,
        labels=view.labels,
    )


def node_resources(conditions: NodeConditions) -> list[Resources]:
    """What each node that a cell for somebody else can be on may give away."""
    return [
        one.view.resources
        for one in conditions.conditions()
        if one.view.is_schedulable and not one.view.is_borrowed
    ]


class ChangedNodes:
    """Nodes that may stand differently for the market than when they were last taken from here."""

    def __init__(self, ledger: Ledger, instance_table: InstanceTable, conditions: NodeConditions) -> None:
        self.moved = asyncio.Event()
        self._nodes = {condition.view.id: None for condition in conditions.conditions()}
        self._stops = (
            instance_table.listen(self._instance_changed),
            conditions.listen(self._node_changed),
            ledger.listen(self._offers_changed),
        )

    def take(self) -> Iterable[NodeId]:
        """Those that changed since the last call."""
        nodes, self._nodes = self._nodes, {}
        return nodes

    def close(self) -> None:
        for stop in self._stops:
            stop()

    def _node_changed(self, node: NodeId) -> None:
        self._nodes[node] = None
        self.moved.set()

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        for known in (before, after):
            if known is not None and known.value.node is not None:
                self._node_changed(known.value.node)

    def _offers_changed(self, flavors: Collection[OfferId]) -> None:
        for flavor in flavors:
            node = node_offers.node_id_for(flavor)
            if node is not None:
                self._node_changed(node)


class NodeCapacity:
    """Whether the nodes can take what is asked for, on every server."""

    def __init__(self, ledger: Ledger, instance_table: InstanceTable, conditions: NodeConditions) -> None:
        self._ledger = ledger
        self._instance_table = instance_table
        self._conditions = conditions
        self._changed = ChangedNodes(ledger, instance_table, conditions)
        self._supplies: dict[NodeId, NodeSupply] = {}  # of own nodes that can be ordered to run something

    def follow(self) -> None:
        """Have the ledger ask this from now on, and know which contracts are on a node."""
        for cell in self._instance_table.index.after(None, contract_cells.NAMESPACE):
            self._instance_changed(None, cell)
        self._instance_table.listen(self._instance_changed)
        self._ledger.follow_nodes(self.check)

    def check(self, flavor: Offer, resources: Resources, unplaced: Callable[[], UnplacedDemand]) -> None:
        """As `node_offers.check_placement` says, besides what is held and sold already, on a node or not yet.
        A node of whose own offer something is asked has that free, if it takes work."""
        self._look_at_changed()
        own = self._supplies.get(NodeId(flavor.worker))
        if own is None or not own.is_schedulable:
            node_offers.check_placement(list(self._supplies.values()), resources, unplaced())

    def _look_at_changed(self) -> None:
        for node in self._changed.take():
            condition = self._conditions.condition(node)
            if condition is None or condition.view.is_borrowed or condition.is_foreign:
                self._supplies.pop(node, None)
            else:
                self._supplies[node] = self._supply(condition)

    def _supply(self, condition: NodeCondition) -> NodeSupply:
        """A node, with what is held and sold of its own offer and not there yet."""
        node = condition.view.id
        known = self._instance_table.index.on_node(node)
        supply = supply_of(condition, known, ())
        try:
            account = self._ledger.flavor(node_offers.offer_id_for(node))
        except errors.NotFound:
            return supply
        there = {one.value.id for one in known if one.value.observed.status not in TERMINAL}
        parts = reserved_resources(account, self._ledger.live_contracts(account.flavor.id))
        coming = total(resources for id, resources in parts.items() if id not in there)
        return replace(supply, used=supply.used + coming)

    def _instance_changed(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        known = after or before
        if known is None or known.value.namespace != contract_cells.NAMESPACE:
            return
        id = contract_cells.contract_id_for(known.value.id)
        if id is not None:
            cell = None if after is None else after.value
            is_placed = cell is not None and cell.node is not None and cell.observed.status not in TERMINAL
            self._ledger.set_placed(id, is_placed=is_placed)
