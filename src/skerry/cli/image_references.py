"""References of images as people type them, made fit for a node or a server.

Used by every verb that takes an image. Whether there is such an image is for the node to say.
"""

from __future__ import annotations

import os
from typing import Final

_PATHS: Final = ("oci", "oci-archive", "docker-archive", "rootfs")


def resolve(reference: str) -> str:
    """`reference` for the node, which does not know in which folder we are."""
    scheme, colon, path = reference.partition(":")
    if not colon or scheme not in _PATHS or not path:
        return reference
    return f"{scheme}:{os.path.abspath(path)}"
