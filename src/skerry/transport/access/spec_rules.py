"""Parts of a spec that need the role admin, beyond the rule of the route or RPC; for every dialect.

A dialect calls this when it decodes a spec, with the authenticated caller.
"""

from __future__ import annotations

from collections.abc import Iterable

from skerry.model import errors
from skerry.model.callers import Caller, Role
from skerry.model.mounts import Mount, MountKind
from skerry.model.workloads import UserNamespaceMode


def check_userns(mode: UserNamespaceMode, caller: Caller) -> None:
    """Raises Forbidden unless `caller` may have a container in `mode`, or a program in one that has it: with
    `host` its root is the node's."""
    if mode is UserNamespaceMode.HOST and caller.role is not Role.ADMIN:
        raise errors.Forbidden(
            "only an admin may run a container with userns host, or a program in one: root in it is the "
            "node's root; leave it out, or ask an admin"
        )


def check_host_mounts(mounts: Iterable[Mount], caller: Caller) -> None:
    """Raises Forbidden unless `caller` may have a container with these mounts, or a program in one that has
    them: files of the node are those of an admin."""
    for mount in mounts:
        if mount.kind is MountKind.HOST and caller.role is not Role.ADMIN:
            raise errors.Forbidden(
                f"only an admin may mount a path of a node ({mount.source}) in a container, or change or "
                "enter one that has it; use a volume (skerry volume create), or ask an admin"
            )
