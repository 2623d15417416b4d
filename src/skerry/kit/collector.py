"""Keeps the pauses of Python's garbage collector short, however many objects there are.

A collection of the oldest generation looks at every object that is not frozen. So what survives one is
frozen, and the next looks only at what was made since. Reference counts still free frozen objects; only
cycles of them stay, until everything is collected together: at rest once there are half as many more than the
last time, and at work only once there are four times as many. `skerry.kit.loop_monitor` calls it.
"""

from __future__ import annotations

import gc
from typing import Final, Protocol

_GROWTH_AT_REST: Final = 1.5
_GROWTH_AT_WORK: Final = 4.0


class GarbageCollector(Protocol):
    """What is used of the module `gc`."""

    def freeze(self) -> None: ...

    def unfreeze(self) -> None: ...

    def collect(self) -> int: ...

    def get_freeze_count(self) -> int: ...


class CollectorTuning:
    """Freezes and unfreezes; to be told of each collection of the oldest generation, when it is over."""

    def __init__(self, collector: GarbageCollector = gc) -> None:
        self._collector = collector
        self._frozen = self._kept = 0  # now, and after the last collection of everything

    def start(self) -> None:
        """Freeze what there is: a program that has started keeps it."""
        self._collector.freeze()
        # Of nothing. The collector waits for a quarter of what survived the last one: that is nothing now.
        self._collector.collect()
        self._frozen = self._kept = self._collector.get_freeze_count()

    def collected(self) -> None:
        """Freeze what has survived a collection of the oldest generation."""
        self._collector.freeze()
        self._frozen = self._collector.get_freeze_count()

    def collect_frozen(self, *, is_at_rest: bool) -> bool:
        """Collect everything if it is time; True if it was."""
        growth = _GROWTH_AT_REST if is_at_rest else _GROWTH_AT_WORK
        if self._frozen <= self._kept * growth:
            return False
        self._collector.unfreeze()
        self._collector.collect()
        self.start()
        return True
