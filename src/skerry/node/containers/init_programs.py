"""The init program of containers with `init`: process 1, which reaps and forwards signals.

A statically linked program of the machine that is mounted read-only into the container, one of those that
podman, Docker and Kubernetes users install for that. Without one, containers with `init` are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skerry.model import errors

# All take `INIT -- PROGRAM ARGUMENT...`.
PATHS: Final = (
    Path("/usr/bin/catatonit"),
    Path("/usr/libexec/catatonit/catatonit"),
    Path("/usr/libexec/podman/catatonit"),
    Path("/usr/bin/tini-static"),
    Path("/usr/bin/docker-init"),
    Path("/usr/libexec/docker/docker-init"),
)
# In the container. /dev is created for each start, so that nothing of it is left in the container's layer.
DESTINATION: Final = "/dev/init"


def find(paths: Sequence[Path] = PATHS) -> Path | None:
    """The first that is installed."""
    return next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)


def require(paths: Sequence[Path] = PATHS) -> Path:
    """Raises FailedPrecondition if there is none."""
    found = find(paths)
    if found is None:
        raise errors.FailedPrecondition(
            "this node has no init program for containers; install catatonit there (apt-get install "
            "catatonit), or leave `init` out"
        )
    return found
