"""The default store: the tree in memory, made durable by a journal in one SQLite file, with group commit.

Steps that arrive while a commit is on its way to the disk wait together. When the disk is free they are all
evaluated in order on one draft, written in one transaction of the file by the writer thread, and only when
that is durable merged into the tree, shown to watches and answered. If the write fails, every step of the
group fails with `Unavailable` and the tree is as it was; if the disk is full, it is first tried again with
the disk's reserve (`skerry.kit.disk_reserve`). `skerry.store.sqlite.journal` knows the file; this module
knows the loop and the thread. Only the event loop's thread touches the tree, so there is no lock.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.store.local.keyspace import KeySpace, WriteSet
from skerry.store.local.store import LocalStore
from skerry.store.protocol import NO_LEASE, Batch
from skerry.store.sqlite import database
from skerry.store.sqlite.journal import CommitGroup, Journal, JournalCheckpoint, JournalContents

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Revisions that have left history are folded into the entries this many at a time: often enough that one
# commit is not held up, seldom enough that a key written often is folded once.
CHECKPOINT_EVERY = 256

# A lease that is made and ended: written to the file, and not there afterwards. No lease has that id.
_PROBE = CommitGroup(batches=(), granted=((NO_LEASE, 1),), ended=(NO_LEASE,))

GROUP_SIZE = metrics.histogram(
    "skerry_store_group_size", "Steps that were made durable by one commit", buckets=[1, 4, 16, 64, 256, 1024]
)
COMMIT_FAILURES = metrics.counter("skerry_store_commit_failures_total", "Commits that the disk refused")


@dataclass(slots=True)
class _QueuedWrite:
    """A step and who waits for it."""

    step: Callable[[WriteSet], Any]
    answer: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class SqliteStore(LocalStore):
    """`await SqliteStore.open(path, clock)`; a second process that opens the same file is refused."""

    def __init__(
        self,
        writer: _Writer,
        contents: JournalContents,
        clock: Clock,
        history: int,
        entropy: Callable[[int], int],
    ) -> None:
        tree = KeySpace(history=history, revision=contents.folded)
        tree.restore(contents.entries, contents.batches, contents.leases, clock.monotonic())
        super().__init__(tree, clock, entropy)
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_QueuedWrite] = []
        self._is_busy = False  # a group is being written, or is about to be
        self._failure: Exception | None = None  # of the last write
        self._folded = contents.folded
        trimmed = WriteSet(tree)  # the file may hold more history than is asked for
        trimmed.seal()
        self._merge(trimmed)
        self._unfolded = _keys_of(trimmed.departed)  # of revisions that left history and are not folded yet
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._closing: asyncio.Task[None] | None = None
        self._arm_leases()

    @classmethod
    async def open(
        cls,
        path: Path,
        clock: Clock,
        *,
        history: int = 10_000,
        entropy: Callable[[int], int] = secrets.randbits,
    ) -> SqliteStore:
        """Open or create the file. Raises `FailedPrecondition` if it is damaged, newer than this program, or
        in use."""
        writer = _Writer(path)
        try:
            contents = await writer.start()
        except BaseException:
            await writer.stop()
            raise
        return cls(writer, contents, clock, history, entropy)

    async def _submit(self, step: Callable[[WriteSet], T]) -> T:
        self._require_open()
        waiting = _QueuedWrite(step, self._loop.create_future())
        self._waiting.append(waiting)
        if not self._is_busy:
            self._schedule()
        answer: T = await waiting.answer
        return answer

    async def check_writes(self) -> None:
        """After a write that failed, and while none is under way, try one that changes nothing."""
        await super().check_writes()
        if self._failure is not None and not self._is_busy:
            await self._probe()
        if self._failure is not None:
            raise database.refused_by_disk(self._writer.path, self._failure)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._shut())
        await asyncio.shield(self._closing)

    async def _shut(self) -> None:
        await super().close()
        await self._at_rest.wait()
        await self._writer.stop()

    async def _probe(self) -> None:
        """Write as a group is written, without the disk's reserve: that is for those who have to write."""
        probed = self._loop.create_future()

        def written(failure: Exception | None) -> None:
            self._failure = failure
            if not probed.done():
                probed.set_result(None)
            self._go_on()

        self._is_busy = True
        self._at_rest.clear()
        self._writer.write(_PROBE, written)
        await probed

    def _schedule(self) -> None:
        # Not at once: tasks that are ready to run now may have something for the same group.
        self._is_busy = True
        self._at_rest.clear()
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Evaluate everything that waits and hand it to the writer."""
        waiting, self._waiting = self._waiting, []
        draft = WriteSet(self._tree)
        for one in waiting:
            try:
                one.result, one.error = one.step(draft), None
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this step
                one.error = error
        draft.seal()
        unfolded = self._unfolded | _keys_of(draft.departed)
        fold = None
        if draft.is_compacting or draft.floor - self._folded >= CHECKPOINT_EVERY:
            fold = JournalCheckpoint(draft.floor, [(key, draft.get(key)) for key in unfolded])
            unfolded = set()
        is_written = fold is not None or not draft.is_empty

        def written(failure: Exception | None) -> None:
            if is_written:
                self._failure = failure
            if failure is None:
                self._unfolded = unfolded
                self._folded = fold.revision if fold is not None else self._folded
                self._merge(draft)
                GROUP_SIZE.observe(len(waiting))
            self._answer(waiting, failure)

        if not is_written:
            written(None)
            return
        group = CommitGroup(
            batches=draft.batches,
            granted=[(lease, ttl_s) for lease, ttl_s in draft.granted.items() if lease not in draft.ended],
            ended=[lease for lease in draft.ended if lease not in draft.granted],
            fold=fold,
        )
        self._writer.write(group, written)

    def _answer(self, waiting: list[_QueuedWrite], failure: Exception | None) -> None:
        """The group is durable, or it failed and never was: tell everybody, then let the next one go."""
        if failure is not None:
            COMMIT_FAILURES.inc()
            log.error("store.commit_failed", path=str(self._writer.path), error=repr(failure))
            if database.can_retry(failure):
                self._waiting = [*waiting, *self._waiting]
                self._schedule()
                return
        for one in waiting:
            if one.answer.done():
                continue  # whoever waited was cancelled
            if failure is not None:
                one.answer.set_exception(database.refused_by_disk(self._writer.path, failure))
            elif one.error is not None:
                one.answer.set_exception(one.error)
            else:
                one.answer.set_result(one.result)
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._schedule()  # after those just answered have run, so what they bring comes along
        else:
            self._is_busy = False
            self._at_rest.set()


class _Writer:
    """The thread that owns the file. Takes one group at a time and reports back on the event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loop = asyncio.get_running_loop()
        self._orders: queue.SimpleQueue[tuple[CommitGroup, Callable[[Exception | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._opened: asyncio.Future[JournalContents] = self._loop.create_future()
        self._stopped = asyncio.Event()
        # A daemon, so that a program that ends without closing its store does end.
        self._thread = threading.Thread(target=self._run, name=f"store {path.name}", daemon=True)

    async def start(self) -> JournalContents:
        self._thread.start()
        return await asyncio.shield(self._opened)

    def write(self, group: CommitGroup, written: Callable[[Exception | None], None]) -> None:
        """Make the group durable, then call `written` on the loop with what went wrong, or None."""
        self._orders.put((group, written))

    async def stop(self) -> None:
        """Let the orders that were given finish, close the file and end the thread."""
        self._orders.put(None)
        await self._stopped.wait()
        self._thread.join()
        if self._opened.done() and not self._opened.cancelled():
            self._opened.exception()  # seen by `start`, unless that was cancelled

    def _run(self) -> None:
        try:
            journal = Journal(self.path)
        except Exception as error:  # noqa: BLE001 - raised again where `start` waits
            self._report(self._fail_opening, error)
            self._report(self._stopped.set)
            return
        try:
            self._report(self._opened.set_result, journal.load())
            while (order := self._orders.get()) is not None:
                group, written = order
                failure: Exception | None = None
                try:
                    journal.write(group)
                except Exception as error:  # noqa: BLE001 - raised again where the group's callers wait
                    failure = error
                if not self._report(written, failure):
                    return
        except Exception as error:  # noqa: BLE001 - loading failed; raised again where `start` waits
            self._report(self._fail_opening, error)
        finally:
            journal.close()
            self._report(self._stopped.set)

    def _fail_opening(self, error: Exception) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _report(self, callback: Callable[..., None], *values: Any) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:  # the loop was closed under us: nobody is left to tell
            return False
        return True


def _keys_of(batches: Iterable[Batch]) -> set[str]:
    return {change.key for batch in batches for change in batch.changes}
