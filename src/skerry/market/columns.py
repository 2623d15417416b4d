"""Finding offers among very many: numpy columns over a catalogue, one row per offer.

Imported only when a catalogue has grown large. A search compares whole columns with the same numbers as
`skerry.market.selecting` does one by one, and so finds the same offers in the same order. What is the same of
many offers is looked at once: words, and policies. A change writes one row. Of what was found only the first
are put in order, and where they begin is guessed from a sample before everything is sorted through.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry.market.selecting import (
    EVERYTHING,
    Offer,
    Place,
    Selector,
    Sort,
    cost,
    limit_of,
    may_be_taken,
    unit_costs,
)
from skerry.model.ids import FlavorId
from skerry.model.room import MOST, NOTHING

Numbers = NDArray[np.int32]
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]
Rows = NDArray[np.intp]

# Columns of whole numbers: words and policies as codes, what is shown, and what is free.
(
    _AVAILABLE,
    _KIND,
    _ARCHITECTURE,
    _LOCATION,
    _CURRENCY,
    _POLICY,
    _CPU,
    _MEMORY,
    _DISK,
    _FREE_CPU,
    _FREE_MEMORY,
    _FREE_DISK,
    _IS_WHOLLY_SOLD,
    _COLUMNS,
) = range(14)
_RESOURCES: Final = ((_CPU, _FREE_CPU), (_MEMORY, _FREE_MEMORY), (_DISK, _FREE_DISK))
_SORTED_BY: Final = {Sort.CPU: _CPU, Sort.MEMORY: _MEMORY, Sort.DISK: _DISK}
_UNKNOWN: Final = -1
_LEAST_ROWS: Final = 1024
_SPARSE: Final = 8  # if less than one in so many is left, only those are looked at further
_SAMPLE: Final = 16


class Policy(NamedTuple):
    """In which parts, and how many at once, an offer is sold."""

    is_divisible: bool
    least: tuple[int, ...]
    step: tuple[int, ...]
    least_count: int
    most_count: int

    @classmethod
    def of(cls, offer: Offer) -> Policy:
        parts, together = offer.flavor.partition, offer.flavor.aggregation
        least = NOTHING if parts is None else parts.least
        step = NOTHING if parts is None else parts.step
        return cls(
            parts is not None,
            tuple(amount for *_, amount in least.parts()),
            tuple(amount for *_, amount in step.parts()),
            1 if together is None else together.least,
            1 if together is None else together.most,
        )

    def allows(self, amounts: tuple[int, ...] | None, count: int) -> bool:
        """Whether such a part may be taken so many times, as far as the policy alone says."""
        if not self.least_count <= count <= self.most_count:
            return False
        if amounts is None or not self.is_divisible:
            return True
        return all(
            asked >= least and not (step and (asked - least) % step)
            for asked, least, step in zip(amounts, self.least, self.step, strict=True)
        )


class Columns:
    """The offers as columns of numbers."""

    def __init__(self, offers: Iterable[Offer]) -> None:
        ordered = sorted(offers, key=lambda offer: offer.flavor.id)
        self._words: dict[str, int] = {}
        self._policies: dict[Policy, int] = {}
        self._currencies: Counter[str] = Counter(offer.flavor.price.currency for offer in ordered)
        self._offers: list[Offer] = ordered  # by row; a row of nobody keeps who was there last
        self._row_of = {offer.flavor.id: row for row, offer in enumerate(ordered)}
        self._ids = [offer.flavor.id for offer in ordered]
        self._empty: list[int] = []
        room = max(_LEAST_ROWS, 2 * len(ordered))
        self._table = np.zeros((_COLUMNS, room), np.int32)
        self._costs = np.zeros((4, room), np.float64)  # of a unit of each resource, and of what is shown
        if ordered:
            self._table[:, : len(ordered)] = np.array([self._row(offer) for offer in ordered], np.int32).T
            self._costs[:, : len(ordered)] = np.array([_costs(offer) for offer in ordered]).T
        self._ranks: NDArray[np.int32] | None = None  # the place of each row in the order of ids

    def put(self, offer: Offer) -> None:
        id = offer.flavor.id
        row = self._row_of.get(id)
        if row is None:
            row = self._row_for(offer)
            self._ids.insert(bisect_left(self._ids, id), id)
            self._row_of[id] = row
            self._ranks = None
        else:
            self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._offers[row] = offer
        self._currencies[offer.flavor.price.currency] += 1
        self._table[:, row] = self._row(offer)
        self._costs[:, row] = _costs(offer)

    def drop(self, id: FlavorId) -> None:
        row = self._row_of.pop(id)
        del self._ids[bisect_left(self._ids, id)]
        self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._table[_AVAILABLE, row] = 0
        self._empty.append(row)
        self._ranks = None

    def find(self, selector: Selector, limit: int, begin: Place | None) -> tuple[list[Offer], int]:
        """The first `limit` that match, behind `begin`; and how many match at all."""
        if not self._offers:
            return [], 0
        keep = self._admitted(selector)
        view = _View(self._table, self._costs, len(self._offers))
        if np.count_nonzero(keep) * _SPARSE < len(keep):
            view.rows = np.flatnonzero(keep)
            keep = np.ones(len(view.rows), np.bool_)
        if selector.part is not None or selector.count is not None:
            keep &= self._can_be_taken(selector, view)
        if selector.most_price is not None:
            keep &= view.cost(selector) <= limit_of(selector.most_price)
        total = int(np.count_nonzero(keep))
        found: list[Offer] = []
        if total:
            values = view.values(selector)
            for group, code in self._groups(selector):
                if len(found) == limit or (begin is not None and group < begin.group):
                    continue
                here = keep if code is None else keep & (view.column(_CURRENCY) == code)
                if begin is not None and group == begin.group:
                    behind = self._ranks_of(view.rows) >= bisect_right(self._ids, begin.id)
                    here = here & ((values > begin.value) | ((values == begin.value) & behind))
                found += self._first(view, np.flatnonzero(here), values, limit - len(found))
        return found, total

    def _admitted(self, selector: Selector) -> Bits:
        """Which rows pass everything that is a comparison with a column."""
        table = self._table[:, : len(self._offers)]
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
        return admitted

    def _can_be_taken(self, selector: Selector, view: _View) -> Bits:
        """Of which offers the part, or without one what is shown, may be taken so many times."""
        part, count = selector.part, 1 if selector.count is None else selector.count
        amounts = None if part is None else tuple(amount for *_, amount in part.parts())
        codes = view.column(_POLICY)
        if part == NOTHING or (amounts is not None and max(amounts) * count > MOST):
            return np.zeros(len(codes), np.bool_)
        policies = list(self._policies)
        is_divisible = np.array([policy.is_divisible for policy in policies], np.bool_).take(codes)
        can: Bits = np.array([policy.allows(amounts, count) for policy in policies], np.bool_).take(codes)
        if amounts is None:
            # All of what is shown of a divisible one is all that is free, and that is there once.
            can &= ~is_divisible | (view.column(_IS_WHOLLY_SOLD) == 1) & (count == 1)
        for number, (column, free_column) in enumerate(_RESOURCES):
            shown, free = view.column(column), view.column(free_column)
            if amounts is None:
                can &= free - shown.astype(np.int64) * count >= 0  # more than a column holds
                continue
            rest = free - np.int32(amounts[number] * count)
            can &= rest >= 0
            least = np.array([policy.least[number] for policy in policies], np.int32)
            if least.any():
                can &= (rest == 0) | (rest >= least.take(codes))
            if not is_divisible.all():
                can &= is_divisible | (shown == amounts[number])
        return can

    def _groups(self, selector: Selector) -> Iterator[tuple[str, int | None]]:
        """Prices by currency, in the order of their names; anything else is one group."""
        if selector.sort is not Sort.PRICE:
            yield "", None
            return
        there = sorted(word for word, count in self._currencies.items() if count)
        for word in there:
            yield word, None if len(there) == 1 else self._words[word]

    def _first(self, view: _View, places: Rows, values: Floats, count: int) -> list[Offer]:
        """The `count` least of what is at `places`, in order; of equals the first by id."""
        those = values.take(places)
        if len(places) > count:
            below, level = _split(those, count)
            missing = count - len(below)
            if len(level) > missing:
                ranks = self._ranks_of(view.rows_at(places.take(level)))
                level = level.take(np.concatenate(_split(ranks, missing)))
            chosen = np.concatenate((below, level))
            places, those = places.take(chosen), those.take(chosen)
        rows = view.rows_at(places)
        order = np.lexsort((self._ranks_of(rows), those))
        return [self._offers[row] for row in rows.take(order).tolist()]

    def _ranks_of(self, rows: Rows | None) -> Numbers:
        if self._ranks is None:
            self._ranks = np.zeros(len(self._offers), np.int32)
            self._ranks[[self._row_of[id] for id in self._ids]] = np.arange(len(self._ids), dtype=np.int32)
        ranks: Numbers = self._ranks if rows is None else self._ranks.take(rows)
        return ranks

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
        return (
            int(offer.is_available),
            self._code(flavor.kind),
            self._code(flavor.architecture),
            self._code(flavor.location),
            self._code(flavor.price.currency),
            self._policies.setdefault(Policy.of(offer), len(self._policies)),
            shown.cpu,
            shown.memory,
            shown.disk,
            free.cpu,
            free.memory,
            free.disk,
            int(may_be_taken(offer, EVERYTHING)),
        )

    def _code(self, word: str) -> int:
        return self._words.setdefault(word, len(self._words))


class _View:
    """All rows, or some of them if few are left."""

    def __init__(self, table: Numbers, costs: Floats, used: int) -> None:
        self._table = table[:, :used]
        self._costs = costs[:, :used]
        self.rows: Rows | None = None

    def column(self, column: int) -> Numbers:
        values: Numbers = self._table[column]
        return values if self.rows is None else values.take(self.rows)

    def rows_at(self, places: Rows) -> Rows:
        return places if self.rows is None else self.rows.take(places)

    def values(self, selector: Selector) -> Floats:
        """What offers are put in order by."""
        if selector.sort is Sort.PRICE:
            values = self.cost(selector)
        else:
            values = self.column(_SORTED_BY[selector.sort]).astype(np.float64)
        return -values if selector.is_descending else values

    def cost(self, selector: Selector) -> Floats:
        part, count = selector.part, selector.count or 1
        if part is None:
            each = self._cost(3)
        else:
            each = self._cost(0) * part.cpu + self._cost(1) * part.memory
            if part.disk:
                each += self._cost(2) * part.disk
        return each if count == 1 else each * count

    def _cost(self, number: int) -> Floats:
        values: Floats = self._costs[number]
        return values if self.rows is None else values.take(self.rows)


def _costs(offer: Offer) -> tuple[float, float, float, float]:
    return *unit_costs(offer.flavor), cost(offer, EVERYTHING)


def _split(values: NDArray[np.float64] | Numbers, count: int) -> tuple[Rows, Rows]:
    """Where the values are below the `count`-th least, and where they are equal to it."""
    if count < 1:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    likely: Rows | None = None
    if len(values) > _SAMPLE * _SAMPLE * count:
        # Among a sixteenth of them, the second sixteenth of what is wanted is above it almost surely.
        sample = values[::_SAMPLE]
        place = 2 * count // _SAMPLE + _SAMPLE
        likely = np.flatnonzero(values <= np.partition(sample, place)[place])
        if len(likely) < count:
            likely = None
    those = values if likely is None else values.take(likely)
    bound = np.partition(those, count - 1)[count - 1]
    below, level = np.flatnonzero(those < bound), np.flatnonzero(those == bound)
    return (below, level) if likely is None else (likely.take(below), likely.take(level))
