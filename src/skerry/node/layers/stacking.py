"""Which layers of a stack can be seen at all.

overlayfs hides what lies below an opaque folder, except at the root, where it does not look. So whoever
mounts a stack leaves out what an opaque root covers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from skerry.node.layers.unpacker.layer_writer import OPAQUE_XATTR


def visible(layers: Sequence[Path]) -> list[Path]:
    """Of `layers`, the lowest first, those that nothing above covers whole."""
    for place in reversed(range(len(layers))):
        if _is_opaque(layers[place]):
            return list(layers[place:])
    return list(layers)


def _is_opaque(layer: Path) -> bool:
    try:
        return os.getxattr(layer, OPAQUE_XATTR) == b"y"
    except OSError:
        return False  # it has no such attribute, or none at all
