"""What somebody is told: all of it first, and then what changes.

What waits to be told is what is so now, never a list of all that happened: whoever does not listen costs no
more than one set, and is told all of it anew when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# With more changes than this waiting, all of it anew is no more to send, and simpler to get right.
MAX_CHANGES: Final = 256


class FeedUpdate(NamedTuple, Generic[K, V]):
    """To be told. If it is whole there is nothing besides; `removed` is of changes."""

    is_full: bool
    present: tuple[V, ...]
    removed: tuple[K, ...] = ()


class ChangeFeed(Generic[K, V]):
    """One listener's. `everything` is asked when a whole set is told, and not before."""

    def __init__(self, everything: Callable[[], Sequence[V]]) -> None:
        self._everything = everything
        self._is_whole_due = True
        self._changes: dict[K, V | None] = {}

    def __len__(self) -> int:
        """How many changes wait."""
        return len(self._changes)

    def put(self, key: K, value: V | None) -> bool:
        """It is this now, or gone; False if that is told anyway, since all is."""
        if self._is_whole_due:
            return False
        self._changes[key] = value
        if len(self._changes) > MAX_CHANGES:
            self._is_whole_due = True
            self._changes.clear()
        return True

    def take(self) -> FeedUpdate[K, V] | None:
        """What is to be told now, once."""
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
