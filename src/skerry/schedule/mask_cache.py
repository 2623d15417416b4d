"""Kept answers to yes-or-no questions about nodes, as columns of booleans.

Used by `skerry.schedule.columnar_search`, which says when a row comes, goes or changes. The questions asked
last are kept, and the others forgotten: there may be as many as there are ports.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from skerry.schedule.allocations import NodeAllocation

K = TypeVar("K", bound=Hashable)

MAX_MASKS = 64  # questions


class MaskCache(Generic[K]):
    """One column per question: for each row of `accounts`, whether `holds(question, account)`."""

    def __init__(
        self, accounts: Sequence[NodeAllocation], holds: Callable[[K, NodeAllocation], bool]
    ) -> None:
        self._accounts = accounts
        self._holds = holds
        self._masks: dict[K, NDArray[np.bool_]] = {}  # the one asked last comes last

    def get(self, question: K) -> NDArray[np.bool_]:
        """The column of a question; not to be written to."""
        mask = self._masks.pop(question, None)
        if mask is None:
            if len(self._masks) >= MAX_MASKS:
                del self._masks[next(iter(self._masks))]
            answers = (self._holds(question, account) for account in self._accounts)
            mask = np.fromiter(answers, np.bool_, len(self._accounts))
        self._masks[question] = mask
        return mask

    def insert(self, row: int) -> None:
        """A row came."""
        account = self._accounts[row]
        for question, mask in self._masks.items():
            self._masks[question] = np.insert(mask, row, self._holds(question, account))

    def delete(self, row: int) -> None:
        """A row went."""
        for question, mask in self._masks.items():
            self._masks[question] = np.delete(mask, row)

    def update(self, row: int, questions: Sequence[K] | None = None) -> None:
        """The answers of a row changed: to these questions, or to any."""
        account = self._accounts[row]
        for question in self._masks if questions is None else questions:
            if question in self._masks:
                self._masks[question][row] = self._holds(question, account)
