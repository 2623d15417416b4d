"""The leader's loop of operations: every step done once or again, by this server or by the next."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from skerry.control.snapshots.decisions import NodeTask
from skerry.control.snapshots.requests import MoveRequest, RestoreRequest, SnapshotRequest
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.ids import Namespace
from skerry.model.resources import NO_RESOURCES
from skerry.model.snapshots import SnapshotLocation, SnapshotStatus
from skerry.model.volume_operations import OperationStatus, OperationStep, VolumeOperation
from skerry.model.volume_tasks import VolumeAction
from skerry.model.volumes import VolumeStatus
from skerry.store.local.memory import MemoryStore
from skerry.store.protocol import Store
from tests.control.snapshots.worlds import HERE, THERE, VOLUME, PlayedNodes, VolumeServer
from tests.support.waiting import eventually


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = MemoryStore(SystemClock())
    yield made
    await made.close()


@pytest.fixture
def nodes() -> PlayedNodes:
    return PlayedNodes()


@pytest.fixture
async def server(store: Store, nodes: PlayedNodes) -> AsyncIterator[VolumeServer]:
    async with VolumeServer(store, nodes).running() as server:
        await server.add_volume()
        yield server


async def ended(server: VolumeServer, operation: VolumeOperation) -> VolumeOperation:
    def found() -> VolumeOperation | None:
        record = server.operations.by_id(operation.id)
        return record.value if record is not None and record.value.is_over else None

    value = await eventually(found)
    assert isinstance(value, VolumeOperation)
    return value


async def test_a_volume_is_moved_with_what_uses_it(server: VolumeServer, nodes: PlayedNodes) -> None:
    await server.add_user()
    begun = await server.registry.move("db", MoveRequest("there"), actor="me")
    assert server.volume().is_held
    done = await ended(server, begun)
    assert done.status is OperationStatus.SUCCEEDED
    volume = server.volume()
    assert (volume.node, volume.generation, volume.operation, volume.is_held) == (THERE, 2, "", False)
    assert nodes.disks == {HERE: {}, THERE: {f"volume/{VOLUME}": "data"}}
    assert nodes.tasks == [
        (HERE, VolumeAction.SEND_VOLUME),
        (THERE, VolumeAction.RECEIVE),
        (THERE, VolumeAction.INSTALL),
        (HERE, VolumeAction.REMOVE),
    ]
    (instance,) = server.instances.values()
    assert instance.node is None
    kinds = [stored.event.kind for stored in await server.events.list_after("0")]
    assert [kind for kind in kinds if kind.startswith("volume.")] == [
        "volume.move_stopping",
        "volume.move_copying",
        "volume.move_installing",
        "volume.move_removing",
        "volume.move_succeeded",
    ]


async def test_a_snapshot_is_taken_restored_and_deleted(server: VolumeServer, nodes: PlayedNodes) -> None:
    begun = await server.registry.take("db", SnapshotRequest("one"), actor="me")
    await ended(server, begun)
    snapshot = (await server.registry.read_snapshot("one")).value
    assert (snapshot.status, snapshot.digest, snapshot.node) == (SnapshotStatus.READY, "data", HERE)
    nodes.disks[HERE][f"volume/{VOLUME}"] = "other"
    await ended(server, await server.registry.restore("db", RestoreRequest("one"), actor="me"))
    assert nodes.disks[HERE][f"volume/{VOLUME}"] == "data"
    assert server.volume().generation == 2
    copied = await server.registry.restore("db", RestoreRequest("one", "copy", "there"), actor="me")
    await ended(server, copied)
    copy = server.volume("copy")
    assert (copy.node, copy.status, copy.is_held, copy.has_been_ready) == (
        THERE,
        VolumeStatus.READY,
        False,
        True,
    )
    assert nodes.disks[THERE] == {f"volume/{copy.id}": "data"}
    await ended(server, await server.registry.delete("one", actor="me"))
    assert server.snapshots.values() == []
    assert nodes.disks[HERE] == {f"volume/{VOLUME}": "data"}


async def test_one_in_use_is_restored_only_if_that_may_stop_it(
    server: VolumeServer, nodes: PlayedNodes
) -> None:
    await ended(server, await server.registry.take("db", SnapshotRequest("one"), actor="me"))
    await server.add_user()
    with pytest.raises(errors.FailedPrecondition, match=r"in use by writer.*--stop"):
        await server.registry.restore("db", RestoreRequest("one"), actor="me")
    begun = await server.registry.restore("db", RestoreRequest("one", may_stop=True), actor="me")
    assert (await ended(server, begun)).status is OperationStatus.SUCCEEDED
    (instance,) = server.instances.values()
    assert instance.node is None


def faults(kind: str) -> Iterator[tuple[str, VolumeAction]]:
    actions = {
        "move": (VolumeAction.RECEIVE, VolumeAction.INSTALL, VolumeAction.REMOVE),
        "snapshot": (VolumeAction.SNAPSHOT,),
        "restore": (VolumeAction.FETCH, VolumeAction.INSTALL),
    }[kind]
    for action in actions:
        yield "before", action
        yield "after", action


ALL_FAULTS = [(kind, *fault) for kind in ("move", "snapshot", "restore") for fault in faults(kind)]


async def begin(server: VolumeServer, kind: str) -> VolumeOperation:
    match kind:
        case "move":
            return await server.registry.move("db", MoveRequest("there"), actor="me")
        case "snapshot":
            return await server.registry.take("db", SnapshotRequest("new"), actor="me")
        case _:
            return await server.registry.restore("db", RestoreRequest("old"), actor="me")


def failing(
    moment: str, action: VolumeAction, error: Callable[[], Exception], times: int = 1
) -> Callable[[str, NodeTask], None]:
    left = [times]

    def fault(now: str, task: NodeTask) -> None:
        if (now, task.task.action) == (moment, action) and left[0]:
            left[0] -= 1
            raise error()

    return fault


@pytest.mark.parametrize(("kind", "moment", "action"), ALL_FAULTS)
async def test_a_node_that_is_killed_at_any_step_goes_on(
    server: VolumeServer, nodes: PlayedNodes, kind: str, moment: str, action: VolumeAction
) -> None:
    await ended(server, await server.registry.take("db", SnapshotRequest("old"), actor="me"))
    nodes.fault = failing(moment, action, lambda: errors.Unavailable("killed"), times=2)
    done = await ended(server, await begin(server, kind))
    assert done.status is OperationStatus.SUCCEEDED
    check_nothing_left(server, nodes)


@pytest.mark.parametrize(("kind", "moment", "action"), ALL_FAULTS)
async def test_a_server_that_is_killed_at_any_step_is_followed_by_one_that_goes_on(
    store: Store, nodes: PlayedNodes, kind: str, moment: str, action: VolumeAction
) -> None:
    killed: list[bool] = []

    def kill() -> Exception:
        killed.append(True)
        return _Stuck()

    async with VolumeServer(store, nodes).running() as first:
        await first.add_volume()
        await ended(first, await first.registry.take("db", SnapshotRequest("old"), actor="me"))
        nodes.fault = failing(moment, action, kill)
        begun = await begin(first, kind)
        await eventually(lambda: killed)
    async with VolumeServer(store, nodes).running() as second:
        done = await ended(second, begun)
        assert done.status is OperationStatus.SUCCEEDED
        check_nothing_left(second, nodes)


class _Stuck(Exception):
    """Ends the loop of a server, as its death would."""


def check_nothing_left(server: VolumeServer, nodes: PlayedNodes) -> None:
    wanted: dict[str, set[str]] = {HERE: set(), THERE: set()}
    for volume in server.volumes.values():
        assert not volume.is_held
        assert not volume.operation
        assert volume.node is not None
        wanted[volume.node].add(f"volume/{volume.id}")
    for snapshot in server.snapshots.values():
        wanted[snapshot.node].add(f"snapshot/{snapshot.id}")
    assert {node: set(disk) for node, disk in nodes.disks.items()} == wanted


@pytest.mark.parametrize("kind", ["move", "snapshot", "restore"])
async def test_one_that_cannot_be_done_is_undone(server: VolumeServer, nodes: PlayedNodes, kind: str) -> None:
    await server.add_user()
    await ended(server, await server.registry.take("db", SnapshotRequest("old"), actor="me"))
    action = {"move": VolumeAction.RECEIVE, "snapshot": VolumeAction.SNAPSHOT}.get(kind, VolumeAction.FETCH)
    nodes.fault = failing("before", action, lambda: errors.ResourcesExhausted("the disk is full"))
    if kind == "restore":
        request = RestoreRequest("old", may_stop=True)
        begun = await server.registry.restore("db", request, actor="me")
    else:
        begun = await begin(server, kind)
    done = await ended(server, begun)
    assert (done.status, done.reason) == (OperationStatus.FAILED, "the disk is full")
    assert server.volume().node == HERE
    assert [one.name for one in server.snapshots.values()] == ["old"]
    check_nothing_left(server, nodes)


async def test_a_user_that_was_placed_just_before_is_stopped_before_the_copy(
    server: VolumeServer, nodes: PlayedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of instances may be behind that of operations."""
    sync, is_behind = server.instances.sync, [True]

    async def catch_up() -> None:
        if is_behind:
            is_behind.clear()
            await server.add_user()
        await sync()

    monkeypatch.setattr(server.instances, "sync", catch_up)
    users: list[int] = []
    nodes.fault = lambda moment, task: users.append(len(list(server.instances.index.on_node(HERE))))
    done = await ended(server, await server.registry.move("db", MoveRequest(THERE), actor="me"))
    assert done.status is OperationStatus.SUCCEEDED
    assert not is_behind
    assert set(users) == {0}


@pytest.mark.parametrize("kind", ["move", "snapshot", "restore"])
async def test_one_that_is_cancelled_while_it_copies_is_undone(
    server: VolumeServer, nodes: PlayedNodes, kind: str
) -> None:
    await ended(server, await server.registry.take("db", SnapshotRequest("old"), actor="me"))
    nodes.is_slow.set()
    begun = await begin(server, kind)
    record = await eventually(
        lambda: (
            found
            if (found := server.operations.by_id(begun.id)) is not None and found.value.done_bytes
            else None
        )
    )
    assert (record.value.done_bytes, record.value.total_bytes) == (3, 10)
    with pytest.raises(errors.FailedPrecondition, match="operation under way"):
        await server.registry.take("db", SnapshotRequest("another"), actor="me")
    await server.registry.cancel(begun.id, actor="me")
    nodes.is_slow.clear()
    done = await ended(server, begun)
    assert (done.status, done.step) == (OperationStatus.CANCELLED, OperationStep.DONE)
    assert server.volume().node == HERE
    check_nothing_left(server, nodes)
    assert await server.registry.cancel(begun.id, actor="me") == done


async def test_one_that_is_over_cannot_be_cancelled(server: VolumeServer) -> None:
    begun = await server.registry.take("db", SnapshotRequest("one"), actor="me")
    await ended(server, begun)
    with pytest.raises(errors.FailedPrecondition, match="cannot be cancelled"):
        await server.registry.cancel(begun.id, actor="me")


class TestRequests:
    async def test_that_make_no_sense_say_why(self, server: VolumeServer, nodes: PlayedNodes) -> None:
        registry = server.registry
        with pytest.raises(errors.NotFound, match="no volume"):
            await registry.take("nothing", SnapshotRequest(), actor="me")
        with pytest.raises(errors.NotFound, match="no volume"):
            await registry.take("db", SnapshotRequest(), actor="me", namespace=Namespace("other"))
        with pytest.raises(errors.NotFound, match="no snapshot"):
            await registry.restore("db", RestoreRequest("nothing"), actor="me")
        with pytest.raises(errors.NotFound, match="no node"):
            await registry.move("db", MoveRequest("nowhere"), actor="me")
        with pytest.raises(errors.FailedPrecondition, match="on that node already"):
            await registry.move("db", MoveRequest("here"), actor="me")
        with pytest.raises(errors.FailedPrecondition, match=r"snapshots\.s3_endpoint"):
            await registry.take("db", SnapshotRequest(location=SnapshotLocation.S3), actor="me")
        with pytest.raises(errors.NotFound, match="no operation"):
            await registry.cancel("nothing", actor="me")
        nodes.lost.add(THERE)
        with pytest.raises(errors.FailedPrecondition, match="is lost"):
            await registry.move("db", MoveRequest("there"), actor="me")
        await server.add_volume(status=VolumeStatus.FAILED, reason="its file is gone")
        with pytest.raises(errors.FailedPrecondition, match="FAILED: its file is gone"):
            await registry.take("db", SnapshotRequest(), actor="me")
        assert server.operations.values() == []

    async def test_a_node_without_free_disk_is_no_target(
        self, server: VolumeServer, nodes: PlayedNodes
    ) -> None:
        taken = await server.registry.take("db", SnapshotRequest("s"), actor="me")
        await ended(server, taken)
        nodes.free[THERE] = NO_RESOURCES
        with pytest.raises(errors.ResourcesExhausted, match="there has 0 GB of disk free"):
            await server.registry.move("db", MoveRequest("there"), actor="me")
        with pytest.raises(errors.ResourcesExhausted, match="choose another node"):
            await server.registry.restore("db", RestoreRequest("s", new_name="n", node="there"), actor="me")
        assert not server.volume().operation

    async def test_a_snapshot_of_another_size_is_restored_only_as_a_new_volume(
        self, server: VolumeServer
    ) -> None:
        await ended(server, await server.registry.take("db", SnapshotRequest("one"), actor="me"))
        await server.add_volume(size=2)
        with pytest.raises(errors.FailedPrecondition, match="--as"):
            await server.registry.restore("db", RestoreRequest("one"), actor="me")

    async def test_a_name_is_taken_once(self, server: VolumeServer) -> None:
        await ended(server, await server.registry.take("db", SnapshotRequest("one"), actor="me"))
        with pytest.raises(errors.AlreadyExists, match="one"):
            await server.registry.take("db", SnapshotRequest("one"), actor="me")
        with pytest.raises(errors.AlreadyExists, match="db"):
            await server.registry.restore("db", RestoreRequest("one", "db"), actor="me")
