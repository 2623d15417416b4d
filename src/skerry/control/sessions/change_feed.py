"""A change feed: a snapshot first, and then changes.

Pending changes are merged to the present values, never a list of all that happened: a slow reader costs no
more than one snapshot, and gets a new one when it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# With more pending changes than this, a new snapshot is no more to send, and simpler.
MAX_CHANGES: Final = 256


class FeedUpdate(NamedTuple, Generic[K, V]):
    """An update. A whole one is a snapshot; `removed` is of changes."""

    is_full: bool
    present: tuple[V, ...]
    removed: tuple[K, ...] = ()


class ChangeFeed(Generic[K, V]):
    """The feed of one reader. `everything` is called when a snapshot is sent, and not before."""

    def __init__(self, everything: Callable[[], Sequence[V]]) -> None:
        self._everything = everything
        self._is_whole_due = True
        self._changes: dict[K, V | None] = {}

    def __len__(self) -> int:
        """How many changes wait."""
        return len(self._changes)

    def put(self, key: K, value: V | None) -> bool:
        """The value of a key has changed, or it was removed; False if a snapshot is pending anyway."""
        if self._is_whole_due:
            return False
        self._changes[key] = value
        if len(self._changes) > MAX_CHANGES:
            self._is_whole_due = True
            self._changes.clear()
        return True

    def take(self) -> FeedUpdate[K, V] | None:
        """The pending update, once."""
        if self._is_whole_due:
            self._is_whole_due = False
            return FeedUpdate(True, tuple(self._everything()))
        if not self._changes:
            return None
        changes, self._changes = self._changes, {}
        return FeedUpdate(
            False,
            tuple(value for value in changes.values() if value is not None),
            tuple(key for key, value in changes.items() if value is None),
        )
