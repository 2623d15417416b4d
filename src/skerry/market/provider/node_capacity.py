"""Capacity of nodes for the market, and what is held and sold of them.

`ReservedCapacitySync` reserves what is held and sold in the placement planner; `NodeCapacity` checks whether
the nodes can take a request. Every server does both. Both follow `ChangedNodes`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
from skerry.model.devices import is_of_kind, kind_of
from skerry.model.ids import InstanceId, NodeId, OfferId
from skerry.model.market import Contract, Offer
from skerry.model.nodes import Liveness
from skerry.model.resources import NO_RESOURCES, Resources, total
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance


class ReservedCapacitySync:
    """Reserves what is held and sold of nodes in the placement planner."""

    def __init__(
        self, ledger: Ledger, keep: Callable[[NodeId, Mapping[InstanceId, Resources]], None]
    ) -> None:
        self._ledger = ledger
        self._reserve = keep

    def follow(self) -> Callable[[], None]:
        """Reserve the present holds and contracts, and from now on apply every change at once; the result
        ends that."""
        self._moved([account.flavor.id for account in self._ledger.flavors_of_nodes()])
        return self._ledger.listen(self._moved)

    def _moved(self, flavors: Iterable[OfferId]) -> None:
        for id in flavors:
            node = node_offers.node_id_for(id)
            if node is not None:
                self._reserve(node, self._reserved(id, node))

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
    """The reservations on an account's node: for the cell of each contract, and for holds."""
    parts = {contract_cells.cell_id_for(contract.id): contract.taken for contract in contracts}
    if account.held != NO_RESOURCES:
        parts[InstanceId(f"{account.flavor.id}+held")] = account.held  # no instance can be called that
    return parts


def supply_of(
    condition: NodeCondition, known: Iterable[InstanceRecord], sold: Iterable[Contract]
) -> NodeSupply:
    """A node for the market. Cells of its own flavor's live contracts do not count as other use; one whose
    contract has ended does, until it is removed."""
    own = {contract_cells.cell_id_for(contract.id) for contract in sold}
    there = [one.value for one in known if one.value.observed.status not in TERMINAL]
    used = total(one.reserved_spec.resources for one in there if one.id not in own)
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
        gpus=free_gpus(view.devices, there),
    )


def free_gpus(devices: Iterable[str], instances: Iterable[Instance] = ()) -> int:
    """The most GPUs of one kind, among the devices of a node, that none of its instances has."""
    taken = {device for one in instances for device in one.reserved_devices}
    kinds = Counter(
        kind_of(device)
        for device in devices
        if device not in taken and is_of_kind(device, contract_cells.GPU)
    )
    return max(kinds.values(), default=0)


def node_gpus(conditions: NodeConditions) -> list[int]:
    """The GPUs of one kind of each node that can have contract cells, whoever has them now."""
    return [
        free_gpus(one.view.devices)
        for one in conditions.conditions()
        if one.view.is_schedulable and can_have_cells(one)
    ]


def node_resources(conditions: NodeConditions) -> list[Resources]:
    """The allocatable resources of each node that can have contract cells."""
    return [
        one.view.resources
        for one in conditions.conditions()
        if one.view.is_schedulable and can_have_cells(one)
    ]


def can_have_cells(condition: NodeCondition) -> bool:
    """True for a node of this cloud that may run what others have written."""
    return not condition.view.is_borrowed and condition.view.accepts_guests


def sale_refusal(conditions: NodeConditions) -> str:
    """Why this cloud can sell nothing, whatever is free; empty if it can, or has no node yet."""
    own = [one for one in conditions.conditions() if not one.view.is_borrowed and not one.is_foreign]
    if not own or any(one.view.accepts_guests for one in own):
        return ""
    return (
        "nothing can be sold: all nodes of this cloud run without root, where contracts of other clouds "
        "would have the same users as everything else; add a node that runs as root (skerry token create "
        "--role node)"
    )


class ChangedNodes:
    """Nodes that may have changed for the market since they were last taken from here."""

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
    """Checks whether the nodes can take a request, on every server."""

    def __init__(self, ledger: Ledger, instance_table: InstanceTable, conditions: NodeConditions) -> None:
        self._ledger = ledger
        self._instance_table = instance_table
        self._conditions = conditions
        self._changed = ChangedNodes(ledger, instance_table, conditions)
        self._supplies: dict[NodeId, NodeSupply] = {}  # of own nodes that can be ordered to run something

    def follow(self) -> None:
        """Set this as the ledger's check, and track which contracts are on a node."""
        for cell in self._instance_table.index.after(None, contract_cells.NAMESPACE):
            self._instance_changed(None, cell)
        self._instance_table.listen(self._instance_changed)
        self._ledger.follow_nodes(self.check)

    def check(self, flavor: Offer, resources: Resources, unplaced: Callable[[], UnplacedDemand]) -> None:
        """As `node_offers.check_placement` says, besides what is held and sold already, on a node or not yet.
        A node whose own offer is requested has that free, if it is schedulable."""
        self._update_changed()
        own = self._supplies.get(NodeId(flavor.worker))
        if own is None or not own.is_schedulable:
            supplies, gpus = list(self._supplies.values()), flavor.gpus_in(resources)
            node_offers.check_placement(supplies, resources, unplaced(), gpus)

    def _update_changed(self) -> None:
        for node in self._changed.take():
            condition = self._conditions.condition(node)
            if condition is None or condition.is_foreign or not can_have_cells(condition):
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
