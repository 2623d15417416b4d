"""The init of a cell for one worker. It only waits: the launcher starts the worker and mounts what it needs.

`skerry.node.launcher.child.worker_cells` is the other end. Without its launcher a worker goes on; its exit is
received here then, and nothing can be mounted for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.launcher import channel as launcher_channel
from skerry.node.launcher.cell_inits import (
    WITHIN_S,
    CellInit,
    descriptors_of,
    open_folder,
    setup_error,
    start_error,
    start_request,
)
from skerry.node.launcher.child import messages
from skerry.node.launcher.specs import InitSpec, ProcessExit, StartedProcess, StartSpec

log = structlog.get_logger(__name__)

_AGAIN_S: Final = 0.25
_GONE: Final = "the launcher of this worker is gone; start another worker"


class _Worker(NamedTuple):
    pid: int
    pidfd: int


class WorkerInit(CellInit):
    """An init that `make` has created."""

    starts_within = False

    def __init__(
        self,
        pid: int,
        pidfd: int,
        connection: LauncherConnection,
        enter: Callable[[], CgroupEntryFds],
        logs: Callable[[], Path],
    ) -> None:
        """`enter` opens the groups in which the worker's output is moved, `logs` returns the folder of it."""
        super().__init__(pid, 0, pidfd)
        self._connection = connection
        self._enter = enter
        self._logs = logs
        self._workers: dict[str, _Worker] = {}  # those whose exit is not reported, by key
        self._work: set[asyncio.Task[None]] = set()
        connection.inits[pid] = self

    def has_started(self, key: str, pid: int, pidfd: int) -> None:
        """A worker runs in its cell."""
        worker = self._workers[key] = _Worker(pid, pidfd)
        if self._connection.is_dead:
            self._adopt(key, worker)

    @property
    def is_usable(self) -> bool:
        return not self.has_ended and self._connection.channel.is_open

    async def start(
        self,
        spec: StartSpec,
        folder: Path,
        entry: CgroupEntryFds,
        *,
        before_exec: Callable[[], None] | None = None,
        within_s: float = WITHIN_S,
    ) -> StartedProcess:
        raise errors.Internal("the init of a worker starts nothing else")

    async def mount(self, detached: int, path: str, *, within_s: float = WITHIN_S) -> None:
        reply = await self._request({"do": "mount", "place": path}, [detached], within_s)
        reply.close()
        if "failed" in reply.body:
            raise setup_error(reply.body["failed"], reply.body["errno"])

    async def _request(
        self, body: messages.MessageBody, descriptors: list[int], within_s: float
    ) -> messages.LauncherMessage:
        if self.has_ended:
            raise errors.Unavailable(_GONE)
        try:
            async with asyncio.timeout(within_s):
                return await self._connection.channel.request({**body, "cell": self.pid}, descriptors)
        except launcher_channel.ChannelClosed as error:
            raise errors.Unavailable(_GONE) from error
        except TimeoutError as error:
            raise errors.TimedOut(f"the launcher did not answer within {within_s} s") from error

    # Notifications

    def exited(self, exited: ProcessExit) -> None:
        """The launcher reports the exit of a worker."""
        worker = self._workers.pop(exited.key, None)
        if worker is not None:
            os.close(worker.pidfd)
        self._exits.put_nowait(exited)

    def printed(self, key: str) -> None:
        """A worker has printed something: let its output be moved by its own cell."""
        task = asyncio.create_task(self._move_output(key))
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _move_output(self, key: str) -> None:
        """Until that succeeds: a cell may have as many processes as it may have, for now."""
        while self.is_usable:
            try:
                with contextlib.ExitStack() as opened:
                    entry = opened.enter_context(self._enter())
                    logs = _open_logs(self._logs, opened)
                    body = {
                        "do": "output",
                        "key": key,
                        "has_logs": bool(logs),
                        "clone_into": entry.clone_into is not None,
                    }
                    reply = await self._request(body, [*logs, *descriptors_of(entry)], WITHIN_S)
            except (errors.SkerryError, OSError) as error:
                log.debug("worker.output_not_stored", error=str(error))  # its cell is being removed
                return
            reply.close()
            if "failed" not in reply.body:
                return
            await asyncio.sleep(_AGAIN_S)

    def launcher_died(self) -> set[int]:
        """Workers are our children now; returns their pids."""
        for key, worker in self._workers.items():
            self._adopt(key, worker)
        return {worker.pid for worker in self._workers.values()}

    def _adopt(self, key: str, worker: _Worker) -> None:
        self._loop.add_reader(worker.pidfd, self._reap_worker, key, worker.pidfd)

    def _reap_worker(self, key: str, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        code, number = None, None
        with contextlib.suppress(ChildProcessError):
            ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            if ended is not None:
                is_code = ended.si_code == os.CLD_EXITED
                code, number = (ended.si_status, None) if is_code else (None, ended.si_status)
        self.exited(ProcessExit(key, time.time(), code, number))

    def _disconnect(self) -> None:
        if self._connection.inits.get(self.pid) is self:
            del self._connection.inits[self.pid]
        for task in self._work:
            task.cancel()
        for _, pidfd in self._workers.values():
            self._loop.remove_reader(pidfd)
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
            os.close(pidfd)
        self._workers.clear()

    def _read_all(self) -> None:
        self._connection.channel.read_all()


class LauncherConnection:
    """The channel to one launcher, and the inits that depend on it."""

    def __init__(self, channel: launcher_channel.LauncherChannel) -> None:
        self.channel = channel
        self.makes_inits = False  # known once it is ready
        self.is_dead = False
        self.inits: dict[int, WorkerInit] = {}  # by pid
        self._launching = 0
        self._early: dict[int, list[dict[str, Any]]] = {}  # what came before our side of an init was there

    def notified(self, body: dict[str, Any]) -> None:
        """The launcher reports something of a cell."""
        init = self.inits.get(body["cell"])
        if init is not None:
            _pass_on(init, body)
        elif self._launching:
            self._early.setdefault(body["cell"], []).append(body)

    @contextlib.contextmanager
    def launching(self) -> Iterator[Callable[[WorkerInit], None]]:
        """While an init is made; the value is called with it, and passes on what came early."""

        def welcome(init: WorkerInit) -> None:
            for body in self._early.pop(init.pid, ()):
                _pass_on(init, body)

        self._launching += 1
        try:
            yield welcome
        finally:
            self._launching -= 1
            if not self._launching:
                self._early.clear()

    def died(self) -> set[int]:
        """The launcher is gone; returns the pids of its workers that are known here."""
        self.is_dead = True
        return {pid for init in list(self.inits.values()) for pid in init.launcher_died()}


class WorkerLaunch(NamedTuple):
    """What one request to the launcher makes: a cell's init, mounts, and its worker."""

    init: InitSpec
    worker: StartSpec
    logs: Callable[[], Path]  # the folder of its logs, made at its first output
    mounts: Sequence[tuple[int, str]]  # detached ones, and where they are attached


class WorkerGroups(NamedTuple):
    """How the processes of such a cell enter their groups."""

    init: CgroupEntryFds
    worker: CgroupEntryFds  # from within
    enter: Callable[[], CgroupEntryFds]  # that of the init again, for the process that moves output


async def launch(
    connection: LauncherConnection, launch: WorkerLaunch, groups: WorkerGroups, within_s: float
) -> tuple[WorkerInit, StartedProcess]:
    """Make an init with the worker in its cell. Raises ChannelClosed, FailedPrecondition, Internal, TimedOut;
    the caller then empties the cell."""
    init, worker = launch.init, launch.worker
    assert worker.socket is not None, "it is a worker"
    has_clone_into = groups.init.clone_into is not None
    shared = groups.init.procs[: len(groups.init.procs) - len(groups.worker.procs)]
    body = {
        "do": "launch",
        "init": {
            "host_name": init.host_name,
            "tmp_mb": init.tmp_mb,
            "network": init.network is not None,
        },
        "worker": start_request(worker, has_clone_into=has_clone_into),
        "mounts": [path for _, path in launch.mounts],
        "clone_into": has_clone_into,
    }
    descriptors = [
        worker.socket,
        *(() if init.network is None else (init.network,)),
        *(detached for detached, _ in launch.mounts),
        *shared,
        *(each for group in (groups.init, groups.worker) for each in _own_group(group)),
    ]
    with connection.launching() as welcome:
        try:
            async with asyncio.timeout(within_s):
                reply = await connection.channel.request(body, descriptors)
        except TimeoutError as error:
            raise errors.TimedOut(f"the launcher did not start a worker within {within_s} s") from error
        if "failed" in reply.body:
            reply.close()
            raise start_error(worker, reply.body["failed"], reply.body["errno"])
        init_pidfd, worker_pidfd = reply.descriptors
        made = WorkerInit(reply.body["pid"], init_pidfd, connection, groups.enter, launch.logs)
        made.has_started(worker.key, reply.body["worker"], worker_pidfd)
        welcome(made)
    return made, StartedProcess(reply.body["worker"], None)


def _own_group(entry: CgroupEntryFds) -> tuple[int, ...]:
    """The descriptor by which one enters what it does not share."""
    if entry.clone_into is not None:
        return (entry.clone_into,)
    return entry.procs[-1:]


def _pass_on(init: WorkerInit, body: dict[str, Any]) -> None:
    if "exited" in body:
        init.exited(ProcessExit(body["exited"], body["at"], body["code"], body["signal"]))
    elif "output" in body:
        init.printed(body["output"])


def _open_logs(logs: Callable[[], Path], opened: contextlib.ExitStack) -> list[int]:
    """Nothing if there is no folder: output that cannot be stored is read and dropped."""
    try:
        return [open_folder(logs(), opened)]
    except OSError as error:
        log.warning("worker.no_logs", error=str(error))
        return []
