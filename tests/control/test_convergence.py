"""A whole cluster in memory, with faults in any order: what must never happen, and what must in the end.

Decisions are made by the real `PlacementPlanner` and reports judged by the real `judge`; the store is a dict
with revisions, on which decisions land late, or not at all. Nodes are simulated: they keep what they run
while they are cut off, and do what the whole set of their orders says when they are not.

Safety: a node is never given more than its room; no instance runs twice on nodes that are not lost; what was
wished is never forgotten. Liveness: when the faults end, everything comes to what is wished, or waits with no
node that could take it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skerry.control.instance_index import InstanceIndex, InstanceRecord
from skerry.control.instances import transitions
from skerry.control.instances.report_rules import evaluate_report
from skerry.control.instances.transitions import InstanceTransition
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.placement.planner import PlacementPlanner, PlannedTransition
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId
from skerry.model.nodes import Liveness
from skerry.model.orders import InstanceOrder, InstanceReport
from skerry.model.statuses import TERMINAL, DesiredStatus, InstanceStatus
from skerry.model.workloads import InstanceSpec
from skerry.schedule.requests import PlacementPolicy
from skerry.store.tables.table import Record
from tests.control.worlds import condition, instance, spec

CPU = st.sampled_from([100, 300, 500, 900])


@dataclass
class Copy:
    """A container on a node."""

    generation: int
    spec: InstanceSpec
    runs: bool
    is_over: bool = False


@dataclass
class Machine:
    """A node: what it has, and what it could not say yet."""

    cpu: int
    is_connected: bool = True
    liveness: Liveness = Liveness.LIVE
    is_cordoned: bool = False
    drain_by: float | None = None
    copies: dict[InstanceId, Copy] = field(default_factory=dict)
    unsaid: list[InstanceReport] = field(default_factory=list)

    def stand(self, name: NodeId) -> NodeCondition:
        return condition(
            name,
            self.cpu,
            liveness=self.liveness,
            drain_by=self.drain_by,
            unschedulable_reason="is cordoned" if self.is_cordoned else "",
        )

    def obey(self, orders: list[InstanceOrder]) -> None:
        """Do all that the whole set of orders says."""
        wanted = {order.instance for order in orders}
        self.copies = {id: copy for id, copy in self.copies.items() if id in wanted}
        for order in orders:
            copy = self.copies.get(order.instance)
            if copy is not None and copy.generation < order.generation:
                del self.copies[order.instance]
                copy = None
            if order.desired is DesiredStatus.DESTROYED:
                self.copies.pop(order.instance, None)
                self.say(order.instance, order.generation, InstanceStatus.TERMINATED)
            elif order.desired is DesiredStatus.RUNNING and (copy is None or not (copy.runs or copy.is_over)):
                self.copies[order.instance] = Copy(order.generation, order.spec, runs=True)
                self.say(order.instance, order.generation, InstanceStatus.STARTING, InstanceStatus.RUNNING)
            elif order.desired is DesiredStatus.STOPPED and copy is None:
                self.copies[order.instance] = Copy(order.generation, order.spec, runs=False)
                self.say(order.instance, order.generation, InstanceStatus.STOPPED)
            elif order.desired is DesiredStatus.STOPPED and copy is not None and copy.runs:
                copy.runs = False
                self.say(order.instance, order.generation, InstanceStatus.STOPPING, InstanceStatus.STOPPED)

    def say(self, id: InstanceId, generation: int, *statuses: InstanceStatus) -> None:
        self.unsaid += [InstanceReport(id, generation, status, 0.0) for status in statuses]


class Cluster(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.revision = 0
        self.index = InstanceIndex()
        self.machines: dict[NodeId, Machine] = {}
        self.wishes: dict[InstanceId, tuple[DesiredStatus, InstanceSpec]] = {}
        self.under_way: list[PlannedTransition] = []
        self.lead()

    # The store

    def write(self, before: InstanceRecord | None, step: InstanceTransition) -> None:
        self.revision += 1
        after = None if step.is_purged else Record(step.after, self.revision)
        self.index.update(before, after)
        self.planner.instance_changed(before, after)

    def lead(self) -> None:
        """A leader begins, with nothing but what is durable."""
        self.under_way = []
        self.planner = PlacementPlanner(self.index, policy=PlacementPolicy.BINPACK, replacements_per_s=5.0)
        for name, machine in self.machines.items():
            self.planner.node_changed(name, machine.stand(name))
        self.planner.begin()

    def node_changed(self, name: NodeId) -> None:
        machine = self.machines.get(name)
        self.planner.node_changed(name, machine.stand(name) if machine else None)

    @initialize(sizes=st.lists(st.sampled_from([500, 1000]), max_size=3), requests=st.lists(CPU, max_size=4))
    def begin(self, sizes: list[int], requests: list[int]) -> None:
        """A cluster that has been going for a while."""
        for cpu in sizes:
            self.join(cpu)
        for cpu in requests:
            self.create(cpu)
        for _ in range(3):
            self.go_on(self.machines)

    # What people do

    @precondition(lambda self: len(self.wishes) < 12)
    @rule(cpu=CPU)
    def create(self, cpu: int) -> None:
        one = instance(f"i{len(self.wishes)}", what=spec(cpu=cpu))
        self.wishes[one.id] = (DesiredStatus.RUNNING, one.spec)
        self.write(None, transitions.create(one, actor="me"))

    @precondition(lambda self: self.wishes)
    @rule(data=st.data(), desired=st.sampled_from(DesiredStatus))
    def wish(self, data: st.DataObject, desired: DesiredStatus) -> None:
        known = self.index.get(data.draw(st.sampled_from(sorted(self.wishes))))
        if known is None:
            return
        try:
            step = transitions.set_desired(known.value, desired, at=self.now, actor="me")
        except errors.FailedPrecondition:
            return
        if step is not None:
            self.wishes[known.value.id] = (desired, known.value.spec)
            self.write(known, step)

    @precondition(lambda self: self.wishes)
    @rule(data=st.data(), cpu=CPU)
    def respecify(self, data: st.DataObject, cpu: int) -> None:
        known = self.index.get(data.draw(st.sampled_from(sorted(self.wishes))))
        if known is None:
            return
        try:
            step = transitions.change_spec(known.value, spec(cpu=cpu), workload=None, version=0, actor="me")
        except errors.FailedPrecondition:
            return
        if step is not None:
            self.wishes[known.value.id] = (known.value.desired, spec(cpu=cpu))
            self.write(known, step)

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), is_cordoned=st.booleans())
    def cordon(self, data: st.DataObject, is_cordoned: bool) -> None:
        name = self.draw_node(data)
        self.machines[name].is_cordoned = is_cordoned
        self.node_changed(name)

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), time=st.sampled_from([None, 0.0, 10.0]))
    def drain(self, data: st.DataObject, time: float | None) -> None:
        name = self.draw_node(data)
        self.machines[name].drain_by = None if time is None else self.now + time
        self.node_changed(name)

    # What happens to nodes

    @precondition(lambda self: len(self.machines) < 4)
    @rule(cpu=st.sampled_from([500, 1000]))
    def join(self, cpu: int) -> None:
        name = NodeId(f"n{self.revision}")
        self.revision += 1
        self.machines[name] = Machine(cpu)
        self.node_changed(name)

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        name = self.draw_node(data)
        del self.machines[name]
        self.node_changed(name)

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), liveness=st.sampled_from(Liveness))
    def cut_off(self, data: st.DataObject, liveness: Liveness) -> None:
        name = self.draw_node(data)
        self.machines[name].is_connected = False
        # Silence makes it seem worse and never better: for that it must be heard, and told what is its.
        order = list(Liveness)
        self.machines[name].liveness = max(liveness, self.machines[name].liveness, key=order.index)
        self.node_changed(name)

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        name = self.draw_node(data)
        self.machines[name].is_connected = True
        self.work_on(name)
        self.machines[name].liveness = Liveness.LIVE
        self.node_changed(name)

    @precondition(lambda self: self.machines)
    @rule(data=st.data())
    def work(self, data: st.DataObject) -> None:
        name = self.draw_node(data)
        if self.machines[name].is_connected:
            self.work_on(name)

    @precondition(lambda self: any(machine.copies for machine in self.machines.values()))
    @rule(data=st.data(), how=st.sampled_from(["crashes", "fails", "ends"]))
    def end(self, data: st.DataObject, how: str) -> None:
        name = data.draw(st.sampled_from(sorted(name for name, one in self.machines.items() if one.copies)))
        machine = self.machines[name]
        id = data.draw(st.sampled_from(sorted(machine.copies)))
        copy = machine.copies[id]
        if not copy.runs:
            return
        if how == "crashes":
            machine.say(
                id, copy.generation, InstanceStatus.CRASHED, InstanceStatus.STARTING, InstanceStatus.RUNNING
            )
            return
        copy.runs, copy.is_over = False, True
        ended = (
            [InstanceStatus.TERMINATED] if how == "ends" else [InstanceStatus.CRASHED, InstanceStatus.FAILED]
        )
        machine.say(id, copy.generation, *ended)

    def work_on(self, name: NodeId) -> None:
        """The node says what it could not say, gets the whole set of its orders, and says what it did."""
        machine = self.machines[name]
        self.instance_changed(name)
        machine.obey([InstanceOrder.of(known.value) for known in self.index.on_node(name)])
        self.instance_changed(name)

    def instance_changed(self, name: NodeId) -> None:
        machine = self.machines[name]
        for report in machine.unsaid:
            known = self.index.get(report.instance)
            step = evaluate_report(known.value if known else None, name, report, self.now).step
            if step is not None:
                self.write(known, step)
        machine.unsaid = []

    # What the leader does

    @rule(limit=st.sampled_from([1, 3, 100]), seconds=st.sampled_from([0.0, 0.1, 5.0]))
    def decide(self, limit: int, seconds: float) -> None:
        self.now += seconds
        plan = self.planner.plan(self.now, limit)
        self.under_way += plan.decided

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        """One of the decisions reaches the store, whichever: it happens if nothing changed meanwhile."""
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        self.land_one(self.under_way.pop(index))

    def land_one(self, decided: PlannedTransition) -> None:
        before, step = decided
        id = before.value.id
        current = self.index.get(id)
        if current is not None and current.revision == before.revision:
            self.write(current, step)
        self.planner.done([id])

    @precondition(lambda self: self.machines)
    @rule(data=st.data(), rounds=st.integers(1, 3))
    def go_on_without_one(self, data: st.DataObject, rounds: int) -> None:
        """All goes well for a while, but that one node is slow."""
        slow = self.draw_node(data)
        for _ in range(rounds):
            self.go_on(name for name in self.machines if name != slow)

    def go_on(self, quick: Iterable[NodeId]) -> None:
        self.under_way += self.planner.plan(self.now, 100).decided
        while self.under_way:
            self.land_one(self.under_way.pop())
        for name in quick:
            if self.machines[name].is_connected:
                self.work_on(name)

    @rule()
    def be_replaced(self) -> None:
        """The leader dies with what it had under way."""
        self.lead()

    def draw_node(self, data: st.DataObject) -> NodeId:
        return data.draw(st.sampled_from(sorted(self.machines)))

    # What must never happen

    @invariant()
    def no_node_is_given_more_than_its_room(self) -> None:
        for name, machine in self.machines.items():
            bound = [known.value for known in self.index.on_node(name)]
            taken = sum(
                (one.leaving or one.spec).resources.cpu
                for one in bound
                if one.observed.status not in TERMINAL
            )
            assert taken <= machine.cpu, f"{name} has {machine.cpu}, {taken} are given away"

    @invariant()
    def no_instance_runs_twice_where_it_can_be_helped(self) -> None:
        running: dict[InstanceId, NodeId] = {}
        for name, machine in self.machines.items():
            if machine.liveness is Liveness.LOST:
                continue
            for id, copy in machine.copies.items():
                if copy.runs:
                    assert id not in running, f"{id} runs on {running[id]} and {name}"
                    running[id] = name

    @invariant()
    def no_wish_is_forgotten(self) -> None:
        for id, (desired, wanted) in self.wishes.items():
            known = self.index.get(id)
            if known is None:
                assert desired is DesiredStatus.DESTROYED, f"{id} is gone, and nobody wished that"
            else:
                assert (known.value.desired, known.value.spec) == (desired, wanted)

    def teardown(self) -> None:
        """The faults end; so must the work."""
        for name, machine in self.machines.items():
            machine.is_connected, machine.liveness = True, Liveness.LIVE
            self.work_on(name)
            self.node_changed(name)
        for _ in range(200):
            before = self.revision
            self.now += 30.0
            is_busy = bool(self.under_way)
            while self.under_way:
                self.land_one(self.under_way.pop())
            plan = self.planner.plan(self.now, 100)
            self.under_way += plan.decided
            for name in self.machines:
                self.work_on(name)
            is_busy |= bool(plan.decided) or plan.wake_at is not None
            if not is_busy and self.revision == before:
                break
        else:
            raise AssertionError("it does not come to rest")
        self.no_node_is_given_more_than_its_room()
        self.no_instance_runs_twice_where_it_can_be_helped()
        self.no_wish_is_forgotten()
        for id in self.wishes:
            self.check_rest(id)

    def check_rest(self, id: InstanceId) -> None:
        known = self.index.get(id)
        copies = [
            copy for machine in self.machines.values() for one, copy in machine.copies.items() if one == id
        ]
        if known is None:
            assert not copies
            return
        one = known.value
        if one.observed.status in TERMINAL:
            assert not any(copy.runs for copy in copies)
        elif one.desired is DesiredStatus.STOPPED:
            assert one.observed.status is InstanceStatus.STOPPED
            assert not any(copy.runs for copy in copies)
        elif one.node is None:
            assert one.observed.status is InstanceStatus.SCHEDULING
            assert one.observed.reason, "who waits knows why"
            assert not any(verdict.fits for verdict in self.planner.explain(one))
            assert not copies
        else:
            assert one.observed.status is InstanceStatus.RUNNING
            assert [(copy.runs, copy.generation) for copy in copies] == [(True, one.generation)]


Cluster.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCluster = Cluster.TestCase
