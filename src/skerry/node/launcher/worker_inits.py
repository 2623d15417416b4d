"""The init of a cell for one worker. It only waits: the launcher starts the worker and mounts what it needs.

`skerry.node.launcher.child.worker_cells` is the other end. Without its launcher a worker goes on; its exit is
received here then, and nothing can be mounted for it any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
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
        self, pid: int, pidfd: int, connection: LauncherConnection, enter: Callable[[], CgroupEntryFds]
    ) -> None:
        """`enter` opens the groups in which the worker's output is moved."""
        super().__init__(pid, 0, pidfd)
        self._connection = connection
        self._enter = enter
        self._workers: dict[str, _Worker] = {}  # those whose exit is not reported, by key
        self._work: set[asyncio.Task[None]] = set()
        connection.inits[pid] = self

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
        if not spec.is_fork or spec.socket is None or before_exec is not None:
            raise errors.Internal("the init of a worker starts nothing else")
        body = start_request(spec, has_clone_into=entry.clone_into is not None)
        with contextlib.ExitStack() as opened:
            logs = open_folder(folder if spec.logs is None else spec.logs, opened)
            descriptors = [logs, spec.socket, *descriptors_of(entry)]
            reply = await self._request({**body, "do": "fork"}, descriptors, within_s)
        if "failed" in reply.body:
            reply.close()
            raise start_error(spec, reply.body["failed"], reply.body["errno"])
        worker = self._workers[spec.key] = _Worker(reply.body["pid"], reply.descriptors[0])
        if self._connection.is_dead:
            self._adopt(spec.key, worker)
        return StartedProcess(reply.body["pid"], None)

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
                with self._enter() as entry:
                    body = {"do": "output", "key": key, "clone_into": entry.clone_into is not None}
                    reply = await self._request(body, descriptors_of(entry), WITHIN_S)
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

    def notified(self, body: dict[str, Any]) -> None:
        """The launcher reports something of a cell."""
        init = self.inits.get(body["cell"])
        if init is None:
            return
        if "exited" in body:
            init.exited(ProcessExit(body["exited"], body["at"], body["code"], body["signal"]))
        elif "output" in body:
            init.printed(body["output"])

    def died(self) -> set[int]:
        """The launcher is gone; returns the pids of its workers that are known here."""
        self.is_dead = True
        return {pid for init in list(self.inits.values()) for pid in init.launcher_died()}


async def make(
    connection: LauncherConnection,
    spec: InitSpec,
    entry: CgroupEntryFds,
    enter: Callable[[], CgroupEntryFds],
    within_s: float,
) -> WorkerInit:
    """An init with the namespaces of `spec`, in the cgroup. Raises ChannelClosed, Internal, TimedOut."""
    body = {
        "do": "pause",
        "host_name": spec.host_name,
        "tmp_mb": spec.tmp_mb,
        "network": spec.network is not None,
        "clone_into": entry.clone_into is not None,
    }
    descriptors = [*(() if spec.network is None else (spec.network,)), *descriptors_of(entry)]
    try:
        async with asyncio.timeout(within_s):
            reply = await connection.channel.request(body, descriptors)
    except TimeoutError as error:
        raise errors.TimedOut(f"the launcher did not create an init within {within_s} s") from error
    if "failed" in reply.body:
        raise setup_error(reply.body["failed"], reply.body["errno"])
    return WorkerInit(reply.body["pid"], reply.descriptors[0], connection, enter)
