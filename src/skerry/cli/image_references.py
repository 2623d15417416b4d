"""Image references as they are typed, made absolute for a node or a server.

Used by every command that takes an image. Whether the image exists is checked by the node.
"""

from __future__ import annotations

import os
from typing import Final

_PATHS: Final = ("oci", "oci-archive", "docker-archive", "rootfs")


def resolve(reference: str) -> str:
    """`reference` with an absolute path: the node does not know our current folder."""
    scheme, colon, path = reference.partition(":")
    if not colon or scheme not in _PATHS or not path:
        return reference
    return f"{scheme}:{os.path.abspath(path)}"
