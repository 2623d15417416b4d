"""Rows in the order of a value, equals in the order of ids: sorted once, and then kept.

What changed is noted and put in its place before the next look, all of it in one pass over the rows: a pass
over a hundred thousand costs less than looking at a thousand of them.
`skerry.market.provider.catalog.column_index` has the rows and says what their values are; nothing here knows
what is offered.
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

# Rows that are looked at in one go, at least: most of a page's worth of work is done by then.
_LOOK: Final = 4096


class SortedRows:
    """Some rows in order. `rows` come in the order of their ids."""

    def __init__(self, rows: RowNumbers, values: FloatColumn) -> None:
        places = np.argsort(values, kind="stable")
        self._rows = rows.take(places)
        self._values = values.take(places)
        self._stale: set[int] = set()

    @property
    def rows(self) -> RowNumbers:
        return self._rows

    @property
    def values(self) -> FloatColumn:
        return self._values

    @property
    def is_worn(self) -> bool:
        """True if so much has changed that sorting anew costs less than putting each in its place."""
        return len(self._stale) * 8 > len(self._rows)

    def touch(self, row: int) -> None:
        """Its value or its id changed, or it came, or it is gone."""
        self._stale.add(row)

    def settle(self, value_of: Callable[[int], float | None], id_of: Callable[[int], OfferId]) -> bool:
        """Put what was touched in its place; what has no value leaves. False if nothing was touched."""
        if not self._stale:
            return False
        stale = np.fromiter(self._stale, np.intp)
        is_stale = np.zeros(int(max(stale.max(), self._rows.max(initial=0))) + 1, np.bool_)
        is_stale[stale] = True
        stay = ~is_stale.take(self._rows)
        self._rows, self._values = self._rows[stay], self._values[stay]
        coming = sorted(
            (value, id_of(row), row) for row in self._stale if (value := value_of(row)) is not None
        )
        places = [self._begin(value, id, id_of) for value, id, _ in coming]
        self._rows = np.insert(self._rows, places, [row for *_, row in coming])
        self._values = np.insert(self._values, places, [value for value, *_ in coming])
        self._stale.clear()
        return True

    def behind(self, value: float, id: OfferId, id_of: Callable[[int], OfferId]) -> int:
        """Where the rows begin that stand behind that value and id."""
        begin, end = self._equals(value)
        return begin + bisect_right(self._rows[begin:end], id, key=id_of)

    def first(self, keep: BoolColumn, begin: int, count: int) -> RowNumbers:
        """The first `count` rows from place `begin` on that are to be kept."""
        found: list[RowNumbers] = []
        look = max(_LOOK, 2 * count)
        while count > 0 and begin < len(self._rows):
            rows = self._rows[begin : begin + look]
            selected = rows[keep.take(rows)][:count]
            found.append(selected)
            count -= len(selected)
            begin += look
            look *= 4
        return np.concatenate(found) if found else self._rows[:0]

    def _begin(self, value: float, id: OfferId, id_of: Callable[[int], OfferId]) -> int:
        begin, end = self._equals(value)
        return begin + bisect_left(self._rows[begin:end], id, key=id_of)

    def _equals(self, value: float) -> tuple[int, int]:
        return int(np.searchsorted(self._values, value, "left")), int(
            np.searchsorted(self._values, value, "right")
        )
