"""The node runtime in this process: its cells and containers, and the unix socket that serves them.

Called by both roles for `up` and `node`. Where this machine cannot have cells (no root, no usable
cgroups) the socket still serves health, reflection and discovery, and what is lacking is said in a sentence.
Cells outlive this process: stopping it leaves them running, and the next start takes them over.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
import structlog
from grpclib._typing import IServable

from skerry.daemon import containers
from skerry.daemon.role_parts import RoleContext
from skerry.kit.folder_keys import folder_key
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.enforcement import Isolation
from skerry.node import host
from skerry.node.cells.cells import Cells
from skerry.node.cgroups import mounts
from skerry.node.cgroups.detection import MOUNTINFO, detect
from skerry.node.cgroups.files import KernelCgroupFiles
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launcher.child.cell_root import PARTLY_PRIVATE, PRIVATE, HostView, is_within
from skerry.node.launcher.client import LauncherClient
from skerry.node.rootless import delegated_groups, delegation
from skerry.node.signals.following import SignalSource
from skerry.node.watched.groups import WatchedGroups
from skerry.node.watched.watcher import LimitWatcher
from skerry.node.workers import prestarted
from skerry.transport.access.gate import AccessGate
from skerry.transport.grpc import health
from skerry.transport.grpc.server import GrpcServer
from skerry.transport.grpc.unavailable import UnavailableService
from skerry.wire.aurae.cells_v0 import CellServiceV0
from skerry.wire.aurae.discovery_v0 import DiscoveryServiceV0
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.observe_v0 import ObserveServiceV0
from skerry.wire.aurae.runtime import EMPTY_SERVICES, AuraeCellService
from skerry.wire.own.cells.service import CellService
from skerry.wire.own.containers.service import ContainerService, ImageService

log = structlog.get_logger(__name__)

GROUPS: Final = "groups"  # in the data folder: the groups of cells where there are no cgroups
VOLATILE_GROUPS: Final = Path("/run/skerry-groups")  # those of workers, in memory, in the node's own /run


class NodeRuntimeParts(msgspec.Struct, frozen=True):
    """The runtime as it serves."""

    cells: Cells | None  # None: no cells here, and so nothing else
    engine: containers.ContainerEngine | None  # None: no containers here
    lacking: tuple[str, ...]  # what this machine cannot do, in plain sentences
    warnings: tuple[str, ...]  # security warnings, likewise
    failed: Callable[[], Awaitable[None]]  # raises when it cannot go on


async def start(
    context: RoleContext,
    *,
    gate: AccessGate,
    tls: ssl.SSLContext,
    socket_path: Path,
    checks: Mapping[str, health.ReadinessCheck],
    has_server: bool,
) -> NodeRuntimeParts:
    """Open the cells and serve them on `socket_path`. `has_server`: this process is its own server, too."""
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    readiness = health.ReadinessChecks(checks)
    services: list[IServable] = [DiscoveryServiceV0(readiness.all_pass)]
    empty_services: tuple[str, ...] = ()
    engine: containers.ContainerEngine | None = None
    lacking: tuple[str, ...] = ()
    try:
        cells = await open_cells(context, socket_path)
    except errors.Unavailable as error:
        log.warning("runtime.unavailable", reason=error.message)
        cells, lacking = None, (error.message,)
    # Entered after the cells, so that it is left before they close.
    loops = await undo.enter_async_context(TaskSupervisor("runtime", clock=clock))
    if cells is not None:
        loops.forever("cells", cells.run, critical=True)
        root = group_root(settings.node.cgroup_root, folder)
        if context.enforcement.isolation is Isolation.NONE:
            boxes = _no_containers("containers: there are none without isolation (--isolation none)")
        else:
            boxes = await containers.start(context, cells, group_root=root, has_server=has_server)
        lacking += boxes.lacking
        engine = boxes.engine
        facts = host.describe(folder, cells.cgroups_kind, "" if engine is None else engine.version)

        def node() -> tuple[host.HostInfo, host.HostUsage]:
            return facts, host.measure(folder)

        services += [
            AuraeCellService(cells),
            ObserveService(cells),
            CellServiceV0(cells),
            ObserveServiceV0(cells, SignalSource(cells)),
            CellService(cells, node),
            *boxes.services,
        ]
        empty_services = EMPTY_SERVICES
    server = GrpcServer(
        health.with_health_and_reflection(services, readiness, empty_services=empty_services),
        gate,
        settings.grpc,
        clock=clock,
    )
    undo.push_async_callback(server.stop, settings.stop_timeout_s / 2)
    await server.listen_unix(socket_path, tls)
    warnings, enforcement = () if engine is None else engine.warnings, context.enforcement
    if cells is not None and enforcement.is_weaker:
        enforcement = containers.enforcement_in_effect(enforcement, cells, engine)
        warnings = (f"without root: {enforcement.summary()}", *enforcement.reasons, *warnings)
    return NodeRuntimeParts(cells, engine, lacking, warnings, loops.failed)


def _no_containers(reason: str) -> containers.ContainerParts:
    services: list[IServable] = [
        UnavailableService(kind, reason) for kind in (ContainerService, ImageService)
    ]
    return containers.ContainerParts(services, None, (reason,))


async def open_cells(context: RoleContext, socket_path: Path) -> Cells:
    """The cells of this data folder, those of an earlier process among them; `Unavailable` says what
    lacks."""
    settings, folder, undo = context.settings, context.folder, context.undo
    socket_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # what is to be hidden must be there
    groups = _groups(context)
    undo.callback(groups.dispose)  # the group of all cells, if none is left
    # A socket in a folder of its own is hidden with it; elsewhere TLS alone keeps cells out.
    hidden = [folder, *([socket_path.parent] if socket_path.parent.name == "aurae" else [])]
    launcher = await LauncherClient.start(
        view=HostView(
            cell_paths(settings.node.cell_paths),
            tuple(str(path.resolve()) for path in hidden),
            users=context.enforcement.user_ids,
            is_whole=context.enforcement.isolation is Isolation.NONE,
        )
    )
    undo.push_async_callback(launcher.stop)
    cells = await Cells.open(folder / "cells", groups, launcher, settings.node, context.clock)
    undo.push_async_callback(cells.close)
    if isinstance(groups, WatchedGroups):
        loops = await undo.enter_async_context(TaskSupervisor("limits", clock=context.clock))
        loops.forever("limits", LimitWatcher(groups, context.clock).run)
    return cells


def _groups(context: RoleContext) -> Cgroups:
    """The groups of all cells of this data folder. Raises `Unavailable`."""
    enforcement, settings = context.enforcement, context.settings.node
    if enforcement.isolation is Isolation.UNAVAILABLE:
        raise errors.Unavailable("; ".join(enforcement.reasons))
    if enforcement.isolation is Isolation.ROOT:
        return detect(group_root(settings.cgroup_root, context.folder))
    has_own_run = enforcement.isolation is Isolation.USER_NAMESPACE
    watched = WatchedGroups(
        context.folder / GROUPS,
        host.boot_id(),
        limits_users=enforcement.user_ids > 1,
        volatile=(prestarted.CELL, VOLATILE_GROUPS) if has_own_run else None,
    )
    # What runs stays in the groups that it has.
    if enforcement.isolation is Isolation.USER_NAMESPACE and not watched.cells():
        found = delegation.find(
            mounts.parse(MOUNTINFO.read_text()).unified, Path("/proc/self/cgroup").read_text()
        )
        name = group_root(settings.cgroup_root, context.folder)
        files = KernelCgroupFiles()
        if groups := delegated_groups.open_groups(files, found, name, context.folder, host.boot_id()):
            watched.dispose()
            return groups
    return watched


def check_cell_paths(paths: tuple[str, ...]) -> None:
    """Raise `Invalid` for one that cannot be mounted in cells, whether or not it exists."""
    for path in paths:
        if not os.path.isabs(path):
            raise errors.Invalid(f"node.cell_paths: {path!r} must be an absolute path")
        if os.path.realpath(path) in PARTLY_PRIVATE:
            raise errors.Invalid(f"node.cell_paths: {path!r} cannot be shown as a whole: name what is in it")
        own = next((each for each in PRIVATE if is_within(os.path.realpath(path), each)), None)
        if own is not None:
            raise errors.Invalid(f"node.cell_paths: {path!r} cannot be shown: each cell has its own {own}")


def cell_paths(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those that can be mounted in cells. Missing ones are logged and skipped; invalid ones are refused."""
    check_cell_paths(paths)
    for path in paths:
        if not os.path.exists(path):
            log.warning("runtime.cell_path_missing", path=path)
    return paths


def group_root(prefix: str, folder: Path) -> str:
    """The group of all cells of this data folder: two Skerrys on one machine must not meet in one."""
    return f"{prefix}-{folder_key(folder)}"
