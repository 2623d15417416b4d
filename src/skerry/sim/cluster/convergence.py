"""Convergence: the differences between the actual and the desired state of a cloud.

Used after the faults; a cloud in which differences stay does not converge.
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
    checker: InvariantChecker, machines: Iterable[SimulatedNode], explain: ExplainPlacement
) -> Iterator[str]:
    """Everything that is not yet in its desired state, one sentence each."""
    yield from checker.unfulfilled()
    yield from checker.wrong_removals()
    yield from checker.services.unfulfilled(lambda copy: any(node.fits for node in explain(copy)))
    yield from checker.jobs.unfulfilled(lambda each: any(node.fits for node in explain(each)))
    runners: dict[InstanceId, list[NodeId]] = {}
    bound: dict[NodeId | None, dict[InstanceId, Instance]] = {}
    for instance in checker.instances.values():
        bound.setdefault(instance.node, {})[instance.id] = instance
    for machine in machines:
        yield from _machine(machine, bound.get(machine.id, {}))
        for order in machine.running():
            runners.setdefault(order.instance, []).append(machine.id)
    for instance in checker.instances.values():
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
            yield f"{id} waits, and {fitting[0]} has resources for it"
        if not instance.observed.reason:
            yield f"{id} waits without a reason"
    elif status is not InstanceStatus.RUNNING:
        yield f"{id} is to be RUNNING, and is {status}: {instance.observed.reason}"
    if runners != ([instance.node] if status is InstanceStatus.RUNNING else []):
        yield f"{id} is {status} on {instance.node}, and runs on {runners or 'no machine'}"


def _machine(machine: SimulatedNode, bound: dict[InstanceId, Instance]) -> Iterator[str]:
    if unexpected := machine.residents.keys() - bound.keys():
        yield f"{machine.id} still has {sorted(unexpected)[0]}, which is not bound to it"
    for id, instance in bound.items():
        resident = machine.residents.get(id)
        if resident is None:
            yield f"{machine.id} does not have {id}, which is bound to it"
        elif resident.copy.order.generation != instance.generation:
            yield f"{machine.id} has another generation of {id} than is bound to it"
        elif resident.copy.order.spec != instance.spec:
            yield f"{machine.id} has another spec of {id} than is desired"
        elif resident.copy.pending:
            yield f"{machine.id} still has a report of {id} to send"
        elif resident.ends_at is not None:
            yield f"{id} is about to end"
        elif (seen := resident.copy.history.status) is not instance.observed.status not in TERMINAL:
            # A machine that was set up anew does not know what ended before.
            yield f"{id} is {seen} on {machine.id}, and known as {instance.observed.status}"
