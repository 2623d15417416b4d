"""What the node remembers on disk for its next agent: JSON files that are whole or absent.

`RecordFiles` is a folder with a file for each thing, `RecordFolders` one with a folder for each, in which its
owner has files as it likes. Nothing is synced unless it is said so, and no file has two writers at a time.
What records mean is for those to say who wrote them.
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

DRAFT: Final = ".new-"  # and a name: a folder that is being made
_TRASH: Final = ".gone-"  # and a number: one that is being removed


class UnreadableRecord(Exception):
    """There is no such file, or nothing in it that this version understands; the text says why."""


def write(path: Path, value: object) -> None:
    """Whole or absent, and for us alone: environments may hold secrets."""
    draft = path.with_name(f".{path.name}.new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(json_codec.encode(value))
    os.rename(draft, path)


def load(path: Path, as_type: type[T]) -> T:
    """What the file holds. Raises `UnreadableRecord`."""
    try:
        return json_codec.decode(path.read_bytes(), as_type)
    except (FileNotFoundError, NotADirectoryError, json_codec.InvalidJson, errors.Invalid) as error:
        raise UnreadableRecord(str(error)) from None


def read(path: Path, as_type: type[T]) -> T | None:
    """What the file holds; None if there is none, or nothing that this version understands."""
    try:
        return load(path, as_type)
    except UnreadableRecord:
        return None


def sync(path: Path) -> None:
    """Make what was written last through a power cut, once its folder is synced too. Waits for the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class RecordFiles(Generic[T]):
    """A folder of records of one type, each in a file that is named by its key."""

    def __init__(self, folder: Path, as_type: type[T], key: Callable[[T], str]) -> None:
        self._folder = files.private_folder(folder)
        self._type = as_type
        self._key = key

    def save(self, record: T) -> None:
        write(self._path(self._key(record)), record)

    def sync(self, keys: Iterable[str]) -> None:
        """What was saved of these outlives a power cut from now on. Waits for the disk."""
        for key in keys:
            try:
                sync(self._path(key))
            except FileNotFoundError:
                continue  # removed meanwhile
        files.sync_folder(self._folder)

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def keep_only(self, keys: Iterable[str]) -> None:
        kept = {self._path(key) for key in keys}
        for path in self._folder.iterdir():
            if path not in kept:
                path.unlink()

    def scan(self, unreadable: Callable[[Path, str], object] = lambda _path, _why: None) -> Iterator[T]:
        """Every record, in the order of names; `unreadable` is told of files that hold none. What a crash
        left half written is removed."""
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
    """A folder of folders. One that is removed is out of sight at once, and then goes file by file."""

    def __init__(self, folder: Path) -> None:
        self.folder = files.private_folder(folder)
        self._removals = itertools.count()

    def mark(self, path: Path) -> None:
        """Make an empty file, also on a full disk."""
        disk_reserve.spend(lambda: path.touch(mode=0o600))

    def discard(self, path: Path) -> Path | None:
        """Take a folder out of sight; where its files are now, None if it was not there."""
        trash = self.folder / f"{_TRASH}{next(self._removals)}"
        try:
            disk_reserve.spend(lambda: os.rename(path, trash))
        except FileNotFoundError:
            return None
        return trash

    def leftovers(self) -> list[Path]:
        """Folders that a crash left half made or half removed. Before anything else is done here."""
        found = [path for path in self.folder.iterdir() if path.name.startswith(".")]
        numbers = [path.name.removeprefix(_TRASH) for path in found]
        self._removals = itertools.count(
            max((int(each) for each in numbers if each.isdigit()), default=0) + 1
        )
        return found
