"""The log of changes of offers, in the order of the store's revisions: a snapshot, and then the changes.

A subscriber has a position in one bounded history and no queue of its own, so a slow one costs nothing and
gets None when its position is no longer in it. The position is the store's revision, the same on every
server; each flavor's own `version` goes up by one with every change in this log.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from skerry.market.provider.ledger.records import OfferRecord
from skerry.model import errors


class OfferChange(msgspec.Struct, frozen=True):
    """A flavor as it was and as it is; None: it was, or is, not known."""

    before: OfferRecord | None
    after: OfferRecord | None


ChangeBatch = list[tuple[int, tuple[OfferChange, ...]]]


class OfferChangeLog:
    """The last changes, and where they are now. `accounts` gives all flavors at this moment."""

    def __init__(self, keep: int, accounts: Callable[[], Sequence[OfferRecord]]) -> None:
        self._accounts = accounts
        self._history: deque[tuple[int, tuple[OfferChange, ...]]] = deque(maxlen=keep)
        self._floor = 0  # changes up to this revision are not kept
        self._revision = 0
        self._number = 0  # of batches so far
        self._changed = asyncio.Event()

    @property
    def revision(self) -> int:
        """The position after the last change."""
        return self._revision

    def start(self, revision: int) -> None:
        """Start at this revision: followers of earlier ones need a snapshot."""
        self._history.clear()
        self._floor = self._revision = revision
        self._number += 1
        self._wake()

    def append(self, revision: int, changed: Sequence[OfferChange]) -> None:
        """The ledger has moved to `revision`."""
        if changed:
            if len(self._history) == self._history.maxlen:
                self._floor = self._history[0][0]
            self._history.append((revision, tuple(changed)))
            self._number += 1
            self._wake()
        self._revision = revision

    def snapshot(self) -> tuple[Sequence[OfferRecord], OfferWatcher]:
        """All offers now, and a follower of changes from now on."""
        return self._accounts(), OfferWatcher(self, self._number)

    def resume(self, revision: int) -> OfferWatcher:
        """A follower of what changed after `revision`; `Compacted` if not all of that is kept."""
        if not self._floor <= revision <= self._revision:
            raise errors.Compacted(
                f"changes after {revision} are not kept here, only after {self._floor} up to "
                f"{self._revision}; take a new snapshot"
            )
        behind = len(self._history) - bisect_right(self._history, revision, key=lambda entry: entry[0])
        return OfferWatcher(self, self._number - behind)

    async def _changes_after(self, number: int) -> None:
        while self._number == number:
            await self._changed.wait()

    def _after(self, number: int) -> ChangeBatch | None:
        behind = self._number - number
        if behind > len(self._history):
            return None
        return [self._history[index] for index in range(-behind, 0)]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class OfferWatcher:
    """Reads changes from its place on."""

    def __init__(self, changes: OfferChangeLog, number: int) -> None:
        self._changes = changes
        self._number = number

    def take(self) -> ChangeBatch | None:
        """All that changed since the last call, with the revision of each; None if more did than is kept."""
        batches = self._changes._after(self._number)
        if batches is not None:
            self._number += len(batches)
        return batches

    async def wait(self) -> None:
        """Wait until there is a change."""
        await self._changes._changes_after(self._number)
