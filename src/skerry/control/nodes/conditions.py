"""How nodes stand, as those who place instances must know it: what a node offers, and whether it is heard.

`skerry.control.nodes.registry` knows nodes and tells of every change; `skerry.control.placement.planner`
decides by what it is told here. This module is only the words between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

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
    is_foreign: bool = False  # it takes no orders, whether or not it is heard


class NodeConditions(Protocol):
    """All registered nodes, from memory."""

    async def ready(self) -> None:
        """Wait until all registered nodes are known, and when each was last heard of."""
        ...

    def condition(self, node: NodeId) -> NodeCondition | None:
        """How the node stands now; None if it is not registered."""
        ...

    def conditions(self) -> Iterable[NodeCondition]:
        """Every registered node."""
        ...

    def listen(self, changed: Callable[[NodeId], None]) -> Callable[[], None]:
        """Call `changed` whenever a node stands differently, also by silence; the result ends that."""
        ...
