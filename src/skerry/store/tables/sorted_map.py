"""A mapping in key order that can be read by prefix: what the tree and the views keep their entries in.

The typed face of `sortedcontainers`, which has no types of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")

_sorted: Any = SortedList


class SortedMap(Generic[T]):
    """`dict` for one key, sorted for many."""

    def __init__(self, values: Mapping[str, T] | None = None) -> None:
        self._values: dict[str, T] = dict(values or {})
        self._order: Any = _sorted(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> T | None:
        return self._values.get(key)

    def put(self, key: str, value: T) -> None:
        if key not in self._values:
            self._order.add(key)
        self._values[key] = value

    def remove(self, key: str) -> None:
        """Remove a key; an absent one is no error."""
        if key in self._values:
            del self._values[key]
            self._order.remove(key)

    def scan(self, prefix: str, after: str | None = None) -> Iterator[tuple[str, T]]:
        """Keys under `prefix` in order, behind `after` if it is given. Do not change the map meanwhile."""
        start, is_included = (prefix, True) if after is None else (after, False)
        for key in self._order.irange(minimum=start, inclusive=(is_included, True)):
            if not key.startswith(prefix):
                return
            yield key, self._values[key]
