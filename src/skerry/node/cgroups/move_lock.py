"""Takes the kernel's lock on moves between cgroups ahead of a program that needs it.

A process that is moved by `cgroup.procs` needs a lock on all forks of the machine. The first to take it after
a while waits for a grace period of RCU, 6 to 20 ms; for some milliseconds after that nobody waits. Container
runtimes move their processes so, and for an OCI runtime that is a third of the time of a start. So a start
takes the lock, in a thread, as soon as the runtime is forked, and much of the wait is over when the runtime
gets there. Not earlier: meanwhile nobody creates a group, enters one, or forks a process into one.

Then it is taken again and again, until the runtimes of all starts have ended: one after the other, none of
many starts waits but the first.

To take it, this process moves to the group that it is in, which changes nothing. What the runtime does is the
same with and without; a machine where this does not work has slower starts.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Final

import structlog

from skerry.node.cgroups import mounts
from skerry.node.cgroups.detection import MOUNTINFO

log = structlog.get_logger(__name__)

MEMBERSHIP: Final = Path("/proc/self/cgroup")
_V2: Final = "0::"
_AGAIN_S: Final = 0.003  # less than a grace period, in which nobody waits
_LONGEST_S: Final = 1.0  # for one start; one that hangs does not count
_LINGER_S: Final = 0.02  # after the last one: in a burst the next is about to begin


class MoveLock:
    """The lock, for the starts of one node."""

    def __init__(self, membership: Path = MEMBERSHIP, mountinfo: Path = MOUNTINFO) -> None:
        self._membership = membership
        self._unified = mounts.parse(mountinfo.read_text()).unified  # None: it is not taken
        self._taking: asyncio.Task[None] | None = None
        self._until: dict[str, float] = {}  # by start
        self._ended_at = 0.0  # of the last start

    @property
    def is_idle(self) -> bool:
        """True if it is not being taken."""
        return self._taking is None or self._taking.done()

    async def begin(self, start: str) -> None:
        """Begin to take and release it, for `start`. On return the wait has begun."""
        if self._unified is None:
            return
        self._until[start] = time.monotonic() + _LONGEST_S
        if not self.is_idle:
            return
        try:
            descriptor = self._open(self._unified)
        except OSError as error:
            self._unified = None
            log.info("cgroups.move_lock_unavailable", error=str(error))
            return
        has_begun = asyncio.Event()
        self._taking = asyncio.create_task(self._take(descriptor, has_begun), name="cgroup move lock")
        # The thread gets the interpreter only when this one waits.
        await has_begun.wait()

    def end(self, start: str) -> None:
        """The runtime of `start` has ended. Does nothing if it was not begun."""
        if self._until.pop(start, None) is not None:
            self._ended_at = time.monotonic()

    async def close(self) -> None:
        """Wait until it is released."""
        self._until.clear()
        self._ended_at = 0.0
        if self._taking is not None:
            await self._taking

    async def _take(self, descriptor: int, has_begun: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def move() -> None:
            try:
                loop.call_soon_threadsafe(has_begun.set)
                os.write(descriptor, b"0")
                while max(list(self._until.values()), default=self._ended_at + _LINGER_S) > time.monotonic():
                    os.write(descriptor, b"0")
                    time.sleep(_AGAIN_S)
            finally:
                os.close(descriptor)

        try:
            await asyncio.to_thread(move)
        except OSError as error:
            log.info("cgroups.move_lock_not_taken", error=str(error))
        finally:
            has_begun.set()

    def _open(self, unified: str) -> int:
        group = group_of(self._membership.read_text(), unified)
        if group is None:
            raise FileNotFoundError("this process is in no group of the mounted tree")
        return os.open(group / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)


def group_of(membership: str, unified: str) -> Path | None:
    """The v2 group in the text of a `/proc/PID/cgroup`; None if it is not below the mount `unified`."""
    path = next((line.removeprefix(_V2) for line in membership.splitlines() if line.startswith(_V2)), None)
    if path is None or ".." in path.split("/"):
        return None
    return Path(unified + path)
