"""A cache of predicates over nodes, as columns of booleans.

Used by `skerry.schedule.columnar_search`, which reports rows that are inserted, deleted or changed. The least
recently used columns are dropped: there may be as many predicates as there are ports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from skerry.schedule.allocations import NodeAllocation

K = TypeVar("K", bound=Hashable)

MAX_MASKS = 64  # columns


class MaskCache(Generic[K]):
    """One column per predicate: for each row of `allocations`, whether `holds(predicate, allocation)`."""

    def __init__(
        self, allocations: Sequence[NodeAllocation], holds: Callable[[K, NodeAllocation], bool]
    ) -> None:
        self._allocations = allocations
        self._holds = holds
        self._masks: dict[K, NDArray[np.bool_]] = {}  # least recently used first

    def get(self, predicate: K) -> NDArray[np.bool_]:
        """The column of a predicate; callers must not write to it."""
        mask = self._masks.pop(predicate, None)
        if mask is None:
            if len(self._masks) >= MAX_MASKS:
                del self._masks[next(iter(self._masks))]
            answers = (self._holds(predicate, allocation) for allocation in self._allocations)
            mask = np.fromiter(answers, np.bool_, len(self._allocations))
        self._masks[predicate] = mask
        return mask

    def insert(self, row: int) -> None:
        """A row was inserted."""
        allocation = self._allocations[row]
        for predicate, mask in self._masks.items():
            self._masks[predicate] = np.insert(mask, row, self._holds(predicate, allocation))

    def delete(self, row: int) -> None:
        """A row was deleted."""
        for predicate, mask in self._masks.items():
            self._masks[predicate] = np.delete(mask, row)

    def update(self, row: int, predicates: Sequence[K] | None = None) -> None:
        """A row changed: for these predicates, or for all."""
        allocation = self._allocations[row]
        for predicate in self._masks if predicates is None else predicates:
            if predicate in self._masks:
                self._masks[predicate][row] = self._holds(predicate, allocation)
