"""File systems in files that are made ahead: empty, mounted, and nobody's yet.

Making and mounting one (`disk_images`) is most of what a disk limit costs a start. So of the sizes that were
wanted last some are kept ready: the file lies beside the templates, and its mount is nowhere but in a
descriptor of this process. Whoever takes one renames the file and attaches the mount. An agent that is killed
leaves nothing: the mount and its loop device go with the descriptor, the file with the templates when the
next agent begins. Used by `writable_layers`; `maintenance` says when to make new ones, never a start itself.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from skerry.node.containers import disk_images
from skerry.node.containers.disk_images import DiskImages

log = structlog.get_logger(__name__)

READY: Final = 2  # of each size
_SIZES: Final = 4  # that are kept ready: those that were wanted last


class _Spare(NamedTuple):
    image: Path
    mounted: int  # descriptor of the mount


class DiskImagePool:
    """Spare file systems, by their size. Every method blocks, and can be called in any thread."""

    def __init__(self, images: DiskImages) -> None:
        self._images = images
        self._lock = threading.Lock()  # of the two below
        self._ready: dict[int, deque[_Spare]] = {}  # the size that was wanted last is the last
        self._is_closed = False
        self._filling = threading.Lock()
        self._numbers = itertools.count()

    def take(self, image: Path, limit_bytes: int, target: Path) -> bool:
        """Make the file `image`, which is not there, a file system that fits that limit, and mount it at
        `target`. False if none is ready. Raises Invalid, and OSError if the kernel refuses; the file is whole
        then, or not there."""
        size = disk_images.size_of(limit_bytes, image.parent)
        with self._lock:
            spares = self._ready.pop(size, deque())
            self._ready[size] = spares
            spare = spares.popleft() if spares else None
        if spare is None:
            return False
        try:
            os.rename(spare.image, image)
            disk_images.attach(spare.mounted, target)
        finally:
            os.close(spare.mounted)
            disk_images.remove(spare.image)  # if it could not be renamed
        return True

    def refill(self) -> None:
        """Make what is missing of the sizes that were wanted last; others go."""
        with self._filling:
            for size in self._choose():
                while self._lacks(size):
                    image = self._images.spares / f"{next(self._numbers)}"
                    try:
                        spare = _Spare(image, self._images.make_spare(image, size))
                    except OSError as error:  # a start will find out whether it matters
                        log.warning("disk.no_spare", size=size, error=str(error))
                        disk_images.remove(image)
                        return
                    self._add(size, spare)

    def close(self) -> None:
        """Remove all that are ready, and make none any more."""
        with self._lock:
            self._is_closed = True
            left, self._ready = self._ready, {}
        for spares in left.values():
            _remove(spares)
        with self._filling:
            pass  # one that was being made is gone, too

    @property
    def count(self) -> int:
        """How many are ready."""
        with self._lock:
            return sum(map(len, self._ready.values()))

    def _choose(self) -> list[int]:
        """The sizes to keep ready."""
        with self._lock:
            outdated = [self._ready.pop(size) for size in list(self._ready)[:-_SIZES]]
            sizes = list(self._ready)
        for spares in outdated:
            _remove(spares)
        return sizes

    def _lacks(self, size: int) -> bool:
        with self._lock:
            return not self._is_closed and len(self._ready.get(size, ())) < READY

    def _add(self, size: int, spare: _Spare) -> None:
        with self._lock:
            if not self._is_closed:
                self._ready.setdefault(size, deque()).append(spare)
                return
        _remove([spare])


def _remove(spares: deque[_Spare] | list[_Spare]) -> None:
    for spare in spares:
        os.close(spare.mounted)
        disk_images.remove(spare.image)
