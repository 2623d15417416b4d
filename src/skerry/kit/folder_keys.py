"""The key of a data folder: 8 hex digits in the names of what its Skerry makes in the kernel."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def folder_key(folder: Path) -> str:
    """The same for the same folder, and another for every other Skerry on this machine."""
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
