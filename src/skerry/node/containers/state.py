"""Containers as the agent has them in memory, and what working on them takes.

`Containers` owns these, with the records on disk beside them.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import dataclass

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
from skerry.node.containers.disk_images import SMALLEST
from skerry.node.containers.overlays import Overlays
from skerry.node.containers.records import ContainerPaths, ContainerRecord, ContainerRecords, RunRecord
from skerry.node.containers.runtimes import OciRuntime
from skerry.node.containers.users import NODE_IDS
from skerry.node.containers.writable_layers import DiskLimitKind, SharedDisk, WritableLayers
from skerry.node.images.images import Images
from skerry.node.network.network import Attachment, Network
from skerry.node.user_namespaces import IDS, UserNamespace, UserNamespaces

MAIN = ExecutableName("main")  # what the container runs, as an executable of its cell
_GIGABYTE = 1024**3
_PLACED = (INSTANCE_PREFIX, GUEST_PREFIX)  # how the names of containers begin that a scheduler placed


@dataclass(frozen=True, slots=True)
class ContainerDeps:
    """What working on containers takes."""

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
    users: UserNamespaces | None = None  # of containers without a network; None: this machine makes none
    # Told after every step that a crash may follow: tests end the process there.
    reached: Callable[[str], None] = lambda step: None


@dataclass(slots=True, eq=False)
class ContainerEntry:
    """A container that was created and not yet removed."""

    record: ContainerRecord
    place: ContainerPaths
    run: RunRecord | None = None  # the last one
    pid: int | None = None
    address: str = ""
    users: UserNamespace | None = None  # that its processes are in; None: the node's own
    is_removing: bool = False
    has_leftovers: bool = False  # a run has ended and still holds something
    has_unrecorded_run: bool = False  # the disk refused the record of its end
    watcher: asyncio.Task[None] | None = None
    # Of the run that goes on: what became of it, told when everything that it held is free again.
    ended: asyncio.Future[RunRecord] | None = None
    patience: asyncio.Timeout | None = None  # while it is asked to end; when it is over, it is killed
    reason: str = ""  # why it is being ended, if nobody asked for that
    disk_limit_kind: DiskLimitKind = DiskLimitKind.NONE

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
        """How many users it has, and groups."""
        return NODE_IDS if self.users is None else IDS

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
            egress=self.record.egress,
        )


def make_container(
    deps: ContainerDeps, record: ContainerRecord, run: RunRecord | None = None
) -> ContainerEntry:
    """A container that does not run."""
    container = ContainerEntry(record, deps.records.place(record.spec.name), run)
    # As it will be; a start finds out how it is.
    if container.shared_disk is not None:
        container.disk_limit_kind = DiskLimitKind.FILE_SYSTEM
    elif container.disk_limit is not None:
        container.disk_limit_kind = deps.disks.kind
    return container


def users_of(
    deps: ContainerDeps, container: ContainerEntry, attachment: Attachment | None
) -> UserNamespace | None:
    """The user namespace that was made for a run of `container`; None if it is to be in none, or is in none
    since it was started by a Skerry, or on a machine, that makes none."""
    if container.record.spec.userns is UserNamespaceMode.HOST:
        return None
    if attachment is not None:
        return attachment.users
    return None if deps.users is None else deps.users.get(container.name)


def no_guests() -> errors.FailedPrecondition:
    """Why a container of somebody else's cannot be here: their root would be the node's."""
    return errors.FailedPrecondition(
        "this node runs nothing for others: it cannot give them user namespaces; "
        "`skerry status` there says why"
    )


def shared_disk(spec: ContainerSpec) -> SharedDisk | None:
    """What a stranger's container writes to, with all others in the same cell; None for one of our own."""
    if not spec.is_apart:
        return None
    return SharedDisk(spec.inside or spec.name, spec.shared_disk * _GIGABYTE or SMALLEST)


def check_disk(deps: ContainerDeps, spec: ContainerSpec) -> None:
    """Raises ResourcesExhausted if the disk of this node is full, and FailedPrecondition for what the kernel
    here cannot hold to its disk, if nobody said that measuring is good enough; for strangers it never is."""
    if shortage := disk_reserve.shortage():
        raise errors.ResourcesExhausted(f"container {spec.name!r} cannot run on this node now: {shortage}")
    if spec.is_apart:
        check_guests(deps)
    elif spec.resources.disk and not takes_disk_limits(deps):
        raise errors.FailedPrecondition(
            f"this node cannot hold a container to a disk limit, since {deps.disks.why_measured}; run it on "
            "another node, without a limit, or have limits measured (node.measured_disk_limits)"
        )


def check_guests(deps: ContainerDeps) -> None:
    """Raises FailedPrecondition if no stranger's container can run here."""
    if deps.users is None:
        raise no_guests()
    if not deps.disks.can_share:
        raise errors.FailedPrecondition(
            "this node runs nothing for buyers: it cannot hold them to a disk, since "
            f"{deps.disks.why_measured}"
        )


def takes_disk_limits(deps: ContainerDeps) -> bool:
    """Whether containers with a disk limit can run here."""
    return deps.disks.kind is not DiskLimitKind.MEASURED or deps.settings.measured_disk_limits


def command_text(arguments: tuple[str, ...]) -> str:
    """A command line for people who look at the cell, cut off where that takes no more."""
    return shlex.join(arguments)[:MAX_COMMAND]


def cell_name(cells: Cells, spec: ContainerSpec) -> CellName:
    """What the cell of a container that is started now is called."""
    return CellName(f"{cells.own(spec.inside)}/{spec.name}") if spec.inside else own_name(spec.name)


def cell_for(deps: ContainerDeps, spec: ContainerSpec) -> Cell:
    """The cell that a container runs in. Namespaces are the runtime's to make."""
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
    """Of an instance, its share of a busy machine; None: the usual one. What people start on the machine and
    functions are not counted by the scheduler, and weigh as a core."""
    return weight_of(spec.resources.cpu) if spec.name.startswith(_PLACED) else None
