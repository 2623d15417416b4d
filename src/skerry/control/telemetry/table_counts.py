"""Records of a table, counted by their labels from its changes: a scrape costs as many steps as there are
series, however many records there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from skerry.store.tables.table import RecordChange, Table

T = TypeVar("T")
Labels = tuple[str, ...]


class TableCounts(Generic[T]):
    """How many records of `table` have the same labels; `labels_of` is None for those that do not count."""

    def __init__(self, table: Table[T], labels_of: Callable[[T], Labels | None]) -> None:
        self._labels_of = labels_of
        self._counts: Counter[Labels] = Counter()
        for value in table.values():
            self._add(value, 1)
        self._end = table.subscribe(self._changed)

    def __getitem__(self, labels: Labels) -> int:
        return self._counts.get(labels, 0)

    def items(self) -> Iterator[tuple[Labels, int]]:
        """Labels that some record has, in order."""
        yield from sorted(self._counts.items())

    def close(self) -> None:
        self._end()

    def _changed(self, changes: Sequence[RecordChange[T]]) -> None:
        for _, before, after in changes:
            if before is not None:
                self._add(before.value, -1)
            if after is not None:
                self._add(after.value, 1)

    def _add(self, value: T, step: int) -> None:
        labels = self._labels_of(value)
        if labels is None:
            return
        self._counts[labels] += step
        if not self._counts[labels]:
            del self._counts[labels]
