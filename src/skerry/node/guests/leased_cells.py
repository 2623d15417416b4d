"""The leased cells of this node: the backend (`skerry.node.agent.instances.backends`) of instances that are
cells.

The limits of a leased cell are exactly the resources that were bought; a guest agent (`agent`) runs while the
cell exists. A new agent of the node takes both over as they are; after a reboot the cell is created again.
Stopping it is for the guest like a shutdown of its machine; removing it leaves nothing. Contracts are not
known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import CellOwner, CellUsage, own_name
from skerry.model.containers import ContainerSpec, ContainerState, ContainerStats, ContainerView
from skerry.model.ids import CellName, InstanceId
from skerry.model.images import ImageId
from skerry.model.node_messages import TunnelRequest
from skerry.model.settings import NodeSettings
from skerry.model.streams import TunnelStream
from skerry.node.agent.instances.backends import ImagePuller
from skerry.node.agent.ports import ControlConnection
from skerry.node.cells.cells import Cells
from skerry.node.cells.state import CellView
from skerry.node.containers.containers import Containers
from skerry.node.containers.writable_layers import DiskLimitKind
from skerry.node.guests import policy
from skerry.node.guests.agent import GuestAgent
from skerry.node.guests.records import LeasedCellRecord, LeasedCellRecords

log = structlog.get_logger(__name__)

MAX_INSTANCES = 256  # per guest
_NO_IMAGE = ImageId("")
_GIGABYTE = 1024**3
_LOOK_S = 5.0
_PATIENCE_S = 5.0  # on top of the time to stop everything
_GONE = "its cell no longer exists: the machine was restarted, or somebody removed its cgroups"


@dataclass(slots=True, eq=False)
class _LeasedCell:
    """A leased cell that was created and not yet removed."""

    record: LeasedCellRecord
    is_removing: bool = False
    guest: GuestAgent | None = None  # while it runs
    reason: str = _GONE  # why it ended, if the cell no longer exists
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # of the current run
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the operation in progress

    @property
    def name(self) -> str:
        """Its name in orders and in the specs of its guest's containers."""
        return self.record.spec.name

    @property
    def cell(self) -> CellName:
        return self.record.cell.name


class LeasedCells:
    """All leased cells of this node."""

    def __init__(
        self,
        folder: Path,
        cells: Cells,
        containers: Containers,
        images: ImagePuller,
        settings: NodeSettings,
        clock: Clock,
        *,
        connect: Callable[[TunnelStream], ControlConnection],
        max_instances: int = MAX_INSTANCES,
    ) -> None:
        """`images` pulls for guests; `connect` makes a control connection of a tunnel."""
        self._records = LeasedCellRecords(folder)
        self._cells = cells
        self._containers = containers
        self._images = images
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._max_instances = max_instances
        self._networks = containers.guest_networks
        self._leased: dict[str, _LeasedCell] = {}

    async def open(self) -> LeasedCells:
        """Load the records; every guest whose cell exists is resumed."""
        for found in await asyncio.to_thread(lambda: list(self._records.load())):
            record = self._own(found)
            each = _LeasedCell(record, is_removing=self._records.is_removing(record.spec.name))
            self._leased[record.spec.name] = each
            if not each.is_removing and (view := self._cell(each)) is not None:
                await self._take_over(each, view)
        if self._networks is not None:
            await self._networks.keep_only(set(self._leased))
        return self

    def _own(self, record: LeasedCellRecord) -> LeasedCellRecord:
        """`record` with the owner of the cell, which versions without owners did not store."""
        if record.cell.owner is not None:
            return record
        try:
            self._cells.claim(record.cell, CellOwner.CONTRACT)
        except OSError as error:  # it stays without an owner until the record can be stored
            log.warning("lent.not_owned", cell=record.spec.name, error=str(error))
            return record
        # saved when it is resumed
        return replace(record, cell=replace(record.cell, owner=CellOwner.CONTRACT))

    async def _take_over(self, leased: _LeasedCell, view: CellView) -> None:
        try:
            await self._start_guest(leased, view)
        except errors.Unavailable as error:  # it is not running, then, and is started again
            log.warning("lent.not_adopted", cell=leased.name, error=error.message)

    async def create(self, spec: ContainerSpec) -> ContainerView:
        """Create the record of a leased cell; `start` creates the cell. Durable on return. Raises
        AlreadyExists, Invalid, FailedPrecondition."""
        self._containers.check_guests()
        if spec.name in self._leased:
            raise errors.AlreadyExists(f"the leased cell {spec.name!r} exists already; remove it first")
        cell = policy.parent_cell(spec, pids=self._settings.container_pids)
        leased = _LeasedCell(LeasedCellRecord(spec, cell, self._clock.now()))
        await asyncio.to_thread(self._records.save, leased.record)
        self._leased[spec.name] = leased
        return self._view(leased)

    async def start(self, name: str) -> ContainerView:
        """Create the cell and start the guest agent. Raises NotFound, FailedPrecondition, AlreadyExists
        (another cell has the name), ResourcesExhausted, Unavailable."""
        leased = self._find(name)
        async with leased.busy:
            if leased.is_removing or leased.guest is not None:
                raise errors.FailedPrecondition(
                    f"the leased cell {name!r} is being removed, or is running already"
                )
            view = self._cell(leased)
            if view is None:
                await self._free(leased)  # if it was created partly, or somebody removed its groups
                # An older version may have chosen another cell name.
                cell = replace(leased.record.cell, name=own_name(name), owner=CellOwner.CONTRACT)
                await self._save(leased, replace(leased.record, cell=cell))
                await self._cells.allocate(cell)
                view = self._cells.get(cell.name)
            await self._start_guest(leased, view)
        log.info(
            "lent.started",
            cell=name,
            cpu=leased.record.spec.resources.cpu,
            memory=leased.record.spec.resources.memory,
        )
        return self._view(leased)

    async def _start_guest(self, leased: _LeasedCell, view: CellView) -> None:
        """Start the guest agent in the existing cell. Raises Unavailable."""
        leased.ended, leased.reason = asyncio.Event(), _GONE
        await self._save(leased, replace(leased.record, started_at=view.allocated_at))
        try:
            leased.guest = await GuestAgent.open(
                self._records.guests_folder(leased.name),
                leased.name,
                policy.LeasedCapacity(leased.record.spec.resources, leased.record.spec.devices),
                self._containers,
                self._images,
                self._clock,
                most=self._max_instances,
            )
        except OSError as error:
            raise _storage_error(error) from error

    async def _save(self, leased: _LeasedCell, record: LeasedCellRecord) -> None:
        """Raises Unavailable."""
        try:
            await asyncio.to_thread(self._records.save, record)
        except OSError as error:
            raise _storage_error(error) from error
        leased.record = record

    async def stop(self, name: str) -> ContainerView:
        """Stop everything in it and free the cell; the guest's records stay for the next start. Raises
        NotFound, Unavailable."""
        leased = self._find(name)
        async with leased.busy:
            await self._close_guest(leased)
            inside = [view.spec.name for view in self._guest_containers(leased)]
            await asyncio.gather(*(self._containers.stop(each) for each in inside))
            await self._remove_network(leased)
            await self._free(leased)
            leased.reason = ""
        return self._view(leased)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Remove it with everything of its guest, even while it is running if `force`. Raises NotFound,
        FailedPrecondition, Unavailable."""
        leased = self._find(name)
        if leased.guest is not None and not force:
            raise errors.FailedPrecondition(
                f"the leased cell {name!r} is running; stop it first, or force the removal"
            )
        async with leased.busy:
            self._records.mark_removing(name)
            leased.is_removing = True
            if leased.guest is not None:
                # Its own controllers remove them: they know the state of each.
                await leased.guest.leave(self._settings.free_timeout_s + _PATIENCE_S)
                await self._close_guest(leased)
            inside = [view.spec.name for view in self._guest_containers(leased)]
            await asyncio.gather(*(self._containers.remove(each, force=True) for each in inside))
            await self._remove_network(leased)
            await self._free(leased)
            await asyncio.to_thread(self._records.discard, name)
            del self._leased[name]
        log.info("lent.removed", cell=name)

    async def _close_guest(self, leased: _LeasedCell) -> None:
        guest, leased.guest = leased.guest, None
        if guest is not None:
            await guest.close()
        leased.ended.set()

    async def _remove_network(self, leased: _LeasedCell) -> None:
        if self._networks is not None:
            await self._networks.remove(leased.name)

    async def _free(self, leased: _LeasedCell) -> None:
        """Free the cell, if it is ours."""
        with suppress(errors.NotFound):
            if self._cells.get(leased.cell).cell == leased.record.cell:
                await self._cells.free(leased.cell, grace_s=0.0, owner=CellOwner.CONTRACT)

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._view(self._find(name))

    async def wait(self, name: str) -> None:
        """Return when it is no longer running. Raises NotFound."""
        leased = self._find(name)
        if leased.guest is not None:
            await leased.ended.wait()

    def usage(self, name: str) -> CellUsage:
        """Usage of everything in it. Raises NotFound, also while it is not running."""
        return self._cells.usage(self._find(name).cell)

    async def stats(self, name: str) -> ContainerStats:
        """The same, with the disk space that its guest uses. Raises NotFound."""
        leased = self._find(name)
        resources = leased.record.spec.resources
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=await asyncio.to_thread(self._containers.shared_disk_usage, leased.name),
            disk_limit_bytes=resources.disk * _GIGABYTE,
            disk_limit_kind=DiskLimitKind.FILE_SYSTEM.value,
        )

    async def run_session(self, name: str, instance: InstanceId, tunnel: TunnelStream) -> None:
        """Serve as the node `instance` of its buyer. Raises the reason of the end, NotFound,
        FailedPrecondition."""
        await self._guest(name).run_session(self._connect(tunnel), instance)

    async def handle(self, name: str, request: TunnelRequest, tunnel: TunnelStream) -> None:
        """Handle a tunnel to one of the instances in it. Raises the error to send, NotFound,
        FailedPrecondition."""
        await self._guest(name).handle(request, tunnel)

    async def run(self) -> None:
        """Check now and then that the cells exist. Runs for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.check()

    async def check(self) -> None:
        """Once."""
        for leased in list(self._leased.values()):
            if leased.guest is None or leased.busy.locked():
                continue
            async with leased.busy:
                if self._cell(leased) is None:
                    log.warning("lent.gone", cell=leased.name)
                    await self._close_guest(leased)

    async def close(self) -> None:
        """Stop the guest agents; cells and what runs in them stay."""
        for leased in self._leased.values():
            await self._close_guest(leased)

    def _guest_containers(self, leased: _LeasedCell) -> list[ContainerView]:
        return [view for view in self._containers.list() if view.spec.inside == leased.name]

    def _cell(self, leased: _LeasedCell) -> CellView | None:
        """The cell, if it is ours, complete and not being freed."""
        if not self._cells.is_whole(leased.cell):
            return None
        view = self._cells.get(leased.cell)
        return view if view.cell == leased.record.cell else None

    def _view(self, leased: _LeasedCell) -> ContainerView:
        record = leased.record
        if leased.is_removing:
            state = ContainerState.REMOVING
        elif leased.guest is not None:
            state = ContainerState.RUNNING
        else:
            state = ContainerState.CREATED if record.started_at is None else ContainerState.EXITED
        return ContainerView(
            spec=record.spec,
            image=_NO_IMAGE,
            state=state,
            created_at=record.created_at,
            started_at=record.started_at,
            reason=leased.reason if state is ContainerState.EXITED else "",
        )

    def _guest(self, name: str) -> GuestAgent:
        guest = self._find(name).guest
        if guest is None:
            raise errors.FailedPrecondition(f"the leased cell {name!r} is not running; try again later")
        return guest

    def _find(self, name: str) -> _LeasedCell:
        leased = self._leased.get(name)
        if leased is None:
            raise errors.NotFound(f"there is no leased cell {name!r}")
        return leased


def _storage_error(error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        f"the node cannot store the state of a leased cell: {error.strerror}", detail=repr(error)
    )
