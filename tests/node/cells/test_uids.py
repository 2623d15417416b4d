from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model import errors
from skerry.node.cells.uids import UidAllocator


def test_the_lowest_free_one_is_taken() -> None:
    uids = UidAllocator(100, 10)
    assert [uids.allocate(), uids.allocate(), uids.allocate()] == [100, 101, 102]
    uids.release(101)
    uids.release(100)
    assert [uids.allocate(), uids.allocate(), uids.allocate()] == [100, 101, 103]


def test_a_claimed_one_is_not_given_out() -> None:
    uids = UidAllocator(100, 3)
    assert uids.claim(101)
    assert not uids.claim(101)
    assert [uids.allocate(), uids.allocate()] == [100, 102]


def test_one_claimed_outside_the_range_is_kept_and_never_given_out() -> None:
    uids = UidAllocator(100, 1)
    assert uids.claim(99)
    uids.release(99)
    assert uids.allocate() == 100
    with pytest.raises(errors.ResourcesExhausted, match="1 cells"):
        uids.allocate()


def test_when_all_are_taken_it_says_what_to_do() -> None:
    uids = UidAllocator(100, 2)
    uids.allocate()
    uids.allocate()
    with pytest.raises(errors.ResourcesExhausted, match=r"free one, or raise the setting node\.max_cells"):
        uids.allocate()
    uids.release(101)
    assert uids.allocate() == 101


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "claim"]), st.integers(0, 9))))
def test_no_user_is_ever_out_twice_and_each_is_the_lowest(steps: list[tuple[str, int]]) -> None:
    uids, out = UidAllocator(10, 8), set[int]()
    for verb, number in steps:
        if verb == "take":
            free = [uid for uid in range(10, 18) if uid not in out]
            if free:
                assert uids.allocate() == free[0]
                out.add(free[0])
            else:
                with pytest.raises(errors.ResourcesExhausted):
                    uids.allocate()
        elif verb == "claim":
            assert uids.claim(10 + number) == (10 + number not in out)
            out.add(10 + number)
        elif 10 + number in out:
            uids.release(10 + number)
            out.discard(10 + number)
