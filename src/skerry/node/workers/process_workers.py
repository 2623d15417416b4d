"""The workers of functions on this node: made from prestarted ones, called, and gone without a trace.

`skerry.functions` decides how many there are and who is called; it knows this as its host. A worker is a
process in a cell of its own, `@functions/w<id>`, below a cell that holds all of them to the node's pool. No
worker outlives the agent that made it: its socket closes and it ends, and the next agent frees what is left
of its cell. Nothing here knows a contract or keeps a function.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files, tasks
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.cells import Cell, CellLimits, CellOwner
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import CellName, FunctionName
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.resources import Megabytes
from skerry.model.settings import FunctionSettings
from skerry.node.launcher.client import ENVIRONMENT, LauncherClient, ZygoteSpec
from skerry.node.network.network import Network
from skerry.node.workers import interpreters
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.node.workers.interpreters import Interpreter
from skerry.node.workers.prestarted import (
    CELL,
    CODE,
    PLACES,
    POOL,
    PrestartedWorker,
    PrestartedWorkerFactory,
    WorkerDeps,
)
from skerry.node.workers.prestarted_pool import PrestartedPool
from skerry.node.workers.process_worker import ProcessWorker
from skerry.node.workers.worker_channel import LoadRequest

__all__ = ["CELL", "POOL", "FunctionLogLine", "ProcessWorker", "ProcessWorkers"]

log = structlog.get_logger(__name__)

PYTHON: Final = "python"
NODEJS: Final = "nodejs"
PROGRAM: Final = "go"  # an executable, which a Python worker starts and calls
_ENTRY: Final = "skerry.node.workers.python_worker:main"
_MOST_LOST: Final = 3  # prestarted workers whose cell was removed, that one start passes over
# What a worker without a function takes, beyond the memory that functions are given: more than any needs.
_BLANK_MB: Final = {PYTHON: 16, NODEJS: 96}


class ProcessWorkers:
    """Makes workers of the runtimes `python`, `nodejs` and `go`."""

    def __init__(
        self, deps: WorkerDeps, settings: FunctionSettings, *, memory_mb: int, kind_of: Callable[[str], str]
    ) -> None:
        """`memory_mb` is what all workers may have together; `kind_of` tells the kind of a runtime."""
        files.private_folder(deps.folder)
        self._logs = deps.logs
        self._cells = deps.cells
        self._settings = settings
        self._clock = deps.clock
        self._kind_of = kind_of
        self._reached = deps.reached
        self._workers: dict[str, ProcessWorker] = {}
        self._programs: dict[str, Interpreter | errors.SkerryError] = {}
        self._launcher: LauncherClient | None = None
        self._network = deps.network
        has_network = isinstance(deps.network, Network)
        self._modes = (NetworkMode.BRIDGE, NetworkMode.NONE) if has_network else (NetworkMode.NONE,)
        # Whoever waits prestarted is not counted by the pool.
        spare_mb = settings.spare_workers * len(self._modes) * sum(_BLANK_MB.values())
        self._pool = Cell(CELL, CellLimits(memory=Megabytes(memory_mb + spare_mb)), owner=CellOwner.FUNCTIONS)
        limits = CellLimits(memory=Megabytes(memory_mb), pids=settings.worker_pids)
        policy = NetworkPolicy(Ingress.NODE, Egress(settings.egress))
        self._blanks = PrestartedWorkerFactory(deps, self._pool, limits, policy)
        self._stocks: dict[tuple[str, NetworkMode], PrestartedPool] = {}

    async def open(self) -> ProcessWorkers:
        """Free what an earlier agent left, and begin. Containers that it left in the cell of all workers must
        have been removed before."""
        try:
            await self._begin()
        except BaseException:
            await tasks.run_to_completion(self.close())
            raise
        return self

    async def _begin(self) -> None:
        await self._free_all()
        network = self._network
        if isinstance(network, Network):
            ours = tuple(f"{name}/" for name in (CELL, POOL))
            left = [owner for owner in network.attachments() if owner.startswith(ours)]
            await asyncio.gather(*(network.detach(owner) for owner in left))
        for kind, find in ((PYTHON, interpreters.find_python), (NODEJS, interpreters.find_node)):
            try:
                self._programs[kind] = await find()
            except errors.Unavailable as error:
                self._programs[kind] = error
                log.warning("workers.runtime_missing", runtime=kind, reason=error.message)
        await self.ensure_pool()
        self._launcher = await self._start_launcher()
        for kind in (PYTHON, NODEJS):
            if isinstance(self._programs[kind], Interpreter):
                for mode in self._modes:
                    self._stocks[kind, mode] = self._stock(kind, mode, is_usual=mode is self._modes[0])

    def _stock(self, kind: str, mode: NetworkMode, *, is_usual: bool) -> PrestartedPool:
        return PrestartedPool(
            self._blanks,
            lambda: self._make(kind, mode),
            self._settings.spare_workers,
            begins_at_once=is_usual and kind == PYTHON,
        )

    async def ensure_pool(self) -> None:
        """Have the cell of all workers, made again if somebody removed its groups; raises as that does."""
        await self._cells.ensure(self._pool)

    async def _free_all(self) -> None:
        for name in (CELL, CellName(POOL)):  # versions before this one did not mark the name
            with contextlib.suppress(errors.NotFound):  # the last agent ended well, or there was none
                self._cells.claim(self._cells.get(name).cell, CellOwner.FUNCTIONS)
                if self._cells.get(name).cell.owner is CellOwner.FUNCTIONS:
                    await self._cells.free(name, grace_s=0.0, owner=CellOwner.FUNCTIONS)

    async def _start_launcher(self) -> LauncherClient:
        found = [each for each in self._programs.values() if isinstance(each, Interpreter)]
        view = self._cells.view
        paths = (*view.paths, *(path for each in found for path in each.needs))
        view = view._replace(paths=paths, places=PLACES)
        python = self._programs[PYTHON]
        if isinstance(python, Interpreter):
            try:
                return await LauncherClient.start(
                    ZygoteSpec(python.path, _ENTRY, self._settings.preload), view=view
                )
            except errors.Unavailable as error:
                self._programs[PYTHON] = error
                log.warning("workers.runtime_missing", runtime=PYTHON, reason=error.message)
        return await LauncherClient.start(view=view)  # for the inits of the others

    async def spawn(self, function: Function, code: Path | None) -> ProcessWorker:
        """A worker that has loaded the function. Raises CodeLoadError, ResourcesExhausted, Unavailable;
        whatever was begun is undone then, and also if the caller is cancelled."""
        began = self._clock.monotonic()
        if code is None:
            raise errors.Unavailable(f"the code of function {function.name!r} is not on this node")
        with _blamed():
            worker = await self._spawn_from(self._stock_for(function), function, code)
        worker.init_s = self._clock.monotonic() - began
        return worker

    def _stock_for(self, function: Function) -> PrestartedPool:
        kind = _host_kind(self._kind_of(function.runtime))
        self._program(kind)
        stock = self._stocks.get((kind, function.network))
        if stock is None:
            raise errors.Unavailable(
                f"this node has no network for functions ({self._network}); create the function with network "
                "`none`, or call it on another node"
            )
        return stock

    async def _spawn_from(self, stock: PrestartedPool, function: Function, code: Path) -> ProcessWorker:
        for _ in range(_MOST_LOST):
            try:
                return await self._spawn(await stock.take(), function, code)
            except errors.NotFound as error:  # somebody has removed its cell; the next has one
                log.warning("workers.cell_lost", function=function.name, error=error.message)
        return await self._spawn(await stock.take(), function, code)

    async def _spawn(self, blank: PrestartedWorker, function: Function, code: Path) -> ProcessWorker:
        try:
            worker = await tasks.run_to_completion(self._furnish(blank, function, code))
        except BaseException:
            await tasks.run_to_completion(self._blanks.close(blank))
            raise
        try:
            await worker.load(self._load(function), within_s=self._timeout_s(function))
            self._reached("spawn.loaded")
        except BaseException:
            await tasks.run_to_completion(worker.close())
            raise
        return worker

    async def _furnish(self, blank: PrestartedWorker, function: Function, code: Path) -> ProcessWorker:
        """Give a prestarted worker what it needs of the function."""
        try:
            await self._cells.change_limits(blank.cell, CellLimits(memory=function.memory))
        except errors.Invalid as error:
            raise CodeLoadError(
                f"{function.memory} MB are too little for {self.describe(self._kind_of(function.runtime))} "
                f"alone; give the function more memory ({error.message})"
            ) from error
        self._reached("spawn.limited")
        await self._blanks.mount(blank, code, CODE)
        self._reached("spawn.mounted")
        if function.cpu is not None:  # last: what the node does in the cell is not at the function's expense
            await self._cells.change_limits(blank.cell, CellLimits(cpu_quota=function.cpu))
        self._logs.assign(blank.id, function.name)
        worker = ProcessWorker(
            blank, function, self._cells, self._blanks, self._logs, self._clock, self._forget
        )
        self._workers[worker.id] = worker
        return worker

    def _load(self, function: Function) -> LoadRequest:
        asked = dict(setting.split("=", 1) for setting in function.environment)
        return LoadRequest(
            handler=function.handler,
            folder=CODE,
            environment={**ENVIRONMENT, **asked},
            context={
                "name": function.name,
                "version": function.version,
                "memory_mb": function.memory,
                "timeout_s": self._timeout_s(function),
            },
            max_result_bytes=self._settings.max_result_bytes,
            max_output_bytes=self._settings.max_output_bytes,
            max_concurrency=function.max_concurrency,
            is_program=self._kind_of(function.runtime) == PROGRAM,
        )

    def _timeout_s(self, function: Function) -> float:
        return self._settings.call_timeout_s if function.timeout_s is None else function.timeout_s

    async def _make(self, kind: str, mode: NetworkMode) -> PrestartedWorker:
        assert self._launcher is not None
        node = self._program(NODEJS) if kind == NODEJS else None
        return await self._blanks.make(self._launcher, mode, node)

    def _forget(self, worker: ProcessWorker) -> None:
        del self._workers[worker.id]

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Have what a cold start of the function needs ready soon. Raises Unavailable."""
        self._stock_for(function).want()

    def describe(self, kind: str) -> str:
        """What really runs, such as `Python 3.11.2`. Raises Unavailable, with why it cannot be had here."""
        version = self._program(_host_kind(kind)).version
        return "a program of its own" if kind == PROGRAM else version

    def _program(self, kind: str) -> Interpreter:
        found = self._programs.get(kind)
        if found is None:
            raise errors.Unavailable(f"this node runs no functions of kind {kind!r}")
        if isinstance(found, errors.SkerryError):
            raise found
        return found

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """What the workers of a function have printed, in the order of time, or the last `lines` of it; with
        `follow`, then what comes, until the function is forgotten. Close it (`contextlib.aclosing`)."""
        return self._logs.read(name, lines=lines, follow=follow)

    def forget(self, name: FunctionName) -> None:
        """Drop what is kept of a function that is gone, once its workers are."""
        self._logs.forget(name)

    async def run(self) -> None:
        """Keep the pools filled and the logs within their bound, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._blanks.run())
            group.create_task(self._logs.run())
            for stock in self._stocks.values():
                group.create_task(stock.run())

    async def close(self) -> None:
        """End every worker, free all cells, and leave nothing but the logs. `run` has ended."""
        try:
            await asyncio.gather(
                *(worker.close() for worker in list(self._workers.values())),
                *(stock.close() for stock in self._stocks.values()),
            )
            await self._free_all()
        finally:
            if self._launcher is not None:
                await self._launcher.stop()


def _host_kind(kind: str) -> str:
    """Whose prestarted workers serve functions of this kind."""
    return PYTHON if kind == PROGRAM else kind


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    """What is neither the function's fault nor a lack of room is this node's."""
    try:
        yield
    except (CodeLoadError, errors.ResourcesExhausted, errors.Unavailable):
        raise
    except (errors.SkerryError, OSError) as error:
        why = error.message if isinstance(error, errors.SkerryError) else error.strerror
        raise errors.Unavailable(
            f"this node could not start a worker: {why}; try again later", detail=repr(error)
        ) from error
