"""Which role a process has: a server, a server with a node (`up`), or a node.

`start` brings a role up and undoes it in reverse, also when a step in between fails. The roles are
`skerry.daemon.server_role` and `skerry.daemon.node_role`, the two places that know all parts. How a process
begins and ends is `skerry.daemon.process`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry.daemon import node_role, server_role
from skerry.daemon.role_parts import RoleContext
from skerry.kit.clock import Clock
from skerry.model.invitations import JoinCredentials
from skerry.model.settings import Settings


@dataclass(frozen=True, slots=True)
class RunningRole:
    """A role that serves."""

    addresses: dict[str, Any]  # fields of `process.ReadyDocument`
    failed: Callable[[], Awaitable[None]]  # returns or raises only when the role cannot go on
    stop: Callable[[], Awaitable[None]]


async def start(
    role: str, settings: Settings, folder: Path, *, clock: Clock, admission: JoinCredentials
) -> RunningRole:
    """Bring `role` up, wholly or not at all."""
    async with AsyncExitStack() as undo:
        context = RoleContext(settings, folder, clock, undo)
        if role == "node":
            addresses, failed = await node_role.start(context, admission)
        else:
            addresses, failed = await server_role.start(context, has_node=role == "up")
        return RunningRole(addresses, failed, stop=undo.pop_all().aclose)
