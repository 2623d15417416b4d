"""The images and containers of this process, over its cells.

Called by `skerry.daemon.runtime` where there are cells. What this machine lacks for containers (a runtime,
nft) keeps neither the cells nor the images from being served, and is said in a sentence.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import structlog
from grpclib._typing import IServable

from skerry.kit import files
from skerry.kit.clock import Clock
from skerry.kit.tasks import Keeper
from skerry.model import errors
from skerry.model.images import Platform
from skerry.model.settings import NodeSettings, Settings
from skerry.node import host
from skerry.node.cells.cells import Cells
from skerry.node.containers.containers import Containers
from skerry.node.containers.runtimes import OciRuntime, find_runtime
from skerry.node.images.images import Images
from skerry.node.layers.unpacking import Unpacker
from skerry.node.network.network import Network
from skerry.node.network.subnets import parse_network
from skerry.wire.containers.service import ContainerService, ImageService
from skerry.wire.grpc.lacking import LackingService

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Engine:
    """What runs containers."""

    runtime: OciRuntime
    images: Images
    network: Network
    containers: Containers
    cells: Cells  # that they are in
    settings: NodeSettings


@dataclass(frozen=True, slots=True)
class Boxes:
    """What serves images and containers here; None where there can be no containers."""

    services: list[IServable]
    engine: Engine | None
    lacking: tuple[str, ...]


async def start(
    settings: Settings, folder: Path, clock: Clock, cells: Cells, *, group_root: str, undo: AsyncExitStack
) -> Boxes:
    """Open images and containers; the cells are closed after them. `group_root` tells Skerrys apart."""
    images = await Images.open(
        folder / "images",
        settings.images,
        clock,
        platform=_platform(),
        unpacker=Unpacker(),
        guest_registries=settings.market.guest_registries,
    )
    undo.push_async_callback(images.close)
    try:
        engine = await _open(settings, folder, clock, cells, images, group_root, undo)
    except (errors.Unavailable, errors.Refused, errors.Invalid) as error:
        log.warning("containers.unavailable", reason=error.message)
        stand_in = LackingService(ContainerService, error.message)
        return Boxes([ImageService(images), stand_in], None, (f"containers: {error.message}",))
    # Entered after the containers, so that it is left before they close.
    loops = await undo.enter_async_context(Keeper("containers", clock=clock))
    loops.forever("network", engine.network.run)
    loops.forever("containers", engine.containers.run)
    services: list[IServable] = [ImageService(images), ContainerService(engine.containers, images)]
    return Boxes(services, engine, engine.network.lacking())


async def _open(
    settings: Settings,
    folder: Path,
    clock: Clock,
    cells: Cells,
    images: Images,
    group_root: str,
    undo: AsyncExitStack,
) -> Engine:
    home = files.private_folder(folder / "containers")
    runtime = await find_runtime(settings.node.runtime, home, cgroup_root=group_root, boot_id=host.boot_id())
    key = group_root.rpartition("-")[2]
    pool = parse_network(settings.fleet.subnets, field="fleet.subnets")
    network = await Network.open(folder / "network", settings.network, clock, key=key, closed=[pool])
    undo.push_async_callback(network.close)
    containers = await Containers.open(home, cells, images, network, runtime, settings.node, clock)
    undo.push_async_callback(containers.close)
    return Engine(runtime, images, network, containers, cells, settings.node)


def _platform() -> Platform:
    return Platform(system=host.system(), architecture=host.architecture())
