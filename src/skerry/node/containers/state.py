"""Containers in the agent's memory, and the dependencies of the modules that work on them.

`Containers` owns these, with the records on disk beside them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from skerry.kit import disk_reserve
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import MAX_COMMAND, Cell, CellLimits, CellOwner, own_name, weight_of
from skerry.model.containers import (
    GUEST_PREFIX,
    INSTANCE_PREFIX,
    ContainerSpec,
    ContainerState,
    ContainerView,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.model.workloads import UserNamespaceMode
from skerry.node.cells.cells import Cells
from skerry.node.cgroups.move_lock import MoveLock
from skerry.node.containers.disk_images import SMALLEST
from skerry.node.containers.mounts import VolumeSource
from skerry.node.containers.networks import ContainerNetworks
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerPaths, ContainerRecord, ContainerRecords, RunRecord
from skerry.node.containers.runtime_namespace import RuntimeNamespace
from skerry.node.containers.runtimes import OciRuntime
from skerry.node.containers.users import NODE_IDS
from skerry.node.containers.writable_layers import DiskLimitKind, SharedDisk, WritableLayers
from skerry.node.devices.device_catalog import NO_DEVICES, DeviceCatalog
from skerry.node.guest_networks.networks import GuestNetworks
from skerry.node.images.images import Images
from skerry.node.network.network import Attachment, Network
from skerry.node.secrets.supply import SecretSupply
from skerry.node.user_namespaces import IDS, UserNamespace, UserNamespaces

MAIN = ExecutableName("main")  # the container's process, as an executable of its cell
_GIGABYTE = 1024**3
_SCHEDULED_PREFIXES = (INSTANCE_PREFIX, GUEST_PREFIX)  # name prefixes of containers that a scheduler placed


class ContainerDeps(msgspec.Struct, frozen=True):
    """Dependencies of the modules that work on containers."""

    records: ContainerRecords
    cells: Cells
    images: Images
    network: Network
    runtime: OciRuntime
    overlays: Overlays
    disks: WritableLayers
    settings: NodeSettings
    clock: Clock
    boot: str
    devices: DeviceCatalog = NO_DEVICES
    users: UserNamespaces | None = None  # of containers without a network; None: the machine has none
    volumes: VolumeSource | None = None  # None: this node has none
    # Called after every step that a crash may follow: tests end the process there.
    failpoint: Callable[[str], None] = lambda step: None
    secrets: SecretSupply | None = None  # None: containers with secrets are refused
    guest_networks: GuestNetworks | None = None  # of guests in the mesh of their buyer; None: there are none
    ids: int = NODE_IDS  # that are mapped in the user namespace of this process, from 0 on
    move_lock: MoveLock | None = None  # None: it is not taken ahead
    runtime_mounts: RuntimeNamespace | None = None  # None: runtimes have all mounts of the machine

    @property
    def networks(self) -> ContainerNetworks:
        return ContainerNetworks(self.network, self.guest_networks)


@dataclass(slots=True, eq=False)
class ContainerEntry:
    """A container that was created and not yet removed."""

    record: ContainerRecord
    paths: ContainerPaths
    run: RunRecord | None = None  # the last one
    pid: int | None = None
    address: str = ""
    address6: str = ""
    users: UserNamespace | None = None  # of its processes; None: the node's own
    is_removing: bool = False
    has_leftovers: bool = False  # a run has ended and its resources are not all released
    has_unrecorded_run: bool = False  # the disk refused the record of its end
    watcher: asyncio.Task[None] | None = None
    # Of the current run: its record, set when all of its resources are released.
    ended: asyncio.Future[RunRecord] | None = None
    grace: asyncio.Timeout | None = None  # while it is being stopped; when it expires, it is killed
    reason: str = ""  # why it is being ended, if that was not requested
    disk_limit_kind: DiskLimitKind = DiskLimitKind.NONE
    node_ids: int = NODE_IDS  # that the node has

    @property
    def name(self) -> str:
        return self.record.spec.name

    @property
    def cell(self) -> CellName:
        return self.record.cell.name

    @property
    def is_running(self) -> bool:
        return self.ended is not None

    @property
    def disk_limit(self) -> int | None:
        """In bytes; None if it has none of its own."""
        return self.record.spec.resources.disk * _GIGABYTE or None

    @property
    def ids(self) -> int:
        """Number of its uids, and of its gids."""
        return self.node_ids if self.users is None else IDS

    @property
    def shared_disk(self) -> SharedDisk | None:
        return shared_disk(self.record.spec)

    @property
    def state(self) -> ContainerState:
        if self.is_removing:
            return ContainerState.REMOVING
        if self.is_running:
            return ContainerState.RUNNING
        return ContainerState.CREATED if self.run is None else ContainerState.EXITED

    def view(self) -> ContainerView:
        return ContainerView(
            spec=self.record.spec,
            image=self.record.image,
            state=self.state,
            created_at=self.record.created_at,
            address=self.address,
            pid=self.pid,
            started_at=self.run.started_at if self.run is not None else None,
            exit=self.run.exit if self.run is not None else None,
            reason=self.run.reason if self.run is not None else "",
            access=self.record.access,
            address6=self.address6,
        )


def make_container(
    deps: ContainerDeps, record: ContainerRecord, run: RunRecord | None = None
) -> ContainerEntry:
    """A container that is not running."""
    container = ContainerEntry(record, deps.records.paths(record.spec.name), run, node_ids=deps.ids)
    # The default; a start sets the actual one.
    if container.shared_disk is not None:
        container.disk_limit_kind = DiskLimitKind.FILE_SYSTEM
    elif container.disk_limit is not None:
        container.disk_limit_kind = deps.disks.kind
    return container


def users_of(
    deps: ContainerDeps, container: ContainerEntry, attachment: Attachment | None
) -> UserNamespace | None:
    """The user namespace of a run of `container`; None if it needs none, or was started by a Skerry, or on a
    machine, without user namespaces."""
    if container.record.spec.userns is UserNamespaceMode.HOST:
        return None
    if attachment is not None:
        return attachment.users
    return None if deps.users is None else deps.users.get(container.name)


def no_guests() -> errors.FailedPrecondition:
    """The error for guest containers without user namespaces: their root would be the node's."""
    return errors.FailedPrecondition(
        "this node leases no cells: it has no user namespaces for guests; `skerry status` there says why"
    )


def shared_disk(spec: ContainerSpec) -> SharedDisk | None:
    """The disk that a guest container shares with all others in its cell; None for other containers."""
    if not spec.is_isolated:
        return None
    return SharedDisk(spec.inside or spec.name, spec.shared_disk * _GIGABYTE or SMALLEST)


def check_disk(deps: ContainerDeps, spec: ContainerSpec) -> None:
    """Raises ResourcesExhausted if the disk of this node is full, and FailedPrecondition if the kernel cannot
    enforce the disk limit and measured limits are not enabled; guests always need enforced ones."""
    if shortage := disk_reserve.shortage():
        raise errors.ResourcesExhausted(f"container {spec.name!r} cannot run on this node now: {shortage}")
    if spec.is_isolated:
        check_guests(deps)
    elif spec.resources.disk and not takes_disk_limits(deps):
        raise errors.FailedPrecondition(
            f"this node cannot enforce disk limits, since {deps.disks.no_images_reason}; run it on "
            "another node, without a limit, or have limits measured (node.measured_disk_limits)"
        )


def check_guests(deps: ContainerDeps) -> None:
    """Raises FailedPrecondition if guest containers cannot run here."""
    if deps.users is None:
        raise no_guests()
    if not deps.disks.can_share:
        raise errors.FailedPrecondition(
            f"this node leases no cells: it cannot enforce disk limits, since {deps.disks.no_images_reason}"
        )


def takes_disk_limits(deps: ContainerDeps) -> bool:
    """True if containers with a disk limit can run here."""
    return deps.disks.kind is not DiskLimitKind.MEASURED or deps.settings.measured_disk_limits


def command_text(arguments: tuple[str, ...]) -> str:
    """A command line for people who inspect the cell, truncated to the limit of that."""
    return shlex.join(arguments)[:MAX_COMMAND]


def cell_name(cells: Cells, spec: ContainerSpec) -> CellName:
    """The name of the cell of a container that is started now."""
    return CellName(f"{cells.own_cell_name(spec.inside)}/{spec.name}") if spec.inside else own_name(spec.name)


def cell_for(deps: ContainerDeps, spec: ContainerSpec) -> Cell:
    """The cell of a container. The runtime creates its namespaces."""
    return Cell(
        name=cell_name(deps.cells, spec),
        limits=CellLimits(
            cpu_weight=_cpu_weight(spec),
            cpu_quota=spec.cpu_quota,
            memory=spec.resources.memory or None,
            pids=spec.pids or deps.settings.container_pids,
        ),
        isolates_processes=False,
        owner=CellOwner.CONTAINER,
    )


def _cpu_weight(spec: ContainerSpec) -> int | None:
    """Cpu weight of an instance; None: the default. Containers that users start on the machine and functions
    are unknown to the scheduler, and have the weight of a core."""
    return weight_of(spec.resources.cpu) if spec.name.startswith(_SCHEDULED_PREFIXES) else None
