"""The node runtime in this process: its cells and containers, and the unix socket that serves them.

Called by `skerry.daemon.roles` for `up` and `node`. Where this machine cannot have cells (no root, no usable
cgroups) the socket still serves health and reflection, and what is lacking is said in a sentence. Cells
outlive this process: stopping it leaves them running, and the next start takes them over.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from grpclib._typing import IServable

from skerry.daemon import containers
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model import errors
from skerry.model.settings import Settings
from skerry.node import host
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.detection import detect
from skerry.node.launching import Launcher
from skerry.wire.aurae.observe import ObserveService
from skerry.wire.aurae.runtime import EMPTY_SERVICES, RuntimeService
from skerry.wire.cells.service import CellService
from skerry.wire.gate import Gate
from skerry.wire.grpc import standard
from skerry.wire.grpc.server import GrpcServer

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Runtime:
    """The runtime as it serves."""

    cells: Cells | None  # None: no cells here, and so nothing else
    engine: containers.Engine | None  # None: no containers here
    lacking: tuple[str, ...]  # what this machine cannot do, in plain sentences
    failed: Callable[[], Awaitable[None]]  # raises when it cannot go on


async def start(
    settings: Settings,
    folder: Path,
    clock: Clock,
    *,
    gate: Gate,
    tls: ssl.SSLContext,
    socket_path: Path,
    checks: Mapping[str, standard.Readiness],
    undo: AsyncExitStack,
) -> Runtime:
    """Open the cells and serve them on `socket_path`."""
    services: list[IServable] = []
    engine: containers.Engine | None = None
    lacking: tuple[str, ...] = ()
    try:
        cells = await _open_cells(settings, folder, clock, socket_path, undo)
    except errors.Unavailable as error:
        log.warning("runtime.unavailable", reason=error.message)
        cells, lacking = None, (error.message,)
    # Entered after the cells, so that it is left before they close.
    loops = await undo.enter_async_context(Keeper("runtime", clock=clock))
    if cells is not None:
        loops.forever("cells", cells.run, critical=True)
        root = group_root(settings.node.cgroup_root, folder)
        boxes = await containers.start(settings, folder, clock, cells, group_root=root, undo=undo)
        lacking += boxes.lacking
        engine = boxes.engine
        version = "" if engine is None else f"{engine.runtime.name} {engine.runtime.version}"
        facts = host.describe(folder, cells.cgroups_kind, version)

        def node() -> tuple[host.Host, host.HostUsage]:
            return facts, host.measure(folder)

        services = [
            RuntimeService(cells),
            ObserveService(cells),
            CellService(cells, node),
            *boxes.services,
        ]
    server = GrpcServer(
        standard.beside(services, checks, empty_services=EMPTY_SERVICES), gate, settings.grpc, clock=clock
    )
    undo.push_async_callback(server.stop, settings.stop_timeout_s / 2)
    await server.listen_unix(socket_path, tls)
    return Runtime(cells, engine, lacking, loops.failed)


async def _open_cells(
    settings: Settings, folder: Path, clock: Clock, socket_path: Path, undo: AsyncExitStack
) -> Cells:
    if os.geteuid() != 0:
        raise errors.Unavailable("root: cells need it; start with sudo to have them")
    socket_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # what is to be hidden must be there
    groups = detect(group_root(settings.node.cgroup_root, folder))
    undo.callback(groups.dispose)  # the group of all cells, if none is left
    launcher = await Launcher.start()
    undo.push_async_callback(launcher.stop)
    # A socket in a folder of its own is hidden with it; elsewhere TLS alone keeps cells out.
    hidden = [folder, *([socket_path.parent.resolve()] if socket_path.parent.name == "aurae" else [])]
    cells = await Cells.open(folder / "cells", groups, launcher, settings.node, clock, hidden=hidden)
    undo.push_async_callback(cells.close)
    return cells


def group_root(prefix: str, folder: Path) -> str:
    """The group of all cells of this data folder: two Skerrys on one machine must not meet in one."""
    return f"{prefix}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]}"
