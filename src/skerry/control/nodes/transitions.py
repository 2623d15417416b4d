"""Transitions and conditions of a node: pure, of its record and its liveness.

A transition is a node to write, and its event. `skerry.control.nodes.registry` writes transitions;
`skerry.control.nodes.index` provides conditions.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition
from skerry.model.enforcement import AS_ROOT, ISOLATION_LABEL
from skerry.model.members import ContinuumMember
from skerry.model.nodes import Liveness, Node, NodeFacts
from skerry.model.resources import Gigabytes, Megabytes, Millicores, Resources
from skerry.model.statuses import NodeStatus
from skerry.schedule.requests import NodeView

OVER = frozenset({NodeStatus.LOST, NodeStatus.LEFT})


class NodeTransition(msgspec.Struct, frozen=True):
    """A node to write, and its event."""

    node: Node
    kind: str
    reason: str = ""


def reregister(
    node: Node, *, name: str, facts: NodeFacts, resources: Resources, member: ContinuumMember | None = None
) -> NodeTransition | None:
    """A known node registers again; None if nothing changed.

    The subnet and the labels stay.
    """
    after = replace(node, name=name, facts=facts, resources=resources, member=member)
    is_back = node.status in OVER
    if is_back:
        after = replace(after, status=NodeStatus.REGISTERING) if node.is_foreign else _ready(after)
    if after == node:
        return None
    return NodeTransition(after, "node.returned" if is_back else "node.changed")


def update_liveness(
    node: Node, liveness: Liveness, *, has_instances: bool, now: float, lost_after_s: float
) -> NodeTransition | None:
    """The transition by a missing heartbeat, a new one, or the end of a drain; None: nothing."""
    if liveness is Liveness.LOST and node.status not in OVER:
        reason = f"no heartbeat for {lost_after_s:g} s"
        return NodeTransition(replace(node, status=NodeStatus.LOST, reason=reason), "node.lost", reason)
    if liveness is Liveness.LIVE and node.status is NodeStatus.LOST and not node.is_foreign:
        return NodeTransition(_ready(node), "node.returned")
    if node.status is NodeStatus.DRAINING and node.drain_by is not None:
        reason = "its time is up" if now >= node.drain_by else "" if has_instances else "it is empty"
        if reason:
            return NodeTransition(
                replace(node, status=NodeStatus.DRAINED, reason=reason), "node.drained", reason
            )
    return None


def uncordon(node: Node) -> NodeTransition | None:
    """It takes instances again, whether it was cordoned or drained."""
    was_drained = node.status in (NodeStatus.DRAINING, NodeStatus.DRAINED)
    if not (node.is_cordoned or node.drain_by is not None or was_drained):
        return None
    status = NodeStatus.READY if was_drained else node.status
    after = replace(node, is_cordoned=False, drain_by=None, status=status, reason="")
    return NodeTransition(after, "node.uncordoned")


def condition_of(node: Node, liveness: Liveness, *, reserve_percent: int) -> NodeCondition:
    """The condition of the node, for placement."""
    unschedulable_reason, enforcement = _unschedulable_reason(node, liveness), node.facts.enforcement
    view = NodeView(
        id=node.id,
        # What is kept back is for the machine itself, which is not ours if it is borrowed.
        resources=node.resources if node.is_borrowed else _without_reserve(node.resources, reserve_percent),
        architecture=node.facts.architecture,
        labels={ISOLATION_LABEL: str((enforcement or AS_ROOT).isolation), **node.labels},
        is_schedulable=not unschedulable_reason,
        unschedulable_reason=unschedulable_reason,
        is_borrowed=node.is_borrowed,
        runs_checks=node.facts.runs_checks,
        name=node.name,
        features=node.facts.features,
        devices=node.facts.devices,
        weaker=enforcement if enforcement is not None and enforcement.is_weaker else None,
    )
    return NodeCondition(view, liveness, node.drain_by, node.resources, node.is_foreign)


def _ready(node: Node) -> Node:
    status = NodeStatus.READY if node.drain_by is None else NodeStatus.DRAINING
    return replace(node, status=status, reason="")


def _without_reserve(resources: Resources, reserve_percent: int) -> Resources:
    share = 100 - reserve_percent
    return Resources(
        Millicores(resources.cpu * share // 100),
        Megabytes(resources.memory * share // 100),
        Gigabytes(resources.disk * share // 100),
    )


def _unschedulable_reason(node: Node, liveness: Liveness) -> str:
    """Why it gets no new instances, as a text after its name; empty if it does."""
    if node.is_foreign:
        return "takes no orders"
    if liveness is Liveness.LOST or node.status is NodeStatus.LOST:
        return "is lost"
    if liveness is Liveness.SUSPECT:
        return "is silent"
    if node.drain_by is not None:
        return "is drained" if node.status is NodeStatus.DRAINED else "is draining"
    if node.is_cordoned:
        return "is cordoned"
    if node.facts.disk_pressure:
        return "has DiskPressure"
    return "" if node.is_schedulable else f"is {node.status}"
