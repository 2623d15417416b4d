"""What a cloud must be like when everything has calmed down: as it was wished, and nothing else.

Asked when faults are over and time has passed; every sentence in the answer is something that has not come to
be as it should. A cloud that never gives an empty answer does not converge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from skerry.model.ids import InstanceId, NodeId
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import Instance
from skerry.schedule.results import NodeFeasibility
from skerry.sim.cluster.invariants import InvariantChecker
from skerry.sim.cluster.node import SimulatedNode

ExplainPlacement = Callable[[Instance], Sequence[NodeFeasibility]]


def differences(
    witness: InvariantChecker, machines: Iterable[SimulatedNode], explain: ExplainPlacement
) -> Iterator[str]:
    """Everything that is not yet as it must be in the end."""
    yield from witness.unfulfilled()
    yield from witness.in_vain()
    yield from witness.services.unfulfilled(lambda copy: any(node.fits for node in explain(copy)))
    yield from witness.jobs.unfulfilled(lambda each: any(node.fits for node in explain(each)))
    runners: dict[InstanceId, list[NodeId]] = {}
    bound: dict[NodeId | None, dict[InstanceId, Instance]] = {}
    for instance in witness.instances.values():
        bound.setdefault(instance.node, {})[instance.id] = instance
    for machine in machines:
        yield from _machine(machine, bound.get(machine.id, {}))
        for order in machine.running():
            runners.setdefault(order.instance, []).append(machine.id)
    for instance in witness.instances.values():
        yield from _instance(instance, runners.get(instance.id, []), explain)


def _instance(instance: Instance, runners: list[NodeId], explain: ExplainPlacement) -> Iterator[str]:
    id, status = instance.id, instance.observed.status
    if instance.leaving is not None:
        yield f"{id} is still leaving {instance.node}"
    if status in TERMINAL or instance.desired is not DesiredStatus.RUNNING:
        if runners:
            yield f"{id} is {status}, and runs on {runners}"
        if status not in TERMINAL and status is not InstanceStatus.STOPPED:
            yield f"{id} is to be {instance.desired}, and is {status}"
        return
    if status is InstanceStatus.SCHEDULING:
        if fitting := [verdict.node for verdict in explain(instance) if verdict.fits]:
            yield f"{id} waits, and {fitting[0]} has room for it"
        if not instance.observed.reason:
            yield f"{id} waits, and nobody says why"
    elif status is not InstanceStatus.RUNNING:
        yield f"{id} is to be RUNNING, and is {status}: {instance.observed.reason}"
    if runners != ([instance.node] if status is InstanceStatus.RUNNING else []):
        yield f"{id} is {status} on {instance.node}, and runs on {runners or 'no machine'}"


def _machine(machine: SimulatedNode, bound: dict[InstanceId, Instance]) -> Iterator[str]:
    if strangers := machine.residents.keys() - bound.keys():
        yield f"{machine.id} still has {sorted(strangers)[0]}, which is not bound to it"
    for id, instance in bound.items():
        resident = machine.residents.get(id)
        if resident is None:
            yield f"{machine.id} does not have {id}, which is bound to it"
        elif resident.copy.order.generation != instance.generation:
            yield f"{machine.id} has another generation of {id} than is bound to it"
        elif resident.copy.order.spec != instance.spec:
            yield f"{machine.id} has another spec of {id} than is wished"
        elif resident.copy.pending:
            yield f"{machine.id} still has something to tell of {id}"
        elif resident.ends_at is not None:
            yield f"{id} is about to end"
        elif (seen := resident.copy.history.status) is not instance.observed.status not in TERMINAL:
            # Of one that is over, a machine that was set up anew knows less.
            yield f"{id} is {seen} on {machine.id}, and known as {instance.observed.status}"
