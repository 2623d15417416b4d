"""A round-robin queue: a function with many waiting calls does not block others. Pure."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class RoundRobinQueue(Generic[T]):
    """What waits, by line; true while anything does."""

    def __init__(self) -> None:
        self._lines: dict[str, deque[T]] = {}  # in the order in which they are served; none is empty

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: str, item: T, *, is_first: bool = False) -> None:
        """At the end of its line, or at its head."""
        waiting = self._lines.setdefault(line, deque())
        if is_first:
            waiting.appendleft(item)
        else:
            waiting.append(item)

    def take(self) -> T:
        """The first call of the next queue, which is then the last."""
        line = next(iter(self._lines))
        waiting = self._lines.pop(line)
        item = waiting.popleft()
        if waiting:
            self._lines[line] = waiting
        return item
