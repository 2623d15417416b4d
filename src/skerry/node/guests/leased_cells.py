"""The cells of this node that are lent: the home (`skerry.node.agent.instances.backends`) of instances that
are cells.

A cell that is lent holds a guest (`agent`) to exactly what was bought. It runs while the cell is there: a
new agent takes both over as they are, and after a restart of the machine the cell is made anew. Stopping it
is to the guest what going down is to a machine; removing it leaves nothing of either. Who bought what is not
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

MAX_INSTANCES = 256  # of one guest
_NO_IMAGE = ImageId("")
_GIGABYTE = 1024**3
_LOOK_S = 5.0
_PATIENCE_S = 5.0  # beyond what stopping everything takes
_GONE = "its cell is gone: the machine was restarted, or somebody removed its cgroups"


@dataclass(slots=True, eq=False)
class _LeasedCell:
    """A cell that was asked for and not yet removed."""

    record: LeasedCellRecord
    is_removing: bool = False
    guest: GuestAgent | None = None  # while it runs
    reason: str = _GONE  # of its end, if it is not there any more
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # of the run that goes on
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time works on it

    @property
    def name(self) -> str:
        """As it was asked for, and as its guest's containers know it."""
        return self.record.spec.name

    @property
    def cell(self) -> CellName:
        return self.record.cell.name


class LeasedCells:
    """Every one of them."""

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
        """`images` are what guests may have; `connect` makes the node's end of a session of a tunnel."""
        self._records = LeasedCellRecords(folder)
        self._cells = cells
        self._containers = containers
        self._images = images
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._max_instances = max_instances
        self._leased: dict[str, _LeasedCell] = {}

    async def open(self) -> LeasedCells:
        """Take over what is in the folder: every guest whose cell is there goes on."""
        for found in await asyncio.to_thread(lambda: list(self._records.load())):
            record = self._own(found)
            each = _LeasedCell(record, is_removing=self._records.is_removing(record.spec.name))
            self._leased[record.spec.name] = each
            if not each.is_removing and (view := self._cell(each)) is not None:
                await self._take_over(each, view)
        return self

    def _own(self, record: LeasedCellRecord) -> LeasedCellRecord:
        """With the cell as a contract's own, which a version that knew no owners did not say."""
        if record.cell.owner is not None:
            return record
        try:
            self._cells.claim(record.cell, CellOwner.CONTRACT)
        except OSError as error:  # it is anybody's until an agent that finds the disk well
            log.warning("lent.not_owned", cell=record.spec.name, error=str(error))
            return record
        return replace(record, cell=replace(record.cell, owner=CellOwner.CONTRACT))  # saved when it goes on

    async def _take_over(self, leased: _LeasedCell, view: CellView) -> None:
        try:
            await self._let_in(leased, view)
        except errors.Unavailable as error:  # it does not run, then, and is started again
            log.warning("lent.not_adopted", cell=leased.name, error=error.message)

    async def create(self, spec: ContainerSpec) -> ContainerView:
        """Have a cell of that name and room, which is made when it is started. Durable when this returns.
        Raises AlreadyExists, Invalid, FailedPrecondition."""
        self._containers.check_guests()
        if spec.name in self._leased:
            raise errors.AlreadyExists(f"there is a lent cell {spec.name!r} already; remove it first")
        cell = policy.parent_cell(spec, pids=self._settings.container_pids)
        leased = _LeasedCell(LeasedCellRecord(spec, cell, self._clock.now()))
        await asyncio.to_thread(self._records.save, leased.record)
        self._leased[spec.name] = leased
        return self._view(leased)

    async def start(self, name: str) -> ContainerView:
        """Make the cell, and let the guest in. Raises NotFound, FailedPrecondition, AlreadyExists (a cell of
        that name which is not ours), ResourcesExhausted, Unavailable."""
        leased = self._find(name)
        async with leased.busy:
            if leased.is_removing or leased.guest is not None:
                raise errors.FailedPrecondition(f"the lent cell {name!r} is being removed, or runs already")
            view = self._cell(leased)
            if view is None:
                await self._free(leased)  # if that was begun before, or somebody removed its groups
                # A version before this one may have called it otherwise.
                cell = replace(leased.record.cell, name=own_name(name), owner=CellOwner.CONTRACT)
                await self._save(leased, replace(leased.record, cell=cell))
                await self._cells.allocate(cell)
                view = self._cells.get(cell.name)
            await self._let_in(leased, view)
        log.info(
            "lent.started",
            cell=name,
            cpu=leased.record.spec.resources.cpu,
            memory=leased.record.spec.resources.memory,
        )
        return self._view(leased)

    async def _let_in(self, leased: _LeasedCell, view: CellView) -> None:
        """The guest goes on in the cell, which is there. Raises Unavailable."""
        leased.ended, leased.reason = asyncio.Event(), _GONE
        await self._save(leased, replace(leased.record, started_at=view.allocated_at))
        try:
            leased.guest = await GuestAgent.open(
                self._records.guests_folder(leased.name),
                leased.name,
                leased.record.spec.resources,
                self._containers,
                self._images,
                self._clock,
                most=self._max_instances,
            )
        except OSError as error:
            raise _not_kept(error) from error

    async def _save(self, leased: _LeasedCell, record: LeasedCellRecord) -> None:
        """Raises Unavailable."""
        try:
            await asyncio.to_thread(self._records.save, record)
        except OSError as error:
            raise _not_kept(error) from error
        leased.record = record

    async def stop(self, name: str) -> ContainerView:
        """End everything in it and free the cell; what its guest has stays for the next start. Raises
        NotFound, Unavailable."""
        leased = self._find(name)
        async with leased.busy:
            await self._close_guest(leased)
            inside = [view.spec.name for view in self._inside(leased)]
            await asyncio.gather(*(self._containers.stop(each) for each in inside))
            await self._free(leased)
            leased.reason = ""
        return self._view(leased)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Nothing of it stays, nor of its guest; with `force` also if it runs. Raises NotFound,
        FailedPrecondition, Unavailable."""
        leased = self._find(name)
        if leased.guest is not None and not force:
            raise errors.FailedPrecondition(
                f"the lent cell {name!r} runs; stop it first, or force the removal"
            )
        async with leased.busy:
            self._records.mark_removing(name)
            leased.is_removing = True
            if leased.guest is not None:
                # Its own drivers do it: they know what they have begun.
                await leased.guest.leave(self._settings.free_timeout_s + _PATIENCE_S)
                await self._close_guest(leased)
            inside = [view.spec.name for view in self._inside(leased)]
            await asyncio.gather(*(self._containers.remove(each, force=True) for each in inside))
            await self._free(leased)
            await asyncio.to_thread(self._records.discard, name)
            del self._leased[name]
        log.info("lent.removed", cell=name)

    async def _close_guest(self, leased: _LeasedCell) -> None:
        guest, leased.guest = leased.guest, None
        if guest is not None:
            await guest.close()
        leased.ended.set()

    async def _free(self, leased: _LeasedCell) -> None:
        """The cell goes, if there is one of ours."""
        with suppress(errors.NotFound):
            if self._cells.get(leased.cell).cell == leased.record.cell:
                await self._cells.free(leased.cell, grace_s=0.0, owner=CellOwner.CONTRACT)

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._view(self._find(name))

    async def wait(self, name: str) -> None:
        """Return when it does not run any more. Raises NotFound."""
        leased = self._find(name)
        if leased.guest is not None:
            await leased.ended.wait()

    def usage(self, name: str) -> CellUsage:
        """What everything in it uses. Raises NotFound, also while it does not run."""
        return self._cells.usage(self._find(name).cell)

    async def stats(self, name: str) -> ContainerStats:
        """The same, with all that its guest has written. Raises NotFound."""
        leased = self._find(name)
        resources = leased.record.spec.resources
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=await asyncio.to_thread(self._containers.used_together, leased.name),
            disk_limit_bytes=resources.disk * _GIGABYTE,
            disk_limit_kind=DiskLimitKind.FILE_SYSTEM.value,
        )

    async def run_session(self, name: str, instance: InstanceId, tunnel: TunnelStream) -> None:
        """Be the node `instance` for whoever borrows it. Raises why that ended, NotFound,
        FailedPrecondition."""
        await self._guest(name).run_session(self._connect(tunnel), instance)

    async def answer(self, name: str, wanted: TunnelRequest, tunnel: TunnelStream) -> None:
        """What is asked of one of the instances in it. Raises what is wrong with it, NotFound,
        FailedPrecondition."""
        await self._guest(name).answer(wanted, tunnel)

    async def run(self) -> None:
        """See that cells are there. For ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Once."""
        for leased in list(self._leased.values()):
            if leased.guest is None or leased.busy.locked():
                continue
            async with leased.busy:
                if self._cell(leased) is None:
                    log.warning("lent.gone", cell=leased.name)
                    await self._close_guest(leased)

    async def close(self) -> None:
        """The agent ends; cells and what runs in them go on."""
        for leased in self._leased.values():
            await self._close_guest(leased)

    def _inside(self, leased: _LeasedCell) -> list[ContainerView]:
        return [view for view in self._containers.list() if view.spec.inside == leased.name]

    def _cell(self, leased: _LeasedCell) -> CellView | None:
        """The cell, if it is ours and there to stay, with its groups."""
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
            raise errors.FailedPrecondition(f"the lent cell {name!r} does not run now; try again later")
        return guest

    def _find(self, name: str) -> _LeasedCell:
        leased = self._leased.get(name)
        if leased is None:
            raise errors.NotFound(f"there is no lent cell {name!r}")
        return leased


def _not_kept(error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        f"the node cannot keep the state of a lent cell: {error.strerror}", detail=repr(error)
    )
