"""The cells of this node: allocate, free, start, stop, and what is known of each.

What `skerry.wire` calls, and the only door: it finds the cell, takes the locks, and has the work done to
its end even if the caller goes away meanwhile. Limits and killing are `skerry.node.cgroups`', processes are
the launcher's. Cells outlive the agent: `open` takes over what an earlier one left, `close` leaves
everything running. Nothing here knows a contract's spelling or its codes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from msgspec import structs

from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import (
    Cell,
    Executable,
    ExecutableState,
    Exit,
    Limits,
    Runtime,
    Sandbox,
    Stream,
    Usage,
    is_within,
    parent_of,
)
from skerry.model.ids import CellName, ExecutableName
from skerry.model.settings import NodeSettings
from skerry.node.cells import adoption
from skerry.node.cells.executables import Executables, Manner, Worker
from skerry.node.cells.freeing import Freeing
from skerry.node.cells.known import CellView, Home, Known, Means
from skerry.node.cells.locks import Held, PathLocks
from skerry.node.cells.processes import Processes
from skerry.node.cells.records import CellRecord, Records, boot_id
from skerry.node.cells.uids import Uids
from skerry.node.cgroups.protocol import Cgroups
from skerry.node.launching import Launcher
from skerry.node.logs.readers import RingReader

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLOSE_S = 3.0


class Cells:
    """Every cell of this node."""

    def __init__(self, means: Means, boot: str) -> None:
        self._means = means
        self._boot = boot
        self._homes: dict[CellName, Home] = {}
        self._uids = Uids(means.settings.first_uid, means.settings.max_cells)
        self._locks = PathLocks()
        self._executables = Executables(means)
        self._freeing = Freeing(means, self._executables, self._drop)
        self._work: set[asyncio.Task[Any]] = set()

    @classmethod
    async def open(
        cls,
        folder: Path,
        cgroups: Cgroups,
        launcher: Launcher,
        settings: NodeSettings,
        clock: Clock,
        *,
        hidden: Iterable[Path] = (),
        boot: str | None = None,
        processes: Processes | None = None,
        reached: Callable[[str], None] = lambda step: None,
    ) -> Cells:
        """Take over what is in `folder` and in the groups. `hidden` are paths that no cell may see,
        besides."""
        means = Means(
            groups=cgroups,
            launcher=launcher,
            records=Records(folder),
            settings=settings,
            clock=clock,
            hidden=_outermost([folder, *hidden]),
            processes=processes or Processes(),
            reached=reached,
        )
        boot = boot_id() if boot is None else boot
        cells = cls(means, boot)
        try:
            await adoption.adopt(means, cells._executables, boot, cells._keep)
        except BaseException:
            await cells.close()
            raise
        return cells

    @property
    def limits_in_v2(self) -> bool:
        """True if the limits of cells are held by cgroup v2."""
        return self._means.groups.limits_in_v2

    @property
    def cgroups_kind(self) -> str:
        """How limits are held here: `unified`, `hybrid` or `legacy`."""
        return self._means.groups.kind

    def spares(self, *, isolating: bool = True) -> int:
        """How many first starts, in cells that isolate processes or in others, would not wait for an init."""
        return self._executables.inits.spares(isolating=isolating)

    async def allocate(self, cell: Cell) -> None:
        """Make a cell. Raises AlreadyExists, NotFound (an ancestor), Refused, NoRoom, Invalid."""
        self._check_new(cell.name)
        held = await self._hold(_ancestors(cell.name), cell.name)
        await self._finish(held, self._allocate(cell))

    async def _allocate(self, cell: Cell) -> None:
        self._check_new(cell.name)
        means = self._means
        uid = self._uids.take()
        try:
            try:
                means.groups.create(cell.name, cell.limits)
            except errors.AlreadyExists:  # not with us, or it would be known
                raise errors.Refused(
                    f"the cgroup of cell {cell.name!r} exists on this host and is not ours; remove it first"
                ) from None
            try:
                means.reached("allocate.group")
                record = CellRecord(cell, uid, self._boot, means.clock.now())
                means.records.add_cell(record)
                means.reached("allocate.recorded")
            except BaseException:
                means.records.remove(cell.name)
                means.groups.remove(cell.name)
                raise
        except BaseException:
            self._uids.give_back(uid)
            raise
        self._homes[cell.name] = Home(record)
        log.info("cell.allocated", cell=cell.name, uid=uid)

    def _check_new(self, name: CellName) -> None:
        for ancestor in _ancestors(name):
            if ancestor not in self._homes:
                raise errors.NotFound(f"there is no cell {ancestor!r} to allocate {name!r} in")
            self._check_stays(self._homes[ancestor])
        if name in self._homes:
            raise errors.AlreadyExists(f"cell {name!r} exists already")

    async def free(self, name: CellName, *, grace_s: float | None = None) -> None:
        """End everything in the cell and below it, children first, and remove it: asked first, killed after
        `grace_s`. Raises NotFound, Unavailable."""
        self._home(name)
        grace_s = self._means.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        deadline = self._means.clock.monotonic() + self._means.settings.free_timeout_s
        for home in self._within(name):  # a stop that is under way must not take its time now
            for known in home.executables.values():
                self._executables.hurry(known, grace_s)
        try:
            async with asyncio.timeout(self._means.settings.free_timeout_s):
                held = await self._hold(_ancestors(name), name)
        except TimeoutError:
            raise errors.Unavailable(
                f"cell {name!r} is busy with another call; free it again later"
            ) from None
        await self._finish(held, self._free(name, deadline, grace_s))

    async def _free(self, name: CellName, deadline: float, grace_s: float) -> None:
        self._home(name)
        await self._freeing.free(name, self._within(name), deadline, grace_s)
        log.info("cell.freed", cell=name)

    async def change_limits(self, name: CellName, limits: Limits) -> None:
        """Hold the cell to those of `limits` that are given from now on; the others stay. Raises NotFound,
        Refused, Invalid (what is in the cell may use more already)."""
        self._home(name)
        held = await self._hold(_ancestors(name), name)
        await self._finish(held, self._change_limits(name, limits))

    async def _change_limits(self, name: CellName, limits: Limits) -> None:
        home = self._home(name)
        self._check_stays(home)
        self._means.groups.change_limits(name, limits)
        given = {key: value for key, value in structs.asdict(limits).items() if value not in (None, "")}
        cell = structs.replace(home.record.cell, limits=structs.replace(home.record.cell.limits, **given))
        home.record = structs.replace(home.record, cell=cell)
        self._means.records.change_cell(home.record)

    def _keep(self, home: Home) -> None:
        self._homes[home.name] = home
        self._uids.claim(home.record.uid)

    def _drop(self, home: Home) -> None:
        del self._homes[home.name]
        self._uids.give_back(home.record.uid)

    async def start(self, executable: Executable, sandbox: Sandbox | None = None) -> ExecutableState:
        """Start it; it runs when this returns. Raises NotFound, AlreadyExists, Refused, Internal."""
        return await self._begin(executable, Manner(sandbox or Sandbox()))

    async def start_container(
        self, executable: Executable, runtime: Callable[[str], Runtime]
    ) -> ExecutableState:
        """Have an OCI runtime start it, in a cell that does not isolate processes itself.

        `runtime` is given the path of the cgroup that the runtime is to make, and gives its command.
        """
        if self._home(executable.cell).record.cell.isolates_processes:
            raise errors.Refused(f"cell {executable.cell!r} isolates processes itself; a runtime does that")
        return await self._begin(executable, Manner(runtime=runtime))

    async def start_trusted(
        self, executable: Executable, arguments: tuple[str, ...], streams: tuple[int, int, int]
    ) -> ExecutableState:
        """Run a command of ours as root and unconfined, but to the cell's limits. `streams` are descriptors,
        which stay the caller's, for its input, output and error; nothing of these is kept."""
        return await self._begin(executable, Manner(trusted=arguments, streams=streams))

    async def prepare(self, name: CellName, maker: Launcher, *, network: int | None = None) -> None:
        """Have the cell's init made now, by `maker`, so that a worker can be a fork of it.

        The cell has a /home of its own then, and `network`, the descriptor of a namespace that stays the
        caller's, or an empty one. Raises NotFound, Refused, Internal, TimedOut, Unavailable.
        """
        held = await self._hold_executable(name, ExecutableName(""))
        await self._finish(held, self._prepare(name, maker, network))

    async def _prepare(self, name: CellName, maker: Launcher, network: int | None) -> None:
        home = self._home(name)
        self._check_stays(home)
        await self._executables.inits.prepare(home, maker, network)

    async def mount(self, name: CellName, detached: int, place: str) -> None:
        """Put a mount that is nowhere yet at `place` of a cell that was prepared. Raises NotFound, Refused,
        Internal, TimedOut, Unavailable."""
        init = self._home(name).init
        if init is None:
            raise errors.Refused(f"cell {name!r} has no init; prepare it first")
        await init.mount(detached, place)

    async def start_worker(
        self, executable: Executable, worker: Worker, sandbox: Sandbox | None = None
    ) -> ExecutableState:
        """Start what serves a function, in a cell that was prepared."""
        return await self._begin(executable, Manner(sandbox or Sandbox(), worker=worker))

    async def _begin(self, executable: Executable, manner: Manner) -> ExecutableState:
        self._check_stays(self._home(executable.cell))
        held = await self._hold_executable(executable.cell, executable.name)
        return await self._finish(held, self._start(executable, manner))

    async def _start(self, executable: Executable, manner: Manner) -> ExecutableState:
        home = self._home(executable.cell)
        self._check_stays(home)
        known = await self._executables.start(home, executable, manner)
        log.info("executable.started", cell=home.name, executable=executable.name, pid=known.started.pid)
        return known.state()

    async def stop(self, cell: CellName, name: ExecutableName, *, grace_s: float | None = None) -> Exit:
        """End it and forget it: asked first, killed after `grace_s`. Raises NotFound, Unavailable."""
        grace_s = self._means.settings.stop_grace_s if grace_s is None else max(0.0, grace_s)
        self._executables.hurry(self._known(cell, name), grace_s)  # before waiting for who stops it now
        held = await self._hold_executable(cell, name)
        return await self._finish(held, self._stop(cell, name, grace_s))

    async def _stop(self, cell: CellName, name: ExecutableName, grace_s: float) -> Exit:
        known = self._known(cell, name)
        outcome = await self._executables.stop(self._home(cell), known, grace_s)
        log.info("executable.stopped", cell=cell, executable=name)
        return outcome

    def signal(self, cell: CellName, name: ExecutableName, number: int) -> None:
        """Send a signal to its main process. Raises NotFound if it has ended."""
        self._executables.signal(self._home(cell), self._known(cell, name), number)

    async def kill(self, cell: CellName, name: ExecutableName) -> Exit:
        """End every process of it at once; it stays known, with its output. Raises NotFound, Unavailable."""
        self._executables.hurry(self._known(cell, name), 0.0)
        held = await self._hold_executable(cell, name)
        return await self._finish(held, self._executables.kill(self._home(cell), self._known(cell, name)))

    def is_idle(self, cell: Cell) -> bool:
        """True if this very cell is here, and has an init for which there is nothing to do."""
        home = self._homes.get(cell.name)
        return home is not None and home.record.cell == cell and self._is_idle(home)

    def _is_idle(self, home: Home) -> bool:
        return (
            home.init is not None
            and not home.running()
            # Children that outlived it may still write, and the init keeps that.
            and not any(self._means.groups.pids(home.name, each.leaf) for each in home.executables.values())
        )

    async def rest(self, name: CellName) -> None:
        """End the init of a cell that is idle. What has ended in it stays known, with its output, and the
        next start makes an init anew. Raises NotFound, Unavailable."""
        self._home(name)
        held = await self._hold(_ancestors(name), name)
        await self._finish(held, self._rest(name))

    async def _rest(self, name: CellName) -> None:
        home = self._home(name)
        if self._is_idle(home):
            await self._executables.inits.end(home)
            self._executables.lose(home, home.executables.values())
            log.info("cell.rests", cell=name)

    def list(self) -> list[CellView]:
        """Every cell, parents before children."""
        return [self._homes[name].view() for name in sorted(self._homes)]

    def get(self, name: CellName) -> CellView:
        return self._home(name).view()

    def executable(self, cell: CellName, name: ExecutableName) -> ExecutableState:
        return self._known(cell, name).state()

    def by_pid(self, pid: int) -> ExecutableState:
        """The executable whose process the node sees, or saw, under `pid`."""
        known = self._executables.by_pid(pid)
        if known is None:
            raise errors.NotFound(f"process {pid} is no executable of a cell")
        return known.state()

    async def wait(self, cell: CellName, name: ExecutableName) -> Exit:
        """How it ended, once it has."""
        return await asyncio.shield(self._known(cell, name).exit)

    def logs(self, cell: CellName, name: ExecutableName, stream: Stream) -> RingReader:
        """What it has written to `stream`, and writes."""
        known = self._known(cell, name)
        folder = self._means.records.folder(cell, known.number)
        # What it printed is kept before its end is told. A child that outlives it may hold the stream open.
        return RingReader(folder, stream.value, ended=lambda: known.has_ended)

    def usage(self, name: CellName) -> Usage:
        """What the cell has used, with everything in it."""
        return self._means.groups.usage(self._home(name).name)

    async def run(self) -> None:
        """Keep inits ready for new cells; raise if listening to those of cells fails. For ever, otherwise."""
        await self._executables.inits.run()

    async def close(self) -> None:
        """The agent ends; the cells go on. What is being done is given a moment, and else is left half done:
        the next agent finishes or undoes it."""
        if self._work:
            _, unfinished = await asyncio.wait(self._work, timeout=_CLOSE_S)
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)
        for home in self._homes.values():
            await self._executables.inits.let_go(home)
        await self._executables.inits.close()

    def _home(self, name: CellName) -> Home:
        home = self._homes.get(name)
        if home is None:
            raise errors.NotFound(f"there is no cell {name!r}")
        return home

    def _within(self, name: CellName) -> Sequence[Home]:
        return [home for home in self._homes.values() if is_within(home.name, name)]

    def _known(self, cell: CellName, name: ExecutableName) -> Known:
        known = self._home(cell).executables.get(name)
        if known is None:
            raise errors.NotFound(f"cell {cell!r} has no executable {name!r}")
        return known

    def _check_stays(self, home: Home) -> None:
        if home.is_freeing:
            raise errors.Refused(f"cell {home.name!r} was to be freed and could not be; free it again")

    async def _hold(self, shared: Iterable[Hashable], alone: Hashable) -> Held:
        return await self._locks.hold(list(shared), alone)

    async def _hold_executable(self, cell: CellName, name: ExecutableName) -> Held:
        return await self._hold([*_ancestors(cell), cell], (cell, name))

    async def _finish(self, held: Held, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` under the locks to its end, whether the caller stays or not."""
        task = asyncio.create_task(work)
        self._work.add(task)

        def done(_: asyncio.Task[T]) -> None:
            self._work.discard(task)
            held.release()

        task.add_done_callback(done)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_failure)
            raise
        except OSError as error:
            raise errors.Unavailable(
                f"the node cannot keep the state of its cells: {error.strerror}", detail=repr(error)
            ) from error


def _outermost(paths: Iterable[Path]) -> tuple[str, ...]:
    """Without those that are inside another: hiding that hides them."""
    every = {path.resolve() for path in paths}
    return tuple(sorted(str(path) for path in every if not every.intersection(path.parents)))


def _log_failure(task: asyncio.Task[Any]) -> None:
    """For work whose caller is gone."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("cells.work_failed", error=str(error))


def _ancestors(name: CellName) -> list[CellName]:
    """From the top down, without `name` itself."""
    found: list[CellName] = []
    above = parent_of(name)
    while above is not None:
        found.append(above)
        above = parent_of(above)
    return found[::-1]
