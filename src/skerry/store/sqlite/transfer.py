"""SQLite files for backups: a store written from its records, and a copy of a database that is in use.
Blocking."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

from skerry.kit import disk_monitor
from skerry.store.protocol import Entry
from skerry.store.sqlite import call_rows, database, journal

_PAGES = 4096  # of a copy, between which writers have their turn


def write_store(path: Path, revision: int, entries: Iterable[Entry]) -> int:
    """Create the file of a store that is at `revision` and has these entries, durably; returns how many.

    `entries` have the revisions that they had. Without leases: whoever held one is gone.
    """
    connection = database.open_database(path, journal.MIGRATIONS, is_exclusive=True)
    try:
        connection.execute("BEGIN IMMEDIATE")
        cursor = connection.executemany(
            "INSERT INTO entry VALUES (?, ?, ?, ?, 0)",
            ((entry.key, entry.value, entry.created, entry.revision) for entry in entries),
        )
        connection.execute("UPDATE fold SET revision = ?", (revision,))
        connection.execute("COMMIT")
        return cursor.rowcount
    except sqlite3.Error as error:
        raise database.refused_by_disk(path, error) from error
    finally:
        connection.close()


def copy_calls(source: Path, target: Path) -> None:
    """Copy the database of async calls, also while it is in use: as of one moment.

    Raises `OSError` (ENOSPC) if the disk has no room for it: what is left there is for others.
    """
    if disk_monitor.free_bytes(target.parent) < _size(source) + disk_monitor.START_BYTES:
        raise _no_space(target)
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    try:
        writing = sqlite3.connect(target)
        try:
            reading.backup(writing, pages=_PAGES)
            # One file, without a log beside it.
            writing.execute("PRAGMA journal_mode = DELETE")
        finally:
            writing.close()
    except sqlite3.Error as error:
        if database.is_full(error):
            raise _no_space(target) from error
        raise database.refused_by_disk(target, error) from error
    finally:
        reading.close()


def _size(source: Path) -> int:
    """Of a database and its log."""
    size = source.stat().st_size
    with contextlib.suppress(FileNotFoundError):
        size += source.with_name(f"{source.name}-wal").stat().st_size
    return size


def _no_space(target: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))


def check_calls(path: Path) -> None:
    """Raise `FailedPrecondition` unless it is a database of async calls that this version can use; mark those
    that waited as begun.

    It may be that they were executed since the copy was made: whoever waits for one is told so, and nothing
    is executed twice.
    """
    connection = database.open_database(path, call_rows.MIGRATIONS, is_exclusive=True)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE call SET state = 'r' WHERE state = 'q'")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise database.cannot_open(path, error) from error
    finally:
        connection.close()
