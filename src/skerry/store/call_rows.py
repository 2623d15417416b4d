"""The file of async calls: one row each, from its acceptance until nobody remembers it. Blocking.

A row's body is what was asked while the call waits or runs, what came of it when it has ended, and nothing
when that has expired; this module never looks into it. `skerry.store.calls` calls it from its one writer
thread, and reads through a second connection. Only ended calls are ever dropped to make room, oldest first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry.model import errors
from skerry.model.calls import CallState
from skerry.store import databases

# A state is written as one letter, not only for brevity: a row that keeps its length when it is marked as
# running is changed in place by SQLite, whatever the length of its body.
_STATES: Final = {state.value[0]: state for state in CallState}

# Step n brings a file from user_version n to n + 1. Steps are only ever added.
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE call (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, line TEXT NOT NULL,"
        " state TEXT NOT NULL, at REAL NOT NULL, size INTEGER NOT NULL, body BLOB) STRICT",
        "CREATE INDEX pending ON call (number) WHERE state IN ('q', 'r')",
        "CREATE INDEX ended ON call (at) WHERE state IN ('d', 'f')",
        "CREATE INDEX expired ON call (at) WHERE state = 'e'",
    ),
)

ROW_BYTES: Final = 512  # what a row costs beside its body, roughly; counted with it
# Of the calls whose results are gone, this many are remembered as such.
MOST_EXPIRED: Final = 100_000
# Rows that one sweep touches, so that nobody waits long behind it.
SWEEP: Final = 500


class Pending(msgspec.Struct, frozen=True):
    """A call that has not ended: whom it waits behind, when it was accepted, the bytes that it takes."""

    id: str
    line: str
    state: CallState
    accepted_at: float
    size: int


class Row(msgspec.Struct, frozen=True):
    """A call as whoever polls finds it."""

    state: CallState
    body: bytes


class CallRows:
    """One open file, for one thread; at most `keep_bytes` of bodies and rows are kept in it.

    `pending` is what had not ended when it was opened, in the order in which it was accepted.
    """

    def __init__(self, path: Path, keep_bytes: int) -> None:
        self.path = path
        self._keep_bytes = keep_bytes
        # Not exclusive: whoever polls reads beside the writer, without waiting for its disk.
        self._connection = databases.open_database(path, MIGRATIONS, is_exclusive=False)
        try:
            (self._bytes,) = self._connection.execute("SELECT coalesce(sum(size), 0) FROM call").fetchone()
            self.pending = self._load()
        except sqlite3.Error as error:
            self._connection.close()
            raise databases.cannot_open(path, error) from error

    def write(self, steps: Sequence[Callable[[CallRows], Any]]) -> list[Any]:
        """Do all steps in one transaction; what each returned. Durable, or nothing and `sqlite3.Error`."""
        connection = self._connection
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # the one after an earlier failure failed too
        before = self._bytes
        connection.execute("BEGIN IMMEDIATE")
        try:
            results = [step(self) for step in steps]
            connection.execute("COMMIT")
        except BaseException:
            self._bytes = before
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return results

    def close(self) -> None:
        self._connection.close()

    def accept(self, id: str, line: str, at: float, body: bytes) -> None:
        size = ROW_BYTES + len(body)
        self._make_room(size, at)
        self._connection.execute(
            "INSERT INTO call (id, line, state, at, size, body) VALUES (?, ?, 'q', ?, ?, ?)",
            (id, line, at, size, body),
        )
        self._bytes += size

    def start(self, id: str) -> bytes:
        """Mark it as running, if it is not; what was asked."""
        row = self._connection.execute(
            "UPDATE call SET state = 'r' WHERE id = ? AND state IN ('q', 'r') RETURNING body",
            (id,),
        ).fetchone()
        assert row is not None, f"call {id} has ended"
        body: bytes = row[0]
        return body

    def put_back(self, id: str) -> None:
        """It was not run after all."""
        self._connection.execute("UPDATE call SET state = 'q' WHERE id = ? AND state = 'r'", (id,))

    def finish(self, id: str, state: CallState, at: float, body: bytes) -> None:
        size = ROW_BYTES + len(body)
        (before,) = self._connection.execute("SELECT size FROM call WHERE id = ?", (id,)).fetchone()
        self._make_room(size - before, at)
        self._connection.execute(
            "UPDATE call SET state = ?, at = ?, size = ?, body = ? WHERE id = ?",
            (state.value[0], at, size, body, id),
        )
        self._bytes += size - before

    def sweep(self, now: float, ttl_s: float) -> int:
        """Expire results that are older than `ttl_s`, and forget what has been expired as long; how many."""
        run = self._connection.execute
        (count,) = run("SELECT count(*) FROM call WHERE state = 'e'").fetchone()
        forgotten = run(
            "DELETE FROM call WHERE number IN (SELECT number FROM call WHERE state = 'e' AND at <= ?"
            " ORDER BY at LIMIT ?)",
            (now - ttl_s, SWEEP),
        ).rowcount
        forgotten += run(
            "DELETE FROM call WHERE number IN (SELECT number FROM call WHERE state = 'e'"
            " ORDER BY at LIMIT ?)",
            (min(SWEEP, max(0, count - forgotten - MOST_EXPIRED)),),
        ).rowcount
        old = run(
            "SELECT number, size FROM call WHERE state IN ('d', 'f') AND at <= ? ORDER BY at LIMIT ?",
            (now - ttl_s, SWEEP),
        ).fetchall()
        for number, size in old:
            self._expire(number, size, now)
        return forgotten + len(old)

    def _load(self) -> list[Pending]:
        """What has not ended, in the order in which it was accepted."""
        rows = self._connection.execute(
            "SELECT id, line, state, at, size FROM call WHERE state IN ('q', 'r') ORDER BY number"
        )
        return [Pending(id, line, _STATES[state], at, size) for id, line, state, at, size in rows]

    def _make_room(self, size: int, now: float) -> None:
        while self._bytes + size > self._keep_bytes:
            oldest = self._connection.execute(
                "SELECT number, size FROM call WHERE state IN ('d', 'f') ORDER BY at LIMIT 1"
            ).fetchone()
            if oldest is None:
                return  # all that is left has not ended; how much of that there is, is bounded before us
            number, freed = oldest
            self._expire(number, freed, now)

    def _expire(self, number: int, size: int, now: float) -> None:
        self._connection.execute(
            "UPDATE call SET state = 'e', at = ?, size = 0, body = NULL WHERE number = ?", (now, number)
        )
        self._bytes -= size


class CallReader:
    """A second connection to the file that only reads, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA query_only = ON")

    def read(self, id: str) -> Row | None:
        try:
            row = self._connection.execute("SELECT state, body FROM call WHERE id = ?", (id,)).fetchone()
        except sqlite3.Error as error:
            raise errors.Unavailable(
                f"the store {self._path} could not be read: {error}; look at the disk, then try again",
                detail=repr(error),
            ) from error
        return None if row is None else Row(_STATES[row[0]], row[1] or b"")

    def close(self) -> None:
        self._connection.close()
