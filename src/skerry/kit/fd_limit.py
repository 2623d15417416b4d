"""How many files and sockets this process may have open.

A connection is a descriptor. The usual soft limit of 1,024 is for programs that use `select`; a server raises
it to the hard limit, and logs if that is not enough for its settings.
"""

from __future__ import annotations

import resource


def raise_fd_limit() -> int:
    """Raise the soft limit to the hard one; how many descriptors there can be now."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
