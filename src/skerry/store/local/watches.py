"""Watches on a key space: each is a position in its history, not a queue of its own.

A watch is positioned before the next batch of its prefix, or at the newest revision, and costs no more than
that. A slow reader reads from history, and gets `Compacted` only if a batch that it has not read was dropped.
So memory is bounded however slow a reader is. `WatchSet.publish` is called after each merge; everything here
runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from types import TracebackType

from skerry.model import errors
from skerry.store.local.keyspace import KeySpace
from skerry.store.protocol import Batch


def compacted(since: int, oldest: int) -> errors.Compacted:
    """`oldest` is the earliest revision that can still be watched from, 0 if that is not known."""
    kept = f"; history goes back to {oldest}" if oldest else ""
    return errors.Compacted(
        f"the history after revision {since} is no longer kept{kept}: take a new snapshot, watch from there"
    )


def closed() -> errors.Unavailable:
    return errors.Unavailable("the store is closed, because this process is stopping; try again later")


class WatchSet:
    """The open watches on one tree."""

    def __init__(self, tree: KeySpace) -> None:
        self.tree = tree
        self.is_closed = False
        self.open: dict[KeySpaceWatch, None] = {}  # woken in this order, so that a simulation repeats itself

    def publish(self, before: int, batches: Sequence[Batch]) -> None:
        """The tree has just moved on from revision `before` by `batches`: move or wake every watch."""
        for watch in self.open:
            if watch.position >= before:  # otherwise it is before an older batch that its reader has not read
                watch.pass_over(batches)

    def close(self) -> None:
        self.is_closed = True
        for watch in self.open:
            watch.wake()


class KeySpaceWatch:
    """The context manager and the iterator of `Store.watch`."""

    def __init__(self, watchers: WatchSet, prefix: str, since: int) -> None:
        self.prefix = prefix
        self.position = since
        self._watchers = watchers
        self._woken: asyncio.Future[None] | None = None

    async def __aenter__(self) -> KeySpaceWatch:
        self._require_history()
        self._watchers.open[self] = None
        self.pass_over(self._watchers.tree.batches_after(self.position))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watchers.open.pop(self, None)
        self.wake()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self

    async def __anext__(self) -> Batch:
        while True:
            if self not in self._watchers.open:
                raise StopAsyncIteration
            self._require_history()
            if self.position < self._watchers.tree.revision:
                return self._take()
            await self._wait()

    def pass_over(self, batches: Iterable[Batch]) -> None:
        """Advance to the first of `batches` with this prefix, and wake the reader if there is one."""
        prefix = self.prefix
        for batch in batches:
            if batch.revision <= self.position:
                continue  # a watch from a later revision is not reached yet
            for change in batch.changes:
                if change.key.startswith(prefix):
                    self.wake()
                    return
            self.position = batch.revision

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
        if self.position < self._watchers.tree.floor:
            raise compacted(self.position, self._watchers.tree.floor)

    def _take(self) -> Batch:
        """The next batch, of which the reader gets only its prefix."""
        self.position += 1
        batch = self._watchers.tree.batch(self.position)
        mine = tuple(change for change in batch.changes if change.key.startswith(self.prefix))
        self.pass_over(self._watchers.tree.batches_after(self.position))
        return batch if len(mine) == len(batch.changes) else Batch(batch.revision, mine)
