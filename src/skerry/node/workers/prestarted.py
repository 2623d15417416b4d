"""Workers that are nobody's yet: a cell with its network, its init, and a process that waits for its code.

For Python that process is a fork of the init, which is a fork of a zygote; for Node.js it runs a program of
its own. Making one is most of what a cold start costs, so `prestarted_pool` keeps a few ready. A prestarted
worker serves one function once, and then is gone. Which function that is, and what is said to it, is not
known here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from skerry.kit import files, tasks, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.model.cells import Cell, CellLimits, CellOwner, Executable, Sandbox, own_name
from skerry.model.containers import NetworkMode
from skerry.model.ids import CellName, ExecutableName
from skerry.model.network import NetworkPolicy
from skerry.node.cells.cells import Cells
from skerry.node.cells.executables import WorkerOptions
from skerry.node.kernel import mount_flags, syscalls
from skerry.node.launcher.client import LauncherClient
from skerry.node.network.network import Network
from skerry.node.workers.function_logs import FunctionLogs
from skerry.node.workers.interpreters import Interpreter

log = structlog.get_logger(__name__)

POOL: Final = "functions"
CELL: Final = own_name(POOL)  # the cell that holds all workers to the pool
PROCESS: Final = ExecutableName("worker")
CODE: Final = "/home/function"  # as a worker sees it
_RUNTIME: Final = "/home/runtime"
PLACES: Final = (CODE, _RUNTIME)  # what the root of a worker has, empty, for these
_RESOLVER: Final = "/etc/resolv.conf"
_NODE_PROGRAM: Final = "worker.js"
_FORK: Final = "python"  # what the process of a Python worker is called where a command is wanted
_SOCKET: Final = 3  # the number that a worker knows its socket by
_AGAIN_S: Final = 5.0
_SEALED: Final = mount_flags.MOUNT_ATTR_RDONLY | mount_flags.MOUNT_ATTR_NOSUID | mount_flags.MOUNT_ATTR_NODEV


@dataclass(slots=True, eq=False)
class PrestartedWorker:
    """A cell for one worker."""

    id: str
    cell: CellName
    socket: socket.socket | None = None  # our end, until it is a worker's


@dataclass(frozen=True, slots=True)
class WorkerDeps:
    """What making workers takes."""

    cells: Cells
    network: Network | str  # that of the containers, or why there is none, in words
    logs: FunctionLogs
    clock: Clock
    folder: Path  # for what workers are shown
    # Told after every step that a crash may follow: tests end the process there.
    reached: Callable[[str], None] = lambda step: None


class PrestartedWorkerFactory:
    """Makes them."""

    def __init__(self, deps: WorkerDeps, pool: Cell, limits: CellLimits, policy: NetworkPolicy) -> None:
        """`pool` is the cell of all workers; `limits` are those of one that has no function yet; `policy` is
        that of its network."""
        self._cells = deps.cells
        self._network = deps.network if isinstance(deps.network, Network) else None
        self._logs = deps.logs
        self._clock = deps.clock
        self._pool = pool
        self._limits = limits
        self._policy = policy
        self._reached = deps.reached
        self._stuck: list[PrestartedWorker] = []
        self._resolver = deps.folder / "resolv.conf"
        self._runtime = deps.folder / "runtime"
        self._runtime.mkdir(exist_ok=True)
        self._runtime.chmod(0o755)  # every worker reads it, wherever it lies
        program = self._runtime / _NODE_PROGRAM
        shutil.copyfile(Path(__file__).with_name(_NODE_PROGRAM), program)
        program.chmod(0o644)

    async def make(
        self, maker: LauncherClient, mode: NetworkMode, node: Interpreter | None = None
    ) -> PrestartedWorker:
        """One whose init is `maker`'s; with `node`, of Node.js. Raises ResourcesExhausted, Unavailable,
        Internal, TimedOut; nothing is left then, and neither if this is cancelled."""
        name = ulid.new_id(self._clock.now())
        blank = PrestartedWorker(name, CellName(f"{CELL}/w{name}"))
        try:
            # Not cut short with us: a step is undone when it is known to be done.
            await tasks.run_to_completion(self._make(blank, maker, mode, node))
        except BaseException:
            await tasks.run_to_completion(self.close(blank))
            raise
        return blank

    async def _make(
        self, blank: PrestartedWorker, maker: LauncherClient, mode: NetworkMode, node: Interpreter | None
    ) -> None:
        network = -1 if mode is NetworkMode.NONE else await self._attach(blank)
        try:
            await self._cells.ensure(self._pool)  # somebody may have removed its groups
            await self._cells.allocate(
                Cell(blank.cell, self._limits, isolates_network=True, owner=CellOwner.FUNCTIONS)
            )
            self._reached("blank.allocated")
            await self._cells.prepare(blank.cell, maker, network=None if network < 0 else network)
            self._reached("blank.prepared")
        finally:
            if network >= 0:
                os.close(network)
        if network >= 0:
            await self.mount(blank, self._resolv_conf(), _RESOLVER)
        arguments: tuple[str, ...] = ()
        if node is not None:
            await self.mount(blank, self._runtime, _RUNTIME)
            arguments = (node.path, f"{_RUNTIME}/{_NODE_PROGRAM}", str(_SOCKET))
        self._reached("blank.mounted")
        await self._start(blank, arguments)
        self._reached("blank.started")

    async def _attach(self, blank: PrestartedWorker) -> int:
        assert self._network is not None, "whoever has none asks for no network"
        attachment = await self._network.attach(blank.cell, policy=self._policy)
        self._reached("blank.attached")
        return os.open(attachment.namespace, os.O_RDONLY | os.O_CLOEXEC)

    async def close(self, blank: PrestartedWorker) -> None:
        """Leave nothing of it, whatever has become of it; may be repeated. What the kernel does not let go of
        is tried again by `run`, and by the next agent."""
        if blank.socket is not None:
            blank.socket.close()
        steps = [self._free(blank)]
        if self._network is not None:
            steps.append(self._network.detach(blank.cell))
        failures = [each for each in await asyncio.gather(*steps, return_exceptions=True) if each is not None]
        if failures:
            log.warning("worker.not_removed", cell=blank.cell, error=str(failures[0]))
            self._stuck.append(blank)
            return
        self._logs.end(blank.id)

    async def _free(self, blank: PrestartedWorker) -> None:
        try:
            await self._cells.free(blank.cell, grace_s=0.0, owner=CellOwner.FUNCTIONS)
        except errors.NotFound:
            pass  # it was never made, or is gone

    async def run(self) -> None:
        """Try again to remove what could not be removed, for ever."""
        while True:
            await asyncio.sleep(_AGAIN_S)
            stuck, self._stuck = self._stuck, []
            for blank in stuck:
                await self.close(blank)

    def _resolv_conf(self) -> Path:
        assert self._network is not None, "likewise"
        text = self._network.resolv_conf().encode()
        if not self._resolver.exists() or self._resolver.read_bytes() != text:
            # A new file each time: the old one is what earlier workers go on to see.
            files.write_atomically(self._resolver, text)
        return self._resolver

    async def mount(self, blank: PrestartedWorker, source: Path, place: str) -> None:
        """Show it `source`, which nothing can be written to there, at `place`."""
        try:
            detached = syscalls.detached_mount(str(source), _SEALED)
        except OSError as error:
            raise errors.Unavailable(
                f"{source.name} cannot be shown to a worker: {error.strerror}", detail=str(source)
            ) from error
        try:
            await self._cells.mount(blank.cell, detached, place)
        finally:
            os.close(detached)

    async def _start(self, blank: PrestartedWorker, arguments: tuple[str, ...]) -> None:
        """Start its process, a fork unless it is a program's."""
        blank.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        with closing(theirs):
            await self._cells.start_worker(
                Executable(PROCESS, blank.cell, " ".join(arguments) or _FORK),
                WorkerOptions(
                    theirs.fileno(), self._logs.begin(blank.id), self._logs.ring_bytes, is_fork=not arguments
                ),
                Sandbox(arguments=arguments),
            )

    def is_good(self, blank: PrestartedWorker) -> bool:
        """False if it has died while it waited."""
        try:
            view = self._cells.get(blank.cell)
        except errors.NotFound:
            return False
        return not view.is_freeing and all(each.exit is None for each in view.executables)
