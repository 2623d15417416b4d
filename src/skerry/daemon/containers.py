"""The images and containers of this process, over its cells.

Called by `skerry.daemon.node_runtime` where there are cells. What this machine lacks for containers (a
runtime, nft) keeps neither the cells nor the images from being served, and is said in a sentence.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec
import structlog
from grpclib._typing import IServable

from skerry.daemon import containers_namespace
from skerry.daemon.containers_namespace import ContainersNamespace
from skerry.daemon.role_parts import RoleContext
from skerry.kit import files
from skerry.kit.tasks import TaskSupervisor
from skerry.model import errors
from skerry.model.enforcement import LimitMeans, NodeEnforcement
from skerry.model.ids import Namespace
from skerry.model.images import Platform
from skerry.model.settings import NodeSettings, Settings
from skerry.node import host, user_namespaces
from skerry.node.agent.network_policies import cloud_of
from skerry.node.agent.network_state import NetworkState
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.move_lock import MoveLock
from skerry.node.containers import runtime_advisories
from skerry.node.containers.boot_folder import BootFolder
from skerry.node.containers.clients import ClientContainers
from skerry.node.containers.containers import Containers
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerRecords
from skerry.node.containers.runtime_namespace import RuntimeNamespace
from skerry.node.containers.runtimes import OciRuntime, find_runtime, userns_failure
from skerry.node.containers.state import ContainerDeps
from skerry.node.containers.users import NODE_IDS
from skerry.node.containers.writable_layers import WritableLayers
from skerry.node.devices.device_catalog import NO_DEVICES, DeviceCatalog
from skerry.node.guest_networks.networks import GuestNetworks
from skerry.node.images.images import Images, NamespaceImages
from skerry.node.layers.unpacker_client import LayerUnpacker
from skerry.node.network.bridge_namespace import BridgeNamespace
from skerry.node.network.dns.name_server import NameServer
from skerry.node.network.mesh import programs
from skerry.node.network.mesh.mesh import missing_programs
from skerry.node.network.network import Network
from skerry.node.network.network_host import NetworkHost
from skerry.node.network.subnet_assignment import SubnetAssignment
from skerry.node.network.subnets import parse_network
from skerry.node.network.user_mode_network import UserModeNetwork
from skerry.node.secrets import memory_folder
from skerry.node.secrets.memory_folder import MemoryFolder
from skerry.node.secrets.node_secrets import NodeSecrets
from skerry.node.secrets.secret_files import SecretFileWriter
from skerry.node.secrets.supply import SecretSupply
from skerry.node.user_namespaces import UserNamespaces
from skerry.node.volumes.store import VolumeStore
from skerry.node.volumes.volumes import NodeVolumes
from skerry.transport.grpc.unavailable import UnavailableService
from skerry.wire.own.containers.service import ContainerService, ImageService

log = structlog.get_logger(__name__)

_ROOT_MOUNTS: Final = "only root can mount a file system that is in a file"

SUBNET_FILE: Final = "subnet.json"  # in the data folder
GUEST_NETWORKS: Final = "guest-networks"  # a folder there: networks of guests in the meshes of their buyers
NETWORK_FILE: Final = "network.json"  # likewise: the last network objects


_STILL_WATCHED: Final = (
    "limits are watched until the cells that the agent before this one left have ended, and this one is "
    "started again"
)


class ContainerEngine(msgspec.Struct, frozen=True):
    """What runs containers."""

    runtime: OciRuntime
    has_userns: bool  # containers have user namespaces of their own
    warnings: tuple[str, ...]  # what makes them less safe than they could be, in plain sentences
    images: Images
    network: Network
    namespace: BridgeNamespace  # that its bridge is in
    containers: Containers
    subnet: SubnetAssignment
    cells: Cells  # that they are in
    settings: NodeSettings
    secrets: SecretSupply
    devices: DeviceCatalog  # of this machine, for them
    volumes: NodeVolumes | None  # None: there can be none on this machine
    names: NameServer | None  # of containers; None: they ask the machine's resolvers
    outside: UserModeNetwork | None = None  # that connects them; None: the bridge is the machine's, or alone

    def images_of(self, namespace: Namespace) -> NamespaceImages:
        """The images that a namespace may use, pulled with its logins."""
        return self.images.for_namespace(namespace, self.secrets.values.login)

    @property
    def version(self) -> str:
        """Of the runtime, with its name."""
        return f"{self.runtime.name} {self.runtime.version}"


def enforcement_in_effect(
    decided: NodeEnforcement, cells: Cells, engine: ContainerEngine | None
) -> NodeEnforcement:
    """What is enforced now, of what was decided at the start: what runs may be older, and a program fail."""
    found = decided
    if found.limits.memory is LimitMeans.CGROUP and cells.cgroups_kind == "watched":
        found = found.with_watched_limits(_STILL_WATCHED)
    if engine is not None and engine.outside is not None:
        found = found.with_network(engine.outside.program)
    return found


class ContainerParts(msgspec.Struct, frozen=True):
    """What serves images and containers here; None where there can be no containers."""

    services: list[IServable]
    engine: ContainerEngine | None
    lacking: tuple[str, ...]


async def start(context: RoleContext, cells: Cells, *, group_root: str, has_server: bool) -> ContainerParts:
    """Open images and containers; the cells are closed after them. `group_root` is different for every
    Skerry. Without `has_server` in this process, containers wait until another one has given this node a
    subnet."""
    settings, undo = context.settings, context.undo
    place = containers_namespace.of_this_process(context)
    images = await Images.open(
        context.folder / "images",
        settings.images,
        context.clock,
        platform=_platform(),
        unpacker=LayerUnpacker(ids=None if place is None else place.ids),
        guest_registries=settings.market.guest_registries,
    )
    undo.push_async_callback(images.close)
    try:
        engine = await _open(context, cells, images, group_root, place, has_server=has_server)
    except (errors.Unavailable, errors.FailedPrecondition, errors.Invalid) as error:
        log.warning("containers.unavailable", reason=error.message)
        stand_in = UnavailableService(ContainerService, error.message)
        return ContainerParts([ImageService(images), stand_in], None, (f"containers: {error.message}",))
    # Entered after the containers, so that it is left before they close.
    loops = await undo.enter_async_context(TaskSupervisor("containers", clock=context.clock))
    loops.forever("network", engine.network.run)
    loops.forever("containers", engine.containers.run)
    if engine.outside is not None:
        loops.forever("outside", engine.outside.run)
    loops.forever("devices", engine.devices.run)
    if engine.volumes is not None:
        loops.forever("volumes", engine.volumes.run)
    services: list[IServable] = [
        ImageService(images),
        ContainerService(ClientContainers(engine.containers), images),
    ]
    outside = () if engine.outside is None else engine.outside.lacking()
    lacking = (*engine.network.lacking(), *outside, *engine.containers.lacking())
    return ContainerParts(services, engine, lacking)


async def _open(
    context: RoleContext,
    cells: Cells,
    images: Images,
    group_root: str,
    place: ContainersNamespace | None,
    *,
    has_server: bool,
) -> ContainerEngine:
    settings, folder, clock, undo = context.settings, context.folder, context.clock, context.undo
    home = files.private_folder(folder / "containers")
    boot = host.boot_id()
    if place is None:
        runtime = await find_runtime(settings.node.runtime, home, cgroup_root=group_root, boot_id=boot)
        no_userns = await userns_failure(runtime, home, cgroup_root=group_root, boot_id=boot)
        warnings = _warnings(runtime, no_userns)
    else:
        runtime = await find_runtime(
            settings.node.runtime, home, cgroup_root="", boot_id=boot, ids=place.id_count
        )
        no_userns = place.shared_users
        warnings = (place.shared_users,)
    for warning in warnings:
        log.warning("containers.weakened", reason=warning)
    boot_folder = BootFolder.open(home / "boot") if place is None else None
    network_folder = folder / "network"
    if boot_folder is not None:
        undo.callback(boot_folder.close)
        network_folder = boot_folder.folder_of_network(network_folder)
        runtime = msgspec.structs.replace(
            runtime, folder=str(boot_folder.state_of_runtime(Path(runtime.folder)))
        )

    def users(part: str) -> UserNamespaces | None:
        return None if no_userns else UserNamespaces(f"{group_root}-{part}")

    key = group_root.rpartition("-")[2]
    pool = parse_network(settings.fleet.subnets, field="fleet.subnets")
    subnet = SubnetAssignment(folder / SUBNET_FILE)
    network_host = NetworkHost(users("network")) if place is None else place.network_host()
    network = Network(
        network_folder,
        settings.network,
        clock,
        key=key,
        closed=[pool],
        host=network_host,
    )
    names = None
    if settings.network.domain:
        services = parse_network(settings.fleet.service_subnet, field="fleet.service_subnet")
        names = NameServer(settings.network, clock, ranges=[pool, services])
        network.use_names(names)
    await network.open(
        assigned=subnet.subnet,
        waits=not has_server,
        cloud=lambda own: cloud_of(NetworkState(folder / NETWORK_FILE), own),
    )
    undo.push_async_callback(network.close)
    outside = None if place is None else place.user_mode_network()
    if outside is not None:
        await asyncio.to_thread(outside.open)
        network.call_when_removed(outside.close)
    guest_networks = GuestNetworks(
        folder / GUEST_NETWORKS,
        network,
        settings.network,
        is_allowed=place is None and _allows_guest_mesh(settings),
    )
    await guest_networks.open()
    undo.push_async_callback(guest_networks.close)
    memory = MemoryFolder(memory_folder.FOLDER / key)
    undo.callback(memory.close)
    secrets = SecretSupply(NodeSecrets(memory), SecretFileWriter(memory))
    disks = await asyncio.to_thread(
        WritableLayers.on,
        home,
        boot,
        has_userns=not no_userns,
        no_images_reason=_ROOT_MOUNTS if context.enforcement.is_weaker else "",
    )
    devices = NO_DEVICES if place is not None else await asyncio.to_thread(_open_devices, settings.node, home)
    volumes = await asyncio.to_thread(_open_volumes, context)
    if volumes is not None:
        undo.push_async_callback(volumes.close)
    runtime_mounts = None
    if place is None:
        folders = home / "boot", user_namespaces.FOLDER, Path(runtime.path)
        runtime_mounts = await asyncio.to_thread(RuntimeNamespace.open, folders)
    if runtime_mounts is not None:
        undo.callback(runtime_mounts.close)
    parts = ContainerDeps(
        records=ContainerRecords(home, None if boot_folder is None else boot_folder.bundles),
        cells=cells,
        images=images,
        network=network,
        runtime=runtime,
        overlays=Overlays(home, boot) if place is None else place.overlays(home, boot),
        disks=disks,
        settings=settings.node,
        clock=clock,
        boot=boot,
        devices=devices,
        users=users("containers"),
        secrets=secrets,
        volumes=volumes,
        guest_networks=guest_networks,
        move_lock=MoveLock() if place is None else None,
        runtime_mounts=runtime_mounts,
        ids=NODE_IDS if place is None else place.id_count,
    )
    containers = await Containers(parts).open()
    undo.push_async_callback(containers.close)
    return ContainerEngine(
        runtime,
        not no_userns,
        warnings,
        images,
        network,
        network_host.namespace,
        containers,
        subnet,
        cells,
        settings.node,
        secrets,
        devices,
        volumes,
        names,
        outside,
    )


def _allows_guest_mesh(settings: Settings) -> bool:
    """True if guests of the market may take part in the mesh of their buyers from this machine."""
    if not settings.market.guest_mesh:
        return False
    if reason := missing_programs(programs.find()):
        log.warning("guest_networks.unavailable", reason=reason)
    return not reason


def _open_devices(settings: NodeSettings, home: Path) -> DeviceCatalog:
    """The devices of this machine; none where their nodes cannot be made."""
    for folder in settings.device_folders:
        if not os.path.isabs(folder):
            raise errors.Invalid(f"node.device_folders: {folder!r} must be an absolute path")
    if os.statvfs(home).f_flag & os.ST_NODEV:
        log.warning("devices.unavailable", reason=f"{home} is on a file system that is mounted with nodev")
        return NO_DEVICES
    return DeviceCatalog([Path(folder) for folder in settings.device_folders]).open()


def _open_volumes(context: RoleContext) -> NodeVolumes | None:
    """The volumes of this machine; None if it cannot have any."""
    store = VolumeStore(context.folder / "volumes", now=context.clock.now)
    store.open()
    if reason := _ROOT_MOUNTS if context.enforcement.is_weaker else store.probe_failure():
        log.warning("volumes.unavailable", reason=reason, volumes=len(store.ids()))
        return None
    return NodeVolumes(store)


def _warnings(runtime: OciRuntime, no_userns: str) -> tuple[str, ...]:
    """What makes containers here less safe than they could be."""
    of_users = (
        "containers have no user namespaces, so root in one is root on this node, and nothing runs for "
        f"others: {no_userns}. To have them takes Linux 5.19 or later, user namespaces allowed "
        "(user.max_user_namespaces), and the data folder on ext4, XFS or Btrfs"
    )
    known = (runtime_advisories.warning(runtime.name, runtime.version), of_users if no_userns else "")
    return tuple(sentence for sentence in known if sentence)


def _platform() -> Platform:
    return Platform(system=host.system(), architecture=host.architecture())
