"""Rows in the order of a value, equals in the order of ids: sorted once, and then kept.

Changed rows are collected and moved before the next search, all in one pass over the rows: a pass over a
hundred thousand costs less than checking a thousand of them. `skerry.market.provider.catalog.column_index`
has the rows and their values; nothing here knows offers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from skerry.model.ids import OfferId

RowNumbers = NDArray[np.intp]
FloatColumn = NDArray[np.float64]
BoolColumn = NDArray[np.bool_]

# Rows that are checked at once, at least: enough for most pages.
_CHECKED_AT_ONCE: Final = 4096


class SortedRows:
    """Some rows in order. `rows` come in the order of their ids."""

    def __init__(self, rows: RowNumbers, values: FloatColumn) -> None:
        places = np.argsort(values, kind="stable")
        self._rows = rows.take(places)
        self._values = values.take(places)
        self._touched: set[int] = set()

    @property
    def rows(self) -> RowNumbers:
        return self._rows

    @property
    def values(self) -> FloatColumn:
        return self._values

    @property
    def touched(self) -> int:
        """How many rows were touched since changes were merged."""
        return len(self._touched)

    @property
    def is_stale(self) -> bool:
        """True if so much has changed that sorting again costs less than moving each."""
        return len(self._touched) * 8 > len(self._rows)

    def touch(self, row: int) -> None:
        """Its value or its id changed, or it was added or removed."""
        self._touched.add(row)

    def merge_changes(self, value_of: Callable[[int], float | None], id_of: Callable[[int], OfferId]) -> bool:
        """Put what was touched in its place; what has no value leaves. False if nothing was touched."""
        if not self._touched:
            return False
        _, is_touched = self._flag_touched()
        stay = ~is_touched.take(self._rows)
        self._rows, self._values = self._rows[stay], self._values[stay]
        coming = sorted(
            (value, id_of(row), row) for row in self._touched if (value := value_of(row)) is not None
        )
        places = [self._begin(value, id, id_of) for value, id, _ in coming]
        self._rows = np.insert(self._rows, places, [row for *_, row in coming])
        self._values = np.insert(self._values, places, [value for value, *_ in coming])
        self._touched.clear()
        return True

    def after(self, value: float, id: OfferId, id_of: Callable[[int], OfferId]) -> int:
        """The position of the first row after that value and id."""
        begin, end = self._equals(value)
        return begin + bisect_right(self._rows[begin:end], id, key=id_of)

    def count_between(self, low: float, high: float) -> int:
        """How many rows have a value from `low` to `high`, as far as changes are merged."""
        return self._equals(high)[1] - self._equals(low)[0]

    def between_or_touched(self, low: float, high: float) -> RowNumbers:
        """These rows, and all that were touched since changes were merged; in no order."""
        rows = self._rows[self._equals(low)[0] : self._equals(high)[1]]
        if not self._touched:
            return rows
        touched, is_touched = self._flag_touched()
        return np.concatenate((rows[~is_touched.take(rows)], touched))

    def first(self, keep: BoolColumn, begin: int, count: int) -> RowNumbers:
        """The first `count` rows from place `begin` on that are to be kept."""
        found: list[RowNumbers] = []
        look = max(_CHECKED_AT_ONCE, 2 * count)
        while count > 0 and begin < len(self._rows):
            rows = self._rows[begin : begin + look]
            selected = rows[keep.take(rows)][:count]
            found.append(selected)
            count -= len(selected)
            begin += look
            look *= 4
        return np.concatenate(found) if found else self._rows[:0]

    def _flag_touched(self) -> tuple[RowNumbers, BoolColumn]:
        touched = np.fromiter(self._touched, np.intp)
        is_touched = np.zeros(int(max(touched.max(), self._rows.max(initial=0))) + 1, np.bool_)
        is_touched[touched] = True
        return touched, is_touched

    def _begin(self, value: float, id: OfferId, id_of: Callable[[int], OfferId]) -> int:
        begin, end = self._equals(value)
        return begin + bisect_left(self._rows[begin:end], id, key=id_of)

    def _equals(self, value: float) -> tuple[int, int]:
        return int(np.searchsorted(self._values, value, "left")), int(
            np.searchsorted(self._values, value, "right")
        )
