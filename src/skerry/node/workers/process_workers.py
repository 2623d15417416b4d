"""Process workers of this node: created from prestarted ones, and removed completely at their end.

`skerry.functions` decides how many there are and which one is called. A worker is a process in a cell of its
own, `@functions/w<id>`, below a cell that limits all of them. No worker outlives its agent: its socket closes
and it ends, and the next agent frees its cell. Contracts and registrations are not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files, tasks
from skerry.model import errors
from skerry.model.calls import CodeLoadError
from skerry.model.cells import Cell, CellLimits, CellOwner
from skerry.model.containers import NetworkMode
from skerry.model.function_names import namespace_of, plain_name
from skerry.model.functions import Function
from skerry.model.ids import CellName, FunctionName
from skerry.model.network import Egress, Ingress, NetworkPolicy
from skerry.model.resources import Megabytes
from skerry.model.settings import FunctionSettings
from skerry.node.kernel import mount_flags
from skerry.node.launcher.client import LauncherClient
from skerry.node.launcher.specs import ENVIRONMENT, ZygoteSpec
from skerry.node.network.network import Network
from skerry.node.secrets.secret_files import NO_FILES, SecretFiles
from skerry.node.workers import interpreters
from skerry.node.workers.function_logs import FunctionLogLine
from skerry.node.workers.interpreters import Interpreter
from skerry.node.workers.prestarted import (
    CELL,
    CODE,
    MOUNT_POINTS,
    POOL,
    PrestartedWorker,
    PrestartedWorkerFactory,
    WorkerDeps,
)
from skerry.node.workers.prestarted_pool import PoolLimits, PrestartedPool
from skerry.node.workers.process_worker import ProcessWorker
from skerry.node.workers.templates import MAKERS_FACTOR, Templates
from skerry.node.workers.worker_channel import LoadRequest

__all__ = ["CELL", "POOL", "FunctionLogLine", "ProcessWorker", "ProcessWorkers"]

log = structlog.get_logger(__name__)

PYTHON: Final = "python"
NODEJS: Final = "nodejs"
PROGRAM: Final = "go"  # an executable, which a Python worker starts and calls
_ENTRY: Final = "skerry.node.workers.python_worker:main"
_MAX_SKIPPED: Final = 3  # prestarted workers whose cell was removed, that one start skips
# Memory of a worker without a function, beyond that of functions: more than any needs.
_BLANK_MB: Final = {PYTHON: 16, NODEJS: 96}
# How many times `functions.spare_workers` are kept ready while many are taken.
_DEMAND_FACTOR: Final = {PYTHON: 4, NODEJS: 1}


class ProcessWorkers:
    """Creates workers of the runtimes `python`, `nodejs` and `go`."""

    def __init__(
        self, deps: WorkerDeps, settings: FunctionSettings, *, memory_mb: int, kind_of: Callable[[str], str]
    ) -> None:
        """`memory_mb` is the limit of all workers together; `kind_of` returns the kind of a runtime."""
        files.private_folder(deps.folder)
        self._logs = deps.logs
        self._cells = deps.cells
        self._settings = settings
        self._clock = deps.clock
        self._kind_of = kind_of
        self._failpoint = deps.failpoint
        self._workers: dict[str, ProcessWorker] = {}
        self._programs: dict[str, Interpreter | errors.SkerryError] = {}
        self._launcher: LauncherClient | None = None  # started for the first worker: a zygote takes memory
        self._launching = asyncio.Lock()
        self._network = deps.network
        self._secrets = deps.secrets
        has_network = isinstance(deps.network, Network)
        self._modes = (NetworkMode.BRIDGE, NetworkMode.NONE) if has_network else (NetworkMode.NONE,)
        if deps.cells.view.is_whole:
            self._modes = (NetworkMode.BRIDGE,)  # as it were: they are in the network of the machine
        # Prestarted workers are not counted by the pool.
        spare_mb = len(self._modes) * sum(
            megabytes * self._pool_limits(kind).most for kind, megabytes in _BLANK_MB.items()
        )
        self.templates = Templates(settings, deps.clock, self._make_template, memory_mb=memory_mb)
        spare_mb += self.templates.memory_mb
        self._pool = Cell(CELL, CellLimits(memory=Megabytes(memory_mb + spare_mb)), owner=CellOwner.FUNCTIONS)
        # That of the memory is the function's, and until then that of all workers.
        limits = CellLimits(pids=settings.worker_pids)
        policy = NetworkPolicy(Ingress.NODE, Egress(settings.egress))
        self._blanks = PrestartedWorkerFactory(deps, self._pool, limits, policy)
        self._stocks: dict[tuple[str, NetworkMode], PrestartedPool] = {}

    async def open(self) -> ProcessWorkers:
        """Free what an earlier agent left, and start. Containers that it left in the cell of all workers must
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
            prefixes = tuple(f"{name}/" for name in (CELL, POOL))
            attached = [owner for owner in network.attachments() if owner.startswith(prefixes)]
            await asyncio.gather(*(network.detach(owner) for owner in attached))
        for kind, find in ((PYTHON, interpreters.find_python), (NODEJS, interpreters.find_node)):
            try:
                self._programs[kind] = await find()
            except errors.Unavailable as error:
                self._programs[kind] = error
                log.warning("workers.runtime_missing", runtime=kind, reason=error.message)
        await self.ensure_pool()
        for kind in (PYTHON, NODEJS):
            if isinstance(self._programs[kind], Interpreter):
                for mode in self._modes:
                    self._stocks[kind, mode] = self._make_pool(kind, mode)

    def _make_pool(self, kind: str, mode: NetworkMode) -> PrestartedPool:
        return PrestartedPool(self._blanks, lambda: self._make(kind, mode), self._pool_limits(kind))

    def _pool_limits(self, kind: str) -> PoolLimits:
        count = self._settings.spare_workers
        return PoolLimits(count, count * _DEMAND_FACTOR[kind], at_once=4 * (os.cpu_count() or 1))

    async def ensure_pool(self) -> None:
        """Make sure that the cell of all workers exists, complete; raises as `Cells.ensure` does."""
        await self._cells.ensure(self._pool)

    async def _free_all(self) -> None:
        for name in (CELL, CellName(POOL)):  # older versions did not mark the name
            with contextlib.suppress(errors.NotFound):  # the last agent stopped regularly, or there was none
                self._cells.claim(self._cells.get(name).cell, CellOwner.FUNCTIONS)
                if self._cells.get(name).cell.owner is CellOwner.FUNCTIONS:
                    await self._cells.free(name, grace_s=0.0, owner=CellOwner.FUNCTIONS)

    async def _start_launcher(self) -> LauncherClient:
        found = [each for each in self._programs.values() if isinstance(each, Interpreter)]
        view = self._cells.view
        paths = (*view.paths, *(path for each in found for path in each.needs))
        view = view._replace(paths=paths, mount_points=MOUNT_POINTS)
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
        """Create a worker with the function loaded. Raises CodeLoadError, ResourcesExhausted, Unavailable;
        then, and if the caller is cancelled, everything is undone."""
        began = self._clock.monotonic()
        if code is None:
            raise errors.Unavailable(f"the code of function {function.name!r} is not on this node")
        with _translated_errors():
            worker = await self._spawn_from(self._pool_for(function), function, code)
        worker.init_s = self._clock.monotonic() - began
        return worker

    def _pool_for(self, function: Function) -> PrestartedPool:
        kind = _host_kind(self._kind_of(function.runtime))
        self._program(kind)
        pool = self._stocks.get((kind, function.network))
        if pool is None and self._cells.view.is_whole:
            raise errors.Unavailable(
                "this node isolates nothing (--isolation none), so no function of network `none` runs here"
            )
        if pool is None:
            raise errors.Unavailable(
                f"this node has no network for functions ({self._network}); create the function with network "
                "`none`, or call it on another node"
            )
        return pool

    async def _spawn_from(self, pool: PrestartedPool, function: Function, code: Path) -> ProcessWorker:
        began = self._clock.monotonic()
        for _ in range(_MAX_SKIPPED):
            template = self.templates.find(function, code)
            image = None if template is None else template.image
            try:
                worker = await self._spawn(await pool.take(), function, code, began, image=image)
            except errors.NotFound as error:  # somebody has removed its cell; try the next
                log.warning("workers.cell_lost", function=function.name, error=error.message)
                continue
            except CodeLoadError as error:
                if template is None:
                    raise
                self.templates.drop(function.name, error.message)
                continue
            if template is not None and not worker.is_copy:
                self.templates.drop(function.name, "it does not fit the processes of this node any more")
            if self._kind_of(function.runtime) == PYTHON:
                self.templates.started(function, code, load_s=worker.load_s, is_copy=worker.is_copy)
            return worker
        return await self._spawn(await pool.take(), function, code, began)

    async def _make_template(self, function: Function, code: Path, image: int) -> None:
        """Load the function in a worker that never gets a call, and store its memory in `image`."""
        pool, began = self._pool_for(function), self._clock.monotonic()
        worker = await self._spawn(await pool.take(), function, code, began, image=image, makes_template=True)
        await worker.close()

    async def _spawn(
        self,
        prestarted: PrestartedWorker,
        function: Function,
        code: Path,
        began: float,
        *,
        image: int | None = None,
        makes_template: bool = False,
    ) -> ProcessWorker:
        taken = self._clock.monotonic()
        try:
            if function.network is not NetworkMode.NONE:
                await self._blanks.assign(prestarted, namespace_of(function.name))
            files = await self._secret_files(prestarted, function)
            factor = MAKERS_FACTOR if makes_template else 1
            memory = Megabytes(factor * function.memory)
            worker, folder = await tasks.run_to_completion(
                self._set_up(prestarted, function, code, files, memory)
            )
        except BaseException:
            self._remove_secrets(prestarted.id, function)
            await tasks.run_to_completion(self._blanks.close(prestarted))
            raise
        try:
            request = self._load(function, folder, files.environment, makes_template=makes_template)
            set_up = self._clock.monotonic()
            await worker.load(request, within_s=self._timeout_s(function), image=image)
            loaded = self._clock.monotonic()
            worker.start_phases = (
                ("take process", taken - began),
                ("set up cell", set_up - taken),
                ("copy template" if worker.is_copy else "load code", loaded - set_up),
            )
            self._failpoint("spawn.loaded")
        except BaseException:
            await tasks.run_to_completion(worker.close())
            raise
        return worker

    async def _secret_files(self, prestarted: PrestartedWorker, function: Function) -> SecretFiles:
        """The values that the function uses, as files and variables. Raises Unavailable if the server does
        not send them, CodeLoadError if it refuses."""
        if not function.secrets:
            return NO_FILES
        if self._secrets is None:
            raise errors.Unavailable("this node takes no secrets")
        try:
            return await self._secrets.of_function(prestarted.id, function)
        except (errors.FailedPrecondition, errors.Invalid) as error:
            raise CodeLoadError(error.message) from error

    def _remove_secrets(self, worker: str, function: Function) -> None:
        if self._secrets is not None and function.secrets:
            self._secrets.files.remove(worker)
            self._secrets.values.prune()

    async def _set_up(
        self,
        prestarted: PrestartedWorker,
        function: Function,
        code: Path,
        files: SecretFiles,
        memory: Megabytes,
    ) -> tuple[ProcessWorker, str]:
        """Mount the code in a prestarted worker, and set its limits; the worker, and where its code is."""
        try:
            await self._cells.change_limits(prestarted.cell, CellLimits(memory=memory))
        except errors.Invalid as error:
            raise CodeLoadError(
                f"{function.memory} MB are not enough for {self.describe(self._kind_of(function.runtime))} "
                f"alone; give the function more memory ({error.message})"
            ) from error
        self._failpoint("spawn.limited")
        folder = await self._blanks.mount(prestarted, code, CODE)
        for path, source in files.mounts:
            await self._blanks.mount(prestarted, source, path, mount_flags.MOUNT_ATTR_NOEXEC)
        self._failpoint("spawn.mounted")
        if function.cpu is not None:  # last: the node's own work in the cell does not count
            await self._cells.change_limits(prestarted.cell, CellLimits(cpu_quota=function.cpu))
        self._logs.assign(prestarted.id, function.name)
        worker = ProcessWorker(
            prestarted, function, self._cells, self._blanks, self._logs, self._clock, self._forget
        )
        self._workers[worker.id] = worker
        return worker, folder

    def _load(
        self, function: Function, folder: str, secrets: tuple[str, ...], *, makes_template: bool = False
    ) -> LoadRequest:
        requested = dict(setting.split("=", 1) for setting in (*function.environment, *secrets))
        return LoadRequest(
            handler=function.handler,
            folder=folder,
            environment={**ENVIRONMENT, **requested},
            context={
                "name": plain_name(function.name),
                "version": function.version,
                "memory_mb": function.memory,
                "timeout_s": self._timeout_s(function),
            },
            max_result_bytes=self._settings.max_result_bytes,
            max_output_bytes=self._settings.max_output_bytes,
            max_concurrency=function.max_concurrency,
            is_program=self._kind_of(function.runtime) == PROGRAM,
            is_web=function.is_web,
            makes_template=makes_template,
        )

    def _timeout_s(self, function: Function) -> float:
        return self._settings.call_timeout_s if function.timeout_s is None else function.timeout_s

    async def _make(self, kind: str, mode: NetworkMode) -> PrestartedWorker:
        async with self._launching:
            if self._launcher is None:
                self._launcher = await self._start_launcher()
        program = self._program(kind)  # a Python that does not start as a zygote is found out only here
        node = program if kind == NODEJS else None
        return await self._blanks.make(self._launcher, mode, node)

    def _forget(self, worker: ProcessWorker) -> None:
        del self._workers[worker.id]
        self._remove_secrets(worker.id, worker.function)

    def expect_calls(self, functions: int) -> None:
        """So many functions may be called: prestart workers of the usual kind if there are any."""
        self._blanks.expect(functions)
        if functions and (usual := self._stocks.get((PYTHON, self._modes[0]))) is not None:
            usual.announce()

    async def prepare(self, function: Function, *, force: bool) -> None:
        """Prepare for a cold start of the function. Raises Unavailable."""
        self._pool_for(function).announce()

    def describe(self, kind: str) -> str:
        """The runtime's version, such as `Python 3.11.2`. Raises Unavailable, with the reason why there is
        none."""
        version = self._program(_host_kind(kind)).version
        return "a program of its own" if kind == PROGRAM else version

    def _program(self, kind: str) -> Interpreter:
        found = self._programs.get(kind)
        if found is None:
            raise errors.Unavailable(f"this node runs no functions of kind {kind!r}")
        if isinstance(found, errors.SkerryError):
            raise found
        return found

    def worker_cells(self) -> dict[CellName, FunctionName]:
        """The functions of those that have one, by their cells."""
        return {one.cell: one.function.name for one in self._workers.values()}

    def logs(
        self, name: FunctionName, *, lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[FunctionLogLine, None]:
        """Output of a function's workers, in the order of time, or its last `lines`; with `follow`, then new
        output, until the function is deleted. Close it (`contextlib.aclosing`)."""
        return self._logs.read(name, lines=lines, follow=follow)

    def forget(self, name: FunctionName) -> None:
        """Remove the logs of a deleted function, once its workers have ended."""
        self.templates.drop(name, "the function was deleted")
        self._logs.forget(name)

    async def run(self) -> None:
        """Keep the pools filled and the logs within their limits, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._blanks.run())
            group.create_task(self._logs.run())
            group.create_task(self.templates.run())
            for pool in self._stocks.values():
                group.create_task(pool.run())

    async def close(self) -> None:
        """End every worker, free all cells, and leave only the logs. `run` has ended."""
        try:
            await asyncio.gather(
                *(worker.close() for worker in list(self._workers.values())),
                *(pool.close() for pool in self._stocks.values()),
            )
            await self._blanks.detach_all()
            await self._free_all()
        finally:
            self.templates.close()
            if self._launcher is not None:
                await self._launcher.stop()


def _host_kind(kind: str) -> str:
    """The kind of prestarted workers for functions of this kind."""
    return PYTHON if kind == PROGRAM else kind


@contextlib.contextmanager
def _translated_errors() -> Iterator[None]:
    """Errors that are neither the function's fault nor a lack of resources are this node's."""
    try:
        yield
    except (CodeLoadError, errors.ResourcesExhausted, errors.Unavailable):
        raise
    except (errors.SkerryError, OSError) as error:
        reason = error.message if isinstance(error, errors.SkerryError) else error.strerror
        raise errors.Unavailable(
            f"this node could not start a worker: {reason}; try again later", detail=repr(error)
        ) from error
