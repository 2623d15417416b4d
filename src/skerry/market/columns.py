"""Finding offers among very many: numpy columns over a catalogue, one row per offer.

Imported only when a catalogue has grown large. A search compares whole columns with the same numbers as
`skerry.market.selecting` does one by one, and so finds the same offers in the same order. A change writes one
row; only a flavor that comes or goes moves others, and those are row numbers in the order of ids.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from skerry.market.selecting import EVERYTHING, Offer, Place, Selector, Sort, cost, limit_of, unit_costs
from skerry.model.ids import FlavorId
from skerry.model.room import MOST, NOTHING

Numbers = NDArray[np.int32]
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]

# Columns of whole numbers: words as codes, what is shown, what is free, and the policies.
(
    _AVAILABLE,
    _KIND,
    _ARCHITECTURE,
    _LOCATION,
    _CURRENCY,
    _CPU,
    _MEMORY,
    _DISK,
    _FREE_CPU,
    _FREE_MEMORY,
    _FREE_DISK,
    _LEAST_CPU,
    _LEAST_MEMORY,
    _LEAST_DISK,
    _STEP_CPU,
    _STEP_MEMORY,
    _STEP_DISK,
    _IS_DIVISIBLE,
    _LEAST_COUNT,
    _MOST_COUNT,
    _COLUMNS,
) = range(21)
_PARTS = (
    (_CPU, _FREE_CPU, _LEAST_CPU, _STEP_CPU),
    (_MEMORY, _FREE_MEMORY, _LEAST_MEMORY, _STEP_MEMORY),
    (_DISK, _FREE_DISK, _LEAST_DISK, _STEP_DISK),
)
_SORTED_BY = {Sort.CPU: _CPU, Sort.MEMORY: _MEMORY, Sort.DISK: _DISK}
_UNKNOWN = -1


class Columns:
    """The offers as columns of numbers."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        ordered = sorted(offers, key=lambda offer: offer.flavor.id)
        self._words: dict[str, int] = {}
        self._offers: list[Offer] = ordered  # by row; a row of nobody keeps who was there last
        self._row_of = {offer.flavor.id: row for row, offer in enumerate(ordered)}
        self._ids = [offer.flavor.id for offer in ordered]
        self._order = np.arange(len(ordered), dtype=np.int32)  # rows in the order of ids
        self._empty: list[int] = []
        room = max(1024, 2 * len(ordered))
        self._table = np.zeros((_COLUMNS, room), np.int32)
        self._costs = np.zeros((4, room), np.float64)  # of a unit of each resource, and of what is shown
        if ordered:
            self._table[:, : len(ordered)] = np.array([self._row(offer) for offer in ordered], np.int32).T
            self._costs[:, : len(ordered)] = np.array([_costs(offer) for offer in ordered]).T

    def put(self, offer: Offer) -> None:
        id = offer.flavor.id
        row = self._row_of.get(id)
        if row is None:
            row = self._row_for(offer)
            at = bisect_left(self._ids, id)
            self._ids.insert(at, id)
            self._order = np.insert(self._order, at, row)
            self._row_of[id] = row
        self._offers[row] = offer
        self._table[:, row] = self._row(offer)
        self._costs[:, row] = _costs(offer)

    def drop(self, id: FlavorId) -> None:
        row = self._row_of.pop(id)
        at = bisect_left(self._ids, id)
        del self._ids[at]
        self._order = np.delete(self._order, at)
        self._table[_AVAILABLE, row] = 0
        self._empty.append(row)

    def find(self, selector: Selector, limit: int, begin: Place | None) -> tuple[list[Offer], int]:
        """The first `limit` that match, behind `begin`; and how many match at all."""
        places = np.flatnonzero(self._admitted(selector).take(self._order))
        rows = self._order.take(places)
        if selector.part is not None or selector.count is not None:
            can = self._can_be_taken(selector, rows)
            places, rows = places[can], rows[can]
        values = self._values(selector, rows)
        if selector.most_price is not None:
            costs = values if selector.sort is Sort.PRICE else self._cost(selector, rows)
            can = costs <= limit_of(selector.most_price)
            places, rows, values = places[can], rows[can], values[can]
        total = len(rows)
        if selector.is_descending:
            values = -values
        found: list[Offer] = []
        for group, chosen in self._groups(selector, rows):
            if begin is not None and group < begin.group:
                continue
            here, those = values[chosen], rows[chosen]
            if begin is not None and group == begin.group:
                behind = places[chosen] >= bisect_right(self._ids, begin.id)
                is_left = (here > begin.value) | ((here == begin.value) & behind)
                here, those = here[is_left], those[is_left]
            found += [self._offers[row] for row in those[_first(here, limit - len(found))].tolist()]
            if len(found) == limit:
                break
        return found, total

    def _admitted(self, selector: Selector) -> Bits:
        """Which rows pass everything that is a comparison with a column."""
        table = self._table
        admitted: Bits = table[_AVAILABLE] == 1
        for word, column in (
            (selector.kind, _KIND),
            (selector.architecture, _ARCHITECTURE),
            (selector.location, _LOCATION),
            ("" if selector.most_price is None else selector.most_price.currency, _CURRENCY),
        ):
            if word:
                admitted &= table[column] == self._words.get(word, _UNKNOWN)
        for exact, least, most, column in (
            (selector.cpu, selector.least_cpu, selector.most_cpu, _CPU),
            (selector.memory, selector.least_memory, selector.most_memory, _MEMORY),
            (selector.disk, selector.least_disk, selector.most_disk, _DISK),
        ):
            if exact is not None:
                admitted &= table[column] == exact
            if least is not None:
                admitted &= table[column] >= least
            if most is not None:
                admitted &= table[column] <= most
        if selector.part is not None:
            for (_, _, asked), (_, free, least, _) in zip(selector.part.parts(), _PARTS, strict=True):
                admitted &= table[free] >= asked
                admitted &= table[least] <= asked
        return admitted

    def _can_be_taken(self, selector: Selector, rows: Numbers) -> Bits:
        """Of which `rows` the part may be taken so many times, by their policies."""
        part, count = selector.part, 1 if selector.count is None else selector.count
        can: Bits = (self._column(_LEAST_COUNT, rows) <= count) & (self._column(_MOST_COUNT, rows) >= count)
        if part == NOTHING:
            can[:] = False
        is_whole = self._column(_IS_DIVISIBLE, rows) == 0
        amounts = (None, None, None) if part is None else [amount for *_, amount in part.parts()]
        for given, (column, free_column, least_column, step_column) in zip(amounts, _PARTS, strict=True):
            shown = self._column(column, rows)
            # Products of parts and counts are larger than what a column holds.
            asked = shown.astype(np.int64) if given is None else np.int64(given)
            rest = self._column(free_column, rows) - asked * count
            least, step = self._column(least_column, rows), self._column(step_column, rows)
            can &= (rest >= 0) & (asked >= least)
            can &= is_whole | (rest == 0) | (rest >= least)
            can &= ~is_whole | (asked == shown)
            if step.any():
                can &= ((asked - least) % np.maximum(step, 1) == 0) | (step == 0)
        return can

    def _values(self, selector: Selector, rows: Numbers) -> Floats:
        if selector.sort is Sort.PRICE:
            return self._cost(selector, rows)
        return self._column(_SORTED_BY[selector.sort], rows).astype(np.float64)

    def _cost(self, selector: Selector, rows: Numbers) -> Floats:
        cpu, memory, disk, shown = self._costs
        part = selector.part
        each: Floats
        if part is None:
            each = shown.take(rows)
        else:
            each = part.cpu * cpu.take(rows) + part.memory * memory.take(rows) + part.disk * disk.take(rows)
        return each * (selector.count or 1)

    def _column(self, column: int, rows: Numbers) -> Numbers:
        values: Numbers = self._table[column].take(rows)
        return values

    def _groups(self, selector: Selector, rows: Numbers) -> Iterator[tuple[str, slice | Bits]]:
        """Prices by currency, in the order of their names; anything else is one group."""
        if selector.sort is not Sort.PRICE:
            yield "", slice(None)
            return
        currencies = self._column(_CURRENCY, rows)
        there = np.flatnonzero(np.bincount(currencies, minlength=1)).tolist() if len(rows) else []
        words = {code: word for word, code in self._words.items() if code in there} if there else {}
        for word, code in sorted((word, code) for code, word in words.items()):
            yield word, slice(None) if len(there) == 1 else currencies == code

    def _row_for(self, offer: Offer) -> int:
        if self._empty:
            return self._empty.pop()
        row = len(self._offers)
        self._offers.append(offer)
        if row == self._table.shape[1]:
            self._table = np.pad(self._table, ((0, 0), (0, row)))
            self._costs = np.pad(self._costs, ((0, 0), (0, row)))
        return row

    def _row(self, offer: Offer) -> tuple[int, ...]:
        flavor, shown, free = offer.flavor, offer.shown, offer.free
        partition, together = flavor.partition, flavor.aggregation
        least = NOTHING if partition is None else partition.least
        step = NOTHING if partition is None else partition.step
        return (
            int(offer.is_available),
            self._code(flavor.kind),
            self._code(flavor.architecture),
            self._code(flavor.location),
            self._code(flavor.price.currency),
            shown.cpu,
            shown.memory,
            shown.disk,
            free.cpu,
            free.memory,
            free.disk,
            least.cpu,
            least.memory,
            least.disk,
            step.cpu,
            step.memory,
            step.disk,
            int(partition is not None),
            min(MOST, 1 if together is None else together.least),
            min(MOST, 1 if together is None else together.most),
        )

    def _code(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))


def _costs(offer: Offer) -> tuple[float, float, float, float]:
    return *unit_costs(offer.flavor), cost(offer, EVERYTHING)


def _first(values: Floats, count: int) -> NDArray[np.intp]:
    """Where the `count` least are, in order; the first of equals first."""
    if len(values) <= count:
        return np.argsort(values, kind="stable")
    if count < 1:
        return np.zeros(0, np.intp)
    bound = np.partition(values, count - 1)[count - 1]
    below = np.flatnonzero(values < bound)
    level = np.flatnonzero(values == bound)[: count - len(below)]
    chosen = np.sort(np.concatenate((below, level)))
    return chosen[np.argsort(values[chosen], kind="stable")]
