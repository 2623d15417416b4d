"""The file under the SQLite store: opening, checking, migrating, loading and writing it. Blocking.

The file is a journal, not a database that is queried: `journal` has one row per revision, `entry` is the
state as of the `fold` revision, and the two together are loaded into memory once. Writing a transaction
appends one row; from time to time the oldest rows are folded into `entry`. `skerry.store.sqlite.store` calls
this from its one writer thread, and decides when and what.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skerry.store.protocol import Batch, Change, Entry, LeaseId
from skerry.store.sqlite import database

# Step n brings a file from user_version n to n + 1. Steps are only ever added.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE entry (key TEXT PRIMARY KEY, value BLOB NOT NULL, created INTEGER NOT NULL,"
        " revision INTEGER NOT NULL, lease INTEGER NOT NULL) STRICT",
        "CREATE TABLE journal (revision INTEGER PRIMARY KEY, changes BLOB NOT NULL) STRICT",
        "CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl_s INTEGER NOT NULL) STRICT",
        "CREATE TABLE fold (revision INTEGER NOT NULL) STRICT",
        "INSERT INTO fold VALUES (0)",
    ),
    # 0.2: the same tables. 0.1 knows no stamps (`skerry.store.stamp`), but refuses a later schema.
    (),
)


# How a change is written: the revision is the row's, and is not repeated. A removed key has no value.
class _JournalRow(msgspec.Struct, frozen=True, array_like=True):
    key: str
    value: bytes | None
    created: int = 0
    lease: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_JournalRow]).decode


class JournalCheckpoint(msgspec.Struct, frozen=True):
    """Journal rows up to `revision` go; `entries` are the keys they named, as they are now (None: removed).

    A key may be newer here than `revision`: the journal's later rows are replayed over it when loading, and
    the last of them is what is here.
    """

    revision: int
    entries: Sequence[tuple[str, Entry | None]]


class CommitGroup(msgspec.Struct, frozen=True):
    """What one commit of the file writes."""

    batches: Sequence[Batch]
    granted: Sequence[tuple[LeaseId, int]] = ()
    ended: Sequence[LeaseId] = ()
    fold: JournalCheckpoint | None = None


class JournalContents(msgspec.Struct, frozen=True):
    """What was in the file."""

    folded: int
    entries: list[Entry]
    batches: list[Batch]
    leases: list[tuple[LeaseId, int]]


class Journal:
    """One open file, for one thread. Every failure to open is `FailedPrecondition` and says what to do."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Memory is the truth while this process runs, so no other may write. It also spares the -shm file.
        self._connection = database.open_database(path, MIGRATIONS, is_exclusive=True)

    def load(self) -> JournalContents:
        """Everything in the file, once."""
        run = self._connection.execute
        try:
            (folded,) = run("SELECT revision FROM fold").fetchone()
            entries = [Entry(*row) for row in run("SELECT key, value, created, revision, lease FROM entry")]
            leases = [(LeaseId(lease), ttl_s) for lease, ttl_s in run("SELECT id, ttl_s FROM lease")]
            batches = [
                _to_batch(revision, changes)
                for revision, changes in run("SELECT revision, changes FROM journal ORDER BY revision")
            ]
        except sqlite3.Error as error:
            raise database.cannot_open(self.path, error) from error
        except (msgspec.DecodeError, TypeError) as error:
            raise database.damaged(self.path, f"a row cannot be read: {error}") from error
        if [batch.revision for batch in batches] != list(range(folded + 1, folded + 1 + len(batches))):
            raise database.damaged(self.path, "revisions are missing")
        return JournalContents(folded, entries, batches, leases)

    def write(self, group: CommitGroup) -> None:
        """All of it, durable when this returns; nothing of it if it raises `sqlite3.Error`."""
        connection = self._connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # the one after an earlier failure failed too
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(
                "INSERT INTO journal VALUES (?, ?)", [_to_row(batch) for batch in group.batches]
            )
            if group.granted:
                connection.executemany("INSERT INTO lease VALUES (?, ?)", group.granted)
            if group.ended:
                connection.executemany("DELETE FROM lease WHERE id = ?", [(lease,) for lease in group.ended])
            if group.fold is not None:
                self._fold(group.fold)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        self._connection.close()

    def _fold(self, fold: JournalCheckpoint) -> None:
        connection = self._connection
        connection.executemany(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value,"
            " created = excluded.created, revision = excluded.revision, lease = excluded.lease",
            [(e.key, e.value, e.created, e.revision, e.lease) for _, e in fold.entries if e is not None],
        )
        connection.executemany(
            "DELETE FROM entry WHERE key = ?", [(key,) for key, entry in fold.entries if entry is None]
        )
        connection.execute("DELETE FROM journal WHERE revision <= ?", (fold.revision,))
        connection.execute("UPDATE fold SET revision = ?", (fold.revision,))


def _to_row(batch: Batch) -> tuple[int, bytes]:
    return batch.revision, _encode(
        [
            (change.key, None)
            if change.entry is None
            else (change.key, change.entry.value, change.entry.created, change.entry.lease)
            for change in batch.changes
        ]
    )


def _to_batch(revision: int, changes: bytes) -> Batch:
    return Batch(
        revision,
        tuple(
            Change(
                row.key,
                None
                if row.value is None
                else Entry(row.key, row.value, row.created, revision, LeaseId(row.lease)),
            )
            for row in _decode(changes)
        ),
    )
