"""What the C library's allocator does with memory that is free again.

By itself it hands large pieces back to the kernel as soon as they are free, and gets them anew, page by page
and cleared, the next time. Work that needs large pieces for a moment, again and again, then spends most of
its time on that. Here it is set to keep some. Where that is impossible (not glibc) nothing changes.
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
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(tell(_M_MMAP_THRESHOLD, LARGEST_PIECE)) and bool(tell(_M_TRIM_THRESHOLD, MOST_KEPT))
