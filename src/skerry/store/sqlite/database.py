"""Opening a SQLite file: private, checked, of the present schema, written ahead and in full. Blocking.

`skerry.store.sqlite.journal` and `skerry.store.sqlite.call_rows` have the contents. Every failure to open one
is `FailedPrecondition`, with what to do.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from skerry.kit import disk_reserve, files
from skerry.model import errors

# The write-ahead log is cut back to this after a burst; SQLite itself never shrinks it.
_WAL_BYTES = 16 * 1024 * 1024


def open_database(
    path: Path, migrations: Sequence[Sequence[str]], *, is_exclusive: bool
) -> sqlite3.Connection:
    """The file, created if it does not exist. Migration n brings it from schema n to n + 1.

    `is_exclusive` keeps every other connection out; without it, others may read while this one writes.
    """
    try:
        connection = _connect(path)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"the store {path} cannot be opened: {error.strerror}; is the folder there and ours?"
        ) from error
    try:
        _prepare(connection, path, migrations, is_exclusive)
    except sqlite3.Error as error:
        connection.close()
        raise cannot_open(path, error) from error
    except BaseException:
        connection.close()
        raise
    return connection


def damaged(path: Path, what: str) -> errors.FailedPrecondition:
    return errors.FailedPrecondition(
        f"the store {path} is damaged ({what}): restore it from a backup, or move it and {path.name}-wal"
        " away to start empty"
    )


def cannot_open(path: Path, error: sqlite3.Error) -> errors.FailedPrecondition:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF == sqlite3.SQLITE_BUSY:
        return errors.FailedPrecondition(
            f"the store {path} is in use by another process; stop that one first"
        )
    if code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path, str(error))
    return errors.FailedPrecondition(
        f"the store {path} cannot be opened: {error}; check the disk and the folder's rights"
    )


def can_retry(failure: Exception) -> bool:
    """True if the disk was full, and some of its reserve was given up for another attempt."""
    return is_full(failure) and disk_reserve.release()


def is_full(failure: Exception) -> bool:
    """True if the disk was full."""
    code: int = getattr(failure, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_FULL


def refused_by_disk(path: Path, failure: Exception) -> errors.SkerryError:
    """The error for callers whose transaction was not written."""
    if not isinstance(failure, sqlite3.Error):
        return errors.Internal("the store failed in a way it should not", detail=repr(failure))
    return errors.Unavailable(
        f"the store could not write to {path}: {failure}; nothing was changed."
        " Make sure that the disk has room and works, then try again",
        detail=repr(failure),
    )


def _connect(path: Path) -> sqlite3.Connection:
    # SQLite would make the file with the umask's mode; the -wal file takes the mode of this one. A file that
    # is there is not opened here: closing it again would drop every lock that this process has on it.
    if path.exists():
        path.chmod(files.PRIVATE)
    else:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, files.PRIVATE))
        files.sync_folder(path.parent)
    return sqlite3.connect(path, isolation_level=None, timeout=0)


def _prepare(
    connection: sqlite3.Connection, path: Path, migrations: Sequence[Sequence[str]], is_exclusive: bool
) -> None:
    run = connection.execute
    if is_exclusive:
        run("PRAGMA locking_mode = EXCLUSIVE")
    run("PRAGMA journal_mode = WAL")
    run("PRAGMA synchronous = FULL")
    run(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    (version,) = run("PRAGMA user_version").fetchone()
    if version > len(migrations):
        raise errors.FailedPrecondition(
            f"the store {path} has schema {version}, and this Skerry knows only up to"
            f" {len(migrations)}: it was written by a newer version; start that one, or restore a backup"
        )
    problems = [text for (text,) in run("PRAGMA quick_check(3)")]
    if problems != ["ok"]:
        raise damaged(path, "; ".join(problems))
    for number in range(version, len(migrations)):
        run("BEGIN IMMEDIATE")
        for statement in migrations[number]:
            run(statement)
        run(f"PRAGMA user_version = {number + 1}")
        run("COMMIT")
