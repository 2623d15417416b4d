"""What takes an admin beyond what a route or a method asks for: decisions on a spec, for every dialect.

A dialect calls this where it makes a spec of what it was sent, with the caller that the connection
authenticated.
"""

from __future__ import annotations

from skerry.model import errors
from skerry.model.callers import Caller, Role
from skerry.model.workloads import UserNamespaceMode


def check_userns(mode: UserNamespaceMode, caller: Caller) -> None:
    """Raises Forbidden unless `caller` may have a container in `mode`, or a program in one that has it: with
    `host` its root is the node's."""
    if mode is UserNamespaceMode.HOST and caller.role is not Role.ADMIN:
        raise errors.Forbidden(
            "only an admin may run a container with userns host, or a program in one: root in it is the "
            "node's root; leave it out, or ask an admin"
        )
