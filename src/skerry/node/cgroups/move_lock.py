"""Takes the kernel's lock on moves between cgroups ahead of a program that needs it.

A process that is moved by `cgroup.procs` needs a lock on all forks of the machine. The first to take it after
a while waits for a grace period of RCU, 6 to 20 ms; for some milliseconds after that nobody waits. Container
runtimes move their processes so, and for an OCI runtime that is a third of the time of a start. So a start
takes the lock, in a thread, as soon as the runtime is forked, and much of the wait is over when the runtime
gets there. Not earlier: meanwhile nobody creates a group, enters one, or forks a process into one.

To take it, this process moves to the group that it is in, which changes nothing. What the runtime does is the
same with and without; a machine where this does not work has slower starts.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import structlog

from skerry.node.cgroups import mounts
from skerry.node.cgroups.detection import MOUNTINFO

log = structlog.get_logger(__name__)

MEMBERSHIP: Final = Path("/proc/self/cgroup")
_V2: Final = "0::"
# The second prolongs the time in which nobody waits by another grace period.
_TIMES: Final = 2


class MoveLock:
    """The lock, for the starts of one node."""

    def __init__(self, membership: Path = MEMBERSHIP, mountinfo: Path = MOUNTINFO) -> None:
        self._membership = membership
        self._unified = mounts.parse(mountinfo.read_text()).unified  # None: it is not taken
        self._taking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to take and release it, unless that is already being done. On return the wait has begun."""
        if self._unified is None or (self._taking is not None and not self._taking.done()):
            return
        try:
            descriptor = self._open(self._unified)
        except OSError as error:
            self._unified = None
            log.info("cgroups.move_lock_unavailable", error=str(error))
            return
        has_begun = asyncio.Event()
        self._taking = asyncio.create_task(_take(descriptor, has_begun), name="cgroup move lock")
        # The thread gets the interpreter only when this one waits.
        await has_begun.wait()

    async def close(self) -> None:
        """Wait until it is released."""
        if self._taking is not None:
            await self._taking

    def _open(self, unified: str) -> int:
        group = group_of(self._membership.read_text(), unified)
        if group is None:
            raise FileNotFoundError("this process is in no group of the mounted tree")
        return os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


async def _take(descriptor: int, has_begun: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def move() -> None:
        try:
            loop.call_soon_threadsafe(has_begun.set)
            for _ in range(_TIMES):
                os.write(descriptor, b"0")
        finally:
            os.close(descriptor)

    try:
        await asyncio.to_thread(move)
    except OSError as error:
        log.info("cgroups.move_lock_not_taken", error=str(error))
    finally:
        has_begun.set()


def group_of(membership: str, unified: str) -> Path | None:
    """The v2 group in the text of a `/proc/PID/cgroup`; None if it is not below the mount `unified`."""
    path = next((line.removeprefix(_V2) for line in membership.splitlines() if line.startswith(_V2)), None)
    if path is None or ".." in path.split("/"):
        return None
    return Path(unified + path)
