"""The cells of this node that are lent: the home (`skerry.node.instances.homes`) of instances that are cells.

A cell that is lent holds a guest (`guests`) to exactly what was bought. It runs while the cell is there: a
new agent takes both over as they are, and after a restart of the machine the cell is made anew. Stopping it
is to the guest what going down is to a machine; removing it leaves nothing of either. Who bought what is not
known here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from msgspec.structs import replace

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import Usage
from skerry.model.containers import ContainerSpec, ContainerState, ContainerStats, ContainerView
from skerry.model.ids import CellName, InstanceId
from skerry.model.images import ImageId
from skerry.model.sessions import OpenTunnel
from skerry.model.settings import NodeSettings
from skerry.node.cells.cells import Cells
from skerry.node.cells.known import CellView
from skerry.node.connection import Connection, Tunnel
from skerry.node.containers.containers import Containers
from skerry.node.containers.disks import LimitKind
from skerry.node.instances.homes import Pulls
from skerry.node.lent import rules
from skerry.node.lent.guests import Guest
from skerry.node.lent.records import LentRecord, Records

log = structlog.get_logger(__name__)

MAX_INSTANCES = 256  # of one guest
_NO_IMAGE = ImageId("")
_GIGABYTE = 1024**3
_LOOK_S = 30.0
_PATIENCE_S = 5.0  # beyond what stopping everything takes
_GONE = "its cell is gone: the machine was restarted, or somebody freed it"


@dataclass(slots=True, eq=False)
class _Lent:
    """A cell that was asked for and not yet removed."""

    record: LentRecord
    is_removing: bool = False
    guest: Guest | None = None  # while it runs
    reason: str = _GONE  # of its end, if it is not there any more
    ended: asyncio.Event = field(default_factory=asyncio.Event)  # of the run that goes on
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)  # one at a time works on it

    @property
    def name(self) -> CellName:
        return self.record.cell.name


class LentCells:
    """Every one of them."""

    def __init__(
        self,
        records: Records,
        cells: Cells,
        containers: Containers,
        images: Pulls,
        settings: NodeSettings,
        clock: Clock,
        *,
        connect: Callable[[Tunnel], Connection],
        max_instances: int,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """`open` makes one."""
        self._records = records
        self._cells = cells
        self._containers = containers
        self._images = images
        self._settings = settings
        self._clock = clock
        self._connect = connect
        self._max_instances = max_instances
        self._sleep = sleep
        self._lent: dict[str, _Lent] = {}

    @classmethod
    async def open(
        cls,
        folder: Path,
        cells: Cells,
        containers: Containers,
        images: Pulls,
        settings: NodeSettings,
        clock: Clock,
        *,
        connect: Callable[[Tunnel], Connection],
        max_instances: int = MAX_INSTANCES,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> LentCells:
        """Take over what is in `folder`: every guest whose cell is there goes on. `images` are what guests
        may have; `connect` makes the node's end of a session of a tunnel."""
        records = Records(folder)
        lent = cls(
            records,
            cells,
            containers,
            images,
            settings,
            clock,
            connect=connect,
            max_instances=max_instances,
            sleep=sleep,
        )
        for record in await asyncio.to_thread(lambda: list(records.load())):
            each = _Lent(record, is_removing=records.is_removing(record.spec.name))
            lent._lent[record.spec.name] = each
            if not each.is_removing and (view := lent._cell(each)) is not None:
                await lent._take_over(each, view)
        return lent

    async def _take_over(self, lent: _Lent, view: CellView) -> None:
        try:
            await self._let_in(lent, view)
        except errors.Unavailable as error:  # it does not run, then, and is started again
            log.warning("lent.not_adopted", cell=lent.name, error=error.message)

    async def create(self, spec: ContainerSpec) -> ContainerView:
        """Have a cell of that name and room, which is made when it is started. Durable when this returns.
        Raises AlreadyExists, Invalid."""
        if spec.name in self._lent:
            raise errors.AlreadyExists(f"there is a lent cell {spec.name!r} already; remove it first")
        cell = rules.parent_cell(spec, pids=self._settings.container_pids)
        lent = _Lent(LentRecord(spec, cell, self._clock.now()))
        await asyncio.to_thread(self._records.save, lent.record)
        self._lent[spec.name] = lent
        return self._view(lent)

    async def start(self, name: str) -> ContainerView:
        """Make the cell, and let the guest in. Raises NotFound, Refused, AlreadyExists (a cell of that name
        which is not ours), NoRoom, Unavailable."""
        lent = self._find(name)
        async with lent.busy:
            if lent.is_removing or lent.guest is not None:
                raise errors.Refused(f"the lent cell {name!r} is being removed, or runs already")
            view = self._cell(lent)
            if view is None:
                await self._free(lent)  # if that was begun before
                await self._cells.allocate(lent.record.cell)
                view = self._cells.get(lent.name)
            await self._let_in(lent, view)
        log.info(
            "lent.started", cell=name, cpu=lent.record.spec.room.cpu, memory=lent.record.spec.room.memory
        )
        return self._view(lent)

    async def _let_in(self, lent: _Lent, view: CellView) -> None:
        """The guest goes on in the cell, which is there. Raises Unavailable."""
        lent.record = replace(lent.record, started_at=view.allocated_at)
        lent.ended, lent.reason = asyncio.Event(), _GONE
        try:
            await asyncio.to_thread(self._records.save, lent.record)
            lent.guest = await Guest.open(
                self._records.guests_folder(lent.name),
                lent.name,
                lent.record.spec.room,
                self._containers,
                self._images,
                self._clock,
                most=self._max_instances,
            )
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot keep the state of a lent cell: {error.strerror}", detail=repr(error)
            ) from error

    async def stop(self, name: str) -> ContainerView:
        """End everything in it and free the cell; what its guest has stays for the next start. Raises
        NotFound, Unavailable."""
        lent = self._find(name)
        async with lent.busy:
            await self._close_guest(lent)
            inside = [view.spec.name for view in self._inside(lent)]
            await asyncio.gather(*(self._containers.stop(each) for each in inside))
            await self._free(lent)
            lent.reason = ""
        return self._view(lent)

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Nothing of it stays, nor of its guest; with `force` also if it runs. Raises NotFound, Refused,
        Unavailable."""
        lent = self._find(name)
        if lent.guest is not None and not force:
            raise errors.Refused(f"the lent cell {name!r} runs; stop it first, or force the removal")
        async with lent.busy:
            self._records.mark_removing(name)
            lent.is_removing = True
            if lent.guest is not None:
                # Its own drivers do it: they know what they have begun.
                await lent.guest.leave(self._settings.free_timeout_s + _PATIENCE_S)
                await self._close_guest(lent)
            inside = [view.spec.name for view in self._inside(lent)]
            await asyncio.gather(*(self._containers.remove(each, force=True) for each in inside))
            await self._free(lent)
            await asyncio.to_thread(self._records.discard, name)
            del self._lent[name]
        log.info("lent.removed", cell=name)

    async def _close_guest(self, lent: _Lent) -> None:
        guest, lent.guest = lent.guest, None
        if guest is not None:
            await guest.close()
        lent.ended.set()

    async def _free(self, lent: _Lent) -> None:
        """The cell goes, if there is one of ours."""
        with suppress(errors.NotFound):
            if self._cells.get(lent.name).cell == lent.record.cell:
                await self._cells.free(lent.name, grace_s=0.0)

    def get(self, name: str) -> ContainerView:
        """Raises NotFound."""
        return self._view(self._find(name))

    async def wait(self, name: str) -> None:
        """Return when it does not run any more. Raises NotFound."""
        lent = self._find(name)
        if lent.guest is not None:
            await lent.ended.wait()

    def usage(self, name: str) -> Usage:
        """What everything in it uses. Raises NotFound, also while it does not run."""
        return self._cells.usage(self._find(name).name)

    async def stats(self, name: str) -> ContainerStats:
        """The same, with all that its guest has written. Raises NotFound."""
        lent = self._find(name)
        room = lent.record.spec.room
        return ContainerStats(
            usage=self.usage(name),
            disk_bytes=sum((await self._written(lent)).values()),
            disk_limit_bytes=room.disk * _GIGABYTE,
            disk_limit_kind=LimitKind.MEASURED.value,
        )

    async def converse(self, name: str, instance: InstanceId, tunnel: Tunnel) -> None:
        """Be the node `instance` for whoever borrows it. Raises why that ended, NotFound, Refused."""
        await self._guest(name).converse(self._connect(tunnel), instance)

    async def answer(self, name: str, wanted: OpenTunnel, tunnel: Tunnel) -> None:
        """What is asked of one of the instances in it. Raises what is wrong with it, NotFound, Refused."""
        await self._guest(name).answer(wanted, tunnel)

    async def run(self) -> None:
        """See that cells are there, and that nobody writes more than was bought. For ever."""
        while True:
            await self._sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Once."""
        for lent in list(self._lent.values()):
            if lent.guest is None or lent.busy.locked():
                continue
            async with lent.busy:
                if self._cell(lent) is None:
                    log.warning("lent.gone", cell=lent.name)
                    await self._close_guest(lent)
                else:
                    await self._hold_to_disk(lent)

    async def _hold_to_disk(self, lent: _Lent) -> None:
        """No quota of ours is over several containers: if they have too much together, the largest goes, with
        what it wrote, and its driver makes it anew."""
        limit = lent.record.spec.room.disk * _GIGABYTE
        written = await self._written(lent)
        if not limit or sum(written.values()) <= limit:  # without any disk nothing can be written
            return
        largest = max(written, key=lambda name: (written[name], name))
        log.warning("lent.over_disk", cell=lent.name, container=largest, bytes=written[largest])
        try:
            await self._containers.remove(largest, force=True)
        except errors.SkerryError as error:  # it was quicker, or is tried again at the next look
            log.warning("lent.not_removed", container=largest, error=error.message)

    async def _written(self, lent: _Lent) -> dict[str, int]:
        """Bytes by container."""
        written = {}
        for view in self._inside(lent):
            try:
                written[view.spec.name] = (await self._containers.stats(view.spec.name)).disk_bytes
            except errors.NotFound:
                continue  # removed meanwhile
        return written

    async def close(self) -> None:
        """The agent ends; cells and what runs in them go on."""
        for lent in self._lent.values():
            await self._close_guest(lent)

    def _inside(self, lent: _Lent) -> list[ContainerView]:
        return [view for view in self._containers.list() if view.spec.inside == lent.name]

    def _cell(self, lent: _Lent) -> CellView | None:
        """The cell, if it is there to stay and is ours: people have cells too."""
        try:
            view = self._cells.get(lent.name)
        except errors.NotFound:
            return None
        return view if view.cell == lent.record.cell and not view.is_freeing else None

    def _view(self, lent: _Lent) -> ContainerView:
        record = lent.record
        if lent.is_removing:
            state = ContainerState.REMOVING
        elif lent.guest is not None:
            state = ContainerState.RUNNING
        else:
            state = ContainerState.CREATED if record.started_at is None else ContainerState.EXITED
        return ContainerView(
            spec=record.spec,
            image=_NO_IMAGE,
            state=state,
            created_at=record.created_at,
            started_at=record.started_at,
            reason=lent.reason if state is ContainerState.EXITED else "",
        )

    def _guest(self, name: str) -> Guest:
        guest = self._find(name).guest
        if guest is None:
            raise errors.Refused(f"the lent cell {name!r} does not run now; try again later")
        return guest

    def _find(self, name: str) -> _Lent:
        lent = self._lent.get(name)
        if lent is None:
            raise errors.NotFound(f"there is no lent cell {name!r}")
        return lent
