"""How a machine stops being a node: it is drained, unregistered, and everything of Skerry is removed from it.

Used by `skerry node leave` (`skerry.cli.commands.node_leave`), and by `skerry.daemon.node_role` when it
moves to another cloud. What runs is taken over as a starting node would, and then removed by the same code
that removes it at any other time; so it works just as well after a crash. Only what a node makes in its data
folder is removed: a server's data is refused, and files of others are left where they are.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import structlog
from grpclib.client import Channel
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest

from skerry.daemon import containers, handover, log_forwarding, node_mesh, node_runtime, rootless
from skerry.daemon.containers import ContainerEngine
from skerry.daemon.role_parts import RoleContext
from skerry.kit import disk_monitor, disk_reserve, files, json_codec
from skerry.kit.clock import Clock
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.cells import parent_of
from skerry.model.enforcement import Isolation, NodeEnforcement
from skerry.model.ids import NodeId
from skerry.model.settings import Settings
from skerry.node import user_namespaces
from skerry.node.agent.node_identity import JoinRecord, NodeIdentity
from skerry.node.agent.server_addresses import ServerAddressCache
from skerry.node.containers import tree_size
from skerry.node.containers.overlays import mount_points
from skerry.node.kernel import namespaces
from skerry.node.network.mesh.mesh import KEY_FILE, MeshDeps, NodeMesh
from skerry.node.rootless import delegated_groups, holder
from skerry.node.routes import edge
from skerry.store import data_stamp
from skerry.transport import addresses, unix_sockets
from skerry.transport.grpc import channels
from skerry.transport.links.nodes import departure_client

log = structlog.get_logger(__name__)

MEMBERSHIP_FOLDER: Final = "node"
SERVERS_FILE: Final = "servers.json"
_SETTINGS_FILE: Final = "settings.json"  # in the folder of the membership
_IMAGES: Final = "images"
# What users keep on a node. It stays: it is deleted by orders of its own, or by hand.
_DATA: Final = ("volumes", "snapshots")
# What a node makes in its data folder, besides its membership, its lock, and images, which any cloud can use.
_RUNTIME: Final = (
    "instances",
    "lent",
    "functions",
    "containers",
    "network",
    "cells",
    node_runtime.GROUPS,
    delegated_groups.RECORD,
    "volume-operations",
    containers.SUBNET_FILE,
    SERVERS_FILE,
    containers.NETWORK_FILE,
    KEY_FILE,
    containers.GUEST_NETWORKS,
    "routes",
    "web.sock",
    log_forwarding.FOLDER,
)
# What a server makes in it.
_SERVER: Final = (
    "pki",
    "store.db",
    "store.db-wal",
    "store.db-shm",
    "history.json",
    "http.sock",
    "node.id",
    "sample",
)
_REST: Final = (
    _IMAGES,
    "ready.json",
    data_stamp.FILE_NAME,
    handover.FILE_NAME,
    "aurae.sock",
    disk_reserve.FILE_NAME,
    disk_monitor.PROBE,
    MEMBERSHIP_FOLDER,
    "lock",
)  # in this order; the lock is held until then
_NOTHING_LEFT: Final = "Nothing of Skerry is left on this machine but the program itself."
_REACH_S: Final = 5.0
_STOP_MARGIN_S: Final = 5.0  # beyond the time that a process has for a clean stop
_POLL_S: Final = 0.1

LeaveProgress = Callable[[str], None]


class LeaveOptions(msgspec.Struct, frozen=True):
    """How to leave."""

    drains: bool = True
    within_s: float = 0.0  # for the drain; 0: as long as the server's `fleet.drain_s`
    force: bool = False  # also if no server can be reached


def save_settings(folder: Path, settings: Settings) -> None:
    """Store the settings of this node, so that `leave` finds everything."""
    files.write_atomically(
        folder / MEMBERSHIP_FOLDER / _SETTINGS_FILE, json_codec.encode(settings), files.PRIVATE
    )


def read_settings(folder: Path, otherwise: Settings) -> Settings:
    """Those that the node of this folder ran with last; `otherwise` if that is not known."""
    try:
        return json_codec.decode((folder / MEMBERSHIP_FOLDER / _SETTINGS_FILE).read_bytes(), Settings)
    except (FileNotFoundError, json_codec.InvalidJson):
        return otherwise


def find(folder: Path, clock: Clock) -> JoinRecord | None:
    """The node of this folder; None if it has left in part. Raises NotFound or
    FailedPrecondition if there is nothing to leave."""
    if folder.exists() and os.geteuid() not in (0, folder.stat().st_uid):
        raise errors.FailedPrecondition(f"{folder} belongs to another user; do this as that user, or as root")
    if (folder / "pki").exists():
        raise errors.FailedPrecondition(
            f"{folder} is the data folder of a server (`skerry server`, `skerry up`), not of a machine "
            "that joined one; name the node's with --data"
        )
    if not any((folder / name).exists() for name in (MEMBERSHIP_FOLDER, *_RUNTIME)):
        raise errors.NotFound(f"{folder} is not the data folder of a node; name it with --data")
    return NodeIdentity(folder / MEMBERSHIP_FOLDER, clock).read()


def has_joined(folder: Path, clock: Clock) -> bool:
    """Whether the folder is of a node that has to leave its cloud."""
    return (
        not (folder / "pki").exists() and NodeIdentity(folder / MEMBERSHIP_FOLDER, clock).read() is not None
    )


async def leave(
    settings: Settings,
    folder: Path,
    clock: Clock,
    options: LeaveOptions,
    report: LeaveProgress,
    *,
    enforcement: NodeEnforcement,
    stop_service: Callable[[], None] = lambda: None,
) -> None:
    """Take this machine out of its cloud, and everything of Skerry off it. May be repeated if it fails.
    `stop_service` is called after the drain, for a service manager that would start the process again."""
    place = find(folder, clock)
    missed = ""  # why the cloud was not informed
    if place is not None:
        missed = await _at_server(place, _drain(folder, clock, place, options, report), options)
    await asyncio.to_thread(stop_service)
    lock = await _stop_process(folder, settings.stop_timeout_s + _STOP_MARGIN_S, report)
    try:
        if place is not None and not missed:
            missed = await _at_server(place, _unregister(folder, clock, place, report), options)
        report("removing containers, cells and the network of containers")
        await remove_runtime(settings, folder, clock, enforcement)
        _remove_outside(settings, folder)
        for name in _REST:
            await asyncio.to_thread(tree_size.remove, folder / name)
    finally:
        lock.release()
    _remove_folder(folder, report)
    if place is not None and missed:
        report(
            f"No server was informed ({missed}). To take this node off the cloud's list, run there: "
            f"skerry node remove {place.node} --force"
        )


async def remove_installed(
    settings: Settings, folder: Path, clock: Clock, report: LeaveProgress, *, has_data: bool
) -> None:
    """Remove what runs here, of a node or of a server with one: containers, cells, networks, mounts. Data
    stay, so that another start continues with them as after a reboot; without `has_data` they are removed."""
    lock = await _stop_process(folder, settings.stop_timeout_s + _STOP_MARGIN_S, report)
    try:
        report("removing containers, cells and the network of containers")
        await _remove_running_if_any(settings, folder, clock, rootless.outside())
        _unmount_below(folder)
        _remove_outside(settings, folder)
        for name in () if has_data else (*_RUNTIME, *_DATA, *_SERVER, *_REST):
            await asyncio.to_thread(tree_size.remove, folder / name)
        if has_data and _is_unused(folder):
            has_data = False
        if not has_data:
            await asyncio.to_thread(tree_size.remove, folder / "lock")
    finally:
        lock.release()
    if not has_data:
        _remove_folder(folder, report)


async def _at_server(place: JoinRecord, step: Awaitable[None], options: LeaveOptions) -> str:
    """Do `step`; why it could not be done, if it may be left out by force."""
    try:
        await step
    except errors.SkerryError as error:
        if options.force:
            return error.message
        raise errors.Unavailable(
            f"{error.message} Nothing was removed. Try again when a server can be reached, or leave with "
            "--force and then take the node off the cloud's list, there: "
            f"`skerry node remove {place.node} --force`"
        ) from None
    return ""


async def remove_runtime(
    settings: Settings, folder: Path, clock: Clock, enforcement: NodeEnforcement
) -> None:
    """Remove what this node runs and has made to run it; its membership and its images stay."""
    await _remove_running_if_any(settings, folder, clock, enforcement)
    _unmount_below(folder)
    for name in _RUNTIME:
        await asyncio.to_thread(tree_size.remove, folder / name)
    for name in _DATA:
        with suppress(OSError):  # it is not empty, or was never there
            (folder / name).rmdir()


async def _remove_running_if_any(
    settings: Settings, folder: Path, clock: Clock, enforcement: NodeEnforcement
) -> None:
    if not (folder / "cells").exists():
        return  # nothing can have run here
    try:
        await _remove_running(settings, folder, clock, enforcement)
    except errors.Unavailable as error:
        if enforcement.isolation is not Isolation.UNAVAILABLE:
            raise
        log.info("departure.nothing_runs", reason=error.message)


async def _remove_running(
    settings: Settings, folder: Path, clock: Clock, enforcement: NodeEnforcement
) -> None:
    async with AsyncExitStack() as undo:
        socket_path = addresses.unix_socket(settings.grpc.socket, folder)
        context = RoleContext(settings, folder, clock, undo, enforcement=enforcement)
        cells = await node_runtime.open_cells(context, socket_path)
        loops = await undo.enter_async_context(TaskSupervisor("departure", clock=clock))
        loops.forever("cells", cells.run)
        root = node_runtime.group_root(settings.node.cgroup_root, folder)
        boxes = await containers.start(context, cells, group_root=root, has_server=False)
        if boxes.engine is not None:
            await _take_over_network(boxes.engine, context)
            held = boxes.engine.containers
            await asyncio.gather(*(held.remove(each.spec.name, force=True) for each in held.list()))
        top = [view.cell for view in cells.list() if parent_of(view.cell.name) is None]
        await asyncio.gather(*(cells.free(each.name, owner=each.owner) for each in top))
    # Left where there were containers and there can be none now.
    for part in ("network", "containers"):
        user_namespaces.UserNamespaces(f"{root}-{part}").keep_only([])


async def _take_over_network(engine: ContainerEngine, context: RoleContext) -> None:
    """Have the mesh removed with the network, and end the HAProxy of routes: both outlive their agent."""
    settings, folder, network = context.settings, context.folder, engine.network
    deps = MeshDeps(
        NodeId("leaving"),
        network,
        context.clock,
        lambda _: None,
        lambda: (),
        lambda _: None,
        node_mesh.hindrance(context),
        engine.namespace,
    )
    mesh = await NodeMesh(folder, settings.mesh, deps).open()
    context.undo.push_async_callback(mesh.close)
    network.call_when_removed(mesh.remove)
    await edge.remove(edge.edge_files(folder, network.key), settings.routes.program)


def _unmount_below(folder: Path) -> None:
    points = mount_points(Path("/proc/self/mountinfo").read_bytes(), below=folder)
    for point in reversed(points):
        if point != folder:
            namespaces.unmount_all(point)


def _remove_outside(settings: Settings, folder: Path) -> None:
    """What is outside the data folder, if it is empty or dead."""
    socket_path = addresses.unix_socket(settings.grpc.socket, folder)
    unix_sockets.remove_stale(socket_path)
    for path in (socket_path.parent, user_namespaces.FOLDER):
        with suppress(OSError):  # not empty, or never there
            if path.name in ("aurae", user_namespaces.FOLDER.name):
                path.rmdir()


def _is_unused(folder: Path) -> bool:
    """Whether nothing was ever started with this folder."""
    return all(path.name == "lock" for path in folder.iterdir())


def _remove_folder(folder: Path, report: LeaveProgress) -> None:
    try:
        folder.rmdir()
    except OSError:
        remaining = sorted(path.name for path in folder.iterdir())
        for name in set(_DATA).intersection(remaining):
            report(f"Data of {name} are still in {folder / name}; remove them by hand.")
        # The namespace is ended when this process is done.
        others = [name for name in remaining if name not in (*_DATA, holder.RECORD, holder.LOCK)]
        if not others and set(_DATA).intersection(remaining):
            return
        if not others:
            report(_NOTHING_LEFT)
            return
        report(
            f"Nothing of Skerry is left here. In {folder} there is still, from others: {', '.join(others)}"
        )
    else:
        report(_NOTHING_LEFT)


async def _stop_process(folder: Path, within_s: float, report: LeaveProgress) -> files.FolderLock:
    """Stop the process that holds the folder, if there is one; returns the folder's lock, so that none starts
    meanwhile."""
    lock = files.FolderLock(folder)
    stopped_pid = 0
    async with _deadline(
        within_s, lambda: f"process {stopped_pid} has not ended within {within_s:g} s; stop it first"
    ):
        while True:
            try:
                lock.acquire()
                return lock
            except files.FolderLocked as held:
                if held.pid and held.pid != stopped_pid and _has_open(held.pid, folder / "lock"):
                    report(f"stopping process {held.pid}")
                    os.kill(held.pid, signal.SIGTERM)
                    stopped_pid = held.pid
            await asyncio.sleep(_POLL_S)
    raise AssertionError("left by return or by an error")


@asynccontextmanager
async def _deadline(within_s: float, message: Callable[[], str]) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError:
        raise errors.TimedOut(message()) from None


def _has_open(pid: int, path: Path) -> bool:
    """Whether the process is the one that has the file: its number may mean another in this pid namespace."""
    try:
        return any(
            os.path.samefile(entry, path) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.exists()
        )
    except OSError:
        return False


async def _drain(
    folder: Path, clock: Clock, place: JoinRecord, options: LeaveOptions, report: LeaveProgress
) -> None:
    """Have the server drain this node, if it runs; at least check that a server can be reached."""
    async with _server(folder, clock, place, report) as channel:
        if not options.drains or not _is_running(folder):
            return
        report(
            "draining: what runs here is stopped, and placed elsewhere; what no other node can take now "
            "stays until the time is up (--timeout; --no-drain does without)"
        )
        try:
            async for left in departure_client.drain(channel, options.within_s):
                report(f"instances to go: {left}" if left else "drained")
        except errors.NotFound:
            report("the cloud does not list this node, so there is nothing to drain")


async def _unregister(folder: Path, clock: Clock, place: JoinRecord, report: LeaveProgress) -> None:
    async with _server(folder, clock, place, report) as channel:
        left = await departure_client.leave(channel)
    NodeIdentity(folder / MEMBERSHIP_FOLDER, clock).forget()  # so that a repetition skips this
    placed = f"; instances to be placed elsewhere: {left}" if left else ""
    report(f"node {place.name} ({place.node}) is unregistered, and its certificate revoked{placed}")


@asynccontextmanager
async def _server(
    folder: Path, clock: Clock, place: JoinRecord, report: LeaveProgress
) -> AsyncIterator[Channel]:
    """A connection to the first server of the cloud that answers."""
    membership = NodeIdentity(folder / MEMBERSHIP_FOLDER, clock)
    if membership.load() is None:
        raise errors.Unauthenticated("the certificate of this node cannot be used, or has expired.")
    failures = []
    for address in ServerAddressCache(place.grpc, folder / SERVERS_FILE, also=place.also).addresses:
        channel = channels.dial(address, membership.context)
        try:
            report(f"asking the server at {address}")
            with channels.map_errors(f"ask {address}"):
                await HealthStub(channel).Check(HealthCheckRequest(), timeout=_REACH_S)
        except (errors.Unavailable, errors.TimedOut) as error:
            failures.append(error.message if error.message[-1:] in ".?" else f"{error.message}.")
            channel.close()
            continue
        try:
            yield channel
        finally:
            channels.close_now(channel)
        return
    raise errors.Unavailable(_sentences(failures))


def _is_running(folder: Path) -> bool:
    lock = files.FolderLock(folder)
    try:
        lock.acquire()
    except files.FolderLocked:
        return True
    lock.release()
    return False


def _sentences(parts: Iterable[str]) -> str:
    return " ".join(part[:1].upper() + part[1:] for part in parts)
