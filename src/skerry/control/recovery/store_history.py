"""Detects that the store was restored from a backup, by the history of server runs.

Every run of a server is a record of the store, `history/<id>`. If the store does not know a server's own last
run, or has a lower revision than it had, it was restored from a backup. Orders to nodes are stamped with the
run and the revision (`StoreStamp`), by which any server can decide whether the store was ever at that point.
Of several servers, the first that notices a restore writes that into the store (`restored-by`), and its run
ends all before it; the others find that, and end no run. After a restore the store settles: for
`fleet.lost_after_s` nothing is placed and nothing ordered, while nodes claim what they run
(`skerry.control.recovery.claims`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from skerry.control.events.log import EventLog
from skerry.kit import files, json_codec, ulid
from skerry.kit.clock import Clock
from skerry.model import errors
from skerry.store.protocol import ABSENT, Delete, Expect, Op, Put, Store

log = structlog.get_logger(__name__)

PREFIX = "history/"
RESTORED_BY = "restored-by"  # the run that noticed the last restore
# Of a run that is not known any more, the store is taken to be older than that run.
_MAX_RUNS = 4096
_REMEMBER_S = 10.0
_MOST_AT_ONCE = 100  # that are removed with one start


class StoreStamp(msgspec.Struct, frozen=True):
    """The origin of an order: the run of a server, and the revision of the store."""

    run: str
    revision: int


class ServerRun(msgspec.Struct, frozen=True):
    """One run of a server on this store."""

    server: str
    ends_all: bool = False  # no other run goes on beside it


class _HistoryFile(msgspec.Struct, frozen=True):
    run: str
    revision: int = 0  # that the store had reached when this was written
    restored_by: str = ""  # what the store had then


def is_unknown(stamp: StoreStamp, runs: Mapping[str, tuple[ServerRun, int]], revision: int) -> bool:
    """True if the store, which knows `runs` with the revisions of their starts and is at `revision`, was
    never at `stamp`: it was restored from a backup from before that."""
    if stamp.run not in runs or stamp.revision > revision:
        return True
    run, began = runs[stamp.run]
    later = [
        at for other, at in runs.values() if at > began and (other.ends_all or other.server == run.server)
    ]
    return bool(later) and stamp.revision >= min(later)


def history_of_restored(revision: int, restored_by: str) -> bytes:
    """The file of a server's last run, for one whose store was restored at `revision`: a run that no store
    knows. `restored_by` is what the restored store has."""
    return json_codec.encode(_HistoryFile("before the restore", revision, restored_by))


class StoreHistory:
    """The runs of servers on one store, and this one among them."""

    def __init__(
        self,
        store: Store,
        events: EventLog,
        clock: Clock,
        path: Path,
        *,
        server: str,
        is_alone: bool,
        settle_s: float,
    ) -> None:
        """`path`: where this server keeps the id of its run, outside of the store. With `is_alone` no other
        server can be on the store."""
        self._store = store
        self._events = events
        self._clock = clock
        self._path = path
        self._server = server
        self._is_alone = is_alone
        self._settle_s = settle_s
        self._settles_at: float | None = None  # by the clock that only goes forward; None: nothing to settle
        self._restored = asyncio.Event()
        self._written: _HistoryFile | None = None
        self._restored_by = ""
        self.run_id = ulid.new_id(clock.now())

    async def begin(self) -> None:
        """Record this run; whether the store was restored is known when this returns."""
        before = await asyncio.to_thread(self._read)
        while True:
            known, revision = await self._runs(), await self._store.revision()
            noticed = await self._store.get(RESTORED_BY)
            was_restored = self._was_restored(before, known, revision)
            noticed_by = "" if noticed is None else noticed.value.decode()
            is_first = was_restored and (before is None or noticed_by == before.restored_by)
            run = ServerRun(self._server, ends_all=self._is_alone or is_first)
            ops: list[Op] = [Put(PREFIX + self.run_id, json_codec.encode(run))]
            expect = [Expect(PREFIX + self.run_id, ABSENT)]
            if is_first:
                ops.append(Put(RESTORED_BY, self.run_id.encode()))
                expect.append(Expect(RESTORED_BY, ABSENT if noticed is None else noticed.revision))
            oldest = sorted(known, key=lambda id: known[id][1])
            surplus = oldest[: max(0, min(len(oldest) - _MAX_RUNS, _MOST_AT_ONCE))]
            ops += [Delete(PREFIX + id) for id in surplus]
            try:
                await self._store.commit(ops, expect)
                break
            except errors.Conflict:
                continue  # another server has just noticed it
        self._restored_by = self.run_id if is_first else noticed_by
        await self._save_revision()
        if was_restored:
            await self.note_restored("the store is older than this server's last run")

    def _was_restored(self, before: _HistoryFile | None, known: Mapping[str, object], revision: int) -> bool:
        if before is None:  # a new data folder: what is in a store of its own came from elsewhere
            return self._is_alone and bool(known)
        return before.run not in known or revision < before.revision

    async def run(self) -> None:
        """Remember how far the store has come, for ever."""
        while True:
            await asyncio.sleep(_REMEMBER_S)
            await self.save_revision()

    async def save_revision(self) -> None:
        """Write the revision of the store to a file, unless the store or the disk fails: the last one serves,
        too."""
        try:
            await self._save_revision()
        except (errors.SkerryError, OSError) as error:
            log.warning("history.not_written", error=str(error))

    async def _save_revision(self) -> None:
        now = _HistoryFile(self.run_id, await self._store.revision(), self._restored_by)
        if now != self._written:
            data = json_codec.encode(now)
            await asyncio.to_thread(files.write_atomically, self._path, data, files.PRIVATE)
            self._written = now

    async def note_restored(self, reason: str) -> None:
        """The store was restored from a backup: let it settle, once in a run."""
        if self._settles_at is not None:
            return
        self._settles_at = self._clock.monotonic() + self._settle_s
        self._restored.set()
        log.warning("store.restored", reason=reason, settles_in_s=self._settle_s)
        await self._events.record("store.restored", f"server/{self._server}", actor="skerry", reason=reason)

    def stamp(self, revision: int) -> StoreStamp:
        return StoreStamp(self.run_id, revision)

    async def forgotten(self) -> Callable[[StoreStamp], bool]:
        """Whether the store was never at a stamp, by what it knows now."""
        runs, revision = await self._runs(), await self._store.revision()
        return lambda stamp: stamp.run != self.run_id and is_unknown(stamp, runs, revision)

    @property
    def is_settling(self) -> bool:
        return self._settles_at is not None and self._clock.monotonic() < self._settles_at

    async def restored(self) -> None:
        """Wait until it is known that the store was restored; for ever, if it was not."""
        await self._restored.wait()

    async def settled(self) -> None:
        """Wait until nothing is left to settle."""
        while self.is_settling:
            assert self._settles_at is not None
            await asyncio.sleep(self._settles_at - self._clock.monotonic())

    async def _runs(self) -> dict[str, tuple[ServerRun, int]]:
        entries = (await self._store.range(PREFIX)).entries
        return {
            entry.key.removeprefix(PREFIX): (json_codec.decode(entry.value, ServerRun), entry.revision)
            for entry in entries
        }

    def _read(self) -> _HistoryFile | None:
        try:
            return json_codec.decode(self._path.read_bytes(), _HistoryFile)
        except FileNotFoundError:
            return None
        except json_codec.InvalidJson as error:  # as if the store were another: it costs nothing but time
            log.warning("history.unreadable", file=str(self._path), error=str(error))
            return _HistoryFile("unreadable")
