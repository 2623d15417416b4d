"""Finding offers among very many: numpy columns over a catalogue, one row per offer.

Imported only when a catalogue has grown large. A search compares whole columns with the same numbers as
`skerry.market.selecting` does one by one, and so finds the same offers in the same order. What is the same of
many offers is looked at once: words, and policies. A change writes one row.

Orders that do not depend on who asks are kept (`skerry.market.orders`), so the first of very many are found
by looking at the first. Only the price of a part is another for every part: it is worked out for all that may
be taken, and where the first of them end is guessed from a sample, so that only those are looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skerry.market.orders import Bits, Floats, Order, Rows
from skerry.market.selecting import (
    EVERYTHING,
    Offer,
    Place,
    Selector,
    Sort,
    cost,
    limit_of,
    may_be_taken,
    place,
    unit_costs,
)
from skerry.model.ids import FlavorId
from skerry.model.room import MOST, NOTHING, Room

Numbers = NDArray[np.int32]
Codes = NDArray[Any]  # of 16 bits while that is enough

# Most of a search is waiting for memory, so a column is no wider than what is in it has to be.
_FLAGS: Final = 2
_AVAILABLE, _IS_WHOLLY_SOLD = range(_FLAGS)
_CODES: Final = 5
_KIND, _ARCHITECTURE, _LOCATION, _CURRENCY, _POLICY = range(_CODES)
_AMOUNTS: Final = 6
_CPU, _MEMORY, _DISK, _FREE_CPU, _FREE_MEMORY, _FREE_DISK = range(_AMOUNTS)
_COSTS: Final = 4  # of a unit of each resource, and of what is shown
_SHOWN: Final = (_CPU, _MEMORY, _DISK)
_FREE: Final = (_FREE_CPU, _FREE_MEMORY, _FREE_DISK)
_SORTED_BY: Final = {Sort.CPU: _CPU, Sort.MEMORY: _MEMORY, Sort.DISK: _DISK}
_NARROW: Final = 2**16 - 1  # codes below it, and no word has this one
_LEAST_ROWS: Final = 1024
_SPARSE: Final = 8  # if less than one in so many is left, only those are looked at further
_FEW: Final = 128  # so many are put in order one by one
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
        return cls(
            parts is not None,
            _amounts(NOTHING if parts is None else parts.least),
            _amounts(NOTHING if parts is None else parts.step),
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
        self._offers: list[Offer] = []  # by row; a row of nobody keeps who was there last
        self._row_of: dict[FlavorId, int] = {}
        self._empty: list[int] = []
        room = max(_LEAST_ROWS, 2 * len(ordered))
        self._flags = np.zeros((_FLAGS, room), np.bool_)
        self._codes: Codes = np.zeros((_CODES, room), np.uint16)
        self._amounts = np.zeros((_AMOUNTS, room), np.int32)
        self._costs = np.zeros((_COSTS, room), np.float64)
        for row, offer in enumerate(ordered):
            self._offers.append(offer)
            self._row_of[offer.flavor.id] = row
            self._write(row, offer)
        self._by_id = Order(np.arange(len(ordered)), np.zeros(len(ordered)))
        self._ranks: Rows | None = None  # the place of each row in the order of ids
        self._orders: dict[tuple[Sort, bool, str], Order] = {}

    def put(self, offer: Offer) -> None:
        id = offer.flavor.id
        row = self._row_of.get(id)
        if row is None:
            row = self._row_of[id] = self._row_for(offer)
            self._by_id.touch(row)
        else:
            self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._offers[row] = offer
        self._currencies[offer.flavor.price.currency] += 1
        self._write(row, offer)
        self._touch(row)

    def drop(self, id: FlavorId) -> None:
        row = self._row_of.pop(id)
        self._currencies[self._offers[row].flavor.price.currency] -= 1
        self._flags[_AVAILABLE, row] = False
        self._empty.append(row)
        self._touch(row)

    def find(self, selector: Selector, limit: int, begin: Place | None) -> tuple[list[Offer], int]:
        """The first `limit` that match, behind `begin`; and how many match at all."""
        view = _View(self._amounts, self._costs, len(self._offers), selector.part)
        keep = self._admitted(selector)
        if np.count_nonzero(keep) * _SPARSE < len(keep):
            view.rows = np.flatnonzero(keep)
            keep = np.ones(len(view.rows), np.bool_)
        if selector.part is not None or selector.count is not None:
            keep &= self._can_be_taken(selector, view)
        if selector.most_price is not None:
            keep &= view.cost() * (selector.count or 1) <= limit_of(selector.most_price)
        total = int(np.count_nonzero(keep))
        if total <= _FEW:
            few = [self._offers[row] for row in view.rows_at(np.flatnonzero(keep)).tolist()]
            return _sorted(few, selector, limit, begin), total
        if selector.part is not None and selector.sort is Sort.PRICE:
            rows = self._first_by_price(selector, view, keep, limit, begin)
        else:
            rows = self._first_in_order(selector, view.of_all(keep), limit, begin)
        return [self._offers[row] for row in rows], total

    def _admitted(self, selector: Selector) -> Bits:
        """Which rows pass everything that is a comparison with a column."""
        used = len(self._offers)
        admitted: Bits = self._flags[_AVAILABLE, :used].copy()
        for word, column in (
            (selector.kind, _KIND),
            (selector.architecture, _ARCHITECTURE),
            (selector.location, _LOCATION),
            ("" if selector.most_price is None else selector.most_price.currency, _CURRENCY),
        ):
            if word:
                admitted &= self._is(column, word)
        for exact, least, most, column in (
            (selector.cpu, selector.least_cpu, selector.most_cpu, _CPU),
            (selector.memory, selector.least_memory, selector.most_memory, _MEMORY),
            (selector.disk, selector.least_disk, selector.most_disk, _DISK),
        ):
            if exact is not None:
                admitted &= self._amounts[column, :used] == exact
            if least is not None:
                admitted &= self._amounts[column, :used] >= least
            if most is not None:
                admitted &= self._amounts[column, :used] <= most
        return admitted

    def _can_be_taken(self, selector: Selector, view: _View) -> Bits:
        """Of which offers the part, or without one what is shown, may be taken so many times."""
        part, count = selector.part, 1 if selector.count is None else selector.count
        codes = view.of(self._codes[_POLICY])
        can = np.zeros(len(codes), np.bool_)
        if part == NOTHING or (part is not None and max(_amounts(part)) * count > MOST):
            return can
        alike: dict[
            tuple[bool, tuple[int, ...]], Bits
        ] = {}  # what is the same for the offers of some policies
        for policy, code in self._policies.items():
            if policy.allows(None if part is None else _amounts(part), count):
                manner = (policy.is_divisible, policy.least)
                alike[manner] = alike[manner] | (codes == code) if manner in alike else codes == code
        for (is_divisible, least), among in alike.items():
            if part is not None and is_divisible:
                can |= self._parts_of(view, among, part, count, least)
            elif part is not None:
                can |= self._wholes_like(view, among, part, count)
            elif not is_divisible:
                can |= self._wholes_of(view, among, count)
            elif count == 1:
                # All of what is shown of a divisible one is all that is free, and that is there once.
                can |= among & view.of(self._flags[_IS_WHOLLY_SOLD])
        return can

    def _parts_of(self, view: _View, among: Bits, part: Room, count: int, least: tuple[int, ...]) -> Bits:
        """Where the part may be taken so many times, as what stays is nothing or at least that."""
        can = among
        for amount, column, at_least in zip(_amounts(part), _FREE, least, strict=True):
            if amount:  # whoever takes nothing of it leaves it as it is
                free, taken = view.amounts(column), amount * count
                can = can & ((free == taken) | (free >= taken + at_least))
        return can

    def _wholes_like(self, view: _View, among: Bits, part: Room, count: int) -> Bits:
        """Where the part is a whole one, and there are so many."""
        can: Bits = among & (view.amounts(_CPU) == part.cpu)
        places = np.flatnonzero(can)  # few are just so large
        for amount, shown, free in zip(_amounts(part), _SHOWN, _FREE, strict=True):
            is_alike = view.amounts(shown).take(places) == amount
            can[places] &= is_alike & (view.amounts(free).take(places) >= amount * count)
        return can

    def _wholes_of(self, view: _View, among: Bits, count: int) -> Bits:
        """Where there are so many of what is shown."""
        can = among
        for shown, free in zip(_SHOWN, _FREE, strict=True):
            # In numbers of twice the size: so many of it may be more than a column holds.
            can = can & (view.amounts(free) - view.amounts(shown).astype(np.int64) * count >= 0)
        return can

    def _first_in_order(self, selector: Selector, keep: Bits, limit: int, begin: Place | None) -> list[int]:
        """The first in an order that is kept."""
        found: list[int] = []
        for group in self._groups(selector):
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            order = self._order(selector, group)
            start = 0
            if begin is not None and group == begin.group:
                start = order.behind(begin.value, begin.id, self._id_of)
            found += order.first(keep, start, limit - len(found)).tolist()
        return found

    def _first_by_price(
        self, selector: Selector, view: _View, keep: Bits, limit: int, begin: Place | None
    ) -> list[int]:
        """The first by what the part costs."""
        values = view.cost()
        if selector.is_descending:
            values = -values
        groups = list(self._groups(selector))
        found: list[int] = []
        for group in groups:
            if len(found) == limit or (begin is not None and group < begin.group):
                continue
            here = keep if len(groups) == 1 else keep & view.of(self._is(_CURRENCY, group))
            if begin is not None and group == begin.group:
                here = here & (values >= begin.value)
                # Of those that cost the same, what stands behind it by its id.
                level = np.flatnonzero(here & (values == begin.value))
                before = self._ranks_of(view.rows_at(level)) < self._rank_behind(begin.id)
                here[level.take(np.flatnonzero(before))] = False
            places = _likely(here, values, limit - len(found))
            found += self._first(view.rows_at(places), values.take(places), limit - len(found))
        return found

    def _first(self, rows: Rows, values: Floats, count: int) -> list[int]:
        """The `count` rows of the least values, in order; of equals the first by id."""
        if len(rows) > count:
            below, level = _split(values, count)
            missing = count - len(below)
            if len(level) > missing:
                ranks = self._ranks_of(rows.take(level))
                level = level.take(np.concatenate(_split(ranks, missing)))
            chosen = np.concatenate((below, level))
            rows, values = rows.take(chosen), values.take(chosen)
        found: list[int] = rows.take(np.lexsort((self._ranks_of(rows), values))).tolist()
        return found

    def _groups(self, selector: Selector) -> Iterator[str]:
        """Prices by currency, in the order of their names; anything else is one group."""
        if selector.sort is not Sort.PRICE:
            return iter(("",))
        return iter(sorted(word for word, count in self._currencies.items() if count))

    def _order(self, selector: Selector, group: str) -> Order:
        """The order that a selector asks for, of one currency if it is one of prices."""
        key = (selector.sort, selector.is_descending, group)
        order = self._orders.get(key)
        if order is None or order.is_worn:
            rows = self._rows_by_id()
            is_in = self._flags[_AVAILABLE]
            if group:
                is_in = is_in[: len(self._offers)] & self._is(_CURRENCY, group)
            rows = rows[is_in.take(rows)]
            order = self._orders[key] = Order(rows, self._values(selector).take(rows))
        order.settle(self._value_in(selector, group), self._id_of)
        return order

    def _values(self, selector: Selector) -> Floats:
        """What rows are put in order by, unless that is the price of a part."""
        if selector.sort is Sort.PRICE:
            values: Floats = self._costs[3, : len(self._offers)]
        else:
            values = self._amounts[_SORTED_BY[selector.sort], : len(self._offers)].astype(np.float64)
        return -values if selector.is_descending else values

    def _value_in(self, selector: Selector, group: str) -> Callable[[int], float | None]:
        """The same of one row; None if it is not in the order."""

        def value(row: int) -> float | None:
            if not self._flags[_AVAILABLE, row]:
                return None
            found = place(self._offers[row], selector)
            return found.value if found.group == group else None

        return value

    def _ranks_of(self, rows: Rows) -> Rows:
        ordered = self._rows_by_id()
        if self._ranks is None:
            self._ranks = np.zeros(len(self._offers), np.intp)
            self._ranks[ordered] = np.arange(len(ordered))
        ranks: Rows = self._ranks.take(rows)
        return ranks

    def _rank_behind(self, id: FlavorId) -> int:
        """The rank of the first that stands behind that id."""
        self._rows_by_id()
        return self._by_id.behind(0.0, id, self._id_of)

    def _rows_by_id(self) -> Rows:
        """All rows in the order of ids; those of nobody are somewhere among them."""
        if self._by_id.settle(lambda row: 0.0, self._id_of):
            self._ranks = None
        return self._by_id.rows

    def _id_of(self, row: int) -> FlavorId:
        return self._offers[row].flavor.id

    def _touch(self, row: int) -> None:
        for order in self._orders.values():
            order.touch(row)

    def _is(self, column: int, word: str) -> Bits:
        """Where the word of a column is this one."""
        found: Bits = self._codes[column, : len(self._offers)] == self._words.get(word, _NARROW)
        return found

    def _row_for(self, offer: Offer) -> int:
        if self._empty:
            return self._empty.pop()
        row = len(self._offers)
        self._offers.append(offer)
        self._ranks = None
        if row == self._flags.shape[1]:
            more = ((0, 0), (0, row))
            self._flags, self._amounts = np.pad(self._flags, more), np.pad(self._amounts, more)
            self._codes, self._costs = np.pad(self._codes, more), np.pad(self._costs, more)
        return row

    def _write(self, row: int, offer: Offer) -> None:
        flavor = offer.flavor
        codes = [self._code(word) for word in (flavor.kind, flavor.architecture, flavor.location)]
        codes.append(self._code(flavor.price.currency))
        codes.append(self._policies.setdefault(Policy.of(offer), len(self._policies)))
        if max(codes) >= _NARROW and self._codes.dtype == np.uint16:
            self._codes = self._codes.astype(np.int32)
        self._flags[:, row] = offer.is_available, may_be_taken(offer, EVERYTHING)
        self._codes[:, row] = codes
        self._amounts[:, row] = *_amounts(offer.shown), *_amounts(offer.free)
        self._costs[:, row] = *unit_costs(flavor), cost(offer, None)

    def _code(self, word: str) -> int:
        # One code is for what is not known, wherever codes are still narrow.
        code = self._words.get(word)
        if code is None:
            number = len(self._words)
            code = self._words[word] = number if number < _NARROW else number + 1
        return code


class _View:
    """All rows, or some of them if few are left."""

    def __init__(self, amounts: Numbers, costs: Floats, used: int, part: Room | None) -> None:
        self._amounts = amounts
        self._costs = costs
        self._used = used
        self._part = part
        self._cost: Floats | None = None
        self.rows: Rows | None = None  # to be said before anything is asked for

    def of(self, column: NDArray[Any]) -> NDArray[Any]:
        """What a column has in these rows."""
        return column[: self._used] if self.rows is None else column.take(self.rows)

    def amounts(self, column: int) -> Numbers:
        """The same of a column of amounts."""
        found: Numbers = self.of(self._amounts[column])
        return found

    def rows_at(self, places: Rows) -> Rows:
        return places if self.rows is None else self.rows.take(places)

    def of_all(self, keep: Bits) -> Bits:
        """The same of all rows."""
        if self.rows is None:
            return keep
        all_ = np.zeros(self._used, np.bool_)
        all_[self.rows] = keep
        return all_

    def cost(self) -> Floats:
        """What one part costs a second, or all that is shown if no part is asked for."""
        if self._cost is None:
            part = self._part
            if part is None:
                self._cost = self.of(self._costs[3])
            else:
                self._cost = self.of(self._costs[0]) * part.cpu
                self._cost += self.of(self._costs[1]) * part.memory
                if part.disk:
                    self._cost += self.of(self._costs[2]) * part.disk
        return self._cost


def _amounts(room: Room) -> tuple[int, int, int]:
    return room.cpu, room.memory, room.disk


def _sorted(offers: list[Offer], selector: Selector, limit: int, begin: Place | None) -> list[Offer]:
    placed = sorted(((place(offer, selector), offer) for offer in offers), key=lambda pair: pair[0])
    return [offer for where, offer in placed if begin is None or where > begin][:limit]


def _likely(keep: Bits, values: Floats, count: int) -> Rows:
    """Where to find the `count` least of what is to be kept: there, or by chance somewhere else too."""
    # Among a sixteenth of them, the second sixteenth of what is wanted is above it almost surely.
    sample = values[::_SAMPLE][keep[::_SAMPLE]]
    place = 2 * count // _SAMPLE + _SAMPLE
    if place < len(sample):
        likely = np.flatnonzero(keep & (values <= np.partition(sample, place)[place]))
        if len(likely) >= count:
            return likely
    return np.flatnonzero(keep)


def _split(values: Floats | Rows, count: int) -> tuple[Rows, Rows]:
    """Where the values are below the `count`-th least, and where they are equal to it."""
    if count < 1:
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    bound = np.partition(values, count - 1)[count - 1]
    return np.flatnonzero(values < bound), np.flatnonzero(values == bound)
