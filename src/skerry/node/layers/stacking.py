"""Which layers of a stack are visible.

overlayfs hides what lies below an opaque folder, except at the root, where it ignores the attribute. So
layers below an opaque root are left out of the mount.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from skerry.node.layers.unpacker.layer_writer import OPAQUE_XATTR, USER_OPAQUE_XATTR


def visible(layers: Sequence[Path]) -> list[Path]:
    """Those of `layers`, the lowest first, that are not below an opaque root."""
    for position in reversed(range(len(layers))):
        if _is_opaque(layers[position]):
            return list(layers[position:])
    return list(layers)


def _is_opaque(layer: Path) -> bool:
    for name in (OPAQUE_XATTR, USER_OPAQUE_XATTR):
        with contextlib.suppress(OSError):  # no such attribute
            if os.getxattr(layer, name) == b"y":
                return True
    return False
