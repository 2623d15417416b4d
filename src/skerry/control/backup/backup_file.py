"""A backup that is written to a file: beside its place, verified there, and then renamed. Blocking.

The file is for its owner alone (0600). What was not renamed is no backup, and is removed unless the process
is killed; names of such drafts begin with a dot and end in `.part`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType

from skerry.control.backup import names, restore
from skerry.control.backup.restore import Progress, VerifiedBackup
from skerry.kit import files
from skerry.kit.sealed_stream import Unlock
from skerry.model import errors


class BackupFile:
    """`with BackupFile(path) as file:` write, then `verify`, then `commit`. Or `open` and `close`, each in a
    thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(names.draft_of(path.name, secrets.token_hex(4)))
        self._opened: FileIO | None = None

    def __enter__(self) -> BackupFile:
        self.open()
        return self

    def open(self) -> None:
        with _explained(self._path):
            descriptor = os.open(
                self._draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.PRIVATE
            )
            self._opened = FileIO(descriptor, "r+b")
            os.fchmod(descriptor, files.PRIVATE)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was not committed."""
        if self._opened is not None:
            self._opened.close()
            with contextlib.suppress(FileNotFoundError):
                self._draft.unlink()

    def write(self, data: bytes) -> None:
        with _explained(self._path):
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def verify(self, unlock: Unlock | None, progress: Progress = lambda _: None) -> VerifiedBackup:
        """Read back what was written, from the disk, as far as the kernel can be made to."""
        with _explained(self._path):
            os.fsync(self._file.fileno())
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._file.seek(0)
            return restore.verify(self._file, unlock, progress)

    def commit(self) -> None:
        with _explained(self._path):
            os.replace(self._draft, self._path)
            files.sync_folder(self._path.parent)

    @property
    def size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    @property
    def _file(self) -> FileIO:
        assert self._opened is not None, "it is open"
        return self._opened


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise errors.Unavailable(
            f"{path} cannot be written: {error.strerror or error}; nothing is left of it", detail=repr(error)
        ) from error
