"""The init program of containers that ask for one: process 1, which reaps and passes signals on.

A program of the machine, linked statically, that is bound read-only into the container: what podman, Docker
and Kubernetes' users install for that. Without one, containers with `init` are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skerry.model import errors

# All take `INIT -- PROGRAM ARGUMENT...`.
PLACES: Final = (
    Path("/usr/bin/catatonit"),
    Path("/usr/libexec/catatonit/catatonit"),
    Path("/usr/libexec/podman/catatonit"),
    Path("/usr/bin/tini-static"),
    Path("/usr/bin/docker-init"),
    Path("/usr/libexec/docker/docker-init"),
)
# In the container. /dev is made anew for each, so that nothing of it is left in the container's layer.
DESTINATION: Final = "/dev/init"


def find(places: Sequence[Path] = PLACES) -> Path | None:
    """The first that is here."""
    return next((place for place in places if place.is_file() and os.access(place, os.X_OK)), None)


def require(places: Sequence[Path] = PLACES) -> Path:
    """Raises FailedPrecondition if there is none."""
    found = find(places)
    if found is None:
        raise errors.FailedPrecondition(
            "this node has no init program for containers; install catatonit there (apt-get install "
            "catatonit), or leave `init` out"
        )
    return found
