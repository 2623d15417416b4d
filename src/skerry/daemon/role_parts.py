"""What the two roles have in common: what they are started with, and how they show themselves to others."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from skerry.kit import disk_reserve, files
from skerry.kit.clock import Clock
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.service_manager import ServiceManager
from skerry.kit.tasks import TaskSupervisor
from skerry.kit.ulid import new_id
from skerry.model import errors, ids
from skerry.model.enforcement import NodeEnforcement
from skerry.model.settings import Settings
from skerry.node.logs.removed_logs import RemovedLogs
from skerry.node.logs.ring_sources import RingSource
from skerry.transport import addresses

# Of the time for a clean stop, what requests that are under way get; the rest is for the loops and the store.
DRAIN_SHARE: Final = 0.7
# Names of listening sockets that a service manager may pass (FileDescriptorName= of systemd).
HTTP_SOCKET: Final = "http"
GRPC_SOCKET: Final = "grpc"
REVOKED_FILE: Final = "revoked.json"  # beside the certificate of a node, and beside the CA of a server
REVOKED_TOKENS_FILE: Final = "revoked-tokens.json"  # likewise

# Gets each step of a start, in words for people: "opening the store".
StepReport = Callable[[str], None]
# The fields of `process.ReadyDocument`, and what returns or raises only when the role cannot go on.
RoleHandle = tuple[dict[str, Any], Callable[[], Awaitable[None]]]


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role is started with; what it opens, it closes by `undo`."""

    settings: Settings
    folder: Path
    clock: Clock
    undo: AsyncExitStack
    log_sources: list[RingSource] = field(default_factory=list, kw_only=True)  # that are forwarded
    removed_logs: list[RemovedLogs] = field(default_factory=list, kw_only=True)  # likewise
    manager: ServiceManager = field(default=ServiceManager(), kw_only=True)
    enforcement: NodeEnforcement = field(kw_only=True)  # of a node in this process

    def bind(self, text: str, flag: str, name: str) -> socket.socket:
        """The TCP socket of `HOST:PORT`: that of the service manager, by name, or one bound here."""
        return addresses.inherit_or_bind(text, flag, name, self.manager.sockets)


async def watch_disk(folder: Path, loops: TaskSupervisor) -> DiskMonitor:
    disk = DiskMonitor(folder, disk_reserve.current())
    await disk.check()  # a reserve that is not allocated yet is no shortage
    loops.forever("disk", disk.run)
    return disk


def takes_writes(disk: DiskMonitor) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        if problem := await disk.check():
            raise errors.Unavailable(problem)

    return check


def node_id(folder: Path, clock: Clock) -> str:
    """The node id of this machine in the cloud of its own server; stable with its data folder."""
    path = folder / "node.id"
    try:
        return ids.check_id(path.read_text().strip())
    except FileNotFoundError:
        made = new_id(clock.now())
        files.write_atomically(path, f"{made}\n".encode())
        return made


def node_name(settings: Settings, host: str) -> str:
    """The name that was chosen, else the host name: letters, digits, dots and dashes, at most 63."""
    plain = settings.node.name or re.sub(r"[^A-Za-z0-9.-]+", "-", host)[:63].strip(".-")
    if not plain:
        raise errors.Invalid("this machine's host name gives no node name; choose one with --name")
    return plain
