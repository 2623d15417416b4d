"""The root of a container: the image's layers with a writable one on top, as an overlay mount."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class Overlays:
    """Overlay mounts below one folder. Every method is quick enough for a thread and safe to repeat."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        raise NotImplementedError

    def mount(self, target: Path, lowers: Sequence[Path], *, layer: Path | None) -> bool:
        """Mount at `target` what `lowers` (the lowest first) make up, writable in `layer` if that is given.

        `layer` is a folder made by `Disks.make`. True if what was written to it before was thrown away, since
        the machine went down meanwhile. Mounting what is mounted changes nothing.
        """
        raise NotImplementedError

    def unmount(self, target: Path) -> None:
        """Unmount `target` if it is mounted; it is gone when this returns."""
        raise NotImplementedError

    def mounted(self) -> list[Path]:
        """Every mount at or below the folder, the deepest first; for what a killed agent left."""
        raise NotImplementedError
