"""What a request would make of a service, and where its new copies would be placed: nothing is written.

Used by `skerry.control.services.registry`. Copies are placed one after the other, as an update replaces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from skerry.control.placement.preview import PreviewStep
from skerry.control.services.copies import owner_of
from skerry.control.services.decisions import NewCopy
from skerry.control.services.plan_writer import new_instance
from skerry.model.ids import InstanceId, NodeId
from skerry.model.services import Service
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance
from skerry.schedule import explanations
from skerry.schedule.results import NodeFeasibility, Placement, PlacementFailure

# Of a larger service the first are shown: what comes after does not differ much.
MAX_PREVIEWED = 100


class PlacementPreview(Protocol):
    """What places instances."""

    def preview(self, steps: Sequence[PreviewStep]) -> Sequence[Placement | PlacementFailure]: ...

    def explain(self, instance: Instance) -> Sequence[NodeFeasibility]: ...


class CopyPreview(msgspec.Struct, frozen=True):
    """A copy that would be created."""

    index: int
    node: NodeId | None  # None: none would take it
    reason: str  # why none would
    replaces: InstanceId | None


class ServicePreview(NamedTuple):
    """The effects of a change of a service."""

    before: Service | None  # None: it would be new
    after: Service
    copies: Sequence[CopyPreview]  # the first of them
    created: int  # how many copies would be created in all
    nodes: Sequence[NodeFeasibility]  # the feasibility of every node for the first of them


def preview(
    before: Service | None,
    after: Service,
    copies: Sequence[Instance],
    placement: PlacementPreview,
    now: float,
) -> ServicePreview:
    """What would be created, and where."""
    indexes = _indexes(before, after)
    present: dict[int, InstanceId] = {}
    for copy in copies:
        if copy.observed.status not in TERMINAL:
            present.setdefault(owner_of(copy).index, copy.id)
    is_stop_first = after.bounds.is_stop_first
    steps = [
        PreviewStep(new_instance(after, NewCopy(index, after.target), now), present.get(index), is_stop_first)
        for index in indexes[:MAX_PREVIEWED]
    ]
    found = placement.preview(steps)
    return ServicePreview(
        before,
        after,
        [
            CopyPreview(
                owner_of(step.instance).index,
                result.node if isinstance(result, Placement) else None,
                "" if isinstance(result, Placement) else explanations.describe_failure(result),
                step.replaces,
            )
            for step, result in zip(steps, found, strict=True)
        ],
        len(indexes),
        placement.explain(steps[0].instance) if steps else (),
    )


def _indexes(before: Service | None, after: Service) -> range:
    """Those that would get a new copy."""
    if before is None or before.target.number != after.target.number:
        is_canary = after.rollout is not None and after.rollout.is_canary
        return range(min(after.update.canary, after.replicas) if is_canary else after.replicas)
    return range(min(before.replicas, after.replicas), after.replicas)
