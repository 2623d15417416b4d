"""Nodes for `/metrics`: how many are in which condition, and what each has, has given away, and uses.

Conditions are computed for nodes that changed since the last scrape alone. Every server exports all nodes but
`used`, which nodes report to the one server that they are connected to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from prometheus_client.metrics_core import Metric

from skerry.control.instance_index import InstanceIndex
from skerry.control.nodes.conditions import NodeCondition, NodeConditions
from skerry.kit import metrics
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.resources import Amounts, Resources

CONDITIONS: Final = ("ready", "unschedulable", "suspect", "lost")

NODES = metrics.gauge_family(
    "skerry_nodes", "Nodes, by condition: ready, unschedulable, suspect or lost", ["condition"]
)
UP = metrics.gauge_family("skerry_node_up", "1 if the node is live, by its heartbeats", ["node"])
_UNITS: Final = {"cpu_cores": 0.001, "memory_bytes": 1 << 20, "disk_bytes": 1 << 30}  # of `Resources`
_KINDS: Final = {
    "capacity": "of the node that can be given to instances",
    "allocated": "of the node that are given to instances or reserved",
    "used": "of the node that its instances used when they were last reported",
}
FAMILIES: Final = {
    (kind, unit): metrics.gauge_family(
        f"skerry_node_{kind}_{unit}",
        f"{unit.partition('_')[2].capitalize()} of {unit.partition('_')[0]} {meaning}",
        ["node"],
    )
    for kind, meaning in _KINDS.items()
    for unit in _UNITS
}


class FreeResources(Protocol):
    """`skerry.control.placement.reconciler.Reconciler`."""

    def free(self, node: NodeId) -> Resources: ...


class _NodeState(NamedTuple):
    name: str
    condition: str
    resources: Resources


class NodeMetrics(metrics.UndescribedCollector):
    """Follows the conditions of nodes."""

    def __init__(
        self,
        conditions: NodeConditions,
        placement: FreeResources,
        instances: InstanceIndex,
        usages: Callable[[], Iterable[tuple[InstanceId, Resources]]],
    ) -> None:
        self._conditions = conditions
        self._placement = placement
        self._instances = instances
        self._usages = usages
        self._states: dict[NodeId, _NodeState] = {}
        self._changed: set[NodeId] = {each.view.id for each in conditions.conditions()}
        self._end = conditions.listen(self._note)

    def close(self) -> None:
        self._end()

    def collect(self) -> Iterator[Metric]:
        self._examine()
        counts = Counter(state.condition for state in self._states.values())
        nodes, up = NODES(), UP()
        for condition in CONDITIONS:
            nodes.add_metric([condition], counts[condition])
        labels = self._labels()
        yield nodes
        yield metrics.add_series(
            up,
            (
                ([labels[id]], float(state.condition not in ("suspect", "lost")))
                for id, state in self._states.items()
            ),
        )
        used = self._used()
        for kind in _KINDS:
            found = {id: self._amounts(kind, id, state, used) for id, state in self._states.items()}
            for number, (unit, factor) in enumerate(_UNITS.items()):
                series = (
                    ([labels[id]], amounts[number] * factor)
                    for id, amounts in found.items()
                    if amounts is not None
                )
                yield metrics.add_series(FAMILIES[kind, unit](), series)

    def _note(self, node: NodeId) -> None:
        self._changed.add(node)

    def _examine(self) -> None:
        changed, self._changed = self._changed, set()
        for id in changed:
            condition = self._conditions.condition(id)
            if condition is None:
                self._states.pop(id, None)
                continue
            view = condition.view
            self._states[id] = _NodeState(view.name or id, condition_of(condition), view.resources)
            if condition.liveness is not Liveness.LIVE:  # time alone makes more of it
                self._changed.add(id)

    def _labels(self) -> dict[NodeId, str]:
        """Names, and ids of nodes whose name is not their own."""
        names = Counter(state.name for state in self._states.values())
        return {id: state.name if names[state.name] == 1 else id for id, state in self._states.items()}

    def _amounts(
        self, kind: str, id: NodeId, state: _NodeState, used: Mapping[NodeId, Amounts]
    ) -> Amounts | None:
        total = state.resources
        match kind:
            case "capacity":
                return total.cpu, total.memory, total.disk
            case "used":
                return used.get(id)
        try:
            free = self._placement.free(id)
        except errors.NotFound:  # it is not known there yet
            return 0, 0, 0
        # Never below 0: a node may have less than it had when it was given away.
        return (
            max(0, total.cpu - free.cpu),
            max(0, total.memory - free.memory),
            max(0, total.disk - free.disk),
        )

    def _used(self) -> dict[NodeId, Amounts]:
        found: dict[NodeId, Amounts] = {}
        for id, used in self._usages():
            record = self._instances.get(id)
            if record is not None and (node := record.value.node) is not None:
                cpu, memory, disk = found.get(node, (0, 0, 0))
                found[node] = cpu + used.cpu, memory + used.memory, disk + used.disk
        return found


def condition_of(condition: NodeCondition) -> str:
    """One of `CONDITIONS`."""
    if condition.liveness is not Liveness.LIVE:
        return condition.liveness.value
    return "ready" if condition.view.is_schedulable else "unschedulable"
