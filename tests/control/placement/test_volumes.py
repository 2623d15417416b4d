"""Placement with volumes: an instance is where its data are, and a volume is bound once."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skerry.control.instance_index import InstanceIndex, InstanceRecord
from skerry.control.named_table import key_of, key_of_name
from skerry.control.nodes.conditions import NodeCondition
from skerry.control.placement.planner import PlacementPlan, PlacementPlanner
from skerry.control.volumes.table import VolumeRecord
from skerry.model.container_options import NodeFeature
from skerry.model.ids import Namespace, NodeId, VolumeId
from skerry.model.mounts import Mount, MountKind
from skerry.model.nodes import Liveness
from skerry.model.resources import Gigabytes
from skerry.model.statuses import DesiredStatus, InstanceStatus
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import Instance
from skerry.schedule.requests import PlacementPolicy
from skerry.store.tables.table import Record
from tests.control.worlds import condition, held, instance, spec

NOW = 100.0


class Volumes:
    """A table of volumes in memory."""

    def __init__(self, *volumes: Volume) -> None:
        self.records = {key_of(one): Record(one, 1) for one in volumes}

    def by_name(self, name: str, namespace: Namespace | None = None) -> VolumeRecord | None:
        return self.records.get(key_of_name(name, namespace))


class World:
    """A planner whose decisions are written as the store would write them: one that was made on an outdated
    record is refused."""

    def __init__(self, nodes: Sequence[NodeCondition], *volumes: Volume) -> None:
        self.volumes = Volumes(*volumes)
        self.index = InstanceIndex([])
        self.planner = PlacementPlanner(
            self.index, policy=PlacementPolicy.BINPACK, replacements_per_s=1000.0, volumes=self.volumes
        )
        for one in nodes:
            self.planner.node_changed(one.view.id, one)
        for record in self.volumes.records.values():
            self.planner.volume_changed(None, record)
        self.planner.begin()
        self.bound: list[tuple[str, str]] = []  # volume and node, in the order of their bindings

    def set_instance(self, after: Instance) -> None:
        before = self.index.get(after.id)
        self._change(before, held(after, 1 if before is None else before.revision + 1))

    def set_volume(self, after: Volume | None, name: str = "") -> None:
        key = key_of_name(name) if after is None else key_of(after)
        before = self.volumes.records.pop(key, None)
        record = None
        if after is not None:
            record = Record(after, 1 if before is None else before.revision + 1)
            self.volumes.records[key] = record
        self.planner.volume_changed(before, record)

    def run(self, now: float = NOW, passes: int = 8) -> None:
        for _ in range(passes):
            self.write(self.planner.plan(now, 100))

    def write(self, plan: PlacementPlan) -> None:
        for before, step in plan.decided:
            writes = plan.volumes.get(before.value.id, ())
            is_current = self.index.get(before.value.id) == before and all(
                self.volumes.by_name(one.after.name, one.after.namespace) == one.record for one in writes
            )
            if not is_current:
                continue
            for record, after in writes:
                if record.value.node is None:
                    assert after.node is not None
                    self.bound.append((after.name, after.node))
                self.set_volume(after)
            self._change(before, None if step.is_purged else held(step.after, before.revision + 1))
        self.planner.done([known.value.id for known, _ in plan.decided])

    def at(self, id: str) -> str | None:
        record = self.index.get(id)  # type: ignore[arg-type]
        assert record is not None
        return record.value.node

    def reason(self, id: str) -> str:
        record = self.index.get(id)  # type: ignore[arg-type]
        assert record is not None
        return record.value.observed.reason

    def _change(self, before: InstanceRecord | None, after: InstanceRecord | None) -> None:
        self.index.update(before, after)
        self.planner.instance_changed(before, after)


def node(name: str, disk: int = 100, **more: object) -> NodeCondition:
    found = condition(name, **more)  # type: ignore[arg-type]
    view = replace(
        found.view,
        name=f"edge-{name}",
        features=tuple(NodeFeature),
        resources=replace(found.view.resources, disk=Gigabytes(disk)),
    )
    return replace(found, view=view)


def volume(name: str, size: int = 1, **more: object) -> Volume:
    return Volume(VolumeId(f"01{name}"), name, Gigabytes(size), 1.0, **more)  # type: ignore[arg-type]


def using(id: str, *names: str, **more: object) -> Instance:
    mounts = tuple(Mount(MountKind.VOLUME, f"/{name}", name) for name in names)
    return instance(id, what=replace(spec(), mounts=mounts), **more)


def test_the_first_user_binds_a_volume_and_the_next_ones_follow_it() -> None:
    world = World([node("a"), node("b")], volume("db"))
    for id in ("one", "two", "three"):
        world.set_instance(using(id, "db"))
    world.run()
    [(name, place)] = world.bound
    assert name == "db"
    assert {world.at(id) for id in ("one", "two", "three")} == {place}
    record = world.volumes.by_name("db")
    assert record is not None
    assert record.value.status is VolumeStatus.CREATING
    bound = world.index.get("one")  # type: ignore[arg-type]
    assert bound is not None
    assert bound.value.volumes == (VolumeId("01db"),)


def test_an_instance_is_placed_where_its_volume_is_also_if_another_node_is_emptier() -> None:
    world = World([node("a", cpu=200), node("b")], volume("db", node=NodeId("a")))
    world.set_instance(using("one", "db"))
    world.run()
    assert world.at("one") == "a"


def test_one_waits_for_the_node_of_its_volume_and_says_which() -> None:
    silent = node("a", unschedulable_reason="is cordoned")
    world = World([silent, node("b")], volume("db", node=NodeId("a")))
    world.set_instance(using("one", "db"))
    world.run()
    assert world.at("one") is None
    assert world.reason("one") == "waits for volume db on edge-a, which is cordoned"
    world.planner.node_changed(NodeId("a"), node("a"))
    world.run()
    assert world.at("one") == "a"


def test_one_without_its_volume_waits_and_says_what_to_do() -> None:
    world = World([node("a")])
    world.set_instance(using("one", "db"))
    world.run()
    assert "skerry volume create db" in world.reason("one")
    world.set_volume(volume("db"))
    world.run()
    assert world.at("one") == "a"


def test_an_instance_on_a_lost_node_stays_if_its_volume_is_there_and_others_are_moved() -> None:
    world = World([node("a"), node("b")], volume("db", node=NodeId("a")))
    world.set_instance(using("keeps", "db"))
    world.set_instance(replace(instance("moves", InstanceStatus.RUNNING, node="a")))
    world.run()
    world.planner.node_changed(NodeId("a"), node("a", liveness=Liveness.LOST))
    world.run()
    assert world.at("keeps") == "a"
    assert world.at("moves") == "b"


def test_the_disk_of_a_node_is_accounted_for_the_volumes_there() -> None:
    world = World([node("a", disk=10), node("b", disk=10)], volume("old", 8, node=NodeId("a")))
    world.set_volume(volume("new", 5))
    world.set_instance(using("one", "new"))
    world.run()
    assert world.at("one") == "b"
    world.set_volume(volume("more", 6))
    world.set_instance(using("two", "more"))
    world.run()
    assert world.at("two") is None
    assert "disk" in world.reason("two")
    world.set_volume(None, "old")
    world.run()
    assert world.at("two") == "a"


def test_a_volume_goes_where_its_pin_and_constraints_say() -> None:
    labelled = node("b")
    labelled = replace(labelled, view=replace(labelled.view, labels={"disk": "fast"}))
    world = World([node("a"), labelled, node("c")], volume("fast", constraints=("disk=fast",)))
    world.set_volume(volume("pinned", pin="edge-c"))
    world.set_instance(using("one", "fast"))
    world.set_instance(using("two", "pinned"))
    world.set_instance(using("both", "fast", "pinned"))
    world.run()
    assert (world.at("one"), world.at("two"), world.at("both")) == ("b", "c", None)


def test_nothing_is_placed_with_a_volume_that_is_being_deleted() -> None:
    world = World([node("a")], volume("db", node=NodeId("a"), status=VolumeStatus.DELETING))
    world.set_instance(using("one", "db"))
    world.run()
    assert world.at("one") is None
    assert world.reason("one") == "waits for volume db, which is being deleted"


NAMES = ("x", "y", "z")
NODES = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(st.just("create"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("destroy"), st.integers(0, 30)),
    st.tuples(st.just("node"), st.sampled_from(NODES), st.sampled_from(("live", "lost", "cordoned", "gone"))),
    st.tuples(st.just("forget"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("plan"),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_an_instance_is_never_placed_away_from_its_volume_and_no_volume_is_bound_twice(
    steps: list[tuple[object, ...]],
) -> None:
    world = World([node(name, disk=6) for name in NODES], *(volume(name, 2) for name in NAMES))
    made = 0
    pending: list[PlacementPlan] = []
    for step in steps:
        match step:
            case ("create", str(first), str(second)):
                world.set_instance(using(f"i{made}", *{first: None, second: None}))
                made += 1
            case ("destroy", int(number)):
                record = world.index.get(f"i{number}")  # type: ignore[arg-type]
                if record is not None:
                    world.set_instance(replace(record.value, desired=DesiredStatus.DESTROYED, node=None))
            case ("node", str(name), "gone"):
                world.planner.node_changed(NodeId(name), None)
            case ("node", str(name), "cordoned"):
                shut = node(name, disk=6, unschedulable_reason="is cordoned")
                world.planner.node_changed(NodeId(name), shut)
            case ("node", str(name), str(kind)):
                world.planner.node_changed(NodeId(name), node(name, disk=6, liveness=Liveness(kind)))
            case ("forget", str(name)):
                # Somebody else writes the record, as a report of its node does: what is in flight is refused.
                record_of = world.volumes.by_name(name)
                assert record_of is not None
                world.set_volume(replace(record_of.value, since=record_of.value.since + 1))
            case _:
                # Plans may be in flight while others are made.
                pending.append(world.planner.plan(NOW, 3))
                if len(pending) > 2:
                    world.write(pending.pop(0))
        _check(world)
    for plan in pending:
        world.write(plan)
        _check(world)
    world.run()
    _check(world)
    assert len({name for name, _ in world.bound}) == len(world.bound)


def _check(world: World) -> None:
    for record in world.index:
        one = record.value
        if one.node is None:
            continue
        for name in one.spec.volume_names:
            found = world.volumes.by_name(name)
            assert found is not None
            assert found.value.node == one.node
