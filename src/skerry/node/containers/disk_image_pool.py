"""A pool of disk images: empty file systems in files, created and mounted ahead of use.

Creating and mounting one (`disk_images`) is most of what a disk limit costs a start. So some of the most
recently used sizes are kept ready: the file lies beside the templates, and its mount is only in a descriptor
of this process. Taking one renames the file and attaches the mount. An agent that is killed leaves nothing:
mount and loop device disappear with the descriptor, and the next agent removes the file with the templates.
Used by `writable_layers`; `maintenance` refills it, never a start itself.
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

PER_SIZE: Final = 2  # of each size
_SIZES: Final = 4  # to keep ready: the most recently used


class _PreparedImage(NamedTuple):
    image: Path
    mounted: int  # descriptor of the detached mount


class DiskImagePool:
    """Prepared file systems, by size. Methods block, and may be called in any thread."""

    def __init__(self, images: DiskImages) -> None:
        self._images = images
        self._lock = threading.Lock()  # guards the two below
        self._ready: dict[int, deque[_PreparedImage]] = {}  # the most recently used size is the last
        self._is_closed = False
        self._filling = threading.Lock()
        self._numbers = itertools.count()

    def take(self, image: Path, limit_bytes: int, target: Path) -> bool:
        """Rename a prepared file system of that limit to `image`, which must not exist, and mount it at
        `target`. False if none is ready. Raises Invalid, and OSError if the kernel refuses; then the file is
        complete or missing."""
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
        """Create what is missing of the most recently used sizes; remove other sizes."""
        with self._filling:
            for size in self._choose():
                while self._lacks(size):
                    image = self._images.spares / f"{next(self._numbers)}"
                    try:
                        spare = _PreparedImage(image, self._images.make_detached(image, size))
                    except OSError as error:  # a start will report it if it matters
                        log.warning("disk.no_spare", size=size, error=str(error))
                        disk_images.remove(image)
                        return
                    self._add(size, spare)

    def close(self) -> None:
        """Remove all, and create none any more."""
        with self._lock:
            self._is_closed = True
            ready, self._ready = self._ready, {}
        for spares in ready.values():
            _remove(spares)
        with self._filling:
            pass  # one that was being created is removed, too

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
            return not self._is_closed and len(self._ready.get(size, ())) < PER_SIZE

    def _add(self, size: int, spare: _PreparedImage) -> None:
        with self._lock:
            if not self._is_closed:
                self._ready.setdefault(size, deque()).append(spare)
                return
        _remove([spare])


def _remove(spares: deque[_PreparedImage] | list[_PreparedImage]) -> None:
    for spare in spares:
        os.close(spare.mounted)
        disk_images.remove(spare.image)
