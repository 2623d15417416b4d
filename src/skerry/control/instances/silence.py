"""The reason of an instance whose node is silent, for reading: nothing of it is written. Pure.

An instance with a volume waits for the node: its data are there, and nowhere else.
"""

from __future__ import annotations

from msgspec.structs import replace

from skerry.control.nodes.conditions import NodeCondition
from skerry.model.nodes import Liveness
from skerry.model.statuses import TERMINAL
from skerry.model.workloads import Instance

UNREACHABLE = "node unreachable"


def with_liveness(instance: Instance, condition: NodeCondition | None) -> Instance:
    """The instance, with a reason if its node, which has this condition, is not live now."""
    if instance.node is None or instance.observed.status in TERMINAL:
        return instance
    if condition is not None and condition.liveness is Liveness.LIVE:
        return instance
    reason = UNREACHABLE
    if instance.volumes and instance.spec.volume_names:
        reason = (
            f"waits for volume {', '.join(instance.spec.volume_names)} on {_describe(instance, condition)}"
        )
    return replace(instance, observed=replace(instance.observed, reason=reason))


def _describe(instance: Instance, condition: NodeCondition | None) -> str:
    if condition is None:
        return f"node {instance.node}, which is not registered any more"
    name = condition.view.name or condition.view.id
    silent = "" if condition.silent_s is None else f" for {_duration(condition.silent_s)}"
    return f"{name}, which has been silent{silent}"


def _duration(seconds: float) -> str:
    """`40 s`, `3 min`, `5 h`, `2 days`."""
    for unit, size in (("days", 2 * 86_400), ("h", 2 * 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // {'days': 86_400, 'h': 3600, 'min': 60}[unit])} {unit}"
    return f"{int(seconds)} s"
