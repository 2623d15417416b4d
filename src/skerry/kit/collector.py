"""Keeps the pauses of Python's garbage collector short, however many objects there are.

A collection of the oldest generation looks at every object that is not frozen. So what survives one is
frozen, and the next looks only at what was made since. Reference counts still free frozen objects; only
cycles of them stay, until everything is collected together: at rest once the program has half as much more
memory than the last time, and at work only once it has four times as much. That is counted in blocks of
Python's allocator, which takes microseconds; to count frozen objects is to visit each.
`skerry.kit.loop_monitor` calls it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Final, Protocol

_GROWTH_AT_REST: Final = 1.5
_GROWTH_AT_WORK: Final = 4.0


class GarbageCollector(Protocol):
    """What is used of the module `gc`."""

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def collect(self) -> int: ...


class CollectorTuning:
    """Freezes and unfreezes; to be told of each collection of the oldest generation, when it is over."""

    def __init__(
        self, collector: GarbageCollector = gc, blocks: Callable[[], int] = sys.getallocatedblocks
    ) -> None:
        self._collector = collector
        self._blocks = blocks
        self._used = self._kept = 0  # blocks, after the last collection and after that of everything

    def start(self) -> None:
        """Freeze what there is: a program that has started keeps it."""
        self._collector.freeze()
        # Of nothing. The collector waits for a quarter of what survived the last one: that is nothing now.
        self._collector.collect()
        self._used = self._kept = self._blocks()

    def collected(self) -> None:
        """Freeze what has survived a collection of the oldest generation."""
        self._collector.freeze()
        self._used = self._blocks()

    def collect_frozen(self, *, is_at_rest: bool) -> bool:
        """Collect everything if it is time; True if it was."""
        growth = _GROWTH_AT_REST if is_at_rest else _GROWTH_AT_WORK
        if self._used <= self._kept * growth:
            return False
        self._used = self._blocks()  # what was freed meanwhile was in no cycle
        if self._used <= self._kept * growth:
            return False
        self._collector.unfreeze()
        self._collector.collect()
        self.start()
        return True
