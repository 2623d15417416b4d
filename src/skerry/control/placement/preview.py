"""Previews of placement: where new instances would be placed.

Tried on the scheduler itself, and undone at once. Part of `skerry.control.placement.planner`. Nothing is
awaited in between, so no other task sees it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from skerry.model.ids import InstanceId, NodeId
from skerry.model.workloads import Instance
from skerry.schedule.requests import PlacementPolicy, PlacementRequest
from skerry.schedule.results import Placement, PlacementFailure
from skerry.schedule.scheduler import Scheduler


class PreviewStep(NamedTuple):
    """An instance to place, and the one that it replaces: before it is placed, or after."""

    instance: Instance
    replaces: InstanceId | None = None
    is_stop_first: bool = False


def preview(
    scheduler: Scheduler, policy: PlacementPolicy, steps: Iterable[tuple[PlacementRequest, PreviewStep]]
) -> list[Placement | PlacementFailure]:
    """What each step would find, after those before it."""
    found: list[Placement | PlacementFailure] = []
    placed: list[InstanceId] = []
    removed: list[tuple[NodeId, PlacementRequest]] = []
    try:
        for request, step in steps:
            if step.is_stop_first:
                removed += _remove(scheduler, step.replaces)
            result = scheduler.place(request, policy)
            found.append(result)
            if isinstance(result, PlacementFailure):
                continue
            scheduler.bind(result.node, request.holding(result.devices))
            placed.append(request.instance)
            removed += _remove(scheduler, step.replaces)
    finally:
        for id in placed:
            scheduler.unbind(id)
        for node, before in removed:
            scheduler.bind(node, before)
    return found


def _remove(scheduler: Scheduler, id: InstanceId | None) -> Iterable[tuple[NodeId, PlacementRequest]]:
    if id is None:
        return
    node, request = scheduler.node_of(id), scheduler.request_of(id)
    if node is not None and request is not None:
        scheduler.unbind(id)
        yield node, request
