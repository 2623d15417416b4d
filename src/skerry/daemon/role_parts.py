"""What the two roles have in common: what they are started with, and how they show themselves to others."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from skerry.daemon import continuum, functions, host_identity, listeners
from skerry.kit import disk_reserve, files
from skerry.kit.clock import Clock
from skerry.kit.disk_monitor import DiskMonitor
from skerry.kit.tasks import TaskSupervisor
from skerry.kit.ulid import new_id
from skerry.model import errors, ids
from skerry.model.ids import NodeId
from skerry.model.members import ContinuumMember
from skerry.model.settings import Settings

# Of the time for a clean stop, what requests that are under way get; the rest is for the loops and the store.
DRAIN_SHARE: Final = 0.7
REVOKED_FILE: Final = "revoked.json"  # beside the certificate of a node, and beside the CA of a server

# The fields of `process.ReadyDocument`, and what returns or raises only when the role cannot go on.
RoleHandle = tuple[dict[str, Any], Callable[[], Awaitable[None]]]


@dataclass(frozen=True, slots=True)
class RoleContext:
    """What a role is started with; what it opens, it closes by `undo`."""

    settings: Settings
    folder: Path
    clock: Clock
    undo: AsyncExitStack


def bind_member_socket(context: RoleContext, host: str) -> socket.socket | None:
    """Where other members bring calls of functions; None if they cannot."""
    bound = continuum.bind_listener(context.settings.functions, context.folder / "functions", host=host)
    return None if bound is None else context.undo.enter_context(bound)


def describe_member(
    node: NodeId, name: str, settings: Settings, listening: socket.socket | None, *, runs_functions: bool
) -> ContinuumMember:
    """What others who take calls of functions know of this process."""
    address = settings.functions.neighbour_address
    if not address and listening is not None:
        address = listeners.advertised_addresses(
            listeners.display_address(listening), settings, host_identity.read()
        )[0]
    return ContinuumMember(
        node,
        name,
        settings.functions.area,
        settings.functions.remote_area,
        address,
        functions.worker_memory_mb(settings.functions) if runs_functions else 0,
        functions.worker_cpus(settings.functions) if runs_functions else 0.0,
        is_server=not runs_functions,
    )


async def watch_disk(folder: Path, loops: TaskSupervisor) -> DiskMonitor:
    disk = DiskMonitor(folder, disk_reserve.current())
    await disk.look()  # a reserve that is not there yet is no shortage
    loops.forever("disk", disk.run)
    return disk


def takes_writes(disk: DiskMonitor) -> Callable[[], Awaitable[None]]:
    async def check() -> None:
        if problem := await disk.look():
            raise errors.Unavailable(problem)

    return check


def node_id(folder: Path, clock: Clock) -> str:
    """Which node this machine is, of a cloud whose server is here too; the same for as long as its data."""
    path = folder / "node.id"
    try:
        return ids.check_id(path.read_text().strip())
    except FileNotFoundError:
        made = new_id(clock.now())
        files.write_atomically(path, f"{made}\n".encode())
        return made


def parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise errors.Invalid(f"node.labels: {text[:40]!r} must read KEY=VALUE", field="node.labels")
        labels[ids.check_id(key, "node.labels")] = ids.check_display_text(value, "node.labels")
    return labels


def node_name(host: str) -> str:
    """The host name as a node name: letters, digits, dots and dashes, at most 63."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", host)[:63].strip(".-")
    if not plain:
        raise errors.Invalid("this machine's host name gives no node name; choose one with --name")
    return plain
