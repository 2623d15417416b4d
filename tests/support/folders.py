"""Everything below a folder, while others may be removing it."""

from __future__ import annotations

import os
from pathlib import Path


def paths_below(folder: Path) -> list[Path]:
    """Every path below `folder`, sorted; a folder that goes meanwhile is no error, as it is with `rglob`."""
    return sorted(
        Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files)
    )
