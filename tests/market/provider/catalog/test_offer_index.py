"""Which offers a selector means, in which order, one by one and by columns."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.market.provider.catalog import column_index, columns
from skerry.market.provider.catalog.offer_index import OfferIndex
from skerry.market.provider.catalog.sorted_rows import SortedRows
from skerry.market.terms.selectors import (
    EVERYTHING,
    OfferCursor,
    OfferPage,
    OfferSelector,
    OfferSnapshot,
    OfferSort,
    matches,
)
from skerry.model import errors
from skerry.model.ids import CloudId, OfferId
from skerry.model.market import Aggregation, Offer, Partition, Price
from skerry.model.resources import NO_RESOURCES, Gigabytes, Megabytes, Millicores, Resources

PRICE = Price(Decimal("0.10"), "EUR", "PT1H")


def resources(cpu: int = 0, memory: int = 0, disk: int = 0) -> Resources:
    return Resources(Millicores(cpu), Megabytes(memory), Gigabytes(disk))


PARTS = Partition(resources(1000, 512), resources(1000, 512))
WHOLE = resources(8000, 16384, 100)


def offer(id: str = "f-1", free: Resources | None = None, **changes: Any) -> OfferSnapshot:
    flavor = Offer(
        **{
            "id": OfferId(id),
            "provider": CloudId("north"),
            "kind": "k8slice",
            "resources": WHOLE,
            "price": PRICE,
            "created_at": 1.0,
            "architecture": "amd64",
            "partition": PARTS,
            **changes,
        }
    )
    return OfferSnapshot(flavor, flavor.whole if free is None else free)


def ids(page: OfferPage) -> list[str]:
    return [found.flavor.id for found in page.offers]


@pytest.mark.parametrize(
    ("wanted", "is_meant"),
    [
        ({}, True),
        ({"kind": "k8slice"}, True),
        ({"kind": "K8slice"}, False),
        ({"architecture": "arm64"}, False),
        ({"location": "Oslo"}, False),
        ({"cpu": 8000}, True),
        ({"cpu": 2000}, False),
        ({"memory": 16384, "disk": 100}, True),
        ({"least_cpu": 8000, "most_cpu": 8000}, True),
        ({"least_cpu": 8001}, False),
        ({"most_memory": 16383}, False),
        ({"least_disk": 100}, True),
        ({"most_disk": 99}, False),
        ({"part": resources(2000, 1024)}, True),
        ({"part": resources(2500, 1024)}, False),  # not a step
        ({"part": resources(500, 1024)}, False),  # too small
        ({"part": resources(9000, 1024)}, False),  # too large
        ({"part": resources(2000, 16384 - 256)}, False),  # what stays is too small
        ({"part": WHOLE}, True),
        ({"part": NO_RESOURCES}, False),
        ({"part": resources(2000, 1024), "count": 2}, False),  # one at a time
        ({"count": 1}, True),
        ({"most_price": PRICE}, True),
        ({"most_price": Price(Decimal("2.40"), "EUR", "P1D")}, True),
        ({"most_price": Price(Decimal("0.0999"), "EUR", "PT1H")}, False),
        ({"most_price": Price(Decimal(100), "USD", "PT1H")}, False),
        # Half of the cpu, a quarter of the memory and nothing of the disk are a quarter of it.
        ({"part": resources(4000, 4096), "most_price": Price(Decimal("0.025"), "EUR", "PT1H")}, True),
        ({"part": resources(4000, 4096), "most_price": Price(Decimal("0.0249"), "EUR", "PT1H")}, False),
    ],
)
def test_what_a_selector_means(wanted: dict[str, Any], is_meant: bool) -> None:
    selector = OfferSelector(**wanted)
    assert matches(offer(), selector) is is_meant
    for many in (0, 100):
        assert ids(OfferIndex([offer()], many=many).find(selector)) == (["f-1"] if is_meant else [])


def test_what_is_free_counts_and_not_what_there_was() -> None:
    left = offer(free=resources(2000, 1024))
    assert matches(left, OfferSelector(cpu=2000))
    assert not matches(left, OfferSelector(cpu=8000))
    assert not matches(left, OfferSelector(part=resources(3000, 512)))


@pytest.mark.parametrize(
    ("some", "is_available"),
    [
        (offer(free=NO_RESOURCES), False),
        (offer(free=resources(500, 16384)), False),  # less than the least part
        (offer(free=resources(1000, 512)), True),
        (offer(partition=None), True),
        (offer(partition=None, free=resources(7000, 16384, 100)), False),
        (offer(partition=None, stock=3, free=WHOLE), True),
        (offer(partition=None, stock=3, aggregation=Aggregation(2, 3), free=WHOLE), False),
        (offer(partition=None, stock=3, aggregation=Aggregation(2, 3), free=WHOLE * 2), True),
    ],
)
def test_an_offer_of_which_nothing_may_be_taken_is_never_found(
    some: OfferSnapshot, is_available: bool
) -> None:
    assert some.is_available is is_available
    for many in (0, 100):
        assert len(OfferIndex([some], many=many).find(EVERYTHING).offers) == is_available


def test_whole_ones_are_shown_one_by_one_with_their_count() -> None:
    three = offer(partition=None, stock=3, aggregation=Aggregation(1, 2))
    assert (three.shown, three.count) == (WHOLE, 3)
    assert matches(three, OfferSelector(cpu=8000, count=2))
    assert not matches(three, OfferSelector(count=3))  # against its policy
    assert not matches(
        offer(partition=None, stock=3, aggregation=Aggregation(1, 3), free=WHOLE), OfferSelector(count=2)
    )


@pytest.mark.parametrize("many", [0, 100])
def test_the_cheapest_is_first_then_the_id_and_currencies_are_apart(many: int) -> None:
    dear, cheap = Price(Decimal(1), "EUR", "PT1H"), Price(Decimal("0.5"), "EUR", "PT30M")
    catalogue = OfferIndex(
        [
            offer("f-3", price=dear),
            offer("f-2", price=cheap),  # the same for an hour
            offer("f-1", price=Price(Decimal("0.01"), "USD", "PT1H")),
            offer("f-4", price=PRICE),
        ],
        many=many,
    )
    assert ids(catalogue.find(EVERYTHING)) == ["f-4", "f-2", "f-3", "f-1"]
    assert ids(catalogue.find(OfferSelector(is_descending=True))) == ["f-2", "f-3", "f-4", "f-1"]


def test_no_order_is_kept_for_a_currency_that_nobody_sells_in() -> None:
    """Or who asks in many would have every change of an offer noted in as many orders."""
    found = column_index.OfferColumnIndex([offer()])
    for currency in ("EUR", "AAA", "AAB", "AAC"):
        for part in (None, resources(1000, 512)):
            most = Price(Decimal(1), currency, "PT1H")
            assert bool(found.find(OfferSelector(most_price=most, part=part), 1, None)) is (currency == "EUR")
    assert {group for _, group in found._orders} == {"", "EUR"}  # "" is that of cpu


@pytest.mark.parametrize("many", [0, 100])
def test_a_part_of_something_large_may_be_cheaper_than_something_small(many: int) -> None:
    catalogue = OfferIndex([offer("small", resources=resources(2000, 4096)), offer("large")], many=many)
    assert ids(catalogue.find(EVERYTHING)) == ["large", "small"]  # they cost the same
    assert ids(catalogue.find(OfferSelector(part=resources(2000, 4096)))) == ["large", "small"]
    assert ids(catalogue.find(OfferSelector(sort=OfferSort.CPU))) == ["small", "large"]


def test_a_token_that_is_none_is_refused() -> None:
    for token in ("?", "AAAA", "e30", "WyJhIl0", "é"):
        with pytest.raises(errors.Invalid, match="begin again"):
            OfferIndex().find(EVERYTHING, after=token)


@pytest.mark.parametrize("many", [0, 100])
def test_pages_go_on_behind_an_offer_that_is_gone(many: int) -> None:
    catalogue = OfferIndex([offer(f"f-{number}") for number in range(5)], many=many)
    first = catalogue.find(EVERYTHING, limit=2)
    assert ids(first) == ["f-0", "f-1"]
    catalogue.drop(OfferId("f-1"))
    catalogue.drop(OfferId("f-1"))
    catalogue.put(offer("f-00"))
    second = catalogue.find(EVERYTHING, limit=2, after=first.following)
    assert ids(second) == ["f-2", "f-3"]
    last = catalogue.find(EVERYTHING, limit=2, after=second.following)
    assert (ids(last), last.following) == (["f-4"], "")


ROOMS = st.builds(
    resources,
    st.integers(0, 4).map(lambda n: n * 500),
    st.integers(0, 4).map(lambda n: n * 256),
    st.integers(0, 3),
)
PRICES = st.builds(
    Price,
    st.sampled_from([Decimal(0), Decimal("0.05"), Decimal("0.1"), Decimal(3)]),
    st.sampled_from(["EUR", "USD"]),
    st.sampled_from(["PT1H", "PT30M", "P1M", "P1W"]),
)


@st.composite
def offers(draw: st.DrawFn) -> OfferSnapshot:
    of_one = draw(ROOMS)
    is_divisible = draw(st.booleans())
    stock = 1 if is_divisible else draw(st.integers(1, 3))
    least = draw(st.integers(1, 3))
    flavor = Offer(
        id=OfferId(f"f-{draw(st.integers(0, 30)):02}"),
        provider=CloudId("north"),
        kind=draw(st.sampled_from(["k8slice", "vm"])),
        resources=of_one,
        price=draw(PRICES),
        created_at=1.0,
        architecture=draw(st.sampled_from(["", "amd64", "arm64"])),
        partition=Partition(draw(ROOMS), draw(ROOMS)) if is_divisible else None,
        aggregation=draw(st.none() | st.builds(Aggregation, st.just(least), st.integers(least, 4))),
        stock=stock,
        location=draw(st.sampled_from(["", "Oslo"])),
    )
    if is_divisible:
        taken = draw(ROOMS)
        free = flavor.whole.lack(NO_RESOURCES) if not flavor.whole.fits(taken) else flavor.whole - taken
    else:
        free = of_one * draw(st.integers(0, stock))
    return OfferSnapshot(flavor, free)


# Of these a part can almost always be had, and at another price a part.
PLAIN = st.builds(
    lambda id, cpu, memory, disk, amount, currency: offer(
        id,
        resources=resources(500 * cpu, 256 * memory, disk),
        price=Price(Decimal(amount) / 8, currency, "PT1H"),
        partition=Partition(resources(500, 256), resources(500, 256)),
    ),
    st.integers(0, 99).map(lambda number: f"f-{number:02}"),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(0, 2),
    st.integers(0, 9),
    st.sampled_from(["EUR", "EUR", "EUR", "USD"]),
)


AMOUNTS = st.none() | st.sampled_from([-1, 0, 1, 2, 256, 500, 512, 1000, 2**31 - 1, 2**31, 2**70])
SELECTORS = st.builds(
    OfferSelector,
    kind=st.sampled_from(["", "", "vm", "other"]),
    architecture=st.sampled_from(["", "", "arm64"]),
    location=st.sampled_from(["", "", "Oslo"]),
    cpu=st.none() | AMOUNTS,
    least_cpu=AMOUNTS,
    most_cpu=st.none() | AMOUNTS,
    least_memory=AMOUNTS,
    most_disk=AMOUNTS,
    most_price=st.none() | PRICES | st.just(Price(Decimal(1), "GBP", "PT1H")),
    part=st.none() | ROOMS,
    count=st.none() | st.integers(1, 4) | st.sampled_from([0, 2**31, 2**70]),
    sort=st.sampled_from(OfferSort),
    is_descending=st.booleans(),
)
# Most buyers narrow little down, and only then pages are full.
BROAD = st.builds(
    OfferSelector,
    part=st.sampled_from(
        [
            None,
            resources(500, 256),
            resources(500, 256),
            resources(1000, 256),
            resources(500, 512, 1),
            resources(500),
        ]
    ),
    sort=st.sampled_from([OfferSort.PRICE, OfferSort.PRICE, OfferSort.CPU]),
    is_descending=st.sampled_from([False, False, True]),
)
IDS = st.integers(0, 30).map(lambda number: OfferId(f"f-{number:02}"))
PLACES = st.builds(
    OfferCursor,
    st.sampled_from(["", "EUR", "FOO", "USD", "ZZZ"]),
    st.sampled_from([-1000.0, -0.0, 0.0, 1e-5, 1000.0]),
    IDS | st.just(OfferId("")),
)


@settings(deadline=None)
@given(
    st.lists(offers(), max_size=25) | st.lists(PLAIN, min_size=10, max_size=40),
    st.lists(offers() | PLAIN | IDS, max_size=8),
    st.lists(SELECTORS | BROAD, min_size=1, max_size=3),
    PLACES,
    st.integers(1, 4),
    st.data(),
)
def test_an_index_finds_what_is_found_one_by_one(
    before: list[OfferSnapshot],
    steps: list[OfferSnapshot | OfferId],
    selectors: list[OfferSelector],
    anywhere: OfferCursor,
    limit: int,
    data: st.DataObject,
) -> None:
    """Also if few are taken for many, and while offers come, change and go between searches."""
    with pytest.MonkeyPatch.context() as patch:
        for name, numbers in {"_FEW": [0, 128], "_FIRST_ROWS": [1, 8, 1024], "_SAMPLE": [2, 64]}.items():
            patch.setattr(column_index, name, data.draw(st.sampled_from(numbers), name))
        patch.setattr(column_index, "_MARGIN", 0)
        for name, numbers in {"_RANGE_SHARE": [0, 2, 8], "_TOUCHED": [0, 2, 64]}.items():
            patch.setattr(column_index, name, data.draw(st.sampled_from(numbers), name))
        patch.setattr(
            column_index, "_MOST_UNLIKE", data.draw(st.sampled_from([1.0, 8.0, 1e9]), "_MOST_UNLIKE")
        )
        patch.setattr(columns, "_SPARSE", data.draw(st.sampled_from([0, 8, 1000]), "_SPARSE"))
        small, large = OfferIndex(before, many=1000), OfferIndex(before, many=0)
        compare(small, large, selectors, limit, anywhere)
        for step in steps:
            for catalogue in (small, large):
                if isinstance(step, OfferSnapshot):
                    catalogue.put(step)
                else:
                    catalogue.drop(step)
            compare(small, large, selectors, limit, anywhere)
        for selector in selectors:
            compare_pages(small, large, selector, limit)


def compare(
    small: OfferIndex, large: OfferIndex, selectors: list[OfferSelector], limit: int, anywhere: OfferCursor
) -> None:
    for selector in selectors:
        assert large.find(selector, limit=limit) == small.find(selector, limit=limit)
        # A token may be older than the list, of another one, or made up.
        behind = [one.find(selector, limit=limit, after=anywhere.token()) for one in (small, large)]
        assert behind[0] == behind[1]


def compare_pages(small: OfferIndex, large: OfferIndex, selector: OfferSelector, limit: int) -> None:
    everything = small.find(selector)
    assert large.find(selector) == everything
    assert len(everything.offers) == sum(matches(some, selector) for some in small)
    paged: list[OfferSnapshot] = []
    token = ""
    for _ in range(len(small) + 1):
        pages = [catalogue.find(selector, limit=limit, after=token) for catalogue in (small, large)]
        assert pages[0] == pages[1]
        paged += pages[0].offers
        if not (token := pages[0].following):
            break
    assert paged == list(everything.offers)


@pytest.mark.parametrize("sort", list(OfferSort))
@pytest.mark.parametrize("is_descending", [False, True])
def test_the_first_of_thousands_are_found_without_sorting_them_all(
    sort: OfferSort, is_descending: bool
) -> None:
    some = [
        offer(
            f"f-{number * 7919 % 3001:04}",
            resources=resources(1000 * (1 + number * 31 % 17), 512 * (1 + number * 17 % 23), number % 5),
            price=Price(Decimal(1 + number * 13 % 11) / 100, "EUR", "PT1H"),
        )
        for number in range(3000)
    ]
    small, large = OfferIndex(some, many=10_000), OfferIndex(some, many=0)
    for selector in (
        OfferSelector(sort=sort, is_descending=is_descending),
        OfferSelector(sort=sort, is_descending=is_descending, part=resources(1000, 1024)),
        OfferSelector(sort=sort, is_descending=is_descending, least_cpu=16000, most_memory=4000),
    ):
        first = small.find(selector, limit=5)
        assert large.find(selector, limit=5) == first
        assert large.find(selector, limit=5, after=first.following) == small.find(
            selector, limit=5, after=first.following
        )


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.lists(st.lists(st.tuples(st.integers(0, 70), st.none() | st.integers(0, 3)), max_size=6), max_size=6),
)
def test_an_order_is_kept_while_rows_come_move_and_go(
    values: list[int], steps: list[list[tuple[int, int | None]]]
) -> None:
    rows: dict[int, int] = dict(enumerate(values))

    def id_of(row: int) -> OfferId:
        return OfferId(f"f-{row * 37 % 101:03}")

    def expected() -> list[int]:
        return sorted(rows, key=lambda row: (rows[row], id_of(row)))

    by_id = np.array(sorted(rows, key=id_of), np.intp)
    order = SortedRows(by_id, np.array([rows[row] for row in by_id.tolist()], np.float64))
    for step in steps:
        for row, value in step:
            rows.pop(row, None)
            if value is not None:
                rows[row] = value
            order.touch(row)
        assert order.merge_changes(lambda row: rows.get(row), id_of) is bool(step)
        assert order.rows.tolist() == expected()
        for place, row in enumerate(expected()):
            assert order.after(rows[row], id_of(row), id_of) == place + 1
        keep = np.array([row % 3 == 0 for row in range(101)], np.bool_)
        assert order.first(keep, 1, 4).tolist() == [row for row in expected()[1:] if row % 3 == 0][:4]


def test_more_words_than_a_narrow_column_holds_are_told_apart() -> None:
    """One code is for what is not known: there a column becomes wide."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "_NARROW", 4)
        catalogue = OfferIndex(
            [offer(f"f-{number}", location=f"place {number}") for number in range(9)], many=0
        )
        for number in range(9):
            assert ids(catalogue.find(OfferSelector(location=f"place {number}"))) == [f"f-{number}"]
        assert ids(catalogue.find(OfferSelector(location="nowhere"))) == []


async def test_a_catalog_that_becomes_large_is_searched_one_by_one_until_its_columns_are_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalogue = OfferIndex(many=2)
    await catalogue.prepare()
    catalogue.put(offer("f-1"))
    catalogue.put(offer("f-2"))
    monkeypatch.delitem(sys.modules, column_index.__name__)
    before = catalogue.find(EVERYTHING)
    assert column_index.__name__ not in sys.modules  # a search does not import it
    await catalogue.prepare()
    assert column_index.__name__ in sys.modules
    assert catalogue.find(EVERYTHING) == before
    catalogue.drop(OfferId("f-1"))
    assert ids(catalogue.find(EVERYTHING)) == ["f-2"]
