"""Prestarted workers: a cell with its network, its init, and a process that waits for its code.

For Python that process is a fork of the init, which is a fork of a zygote; for Node.js it runs a program.
Creating one is most of the cost of a cold start, so `prestarted_pool` keeps a few ready. A prestarted worker
serves one function once. Functions and the worker protocol are not known here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from skerry.kit import files, tasks, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellOwner, Executable, Sandbox, own_name
from skerry.model.containers import NetworkMode
from skerry.model.ids import CellName, ExecutableName, Namespace
from skerry.model.network import NetworkPolicy
from skerry.model.secrets import FOLDERS
from skerry.node.cells.cells import Cells
from skerry.node.cells.executables import WorkerOptions, WorkerStart
from skerry.node.cells.inits import WorkerSurroundings
from skerry.node.kernel import mount_flags, syscalls
from skerry.node.launcher.client import LauncherClient
from skerry.node.network.network import Attachment, Network
from skerry.node.secrets.supply import SecretSupply
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.interpreters import Interpreter

log = structlog.get_logger(__name__)

POOL: Final = "functions"
CELL: Final = own_name(POOL)  # the cell of all workers, which limits the pool
PROCESS: Final = ExecutableName("worker")
CODE: Final = "/home/function"  # in a worker
_RUNTIME: Final = "/home/runtime"
# Empty folders in the root of a worker, as mount points for these.
MOUNT_POINTS: Final = (CODE, _RUNTIME, *FOLDERS.values())
_RESOLVER: Final = "/etc/resolv.conf"
_NODE_PROGRAM: Final = "worker.js"
_NODE_MODULE: Final = "worker_web.js"  # that it needs
_FORK: Final = "python"  # the name of a Python worker's process where a command is required
_SOCKET: Final = 3  # the descriptor of a worker's socket
_AGAIN_S: Final = 5.0
_RESOLVER_S: Final = 0.25
_DETACH_DELAY_S: Final = 0.2  # in which the networks of further workers join
_SEALED: Final = mount_flags.MOUNT_ATTR_RDONLY | mount_flags.MOUNT_ATTR_NOSUID | mount_flags.MOUNT_ATTR_NODEV


@dataclass(slots=True, eq=False)
class PrestartedWorker:
    """A cell for one worker."""

    id: str
    cell: CellName
    socket: socket.socket | None = None  # our end, until it becomes a worker's


class WorkerDeps(msgspec.Struct, frozen=True):
    """Dependencies of worker creation."""

    cells: Cells
    network: Network | str  # that of the containers, or why there is none
    logs: FunctionLogs
    clock: Clock
    folder: Path  # for files that workers see
    # Called after every step that a crash may follow: tests end the process there.
    failpoint: Callable[[str], None] = lambda step: None
    secrets: SecretSupply | None = None  # None: functions with secrets are refused


class PrestartedWorkerFactory:
    """Creates prestarted workers."""

    def __init__(self, deps: WorkerDeps, pool: Cell, limits: CellLimits, policy: NetworkPolicy) -> None:
        """`pool` is the cell of all workers; `limits` are those of one without a function; `policy` is that
        of its network."""
        self._cells = deps.cells
        self._network = deps.network if isinstance(deps.network, Network) else None
        self._logs = deps.logs
        self._clock = deps.clock
        self._pool = pool
        self._limits = limits
        self._policy = policy
        self._failpoint = deps.failpoint
        self._functions = 0  # that may be called
        self._attached: set[str] = set()  # workers with a network
        self._stuck: list[PrestartedWorker] = []
        self._detaching: list[PrestartedWorker] = []  # they have ended, and their networks are left
        self._has_detaching = asyncio.Event()
        self._resolver = deps.folder / "resolv.conf"
        self._resolver_text = b""  # what we have written there
        self._resolver_of, self._resolver_until = "", 0.0  # for this gateway, it is right until then
        self._runtime = deps.folder / "runtime"
        self._runtime.mkdir(exist_ok=True)
        self._runtime.chmod(0o755)  # every worker reads it
        for name in (_NODE_PROGRAM, _NODE_MODULE):
            shutil.copyfile(Path(__file__).with_name(name), self._runtime / name)
            (self._runtime / name).chmod(0o644)

    async def make(
        self, launcher: LauncherClient, mode: NetworkMode, node: Interpreter | None = None
    ) -> PrestartedWorker:
        """Create one with an init of `launcher`; with `node`, for Node.js. Raises ResourcesExhausted,
        Unavailable, Internal, TimedOut; then, and if this is cancelled, everything is undone."""
        for is_last in (False, True):
            name = ulid.new_id(self._clock.now())
            worker = PrestartedWorker(name, CellName(f"{CELL}/w{name}"))
            try:
                # Not cancelled with us: a step is undone when it is known to be done.
                await tasks.run_to_completion(self._make(worker, launcher, mode, node))
            except BaseException as error:
                is_lost = isinstance(error, errors.Unavailable) and not self._cells.is_prepared(worker.cell)
                await tasks.run_to_completion(self.close(worker))
                if is_last or not is_lost:  # else its launcher has died, and there is another
                    raise
            else:
                return worker
        raise AssertionError("unreachable")

    async def _make(
        self, worker: PrestartedWorker, launcher: LauncherClient, mode: NetworkMode, node: Interpreter | None
    ) -> None:
        is_attached = mode is not NetworkMode.NONE and not self._cells.view.is_whole
        attachment = await self._attach(worker) if is_attached else None
        with contextlib.ExitStack() as opened:
            network = None
            if attachment is not None:
                network = os.open(attachment.namespace, os.O_RDONLY | os.O_CLOEXEC)
                opened.callback(os.close, network)
            if node is None and launcher.makes_worker_inits:
                await self._launch(worker, launcher, network, attachment)
            else:
                await self._make_in_steps(worker, launcher, network, attachment, node)
        self._failpoint("blank.started")

    async def _launch(
        self,
        worker: PrestartedWorker,
        launcher: LauncherClient,
        network: int | None,
        attachment: Attachment | None,
    ) -> None:
        """Everything by one request: it is a fork of the launcher."""
        with contextlib.ExitStack() as opened:
            mounts = []
            if attachment is not None:
                detached = _detached(self._resolv_conf(attachment))
                opened.callback(os.close, detached)
                mounts.append((detached, _RESOLVER))
            worker.socket, end = _socket_pair()
            opened.enter_context(closing(end))
            self._logs.expect(worker.id)
            options = WorkerOptions(end.fileno(), self._logs.ring_bytes)
            around = WorkerSurroundings(network, mounts, lambda: self._logs.folder(worker.id))
            start = WorkerStart(launcher, Executable(PROCESS, worker.cell, _FORK), options, around)
            await self._in_pool(lambda cell: self._cells.launch_worker(cell, start), worker)

    async def _make_in_steps(
        self,
        worker: PrestartedWorker,
        launcher: LauncherClient,
        network: int | None,
        attachment: Attachment | None,
        node: Interpreter | None,
    ) -> None:
        await self._in_pool(self._cells.allocate, worker)
        self._failpoint("blank.allocated")
        await self._cells.prepare(worker.cell, launcher, network=network)
        self._failpoint("blank.prepared")
        if attachment is not None:
            await self.mount(worker, self._resolv_conf(attachment), _RESOLVER)
        arguments: tuple[str, ...] = ()
        if node is not None:
            runtime = await self.mount(worker, self._runtime, _RUNTIME)
            arguments = (node.path, f"{runtime}/{_NODE_PROGRAM}", str(_SOCKET))
        self._failpoint("blank.mounted")
        await self._start(worker, arguments)

    async def _in_pool(self, create: Callable[[Cell], Awaitable[None]], worker: PrestartedWorker) -> None:
        """Create the cell of the worker in that of all workers."""
        cell = Cell(worker.cell, self._limits, isolates_network=True, owner=CellOwner.FUNCTIONS)
        try:
            await create(cell)
        except errors.SkerryError:
            if not await self._cells.ensure(self._pool):  # else somebody has removed its groups
                raise
            await create(cell)

    def expect(self, functions: int) -> None:
        """So many functions may be called at once. A network is the part of a worker that takes no memory of
        a process, so there is to be one for each."""
        self._functions = functions
        self._expect_networks()

    def _expect_networks(self) -> None:
        if self._network is not None:
            self._network.expect_workers(self._policy, self._functions - len(self._attached))

    async def _attach(self, worker: PrestartedWorker) -> Attachment:
        assert self._network is not None, "a worker without a network is not attached"
        attachment = await self._network.attach(worker.cell, policy=self._policy, for_worker=True)
        self._attached.add(worker.id)
        self._expect_networks()
        self._failpoint("blank.attached")
        return attachment

    async def assign(self, worker: PrestartedWorker, namespace: Namespace) -> None:
        """Let it reach what isolated namespaces allow to `namespace`. Raises Unavailable."""
        if self._network is not None:
            policy = msgspec.structs.replace(self._policy, namespace=namespace)
            await self._network.restrict(worker.cell, policy)

    async def close(self, worker: PrestartedWorker) -> None:
        """Remove it, in any state; idempotent. Nothing of it runs on return, and its resources are free but
        for its network, which `run` removes, together with those of others. What cannot be removed now is
        retried by `run`, and by the next agent."""
        if worker.socket is not None:
            worker.socket.close()
        try:
            await self._cells.free(worker.cell, grace_s=0.0, owner=CellOwner.FUNCTIONS)
        except errors.NotFound:
            pass  # it was never created, or is gone
        except (errors.SkerryError, OSError) as error:
            log.warning("worker.not_removed", cell=worker.cell, error=str(error))
            self._stuck.append(worker)
            return
        self._logs.end(worker.id)
        if self._network is not None:
            self._attached.discard(worker.id)
            self._expect_networks()
            self._detaching.append(worker)
            self._has_detaching.set()

    async def detach_all(self) -> None:
        """Remove the networks of workers that have ended; together, they cost little more than one."""
        workers, self._detaching = self._detaching, []
        if self._network is None or not workers:
            return
        detached = await asyncio.gather(
            *(self._network.detach(worker.cell) for worker in workers), return_exceptions=True
        )
        for worker, error in zip(workers, detached, strict=True):
            if error is not None:
                log.warning("worker.not_removed", cell=worker.cell, error=str(error))
                self._stuck.append(worker)

    async def run(self) -> None:
        """Remove networks, and retry removals that failed, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._retry_forever())
            group.create_task(self._detach_forever())

    async def _retry_forever(self) -> None:
        while True:
            await asyncio.sleep(_AGAIN_S)
            stuck, self._stuck = self._stuck, []
            for worker in stuck:
                await self.close(worker)

    async def _detach_forever(self) -> None:
        while True:
            await self._has_detaching.wait()
            self._has_detaching.clear()
            await asyncio.sleep(_DETACH_DELAY_S)
            await tasks.run_to_completion(self.detach_all())

    def _resolv_conf(self, attachment: Attachment) -> Path:
        assert self._network is not None, "likewise"
        now = self._clock.monotonic()
        if self._resolver_of == attachment.gateway and now < self._resolver_until:
            return self._resolver
        text = self._network.resolv_conf(attachment).encode()
        if self._resolver_text != text:
            # A new file each time: earlier workers keep seeing the old one.
            files.write_atomically(self._resolver, text)
            self._resolver_text = text
        self._resolver_of, self._resolver_until = attachment.gateway, now + _RESOLVER_S
        return self._resolver

    async def mount(self, worker: PrestartedWorker, source: Path, path: str, attributes: int = 0) -> str:
        """Mount `source` read-only at `path` in it, with further `attributes`; where it finds that. Without
        isolation that is where it is. Raises Unavailable, NotFound (its launcher has died)."""
        if self._cells.view.is_whole:
            return str(source)
        detached = _detached(source, attributes)
        try:
            await self._cells.mount(worker.cell, detached, path)
        except errors.Unavailable as error:
            if self._cells.is_prepared(worker.cell):
                raise
            raise errors.NotFound(error.message) from error
        finally:
            os.close(detached)
        return path

    async def _start(self, worker: PrestartedWorker, arguments: tuple[str, ...]) -> None:
        """Start its process: a fork, or a program with `arguments`."""
        worker.socket, worker_end = _socket_pair()
        with closing(worker_end):
            await self._cells.start_worker(
                Executable(PROCESS, worker.cell, " ".join(arguments) or _FORK),
                WorkerOptions(
                    worker_end.fileno(),
                    self._logs.ring_bytes,
                    logs=self._logs.begin(worker.id),
                    is_fork=not arguments,
                ),
                Sandbox(arguments=arguments),
            )

    def is_alive(self, worker: PrestartedWorker) -> bool:
        """False if it, or what it needs for its start, has died while it waited."""
        if not self._cells.is_prepared(worker.cell):
            return False
        try:
            view = self._cells.get(worker.cell)
        except errors.NotFound:
            return False
        return not view.is_freeing and all(each.exit is None for each in view.executables)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)


def _detached(source: Path, attributes: int = 0) -> int:
    """A read-only mount of `source` that is nowhere yet. Raises Unavailable."""
    try:
        return syscalls.detached_mount(str(source), _SEALED | attributes)
    except OSError as error:
        raise errors.Unavailable(
            f"{source.name} cannot be mounted in a worker: {error.strerror}", detail=str(source)
        ) from error
