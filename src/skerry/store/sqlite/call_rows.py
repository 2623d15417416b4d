"""The file of async calls: one row each, from its acceptance until it is removed.

Blocking. A row's body is the request while the call waits or runs, the result when it has ended, and empty
when that has expired; this module does not decode it. `skerry.store.sqlite.calls` calls it from its one
writer thread, and reads through a second connection. Only ended calls are dropped to free space, oldest
first. Every result has a row in `copy` too, with the holder of its copy; an empty holder is none, and then it
is to be copied at `due`. `skerry.functions.continuum.result_replication` chooses the holders.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from skerry.model import errors
from skerry.model.calls import CallState
from skerry.store.sqlite import database

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
    (
        # A table of its own, since to change a row of `call` is to write its body again.
        "CREATE TABLE copy (number INTEGER PRIMARY KEY, holder TEXT NOT NULL, due REAL NOT NULL,"
        " tries INTEGER NOT NULL) STRICT",
        "CREATE INDEX holders ON copy (holder, due)",
        # Rows without a line were kept for others.
        "INSERT INTO copy SELECT number, '', at, 0 FROM call WHERE state IN ('d', 'f') AND line != ''",
    ),
)

ROW_BYTES: Final = 512  # what a row costs beside its body, roughly; counted with it
# Of the calls whose results have expired, this many are kept as expired.
MOST_EXPIRED: Final = 100_000
# Rows that one sweep touches, so that other steps do not wait long.
SWEEP: Final = 500
_SAMPLES: Final = 16  # of the results of a holder; the smallest of them is checked


class UnfinishedCall(msgspec.Struct, frozen=True):
    """A call that has not ended: its queue, when it was accepted, and its size."""

    id: str
    line: str
    state: CallState
    accepted_at: float
    size: int


class CallRow(msgspec.Struct, frozen=True):
    """A call as a poll reads it."""

    state: CallState
    body: bytes


class UncopiedResult(msgspec.Struct, frozen=True):
    """A result without a copy, and the number of attempts to make one."""

    id: str
    ended_at: float
    tries: int


class CopyAttempt(msgspec.Struct, frozen=True):
    """The outcome of an attempt to copy a result: its holder, or none, the number of attempts, and when to
    try again."""

    id: str
    holder: str
    due: float
    tries: int = 0


class CallRows:
    """One open file, for one thread; at most `keep_bytes` of bodies and rows are kept in it.

    `pending` is what had not ended when it was opened, in the order in which it was accepted.
    """

    def __init__(self, path: Path, keep_bytes: int) -> None:
        self.path = path
        self._keep_bytes = keep_bytes
        # Not exclusive: polls read beside the writer, without waiting for its disk.
        self._connection = database.open_database(path, MIGRATIONS, is_exclusive=False)
        try:
            (self._bytes,) = self._connection.execute("SELECT coalesce(sum(size), 0) FROM call").fetchone()
            self.pending = self._load()
        except sqlite3.Error as error:
            self._connection.close()
            raise database.cannot_open(path, error) from error

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
        self._free_space(size, at)
        self._connection.execute(
            "INSERT INTO call (id, line, state, at, size, body) VALUES (?, ?, 'q', ?, ?, ?)",
            (id, line, at, size, body),
        )
        self._bytes += size

    def start(self, id: str) -> bytes:
        """Mark it as running, if it is not; returns its request."""
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
        number, before = self._connection.execute(
            "SELECT number, size FROM call WHERE id = ?", (id,)
        ).fetchone()
        self._free_space(size - before, at)
        self._connection.execute(
            "UPDATE call SET state = ?, at = ?, size = ?, body = ? WHERE id = ?",
            (state.value[0], at, size, body, id),
        )
        self._bytes += size - before
        self._note_holder(number, "", at)

    def keep_copy(self, id: str, state: CallState, at: float, body: bytes, holder: str) -> None:
        """Of a call that ended elsewhere, where `holder` has it; what is known of it already stays."""
        size = ROW_BYTES + len(body)
        self._free_space(size, at)
        added = self._connection.execute(
            "INSERT OR IGNORE INTO call (id, line, state, at, size, body) VALUES (?, '', ?, ?, ?, ?)"
            " RETURNING number",
            (id, state.value[0], at, size, body),
        ).fetchone()
        if added is not None:
            self._bytes += size
            self._note_holder(added[0], holder, at)

    def note_copies(self, attempts: Iterable[CopyAttempt]) -> None:
        """Record attempts to copy results that are still stored."""
        self._connection.executemany(
            "UPDATE copy SET holder = ?, due = ?, tries = ?"
            " WHERE number = (SELECT number FROM call WHERE id = ?)",
            [(attempt.holder, attempt.due, attempt.tries, attempt.id) for attempt in attempts],
        )

    def release(self, holder: str) -> int:
        """Results that `holder` had are to be copied again, at most `SWEEP` of them; how many."""
        return self._connection.execute(
            "UPDATE copy SET holder = '', due = 0, tries = 0 WHERE number IN"
            " (SELECT number FROM copy WHERE holder = ? LIMIT ?)",
            (holder, SWEEP),
        ).rowcount

    def retry_copies(self) -> None:
        """Try again now what was to wait after a failure."""
        self._connection.execute(
            "UPDATE copy SET due = 0, tries = 0 WHERE holder = '' AND tries > 0",
        )

    def sweep(self, now: float, ttl_s: float) -> int:
        """Expire results that are older than `ttl_s`, and remove what has been expired as long; returns how
        many."""
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

    def _load(self) -> list[UnfinishedCall]:
        """What has not ended, in the order in which it was accepted."""
        rows = self._connection.execute(
            "SELECT id, line, state, at, size FROM call WHERE state IN ('q', 'r') ORDER BY number"
        )
        return [UnfinishedCall(id, line, _STATES[state], at, size) for id, line, state, at, size in rows]

    def _free_space(self, size: int, now: float) -> None:
        while self._bytes + size > self._keep_bytes:
            oldest = self._connection.execute(
                "SELECT number, size FROM call WHERE state IN ('d', 'f') ORDER BY at LIMIT 1"
            ).fetchone()
            if oldest is None:
                return  # all that is left has not ended, and is bounded by the caller
            number, freed = oldest
            self._expire(number, freed, now)

    def _expire(self, number: int, size: int, now: float) -> None:
        self._connection.execute(
            "UPDATE call SET state = 'e', at = ?, size = 0, body = NULL WHERE number = ?", (now, number)
        )
        self._connection.execute("DELETE FROM copy WHERE number = ?", (number,))
        self._bytes -= size

    def _note_holder(self, number: int, holder: str, due: float) -> None:
        self._connection.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, 0)", (number, holder, due))


class CallReader:
    """A second connection to the file that only reads, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA query_only = ON")

    def read(self, id: str) -> CallRow | None:
        rows = self._select("SELECT state, body FROM call WHERE id = ?", id)
        return CallRow(_STATES[rows[0][0]], rows[0][1] or b"") if rows else None

    def uncopied(self, now: float, most: int) -> list[UncopiedResult]:
        """Results that are to be copied now, the one that waits longest first."""
        rows = self._select(
            "SELECT id, at, tries FROM copy JOIN call USING (number) WHERE holder = '' AND due <= ?"
            " ORDER BY due LIMIT ?",
            now,
            most,
        )
        return [UncopiedResult(*row) for row in rows]

    def holders(self) -> dict[str, str]:
        """Who has copies, each with the id of a small one of the latest."""
        found: dict[str, str] = {}
        holder = ""
        while True:
            ((following,),) = self._select("SELECT min(holder) FROM copy WHERE holder > ?", holder)
            if following is None:
                return found
            holder = following
            samples = self._select(
                "SELECT id FROM (SELECT number FROM copy WHERE holder = ? ORDER BY due DESC LIMIT ?)"
                " JOIN call USING (number) ORDER BY size LIMIT 1",
                holder,
                _SAMPLES,
            )
            found.update((holder, id) for (id,) in samples)

    def _select(self, statement: str, *values: str | float) -> list[Any]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise errors.Unavailable(
                f"the store {self._path} could not be read: {error}; check the disk, then try again",
                detail=repr(error),
            ) from error

    def close(self) -> None:
        self._connection.close()
