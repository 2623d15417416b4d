"""Nodes and asks for tests, with the numbers that a test is about and none else."""

from __future__ import annotations

from skerry.model import ports
from skerry.model.ids import InstanceId, NodeId
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.schedule.requests import ADDRESSES_PER_NODE, NodeView, PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement
from skerry.schedule.scheduler import Scheduler


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


def node(
    name: str,
    cpu: int = 4000,
    memory: int = 4096,
    disk: int = 100,
    *,
    architecture: str = "amd64",
    unschedulable_reason: str = "",
    addresses: int = ADDRESSES_PER_NODE,
    **labels: str,
) -> NodeView:
    """A node that takes work unless `unschedulable_reason` says otherwise."""
    offered = resources(cpu, memory, disk)
    return NodeView(
        NodeId(name), offered, architecture, labels, not unschedulable_reason, unschedulable_reason, addresses
    )


def request(
    name: str,
    cpu: int = 0,
    memory: int = 0,
    disk: int = 0,
    *constraints: str,
    published: str = "",
    architecture: str = "",
    group: str | None = None,
    spread: tuple[str, ...] = (),
    max_per_node: int = 0,
) -> PlacementRequest:
    """An ask that publishes the ports in `published`, separated by blanks."""
    mappings = tuple(ports.parse(text) for text in published.split())
    return PlacementRequest(
        InstanceId(name),
        resources(cpu, memory, disk),
        mappings,
        architecture,
        constraints,
        group=group,
        spread=spread,
        max_per_node=max_per_node,
    )


def fleet_of(*nodes: NodeView, searched_by_columns: bool = False) -> Scheduler:
    fleet = (
        Scheduler(columnar_from=1, linear_below=0)
        if searched_by_columns
        else Scheduler(columnar_from=1_000_000)
    )
    for view in nodes:
        fleet.set_node(view)
    return fleet


def put(fleet: Scheduler, wanted: PlacementRequest, policy: PlacementPolicy = PlacementPolicy.BINPACK) -> str:
    """Place and bind; the node it went to."""
    placement = fleet.place(wanted, policy)
    assert isinstance(placement, Placement), placement
    fleet.bind(placement.node, wanted)
    return placement.node
