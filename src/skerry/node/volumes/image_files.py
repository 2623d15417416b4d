"""File system images as files: copied with their holes, read and written by chunks, and verified.

A copy shares the blocks of its original where the file system can (FICLONE), else the kernel copies the
ranges that were written. Everything here blocks, calls `WorkProgress.advance` for every part, and leaves
syncing and renaming to `skerry.node.volumes.operation_folders`.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from skerry.kit import files
from skerry.model import errors
from skerry.node.volumes.manifests import CHUNK_BYTES, DIGEST_BYTES, HOLE, ImageManifest, chunk_digest
from skerry.node.volumes.work_progress import WorkProgress

_CLONE: Final = 0x40049409  # FICLONE
_NO_CLONE: Final = (
    errno.EOPNOTSUPP,
    errno.ENOTTY,
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EBADF,
    errno.EPERM,
)
_BLOCK: Final = 512  # of st_blocks
_COPY_BYTES: Final = 64 * 1024**2  # of one call, between which the work can be ended


def copy(source: Path, target: Path, progress: WorkProgress) -> None:
    """Make `target` a copy of `source`; it must not exist. Raises OSError."""
    old = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        new = create(target)
        try:
            _clone_or_copy(old, new, progress)
        finally:
            os.close(new)
    finally:
        os.close(old)


def create(path: Path) -> int:
    """A descriptor of a new file that only its owner can read."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def written_bytes(image: Path) -> int:
    """Bytes of it that are not holes: what a copy occupies at most."""
    file = os.open(image, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return sum(end - start for start, end in _written(file))
    finally:
        os.close(file)


def scan(image: Path, taken_at: float, progress: WorkProgress) -> ImageManifest:
    """The manifest of `image`, which nobody writes meanwhile."""
    file = os.open(image, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(file).st_size
        digests = bytearray(DIGEST_BYTES * -(-size // CHUNK_BYTES))
        progress.begin(sum(end - start for start, end in _written(file)))
        following = 0
        for start, end in _written(file):
            for chunk in range(max(following, start // CHUNK_BYTES), -(-end // CHUNK_BYTES)):
                data = _read(file, chunk * CHUNK_BYTES, min(CHUNK_BYTES, size - chunk * CHUNK_BYTES))
                digests[chunk * DIGEST_BYTES : (chunk + 1) * DIGEST_BYTES] = chunk_digest(data)
                following = chunk + 1
            progress.advance(end - start)
    finally:
        os.close(file)
    return ImageManifest(size, bytes(digests), taken_at)


def verify(image: Path, manifest: ImageManifest, progress: WorkProgress) -> None:
    """Raise `Unavailable` if a byte of `image` is not as `manifest` has it."""
    found = scan(image, manifest.taken_at, progress)
    if found.digest != manifest.digest:
        raise errors.Unavailable("the copy does not have the digest of the original; it is copied again")


class ImageReader:
    """The chunks of a file that has an image; holes are not read."""

    def __init__(self, image: Path, manifest: ImageManifest) -> None:
        self._file = os.open(image, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._manifest = manifest

    def read(self, chunk: int) -> bytes:
        return _read(self._file, chunk * CHUNK_BYTES, self._manifest.length(chunk))

    def close(self) -> None:
        os.close(self._file)


class ImageWriter:
    """A file that becomes the image of `manifest`; chunks are checked before they are written.

    The file has the full size from the beginning. With `is_reserved` its blocks are allocated, so that no
    later write fails because the disk is full. Raises OSError.
    """

    def __init__(self, path: Path, manifest: ImageManifest, *, is_reserved: bool) -> None:
        self._manifest = manifest
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(self._file, manifest.image_bytes)
            if is_reserved:
                missing = manifest.image_bytes - os.fstat(self._file).st_blocks * _BLOCK
                # Not left to the kernel, which takes what there is, for a while, before it refuses.
                if missing > files.spare_bytes(path.parent):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.posix_fallocate(self._file, 0, manifest.image_bytes)
        except BaseException:
            self.close()
            raise

    def write(self, chunk: int, data: bytes) -> None:
        """Raises `Unavailable` if `data` is not this chunk."""
        self._manifest.check(chunk, data)
        at, view = chunk * CHUNK_BYTES, memoryview(data)
        while view:
            count = os.pwrite(self._file, view, at)
            at, view = at + count, view[count:]

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


def is_hole(manifest: ImageManifest, chunk: int) -> bool:
    return manifest.digest_of(chunk) == HOLE


def _clone_or_copy(old: int, new: int, progress: WorkProgress) -> None:
    size = os.fstat(old).st_size
    progress.begin(size)
    try:
        fcntl.ioctl(new, _CLONE, old)
    except OSError as error:
        if error.errno not in _NO_CLONE:
            raise
    else:
        progress.advance(size)
        return
    os.ftruncate(new, size)
    following = 0
    for start, end in _written(old):
        progress.advance(start - following)
        at = start
        while at < end:
            count = os.copy_file_range(old, new, min(end - at, _COPY_BYTES), at, at)
            if not count:
                raise OSError(errno.EIO, "the image became shorter while it was copied")
            at += count
            progress.advance(count)
        following = end
    progress.advance(size - following)


def _written(file: int) -> Iterator[tuple[int, int]]:
    """Ranges that are not holes, in order; blocks that are allocated and were never written are holes."""
    size, at = os.fstat(file).st_size, 0
    while at < size:
        try:
            at = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # the rest is a hole
                return
            raise
        end = min(os.lseek(file, at, os.SEEK_HOLE), size)
        yield at, end
        at = end


def _read(file: int, at: int, length: int) -> bytes:
    data = os.pread(file, length, at)
    while len(data) < length:
        more = os.pread(file, length - len(data), at + len(data))
        if not more:
            raise OSError(errno.EIO, "the image is shorter than its manifest says")
        data += more
    return data
