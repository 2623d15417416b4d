"""Watches on a tree: each is a place in the tree's own history, not a queue of its own.

A watcher that keeps up costs nothing but its place; one that falls behind reads on from history, and one that
falls behind history gets `Compacted`. So memory stays bounded however slow a reader is. `Watchers.publish` is
called after each merge; everything here runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from skerry.model import errors
from skerry.store.protocol import Batch
from skerry.store.tree import Tree


def compacted(since: int, oldest: int) -> errors.Compacted:
    """`oldest` is the earliest revision that can still be watched from, 0 if that is not known."""
    kept = f"; history goes back to {oldest}" if oldest else ""
    return errors.Compacted(
        f"the history after revision {since} is no longer kept{kept}: take a new snapshot, watch from there"
    )


def closed() -> errors.Unavailable:
    return errors.Unavailable("the store is closed, because this process is stopping; try again later")


class Watchers:
    """The open watches on one tree."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.is_closed = False
        self.open: set[Watch] = set()

    def publish(self, before: int, batches: Sequence[Batch]) -> None:
        """The tree has just moved on from revision `before` by `batches`: move or wake every watch."""
        keys = [change.key for batch in batches for change in batch.changes]
        now = self.tree.revision
        for watch in self.open:
            if watch.place < before:
                continue  # it is behind already, and will find these when it gets there
            prefix = watch.prefix
            for key in keys:
                if key.startswith(prefix):
                    watch.wake()
                    break
            else:
                watch.place = max(watch.place, now)

    def close(self) -> None:
        self.is_closed = True
        for watch in self.open:
            watch.wake()


class Watch:
    """One watch: the context manager and the iterator of `Store.watch`. `place` is the last revision seen."""

    def __init__(self, watchers: Watchers, prefix: str, since: int) -> None:
        self.prefix = prefix
        self.place = since
        self._watchers = watchers
        self._woken: asyncio.Future[None] | None = None

    async def __aenter__(self) -> AsyncIterator[Batch]:
        self._require_history()
        self._watchers.open.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchers.open.discard(self)
        self.wake()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while True:
            if self not in self._watchers.open:
                raise StopAsyncIteration
            self._require_history()
            batch = self._find()
            if batch is not None:
                return batch
            await self._wait()

    def wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait(self) -> None:
        if self._woken is None or self._woken.done():
            self._woken = asyncio.get_running_loop().create_future()
        # Shielded so that one reader that is cancelled does not take the signal from another.
        await asyncio.shield(self._woken)

    def _require_history(self) -> None:
        if self._watchers.is_closed:
            raise closed()
        if self.place < self._watchers.tree.floor:
            raise compacted(self.place, self._watchers.tree.floor)

    def _find(self) -> Batch | None:
        """The next batch for this watch, of which the reader sees only its prefix."""
        tree, prefix = self._watchers.tree, self.prefix
        while self.place < tree.revision:
            self.place += 1
            batch = tree.batch(self.place)
            mine = tuple(change for change in batch.changes if change.key.startswith(prefix))
            if mine:
                return batch if len(mine) == len(batch.changes) else Batch(batch.revision, mine)
        return None
