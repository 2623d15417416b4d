"""JSON records on disk for the next agent, in files that are whole or absent.

`RecordFiles` is a folder with a file per record, `RecordFolders` one with a folder per record, in which its
owner puts any files. Writes are synced only where the docstring says so, and no file has two writers at a
time. The meaning of records is their owner's.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Generic, TypeVar

from skerry.kit import disk_reserve, files, json_codec
from skerry.model import errors

T = TypeVar("T")

DRAFT: Final = ".new-"  # prefix of a folder that is being created
_TRASH: Final = ".gone-"  # prefix of a folder that is being removed


class UnreadableRecord(Exception):
    """The file is missing or cannot be decoded by this version; the text is the reason."""


def write(path: Path, value: object) -> None:
    """Write it atomically, readable by us alone: environments may contain secrets."""
    draft = path.with_name(f".{path.name}.new")
    files.write_whole(draft, json_codec.encode(value))
    os.rename(draft, path)


def load(path: Path, as_type: type[T]) -> T:
    """The decoded content. Raises `UnreadableRecord`."""
    try:
        return json_codec.decode(path.read_bytes(), as_type)
    except (FileNotFoundError, NotADirectoryError, json_codec.InvalidJson, errors.Invalid) as error:
        raise UnreadableRecord(str(error)) from None


def read(path: Path, as_type: type[T]) -> T | None:
    """The decoded content; None if the file is missing or unreadable."""
    try:
        return load(path, as_type)
    except UnreadableRecord:
        return None


def sync(path: Path) -> None:
    """Make the last write survive a power cut, once its folder is synced too. Waits for the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RecordFiles(Generic[T]):
    """A folder of records of one type, one file per key."""

    def __init__(self, folder: Path, as_type: type[T], key: Callable[[T], str]) -> None:
        self._folder = files.private_folder(folder)
        self._type = as_type
        self._key = key

    def save(self, record: T) -> None:
        write(self._path(self._key(record)), record)

    def sync(self, keys: Iterable[str]) -> None:
        """Make the records of these keys survive a power cut. Waits for the disk."""
        for key in keys:
            try:
                sync(self._path(key))
            except FileNotFoundError:
                continue  # removed meanwhile
        files.sync_folder(self._folder)

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def keep_only(self, keys: Iterable[str]) -> None:
        paths = {self._path(key) for key in keys}
        for path in self._folder.iterdir():
            if path not in paths:
                path.unlink()

    def scan(self, unreadable: Callable[[Path, str], object] = lambda _path, _reason: None) -> Iterator[T]:
        """Every record, ordered by file name; `unreadable` is called with files that cannot be decoded. Files
        that a crash left half written are removed."""
        for path in sorted(self._folder.iterdir()):
            if path.name.endswith(".new"):
                path.unlink()
                continue
            try:
                record = load(path, self._type)
            except UnreadableRecord as error:
                unreadable(path, str(error))
                continue
            if path == self._path(self._key(record)):
                yield record

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


class RecordFolders:
    """A folder of folders. A removed one disappears at once, then its files are deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = files.private_folder(folder)
        files.spread_folders(self.folder)
        self._removals = itertools.count()

    def mark(self, path: Path) -> None:
        """Create an empty file, also on a full disk."""
        disk_reserve.spend(lambda: path.touch(mode=0o600))

    def discard(self, path: Path) -> Path | None:
        """Rename a folder so that readers do not find it; returns the new path, None if it was not there."""
        trash = self.folder / f"{_TRASH}{next(self._removals)}"
        try:
            disk_reserve.spend(lambda: os.rename(path, trash))
        except FileNotFoundError:
            return None
        return trash

    def leftovers(self) -> list[Path]:
        """Folders that a crash left half created or half removed. Call it before anything else."""
        found = [path for path in self.folder.iterdir() if path.name.startswith(".")]
        numbers = [path.name.removeprefix(_TRASH) for path in found]
        self._removals = itertools.count(
            max((int(each) for each in numbers if each.isdigit()), default=0) + 1
        )
        return found
