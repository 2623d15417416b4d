"""Conditions of nodes, for placement: the resources of a node, and whether it is live.

`skerry.control.nodes.registry` provides them and notifies of changes; `skerry.control.placement.planner`
decides by them. Here are only the types between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from skerry.model.container_options import NodeFeature
from skerry.model.ids import NodeId
from skerry.model.nodes import Liveness
from skerry.model.resources import NO_RESOURCES, Resources
from skerry.schedule.requests import NodeView


class NodeCondition(msgspec.Struct, frozen=True):
    """A registered node at one moment. `view.is_schedulable` is False for whatever reason
    `view.unschedulable_reason` says."""

    view: NodeView
    liveness: Liveness = Liveness.LIVE
    drain_by: float | None = None
    machine: Resources = NO_RESOURCES  # all that it has, with what is kept in reserve
    is_foreign: bool = False  # it takes no orders, whether or not it is live
    silent_s: float | None = None  # for how long there have been no heartbeats; None: it is live
    is_awaited: bool = (
        False  # suspect only because its last heartbeat is not known: this server has just started
    )

    @property
    def has_network(self) -> bool:
        """True if its containers are part of this cloud's network."""
        if self.view.is_borrowed:
            return NodeFeature.NETWORK in self.view.features
        return not self.is_foreign


class NodeConditions(Protocol):
    """All registered nodes, from memory."""

    async def ready(self) -> None:
        """Wait until all registered nodes and their heartbeats are known."""
        ...

    def condition(self, node: NodeId) -> NodeCondition | None:
        """The condition of the node now; None if it is not registered."""
        ...

    def conditions(self) -> Iterable[NodeCondition]:
        """Every registered node."""
        ...

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        """Call `changed` whenever the condition of a node changes, also by a missing heartbeat; the result
        ends that."""
        ...
