"""Reading backups: verifying one, and restoring it into an empty data folder. Blocking.

A backup is read twice: whole, to verify it, before anything is written; then to write it. While a folder is
incomplete it has the file `restore-unfinished`, which is written first and removed last: Skerry does not
start on it, and another restore begins anew. A store elsewhere is marked as well. Its mark is removed before
that of the folder, which says by then that everything is written: the same restore, run again, only removes
the marks. What runs on nodes is adopted after the start (`skerry.control.recovery`): the file of this
server's last run names one that the store does not know, which is how a restored store is recognized.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from skerry.control.backup import archive, records
from skerry.control.backup.archive import FILES, STORE, ArchiveReader, BackupHeader, BackupManifest
from skerry.control.backup.restore_mark import UNFINISHED
from skerry.control.backup.sources import CALLS
from skerry.control.recovery import store_history
from skerry.kit import files, json_codec
from skerry.kit.sealed_stream import Reader, Unlock
from skerry.model import errors
from skerry.store import data_stamp
from skerry.store.protocol import Entry
from skerry.store.sqlite import transfer

STORE_FILE: Final = "store.db"
HISTORY_FILE: Final = "history.json"
_LOCK: Final = "lock"
_PUBLIC_SUFFIX: Final = ".crt"
_INTERRUPTED: Final = b"skerry restore was interrupted: run it again\n"

# Opens the backup at its beginning.
OpenBackup = Callable[[], Reader]
Progress = Callable[[int], None]  # gets the bytes that were read


class RecordDestination(Protocol):
    """A store that is none of the folder's, such as an etcd. Blocking."""

    @property
    def name(self) -> str: ...

    def check(self) -> None:
        """Raise `FailedPrecondition` unless it is empty, or of a restore that was interrupted."""
        ...

    def write(self, entries: Iterator[Entry]) -> None:
        """Mark the store as incomplete, and write the records durably."""
        ...

    def finish(self) -> None:
        """Remove the mark, if it is there."""
        ...


class VerifiedBackup(NamedTuple):
    """A backup that was read whole, and is what was written."""

    header: BackupHeader
    manifest: BackupManifest
    is_encrypted: bool


def verify(raw: Reader, unlock: Unlock | None, progress: Progress = lambda _: None) -> VerifiedBackup:
    """Read all of a backup: every digest is compared, and records are decoded. Raises as `ArchiveReader`."""
    reader = ArchiveReader(raw, unlock)
    found: dict[str, int] = {}
    for name, _, content in reader.parts():
        data: list[bytes] = []
        for part in content:
            progress(len(part))
            if name.startswith(STORE):
                data.append(part)
        if name.startswith(STORE):
            for entry in archive.read_rows(b"".join(data)):
                records.check(entry)
                prefix = records.prefix_of(entry.key)
                found[prefix] = found.get(prefix, 0) + 1
    if dict(sorted(found.items())) != reader.manifest.records:
        raise errors.Invalid("the backup is damaged: it does not have the records that its manifest lists")
    return VerifiedBackup(reader.header, reader.manifest, reader.is_encrypted)


def check_empty(folder: Path) -> None:
    """Raise `FailedPrecondition` unless the folder is empty, missing, or of a restore that was
    interrupted."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise errors.FailedPrecondition(f"{folder} is no folder; choose another with --data")
    found = sorted(path.name for path in folder.iterdir())
    if found in ([], [_LOCK]) or UNFINISHED in found:
        return
    raise errors.FailedPrecondition(
        f"{folder} is not empty (it has {', '.join(found[:5])}): a backup is restored into an empty "
        f"folder. Move it "
        "away if it is not needed any more, or choose another with --data"
    )


def restore(
    open_backup: OpenBackup,
    unlock: Unlock | None,
    folder: Path,
    *,
    destination: RecordDestination | None = None,
    progress: Progress = lambda _: None,
    failpoint: Callable[[str], None] = lambda step: None,
) -> VerifiedBackup:
    """Verify the backup, then write it into `folder`, and its records into `destination` or a store there.

    All of it, durably, or a folder on which nothing starts.
    """
    check_empty(folder)
    written = _written_mark(ArchiveReader(open_backup(), unlock).header, destination)
    if destination is not None and not _is_written(folder, written):
        destination.check()
    verified = verify(open_backup(), unlock, progress)
    files.private_folder(folder)
    lock = files.FolderLock(folder)
    try:
        lock.acquire()
    except files.FolderLocked as held:
        raise errors.AlreadyExists(f"the folder {folder} is in use by process {held.pid}") from None
    try:
        check_empty(folder)  # nobody else was quicker
        if not _is_written(folder, written):
            files.write_atomically(folder / UNFINISHED, _INTERRUPTED)
            failpoint("marked")
            _clear(folder)
            failpoint("cleared")
            data_stamp.write(folder, verified.header.stamp)
            reader = ArchiveReader(open_backup(), unlock)
            restored_by = _write(reader, folder, destination, progress, failpoint)
            history = store_history.history_of_restored(verified.header.revision, restored_by)
            files.write_atomically(folder / HISTORY_FILE, history, files.PRIVATE)
            files.sync_file_system(folder)
            failpoint("written")
            files.write_atomically(folder / UNFINISHED, written)
        failpoint("finishing")
        if destination is not None:
            destination.finish()
        failpoint("finished")
        (folder / UNFINISHED).unlink()
        files.sync_folder(folder)
    except OSError as error:
        raise errors.Unavailable(
            f"{folder} cannot be written: {error.strerror}; free space or choose another with --data, "
            f"and run the "
            "restore again",
            detail=repr(error),
        ) from error
    finally:
        lock.release()
    return verified


def _written_mark(header: BackupHeader, destination: RecordDestination | None) -> bytes:
    """What the mark of a folder says when this backup was written whole, there and to `destination`."""
    where = "" if destination is None else destination.name
    digest = hashlib.sha256(json_codec.encode(header) + where.encode()).hexdigest()
    return _INTERRUPTED + f"written {digest}\n".encode()


def _is_written(folder: Path, mark: bytes) -> bool:
    try:
        return (folder / UNFINISHED).read_bytes() == mark
    except FileNotFoundError:
        return False


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name in (UNFINISHED, _LOCK):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _write(
    reader: ArchiveReader,
    folder: Path,
    destination: RecordDestination | None,
    progress: Progress,
    failpoint: Callable[[str], None],
) -> str:
    """Write all parts; returns the run that noticed the last restore before the backup, which the records
    name."""
    restored_by = ""
    first_file: list[tuple[str, Iterator[bytes]]] = []
    parts = reader.parts()

    def entries() -> Iterator[Entry]:
        """Records of the parts of the store, which come first."""
        nonlocal restored_by
        for name, size, content in parts:
            progress(size)
            if not name.startswith(STORE):
                first_file.append((name, content))
                return
            for entry in archive.read_rows(b"".join(content)):
                if entry.key == store_history.RESTORED_BY:
                    restored_by = entry.value.decode()
                yield entry
            failpoint("records")

    if destination is None:
        transfer.write_store(folder / STORE_FILE, reader.header.revision, entries())
    else:
        destination.write(entries())
    failpoint("store")
    for name, content in first_file:
        _write_file(folder / name.removeprefix(FILES), content)
    for name, size, content in parts:
        progress(size)
        if name.startswith(STORE):
            raise errors.Invalid("the backup is damaged: records behind files")
        _write_file(folder / name.removeprefix(FILES), content)
        failpoint("file")
    if (folder / CALLS).exists():
        transfer.check_calls(folder / CALLS)
    return restored_by


def _write_file(path: Path, content: Iterator[bytes]) -> None:
    """The names of parts are those that `ArchiveReader` knows: none leads out of the folder."""
    files.private_folder(path.parent)
    mode = files.PUBLIC if path.suffix == _PUBLIC_SUFFIX else files.PRIVATE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        for data in content:
            file.write(data)
