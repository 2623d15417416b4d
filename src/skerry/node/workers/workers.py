"""The workers of functions on this node: made from stock, called, and gone without a trace.

`skerry.functions` decides how many there are and who is called; it knows this as its host. A worker is a
process in a cell of its own, `functions/w<id>`, below a cell that holds all of them to the node's pool. No
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
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.calls import LoadFailed
from skerry.model.cells import Cell, Limits
from skerry.model.containers import NetworkMode
from skerry.model.functions import Function
from skerry.model.ids import FunctionName
from skerry.model.room import Megabytes
from skerry.model.settings import FunctionSettings
from skerry.node.cells.cells import Cells
from skerry.node.launching import ENVIRONMENT, Launcher, Zygote
from skerry.node.network.network import Network
from skerry.node.workers import programs
from skerry.node.workers.blanks import CELL, CODE, Blank, Blanks
from skerry.node.workers.conversations import Load
from skerry.node.workers.logs import FunctionLogs, LogLine
from skerry.node.workers.programs import Program
from skerry.node.workers.serving import Worker
from skerry.node.workers.stocks import Stock

__all__ = ["CELL", "LogLine", "Worker", "Workers"]

log = structlog.get_logger(__name__)

PYTHON: Final = "python"
NODEJS: Final = "nodejs"
_ENTRY: Final = "skerry.node.workers.python:main"
# What a worker without a function takes, beyond the memory that functions are given: more than any needs.
_BLANK_MB: Final = {PYTHON: 16, NODEJS: 96}


class Workers:
    """Makes workers of the runtimes `python` and `nodejs`."""

    def __init__(
        self,
        cells: Cells,
        network: Network | str,
        settings: FunctionSettings,
        clock: Clock,
        folder: Path,
        logs: FunctionLogs,
        *,
        memory_mb: int,
        kind_of: Callable[[str], str],
        reached: Callable[[str], None],
    ) -> None:
        """`open` makes one."""
        files.private_folder(folder)
        self._logs = logs
        self._cells = cells
        self._settings = settings
        self._clock = clock
        self._kind_of = kind_of
        self._reached = reached
        self._memory_mb = memory_mb
        self._workers: dict[str, Worker] = {}
        self._programs: dict[str, Program | errors.SkerryError] = {}
        self._launcher: Launcher | None = None
        self._network = network
        limits = Limits(memory=Megabytes(memory_mb), pids=settings.worker_pids)
        attached = network if isinstance(network, Network) else None
        self._blanks = Blanks(cells, attached, logs, clock, folder, limits, reached)
        self._stocks: dict[tuple[str, NetworkMode], Stock] = {}

    @classmethod
    async def open(
        cls,
        cells: Cells,
        network: Network | str,
        settings: FunctionSettings,
        clock: Clock,
        folder: Path,
        logs: FunctionLogs,
        *,
        memory_mb: int,
        kind_of: Callable[[str], str],
        reached: Callable[[str], None] = lambda step: None,
    ) -> Workers:
        """Free what an earlier agent left, and begin.

        `network` is that of the containers, or why there is none, in words. `folder` is for what workers are
        shown; `memory_mb` is what all workers may have together; `kind_of` tells the kind of a runtime.
        Containers that an earlier agent left in the cell of all workers must have been removed before.
        """
        workers = cls(
            cells,
            network,
            settings,
            clock,
            folder,
            logs,
            memory_mb=memory_mb,
            kind_of=kind_of,
            reached=reached,
        )
        try:
            await workers._begin()
        except BaseException:
            await tasks.finish(workers.close())
            raise
        return workers

    async def _begin(self) -> None:
        await self._free_all()
        network, modes = self._network, [NetworkMode.NONE]
        if isinstance(network, Network):
            left = [owner for owner in network.attachments() if owner.startswith(f"{CELL}/")]
            await asyncio.gather(*(network.detach(owner) for owner in left))
            modes.insert(0, NetworkMode.BRIDGE)
        for kind, find in ((PYTHON, programs.find_python), (NODEJS, programs.find_node)):
            try:
                self._programs[kind] = await find()
            except errors.Unavailable as error:
                self._programs[kind] = error
                log.warning("workers.runtime_missing", runtime=kind, reason=error.message)
        # Whoever waits in stock is not counted by the pool.
        spare_mb = self._settings.spare_workers * len(modes) * sum(_BLANK_MB.values())
        await self._cells.allocate(Cell(CELL, Limits(memory=Megabytes(self._memory_mb + spare_mb))))
        self._launcher = await self._start_launcher()
        for kind in (PYTHON, NODEJS):
            if isinstance(self._programs[kind], Program):
                for mode in modes:
                    self._stocks[kind, mode] = self._stock(kind, mode, is_usual=mode is modes[0])

    def _stock(self, kind: str, mode: NetworkMode, *, is_usual: bool) -> Stock:
        return Stock(
            self._blanks,
            lambda: self._make(kind, mode),
            self._settings.spare_workers,
            begins_at_once=is_usual and kind == PYTHON,
        )

    async def _free_all(self) -> None:
        try:
            await self._cells.free(CELL, grace_s=0.0)
        except errors.NotFound:
            pass  # the last agent ended well, or there was none

    async def _start_launcher(self) -> Launcher:
        python = self._programs[PYTHON]
        if isinstance(python, Program):
            try:
                return await Launcher.start(Zygote(python.path, _ENTRY, self._settings.preload))
            except errors.Unavailable as error:
                self._programs[PYTHON] = error
                log.warning("workers.runtime_missing", runtime=PYTHON, reason=error.message)
        return await Launcher.start()  # for the inits of the others

    async def spawn(self, function: Function, code: Path | None) -> Worker:
        """A worker that has loaded the function. Raises LoadFailed, NoRoom, Unavailable; whatever was begun
        is undone then, and also if the caller is cancelled."""
        began = self._clock.monotonic()
        if code is None:
            raise errors.Unavailable(f"the code of function {function.name!r} is not on this node")
        with _blamed():
            worker = await self._spawn(await self._stock_for(function).take(), function, code)
        worker.init_s = self._clock.monotonic() - began
        return worker

    def _stock_for(self, function: Function) -> Stock:
        kind = self._kind_of(function.runtime)
        self._program(kind)
        stock = self._stocks.get((kind, function.network))
        if stock is None:
            raise errors.Unavailable(
                f"this node has no network for functions ({self._network}); create the function with network "
                "`none`, or call it on another node"
            )
        return stock

    async def _spawn(self, blank: Blank, function: Function, code: Path) -> Worker:
        try:
            worker = await tasks.finish(self._furnish(blank, function, code))
        except BaseException:
            await tasks.finish(self._blanks.close(blank))
            raise
        try:
            await worker.load(self._load(function), within_s=self._timeout_s(function))
            self._reached("spawn.loaded")
        except BaseException:
            await tasks.finish(worker.close())
            raise
        return worker

    async def _furnish(self, blank: Blank, function: Function, code: Path) -> Worker:
        """Give a blank worker what it needs of the function."""
        try:
            await self._cells.change_limits(
                blank.cell, Limits(memory=function.memory, cpu_quota=function.cpu)
            )
        except errors.Invalid as error:
            raise LoadFailed(
                f"{function.memory} MB are too little for {self.describe(self._kind_of(function.runtime))} "
                f"alone; give the function more memory ({error.message})"
            ) from error
        self._reached("spawn.limited")
        await self._blanks.mount(blank, code, CODE)
        self._reached("spawn.mounted")
        self._logs.assign(blank.id, function.name)
        worker = Worker(blank, function, self._cells, self._blanks, self._logs, self._clock, self._forget)
        self._workers[worker.id] = worker
        return worker

    def _load(self, function: Function) -> Load:
        asked = dict(setting.split("=", 1) for setting in function.environment)
        return Load(
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
        )

    def _timeout_s(self, function: Function) -> float:
        return self._settings.call_timeout_s if function.timeout_s is None else function.timeout_s

    async def _make(self, kind: str, mode: NetworkMode) -> Blank:
        assert self._launcher is not None
        node = self._program(NODEJS) if kind == NODEJS else None
        return await self._blanks.make(self._launcher, mode, node)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.id]

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Have what a cold start of the function needs ready soon. Raises Unavailable."""
        self._stock_for(function).want()

    def describe(self, kind: str) -> str:
        """What really runs, such as `Python 3.11.2`. Raises Unavailable, with why it cannot be had here."""
        return self._program(kind).version

    def _program(self, kind: str) -> Program:
        found = self._programs.get(kind)
        if found is None:
            raise errors.Unavailable(f"this node runs no functions of kind {kind!r}")
        if isinstance(found, errors.SkerryError):
            raise found
        return found

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[LogLine, None]:
        """What the workers of a function have printed, in the order of time, or the last `lines` of it; with
        `follow`, then what comes, until the function is forgotten. Close it (`contextlib.aclosing`)."""
        return self._logs.read(name, lines=lines, follow=follow)

    def forget(self, name: FunctionName) -> None:
        """Drop what is kept of a function that is gone, once its workers are."""
        self._logs.forget(name)

    async def run(self) -> None:
        """Keep the stock filled and the logs within their bound, for ever."""
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


@contextlib.contextmanager
def _blamed() -> Iterator[None]:
    """What is neither the function's fault nor a lack of room is this node's."""
    try:
        yield
    except (LoadFailed, errors.NoRoom, errors.Unavailable):
        raise
    except (errors.SkerryError, OSError) as error:
        why = error.message if isinstance(error, errors.SkerryError) else error.strerror
        raise errors.Unavailable(
            f"this node could not start a worker: {why}; try again later", detail=repr(error)
        ) from error
