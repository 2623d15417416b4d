"""Writable layers and what they may grow to: held by the kernel where the file system can, else measured.

A layer is a folder with `upper`, where the files go, and `work`, which the overlay needs beside it;
`skerry.node.containers.overlays` mounts it. Where limits are measured, whoever made the layer has to ask for
its size now and then and stop what is over: nothing here runs by itself. A container can outrun that, by what
the disk takes between two looks, and hide some by moving folders about while it is looked at.
"""

from __future__ import annotations

import enum
import errno
import os
import threading
from pathlib import Path
from typing import Final

import structlog

from skerry.node.containers import overlays, syscalls, trees
from skerry.node.containers.quotas import ProjectQuotas

log = structlog.get_logger(__name__)

_TRIAL: Final = ".quota-trial"
_TRIAL_LIMIT: Final = 256 * 1024
_CAP_SYS_RESOURCE: Final = 24
_MEASURING_S: Final = 10.0
_REFUSALS: Final = frozenset({errno.EDQUOT, errno.ENOSPC})


class LimitKind(enum.StrEnum):
    """How a limit is held."""

    QUOTA = "quota"  # the kernel refuses to write more
    MEASURED = "measured"  # somebody has to look now and then, and stop what is over
    NONE = "none"


class Disks:
    """Writable layers on one file system. All methods block; those that walk a tree belong in a thread."""

    def __init__(self, quotas: ProjectQuotas | None) -> None:
        self._quotas = quotas
        # Which number is unused is found out in one step and taken in another.
        self._assigning = threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> Disks:
        """Layers will be below `folder`, which is there. Finds out by trying whether quotas work in it."""
        quotas = ProjectQuotas()
        return cls(quotas if _holds(quotas, folder / _TRIAL) else None)

    @property
    def kind(self) -> LimitKind:
        """How limits are held here."""
        return LimitKind.MEASURED if self._quotas is None else LimitKind.QUOTA

    def make(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        """Make the folder `layer` with `upper` and `work` in it, held to the limit; tells how it is held.

        May be repeated on what an earlier call left unfinished.
        """
        layer.mkdir(mode=0o700, exist_ok=True)
        if self._quotas is not None:
            # Before anything is in it, since only what comes later inherits the project.
            with self._assigning:
                self._quotas.assign(layer)
        for name in (overlays.UPPER, overlays.WORK):
            (layer / name).mkdir(mode=0o755, exist_ok=True)
        return self.limit(layer, limit_bytes)

    def limit(self, layer: Path, limit_bytes: int | None) -> LimitKind:
        """Change the limit of a layer that is there; tells how it is held."""
        if self._quotas is not None and self._quotas.has_project(layer):
            self._quotas.limit(layer, limit_bytes)
            return LimitKind.NONE if limit_bytes is None else LimitKind.QUOTA
        # Also where quotas came to work only after the layer was made.
        return LimitKind.NONE if limit_bytes is None else LimitKind.MEASURED

    def used(self, layer: Path) -> int:
        """Bytes of disk that the layer takes; 0 if it is not there."""
        try:
            if self._quotas is not None and self._quotas.has_project(layer):
                return self._quotas.read(layer).used
            size = trees.measure(layer / overlays.UPPER, within_s=_MEASURING_S)
        except FileNotFoundError:
            return 0
        if not size.whole:
            log.warning("layer.too_large_to_measure", layer=str(layer), bytes=size.bytes, files=size.files)
        return size.bytes

    def remove(self, layer: Path) -> None:
        """Remove it with all that is in it, whatever its container made there. Not there: nothing done."""
        if self._quotas is not None and layer.exists() and self._quotas.has_project(layer):
            # Or the next folder with its number would find a limit.
            self._quotas.limit(layer, None)
        trees.remove(layer)


def _holds(quotas: ProjectQuotas, trial: Path) -> bool:
    """True if the kernel keeps somebody from writing more to the folder `trial` than it may."""
    trees.remove(trial)
    trial.mkdir(mode=0o700)
    try:
        quotas.assign(trial)
        quotas.limit(trial, _TRIAL_LIMIT)
        try:
            return _is_refused(trial / "file", 4 * _TRIAL_LIMIT)
        finally:
            quotas.limit(trial, None)
    except OSError as error:
        log.debug("quotas.absent", folder=str(trial.parent), error=str(error))
        return False
    finally:
        trees.remove(trial)


def _is_refused(path: Path, size: int) -> bool:
    """Whether writing `size` bytes to `path` fails for want of room, for somebody without privileges.

    Capabilities are a thread's own: one that may exceed quotas is given up in a thread that does only this.
    """
    found: list[int] = []

    def write() -> None:
        syscalls.drop_capability(_CAP_SYS_RESOURCE)
        try:
            with open(path, "wb") as file:
                file.write(os.urandom(size))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            found.append(error.errno or 0)

    thread = threading.Thread(target=write, name="quota-trial")
    thread.start()
    thread.join()
    return bool(_REFUSALS.intersection(found))
