"""Operations on volumes, with nodes and servers that fail at any step: nothing is lost, nothing is left."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from skerry.control.snapshots import decisions
from skerry.control.snapshots.decisions import (
    Cancel,
    EvictUsers,
    NodeTask,
    OperationChange,
    Proceed,
    RunTasks,
    TransferImage,
    Wait,
)
from skerry.model import errors
from skerry.model.ids import InstanceId, NodeId, VolumeId
from skerry.model.resources import Gigabytes
from skerry.model.snapshots import Snapshot, SnapshotLocation, SnapshotStatus
from skerry.model.statuses import InstanceStatus
from skerry.model.volume_operations import OperationKind, OperationStatus, OperationStep, VolumeOperation
from skerry.model.volume_tasks import TaskResult, VolumeAction
from skerry.model.volumes import Volume, VolumeStatus
from skerry.model.workloads import Instance, InstanceSpec, ObservedState

HERE, THERE = NodeId("here"), NodeId("there")
VOLUME, NEW = VolumeId("volume"), VolumeId("new")
SPEC = InstanceSpec("writer", "example.org/writer")


@dataclass
class PlayedNode:
    """What a node has on its disk; an image is its content, a partial one is empty."""

    volumes: dict[str, tuple[int, str]] = field(default_factory=dict)  # generation and content
    drafts: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, str] = field(default_factory=dict)


class Operations(RuleBasedStateMachine):
    """One volume, one snapshot of it, two nodes, and one operation after another."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = {HERE: PlayedNode(), THERE: PlayedNode()}
        self.nodes[HERE].volumes[VOLUME] = (1, "data-0")
        self.nodes[HERE].snapshots["old"] = "data-old"
        self.volumes: dict[str, Volume] = {
            "db": Volume(
                VOLUME,
                "db",
                Gigabytes(1),
                0.0,
                node=HERE,
                status=VolumeStatus.READY,
                has_been_ready=True,
            )
        }
        self.snapshots = {
            "old": Snapshot(
                "old",
                "old",
                "db",
                VOLUME,
                Gigabytes(1),
                0.0,
                node=HERE,
                status=SnapshotStatus.READY,
                digest="data-old",
            )
        }
        self.operation: VolumeOperation | None = None
        self.users: list[Instance] = []
        self.expected = {"db": {"data-0"}}  # what a volume may hold now
        self.count = 0

    # Requests

    @precondition(lambda self: self.operation is None)
    @rule(kind=st.sampled_from(["snapshot", "restore", "restore-new", "move", "delete"]))
    def begin(self, kind: str) -> None:
        self.count += 1
        volume = self.volumes["db"]
        assert not volume.operation
        assert not volume.is_held
        id = f"operation-{self.count}"
        node = volume.node
        assert node is not None
        common = VolumeOperation(
            id,
            OperationKind.SNAPSHOT,
            volume.id,
            "db",
            0.0,
            size=volume.size,
            node=node,
            target=node,
            generation=volume.generation,
        )
        snapshot = self.snapshots.get("old")
        match kind:
            case "snapshot":
                name = f"snapshot-{self.count}"
                self.snapshots[name] = Snapshot(name, name, "db", VOLUME, Gigabytes(1), 0.0, node=node)
                self.operation = replace(common, snapshot_id=name, snapshot=name, snapshot_node=node)
            case "move":
                target = THERE if node == HERE else HERE
                self.operation = replace(
                    common, kind=OperationKind.MOVE, step=OperationStep.STOPPING, target=target
                )
                volume = replace(volume, is_held=True)
            case "restore" if snapshot is not None:
                self.operation = replace(
                    common,
                    kind=OperationKind.RESTORE,
                    snapshot_id="old",
                    snapshot="old",
                    snapshot_node=HERE,
                    digest=snapshot.digest,
                )
                self.expected["db"] = {*self.expected["db"], "data-old"}
            case "restore-new" if snapshot is not None and "copy" not in self.volumes:
                self.volumes["copy"] = Volume(
                    NEW, "copy", Gigabytes(1), 0.0, is_held=True, operation=id, generation=self.count
                )
                self.operation = replace(
                    common,
                    kind=OperationKind.RESTORE,
                    volume_id=NEW,
                    volume="copy",
                    generation=self.count,
                    is_new=True,
                    target=THERE,
                    node=THERE,
                    snapshot_id="old",
                    snapshot="old",
                    snapshot_node=HERE,
                    digest=snapshot.digest,
                )
                self.expected["copy"] = {"data-old"}
                return
            case "delete" if snapshot is not None:
                self.snapshots["old"] = replace(snapshot, status=SnapshotStatus.DELETING)
                self.operation = replace(
                    common,
                    kind=OperationKind.DELETE_SNAPSHOT,
                    volume_id=VolumeId(""),
                    step=OperationStep.REMOVING,
                    snapshot_id="old",
                    snapshot="old",
                    node=HERE,
                )
                return
            case _:
                return
        self.volumes["db"] = replace(volume, operation=id)

    @precondition(lambda self: self.operation is not None and self.operation.may_cancel)
    @rule()
    def cancel(self) -> None:
        assert self.operation is not None
        self.operation = replace(self.operation, is_cancelled=True)

    @precondition(lambda self: not self.users and not self.volumes["db"].is_held)
    @rule()
    def use(self) -> None:
        """An instance is placed where the volume is, and writes."""
        volume = self.volumes["db"]
        assert volume.node is not None
        generation, content = self.nodes[volume.node].volumes[VOLUME]
        assert content in self.expected["db"], "it never finds an empty or another volume"
        assert generation <= volume.generation
        self.users = [
            Instance(
                InstanceId("writer"),
                SPEC,
                0.0,
                observed=ObservedState(InstanceStatus.RUNNING, 0.0, ""),
                node=volume.node,
                volumes=(VOLUME,),
            )
        ]

    @precondition(lambda self: bool(self.users))
    @rule()
    def write(self) -> None:
        """A user writes to the volume where it runs."""
        (user,) = self.users
        assert user.node is not None
        generation, _ = self.nodes[user.node].volumes[VOLUME]
        self.count += 1
        content = f"data-{self.count}"
        self.nodes[user.node].volumes[VOLUME] = (generation, content)
        operation = self.operation
        is_restore = operation is not None and operation.kind is OperationKind.RESTORE
        self.expected["db"] = {content} | ({"data-old"} if is_restore else set())

    @precondition(lambda self: any(user.leaving is not None for user in self.users))
    @rule()
    def stop(self) -> None:
        self.users = []

    # Steps

    @precondition(lambda self: self.operation is not None)
    @rule(
        outcome=st.sampled_from(["done", "done", "done", "lost-before", "lost-after", "partial", "refused"])
    )
    def work(self, outcome: str) -> None:
        """One step of whoever leads: a node or the server may be killed in it."""
        operation = self.operation
        assert operation is not None
        decision = decisions.decide(
            operation,
            [user for user in self.users if decisions.uses(user, operation.volume_id)],
            lambda node: True,
        )
        try:
            match decision:
                case Cancel():
                    self._apply(
                        decisions.fail(operation, *self._records(), OperationStatus.CANCELLED, "cancelled")
                    )
                case EvictUsers(instances, _):
                    assert instances
                    self.users = [replace(user, leaving=user.spec) for user in self.users]
                case Wait():
                    pass
                case Proceed():
                    self._apply(decisions.advance(operation, *self._records(), TaskResult(), 1.0))
                case RunTasks(tasks):
                    result = TaskResult()
                    for task in tasks:
                        result = self._run(task, outcome)
                    self._apply(decisions.advance(operation, *self._records(), result, 1.0))
                case TransferImage(send, receive):
                    result = self._transfer(send, receive, outcome)
                    self._apply(decisions.advance(operation, *self._records(), result, 1.0))
        except errors.SkerryError as error:
            change = decisions.retreat(operation, error)
            if change is None and not decisions.is_temporary(error):
                change = decisions.fail(operation, *self._records(), OperationStatus.FAILED, error.message)
            if change is not None:
                self._apply(change)

    def _records(self) -> tuple[Volume | None, Snapshot | None]:
        assert self.operation is not None
        volume = self.volumes.get(self.operation.volume)
        if volume is not None and volume.id != self.operation.volume_id:
            volume = None
        return volume, self.snapshots.get(self.operation.snapshot)

    def _apply(self, change: OperationChange | None) -> None:
        """One transaction; a killed server writes all of it or nothing."""
        if change is None:
            return
        if change.volume is not None:
            if change.is_volume_removed:
                del self.volumes[change.volume.name]
            else:
                self.volumes[change.volume.name] = change.volume
        if change.snapshot is not None:
            if change.is_snapshot_removed:
                del self.snapshots[change.snapshot.name]
            else:
                self.snapshots[change.snapshot.name] = change.snapshot
        after = change.operation
        self.operation = None if after.is_over else after
        if after.is_over:
            self._check_clean(after)
            if after.kind is OperationKind.RESTORE and not after.is_new:
                volume = self.volumes["db"]
                assert volume.node is not None
                self.expected["db"] = {self.nodes[volume.node].volumes[VOLUME][1]}
                if after.status is OperationStatus.SUCCEEDED and not self.users:
                    assert self.expected["db"] <= {"data-old"} or self.count

    def _run(self, assigned: NodeTask, outcome: str) -> TaskResult:
        node, task = self.nodes[assigned.node], assigned.task
        if outcome == "lost-before":
            raise errors.Unavailable("killed")
        if outcome == "refused" and task.action in (VolumeAction.SNAPSHOT, VolumeAction.FETCH):
            raise errors.ResourcesExhausted("full")
        result = TaskResult()
        match task.action:
            case VolumeAction.SNAPSHOT:
                content = node.volumes[task.volume][1]
                if outcome == "partial":
                    node.drafts[task.operation] = ""
                    node.snapshots.setdefault(task.snapshot, "")
                    raise errors.Unavailable("killed")
                node.snapshots[task.snapshot] = node.snapshots.get(task.snapshot) or content
                node.drafts.pop(task.operation, None)
                result = TaskResult(node.snapshots[task.snapshot])
            case VolumeAction.DELETE_SNAPSHOT | VolumeAction.DISCARD_SNAPSHOT:
                node.snapshots.pop(task.snapshot, None)
                node.drafts.pop(task.operation, None)
            case VolumeAction.FETCH:
                assert task.location is SnapshotLocation.NODE
                if outcome == "partial":
                    node.drafts[task.operation] = ""
                    raise errors.Unavailable("killed")
                node.drafts[task.operation] = node.snapshots[task.snapshot]
                assert node.drafts[task.operation] == task.digest
                result = TaskResult(task.digest)
            case VolumeAction.INSTALL:
                self._install(node, assigned)
                if outcome == "partial":
                    raise errors.Unavailable("killed")
            case VolumeAction.DISCARD:
                node.drafts.pop(task.operation, None)
            case VolumeAction.REMOVE:
                if task.volume in node.volumes and node.volumes[task.volume][0] <= task.generation:
                    del node.volumes[task.volume]
                node.drafts.pop(task.operation, None)
            case _:
                raise AssertionError(task.action)
        if outcome == "lost-after":
            raise errors.Unavailable("killed")
        return result

    def _install(self, node: PlayedNode, assigned: NodeTask) -> None:
        task = assigned.task
        present = node.volumes.get(task.volume)
        if draft := node.drafts.get(task.operation):
            for user in self.users:
                assert task.volume not in user.volumes or user.node != assigned.node
            node.volumes[task.volume] = (task.generation, draft)
            del node.drafts[task.operation]
        elif present is None or present[0] < task.generation:
            raise errors.NotFound("the copy is gone")

    def _transfer(self, send: NodeTask, receive: NodeTask, outcome: str) -> TaskResult:
        source, target = self.nodes[send.node], self.nodes[receive.node]
        operation = receive.task.operation
        if outcome == "lost-before":
            raise errors.Unavailable("killed")
        if outcome == "refused":
            raise errors.ResourcesExhausted("full")
        if send.task.action is VolumeAction.SEND_VOLUME:
            assert not self.users, "what is copied is not written"
            source.drafts[operation] = "manifest"
            content = source.volumes[send.task.volume][1]
        else:
            content = source.snapshots[send.task.snapshot]
        if outcome == "partial":
            target.drafts[operation] = ""
            raise errors.Unavailable("killed")
        target.drafts[operation] = content
        if outcome == "lost-after":
            raise errors.Unavailable("killed")
        return TaskResult(content)

    # What holds

    @invariant()
    def data_are_where_the_volume_is(self) -> None:
        for volume in self.volumes.values():
            if volume.node is None:
                continue
            assert volume.id in self.nodes[volume.node].volumes
            assert self.nodes[volume.node].volumes[volume.id][1] in self.expected[volume.name]

    @invariant()
    def users_are_where_the_volume_is(self) -> None:
        for user in self.users:
            assert user.node == self.volumes["db"].node

    @invariant()
    def snapshots_that_are_ready_are_whole(self) -> None:
        for snapshot in self.snapshots.values():
            if snapshot.status is SnapshotStatus.READY:
                assert self.nodes[snapshot.node].snapshots[snapshot.id] == snapshot.digest

    @invariant()
    def a_volume_is_held_by_the_operation_that_runs_or_by_none(self) -> None:
        for volume in self.volumes.values():
            running = "" if self.operation is None else self.operation.id
            assert volume.operation in ("", running)
            assert not volume.is_held or volume.operation == running != ""

    def _check_clean(self, operation: VolumeOperation) -> None:
        """After an operation there is nothing of it on any node but what it was for."""
        for name, node in self.nodes.items():
            leftovers = dict(node.drafts)
            if operation.kind is OperationKind.RESTORE and operation.status is OperationStatus.SUCCEEDED:
                assert operation.id not in leftovers or name == operation.snapshot_node
            assert operation.id not in leftovers, (operation, name)
            for id in node.volumes:
                volume = next(one for one in self.volumes.values() if one.id == id)
                assert volume.node == name, (operation, name)
            assert set(node.snapshots) <= set(self.snapshots)

    def teardown(self) -> None:
        """Without more failures every operation ends."""
        for _ in range(30):
            if self.operation is None:
                return
            self.work("done")
            self.users = [user for user in self.users if user.leaving is None]
        raise AssertionError(self.operation)


TestOperations = Operations.TestCase
TestOperations.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def operation(**changed: object) -> VolumeOperation:
    plain = VolumeOperation("o", OperationKind.MOVE, VOLUME, "db", 0.0, node=HERE, target=THERE, generation=3)
    return replace(plain, **changed)


@pytest.mark.parametrize(
    ("step", "kind", "is_new", "may"),
    [
        (OperationStep.STOPPING, OperationKind.MOVE, False, True),
        (OperationStep.COPYING, OperationKind.MOVE, False, True),
        (OperationStep.INSTALLING, OperationKind.MOVE, False, True),
        (OperationStep.REMOVING, OperationKind.MOVE, False, False),
        (OperationStep.INSTALLING, OperationKind.RESTORE, False, False),
        (OperationStep.INSTALLING, OperationKind.RESTORE, True, True),
        (OperationStep.CLEANING, OperationKind.SNAPSHOT, False, False),
        (OperationStep.REMOVING, OperationKind.DELETE_SNAPSHOT, False, False),
    ],
)
def test_can_be_cancelled_until_the_copy_has_taken_the_place_of_the_data(
    step: OperationStep, kind: OperationKind, is_new: bool, may: bool
) -> None:
    one = operation(step=step, kind=kind, is_new=is_new)
    assert one.may_cancel is may
    assert (decisions.fail(one, None, None, OperationStatus.CANCELLED, "") is not None) is may


def test_a_node_that_left_the_cloud_is_not_waited_for() -> None:
    gone = operation(step=OperationStep.REMOVING)
    assert decisions.decide(gone, [], lambda node: False) == Proceed()
    assert isinstance(decisions.decide(gone, [], lambda node: True), RunTasks)


def test_the_source_is_removed_only_in_the_generation_that_was_moved() -> None:
    decision = decisions.decide(operation(step=OperationStep.REMOVING), [], lambda node: True)
    assert isinstance(decision, RunTasks)
    ((assigned),) = decision.tasks
    assert (assigned.node, assigned.task.action, assigned.task.generation) == (HERE, VolumeAction.REMOVE, 3)


@pytest.mark.parametrize(("kind", "name", "generation"), [("move", "db", 3), ("restore-new", "copy", None)])
def test_a_cancel_after_the_copy_was_installed_undoes_it(
    kind: str, name: str, generation: int | None
) -> None:
    world = Operations()
    world.begin(kind)
    while world.operation is not None and world.operation.step is not OperationStep.INSTALLING:
        world.work("done")
    world.work("lost-after")  # it is installed, and nobody knows
    assert world.nodes[THERE].volumes
    world.cancel()
    while world.operation is not None:
        world.work("done")
    assert world.nodes[THERE] == PlayedNode()
    assert world.nodes[HERE].volumes == {VOLUME: (1, "data-0")}
    volume = world.volumes.get(name)
    # Above that of the copy: an order for it cannot be taken for one of the volume.
    assert (None if volume is None else volume.generation) == generation


READY = Volume(
    VOLUME,
    "db",
    Gigabytes(1),
    0.0,
    node=HERE,
    status=VolumeStatus.READY,
    generation=3,
    operation="o",
    is_held=True,
    has_been_ready=True,
)


def removals(one: VolumeOperation, volume_node: NodeId) -> dict[NodeId, tuple[VolumeAction, int]]:
    decision = decisions.decide(one, [], lambda node: True, volume_node=volume_node)
    assert isinstance(decision, RunTasks)
    return {each.node: (each.task.action, each.task.generation) for each in decision.tasks}


@pytest.mark.parametrize("step", [OperationStep.STOPPING, OperationStep.COPYING, OperationStep.INSTALLING])
def test_cleaning_after_a_move_never_removes_what_a_later_move_installed(step: OperationStep) -> None:
    failed = decisions.fail(operation(step=step), READY, None, OperationStatus.CANCELLED, "")
    assert failed is not None
    assert failed.volume is not None
    assert not failed.volume.operation
    later = operation(id="later", step=OperationStep.INSTALLING, generation=failed.volume.generation)
    install = decisions.decide(later, [], lambda node: True)
    assert isinstance(install, RunTasks)
    _, removed = removals(failed.operation, HERE)[THERE]
    assert removed < install.tasks[0].task.generation


@pytest.mark.parametrize("is_new", [False, True])
def test_cleaning_does_not_remove_a_volume_that_is_at_the_target(is_new: bool) -> None:
    """The operation was done, then the store was restored from a backup of its time."""
    kind = OperationKind.RESTORE if is_new else OperationKind.MOVE
    cleaning = operation(step=OperationStep.CLEANING, kind=kind, is_new=is_new)
    assert removals(cleaning, HERE)[THERE][0] is VolumeAction.REMOVE
    assert removals(cleaning, THERE)[THERE][0] is VolumeAction.DISCARD
