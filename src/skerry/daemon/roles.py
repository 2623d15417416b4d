"""Which role a process has: a server, a server with a node (`up`), or a node.

`start` brings a role up and undoes it in reverse, also when a step in between fails. The roles are
`skerry.daemon.server_role` and `skerry.daemon.node_role`, the two places that know all parts. How a process
begins and ends is `skerry.daemon.process`.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from skerry.daemon import log_forwarding
from skerry.daemon.role_parts import GRPC_SOCKET, HTTP_SOCKET, RoleContext, StepReport
from skerry.kit.clock import Clock
from skerry.kit.service_manager import ServiceManager
from skerry.model import errors
from skerry.model.enforcement import NodeEnforcement
from skerry.model.invitations import JoinCredentials
from skerry.model.settings import Settings


class RunningRole(msgspec.Struct, frozen=True):
    """A role that serves."""

    addresses: dict[str, Any]  # fields of `process.ReadyDocument`
    failed: Callable[[], Awaitable[None]]  # returns or raises only when the role cannot go on
    stop: Callable[[], Awaitable[None]]


def import_role(role: str) -> ModuleType:
    """The module of a role. A node does not import what only servers have, a third of the program."""
    return importlib.import_module(
        "skerry.daemon.node_role" if role == "node" else "skerry.daemon.server_role"
    )


async def start(
    role: str,
    settings: Settings,
    folder: Path,
    *,
    clock: Clock,
    admission: JoinCredentials,
    report: StepReport,
    manager: ServiceManager,
    enforcement: NodeEnforcement,
) -> RunningRole:
    """Bring `role` up, wholly or not at all."""
    async with AsyncExitStack() as undo:
        context = RoleContext(settings, folder, clock, undo, manager=manager, enforcement=enforcement)
        _check_sockets(role, settings, manager)
        log_forwarding.open_process_log(context)
        module = import_role(role)
        if role == "node":
            addresses, failed = await module.start(context, admission, report)
        else:
            addresses, failed = await module.start(context, report, has_node=role == "up")
        return RunningRole(addresses, failed, stop=undo.pop_all().aclose)


def _check_sockets(role: str, settings: Settings, manager: ServiceManager) -> None:
    """Refuse sockets that nobody would accept from: their clients would wait for ever."""
    known = {HTTP_SOCKET, GRPC_SOCKET} if role != "node" else {HTTP_SOCKET} if settings.node.http else set()
    if unknown := sorted(set(manager.sockets) - known):
        raise errors.FailedPrecondition(
            f"the service manager passed sockets that 'skerry {role}' does not have: {', '.join(unknown)}. "
            "Run 'skerry install' again, which writes socket units and settings."
        )
