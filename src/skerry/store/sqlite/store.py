"""The default store: the tree in memory, made durable by a journal in one SQLite file, with group commit.

Steps of a group (`skerry.store.sqlite.group_commit`) are evaluated in order on one draft, written in one
transaction of the file, and only when that is durable merged into the tree, published to watches and
acknowledged. If the write fails, the tree is as it was. `skerry.store.sqlite.journal` knows the file. Only
the event loop's thread touches the tree, so there is no lock.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from skerry.kit import metrics
from skerry.kit.clock import Clock
from skerry.store.local.keyspace import KeySpace, WriteSet
from skerry.store.local.store import LocalStore
from skerry.store.protocol import NO_LEASE, Batch
from skerry.store.sqlite import database
from skerry.store.sqlite.group_commit import GroupCommitter, StepGroup
from skerry.store.sqlite.journal import CommitGroup, Journal, JournalCheckpoint, JournalContents

T = TypeVar("T")
WriteStep = Callable[[WriteSet], Any]

# Revisions that have left history are folded into the entries this many at a time: often enough that one
# commit is not held up, seldom enough that a key written often is folded once.
CHECKPOINT_EVERY = 256

# A lease that is granted and ended: a write that leaves nothing. No lease has that id.
_PROBE = CommitGroup(batches=(), granted=((NO_LEASE, 1),), ended=(NO_LEASE,))

GROUP_SIZE = metrics.histogram(
    "skerry_store_group_size", "Steps that were made durable by one commit", buckets=[1, 4, 16, 64, 256, 1024]
)
COMMIT_FAILURES = metrics.counter("skerry_store_commit_failures_total", "Commits that the disk refused")


class SqliteStore(LocalStore):
    """`await SqliteStore.open(path, clock)`; a second process that opens the same file is refused."""

    def __init__(
        self,
        committer: GroupCommitter[Journal, WriteStep],
        contents: JournalContents,
        clock: Clock,
        history: int,
        entropy: Callable[[int], int],
    ) -> None:
        tree = KeySpace(history=history, revision=contents.folded)
        tree.restore(contents.entries, contents.batches, contents.leases, clock.monotonic())
        super().__init__(tree, clock, entropy)
        self._committer = committer
        committer.prepare = self._prepare
        self._failure: Exception | None = None  # of the last write
        self._folded = contents.folded
        trimmed = WriteSet(tree)  # the file may hold more history than is configured
        trimmed.seal()
        self._merge(trimmed)
        self._unfolded = _keys_of(trimmed.departed)  # of revisions that left history and are not folded yet
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
        committer: GroupCommitter[Journal, WriteStep] = GroupCommitter("store", path, lambda: Journal(path))
        contents = await committer.start(Journal.load)
        return cls(committer, contents, clock, history, entropy)

    async def _submit(self, step: Callable[[WriteSet], T]) -> T:
        self._require_open()
        answer: T = await self._committer.submit(step)
        return answer

    async def check_writes(self) -> None:
        """After a write that failed, and while none is under way, try one that changes nothing."""
        await super().check_writes()
        if self._failure is not None and not self._committer.is_busy:
            # Without the disk's reserve, which is for real writes.
            self._failure = await self._committer.attempt(lambda journal: journal.write(_PROBE))
        if self._failure is not None:
            raise database.refused_by_disk(self._committer.path, self._failure)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._shut())
        await asyncio.shield(self._closing)

    async def _shut(self) -> None:
        await super().close()
        await self._committer.stop()

    def _prepare(self, steps: Sequence[WriteStep]) -> StepGroup[Journal]:
        """Evaluate the steps; returns what to write."""
        draft = WriteSet(self._tree)
        answers: list[Any] = []
        for step in steps:
            try:
                answers.append(step(draft))
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for this step
                answers.append(error)
        draft.seal()
        unfolded = self._unfolded | _keys_of(draft.departed)
        fold = None
        if draft.is_compacting or draft.floor - self._folded >= CHECKPOINT_EVERY:
            fold = JournalCheckpoint(draft.floor, [(key, draft.get(key)) for key in unfolded])
            unfolded = set()
        is_written = fold is not None or not draft.is_empty

        def finish(failure: Exception | None) -> None:
            if is_written:
                self._failure = failure
            if failure is not None:
                COMMIT_FAILURES.inc()
                return
            self._unfolded = unfolded
            self._folded = fold.revision if fold is not None else self._folded
            self._merge(draft)
            GROUP_SIZE.observe(len(steps))

        if not is_written:
            return StepGroup(answers, None, finish)
        group = CommitGroup(
            batches=draft.batches,
            granted=[(lease, ttl_s) for lease, ttl_s in draft.granted.items() if lease not in draft.ended],
            ended=[lease for lease in draft.ended if lease not in draft.granted],
            fold=fold,
        )
        return StepGroup(answers, lambda journal: journal.write(group), finish)


def _keys_of(batches: Iterable[Batch]) -> set[str]:
    return {change.key for batch in batches for change in batch.changes}
