"""Who may run something in a cell as a user of their choice."""

from __future__ import annotations

from skerry.model import errors
from skerry.model.callers import Caller, Role


def check_user(caller: Caller) -> None:
    """Raises Forbidden unless `caller` is an admin: a cell shows the host's files, and the user decides which
    of them can be read."""
    if caller.role is not Role.ADMIN:
        raise errors.Forbidden(
            "only an admin may choose uid, gid or root_capabilities; without, it runs as the cell's own user"
        )
