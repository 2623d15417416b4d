"""Writable layers and what they may grow to: held by the kernel where the file system can, else measured."""

from __future__ import annotations

import enum
from pathlib import Path


class LimitKind(enum.StrEnum):
    """How a limit is held."""

    QUOTA = "quota"  # the kernel refuses to write more
    MEASURED = "measured"  # somebody has to look now and then, and stop what is over
    NONE = "none"


class Disks:
    """Writable layers on one file system. All methods block; those that walk a tree belong in a thread."""

    @classmethod
    def open(cls, folder: Path) -> Disks:
        """Layers will be below `folder`. Finds out by trying whether quotas work there."""
        raise NotImplementedError

    @property
    def kind(self) -> LimitKind:
        """How limits are held here."""
        raise NotImplementedError

    def make(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        """Make the folder `layer` with `upper` and `work` in it, held to the limit; tells how it is held."""
        raise NotImplementedError

    def limit(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        """Change the limit of a layer that is there, also after a restart."""
        raise NotImplementedError

    def used(self, layer: Path) -> int:
        """Bytes of disk that the layer takes."""
        raise NotImplementedError

    def remove(self, layer: Path) -> None:
        """Remove it with all that is in it, whatever its container made there. Nothing there: nothing done."""
        raise NotImplementedError
