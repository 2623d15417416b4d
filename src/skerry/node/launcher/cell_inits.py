"""The process at the top of a cell's namespaces, as the agent sees it.

`skerry.node.launcher.client.InitClient` is one that runs executables itself,
`skerry.node.launcher.worker_inits.WorkerInit` one for which the launcher does. What both send to the launcher
or to an init, and what its replies mean, is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from msgspec.structs import astuple

from skerry.model import errors
from skerry.node.cgroups.protocol import CgroupEntryFds
from skerry.node.launcher.child import messages
from skerry.node.launcher.specs import ENVIRONMENT, ProcessExit, StartedProcess, StartSpec

WITHIN_S: Final = 10.0
# Steps that fail because of the request, with a hint.
_REQUEST_HINTS: Final = {
    "limit open files": "request fewer open files",
    "change folder": "choose a folder that exists in the cell and that its user may enter",
    "exec": "choose a program that exists in the cell, which has /usr and the paths in the setting "
    "node.cell_paths",
}


class CellInit(ABC):
    """Owns the pidfd of the process, and passes on exits of what runs in the cell."""

    starts_within = True  # what it starts is under the limits of the cell from its first step on
    enters_mounts = True  # it can start a runtime with `RuntimeMounts`

    def __init__(self, pid: int, start_time: int, pidfd: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self._pidfd = pidfd
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._exits: asyncio.Queue[ProcessExit | None] = asyncio.Queue()
        self._is_closed = False
        self._loop.add_reader(pidfd, self._over)

    @abstractmethod
    async def start(
        self,
        spec: StartSpec,
        folder: Path,
        entry: CgroupEntryFds,
        *,
        before_exec: Callable[[], None] | None = None,
        within_s: float = WITHIN_S,
    ) -> StartedProcess:
        """Run an executable; its logs and its exit record go to `folder`. `before_exec` is called when the
        process is confined and before its program begins; if it raises, the program does not begin.

        Returns once the program runs. Raises FailedPrecondition (an impossible request), TooLarge, Internal,
        TimedOut, Unavailable (the init is gone), RuntimeFailed, and errors of `before_exec`; the caller then
        empties the cgroup, since a step may still be in progress.
        """

    @abstractmethod
    async def mount(self, detached: int, path: str, *, within_s: float = WITHIN_S) -> None:
        """Attach a detached mount, open as `detached`, at `path` of the cell.

        Raises Internal, TimedOut, Unavailable.
        """

    @property
    def is_usable(self) -> bool:
        """False if nothing can be started or mounted any more."""
        return not self.has_ended

    async def exits(self) -> AsyncIterator[ProcessExit]:
        """Exits of executables, until the init itself ends; for one reader."""
        while (exited := await self._exits.get()) is not None:
            yield exited
        self._exits.put_nowait(None)

    async def ended(self) -> None:
        """Wait until the init, and everything in its cell, has ended."""
        await asyncio.shield(self._ended)

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def kill(self) -> None:
        """Kill it, and with it everything in its cell."""
        if not self._is_closed:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Disconnect; the init and its cell keep running."""
        if self._is_closed:
            return
        self._is_closed = True
        self._disconnect()
        self._loop.remove_reader(self._pidfd)
        reap(os.P_PIDFD, self._pidfd)
        os.close(self._pidfd)
        self._exits.put_nowait(None)

    def _over(self) -> None:
        self._loop.remove_reader(self._pidfd)
        reap(os.P_PIDFD, self._pidfd)
        self._read_all()
        self._exits.put_nowait(None)
        if not self._ended.done():
            self._ended.set_result(None)

    @abstractmethod
    def _disconnect(self) -> None:
        """Release what `start` and `mount` need."""

    @abstractmethod
    def _read_all(self) -> None:
        """Read exits that have been reported by now."""


def start_request(spec: StartSpec, *, has_clone_into: bool) -> messages.MessageBody:
    sandbox = spec.sandbox
    settings = sandbox.environment if spec.runtime is None else spec.runtime.environment
    requested = dict(setting.split("=", 1) for setting in settings)
    trusted = spec.trusted if spec.runtime is None else spec.runtime.arguments
    arguments = trusted or sandbox.arguments or ("/bin/sh", "-c", spec.command)
    return {
        "key": spec.key,
        "arguments": () if spec.is_fork else arguments,
        "environment": {**ENVIRONMENT, **requested},
        "folder": sandbox.folder,
        "uid": spec.uid if sandbox.uid is None else sandbox.uid,
        "gid": spec.gid if sandbox.gid is None else sandbox.gid,
        "capabilities": "default" if sandbox.root_capabilities else "none",
        "open_files": sandbox.open_files,
        "log_bytes": spec.log_bytes,
        "clone_into": has_clone_into,
        "is_trusted": bool(trusted),
        "streams": len(spec.streams),
        "has_socket": spec.socket is not None,
        "is_fork": spec.is_fork,
        "has_logs": spec.logs is not None,
        "pid_file": "" if spec.runtime is None else spec.runtime.pid_file,
        "owner": 0 if spec.runtime is None else spec.runtime.owner,
        "mounts": None
        if spec.runtime is None or spec.runtime.mounts is None
        else astuple(spec.runtime.mounts),
    }


def open_folder(path: Path, opened: contextlib.ExitStack) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened.callback(os.close, descriptor)
    return descriptor


def descriptors_of(entry: CgroupEntryFds) -> list[int]:
    return [*(() if entry.clone_into is None else (entry.clone_into,)), *entry.procs]


def start_error(spec: StartSpec, step: str, number: int) -> errors.SkerryError:
    reason = os.strerror(number)
    if step in _REQUEST_HINTS:
        subject = (
            spec.sandbox.folder if step == "change folder" else (spec.sandbox.arguments or ("/bin/sh",))[0]
        )
        return errors.FailedPrecondition(f"cannot {step} ({subject[:100]}): {reason}; {_REQUEST_HINTS[step]}")
    if step == "clone" and number == errno.EAGAIN:
        return errors.FailedPrecondition(
            "the cell has reached its limit of processes; stop some or raise the limit"
        )
    return errors.Internal(f"the executable could not be started: {step}: {reason}")


def setup_error(step: str, number: int) -> errors.SkerryError:
    return errors.Internal(f"the cell could not be set up: {step}: {os.strerror(number)}")


def reap(kind: int, number: int) -> None:
    try:
        os.waitid(kind, number, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        pass  # reaped by the launcher or another agent
