"""Thresholds of the C library's allocator.

By default it returns large blocks to the kernel as soon as they are free, and gets them again, page by page
and cleared. Work that needs large blocks again and again then spends most of its time on that. Here it is set
to keep some. Without glibc nothing changes.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
# Pieces up to the one size come from memory that is kept, of which at most the other stays unused.
LARGEST_PIECE: Final = 8 * 1024 * 1024
MOST_KEPT: Final = 32 * 1024 * 1024


def raise_malloc_thresholds() -> bool:
    """Keep memory that is free again, within bounds; True if the allocator does. Once is enough."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_PIECE)) and bool(mallopt(_M_TRIM_THRESHOLD, MOST_KEPT))
