"""The queue of those who wait, and the rate at which the lost are replaced."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skerry.control.placement.queue import REPORT_AGAIN_S, PlacementQueue
from skerry.kit.rate_limit import TokenBucket
from skerry.model.ids import InstanceId
from skerry.schedule.requests import PlacementRequest
from tests.control.worlds import resources


def ask(id: str, cpu: int = 100) -> PlacementRequest:
    return PlacementRequest(InstanceId(id), resources(cpu))


def waiting(*asks: PlacementRequest) -> PlacementQueue:
    queue = PlacementQueue()
    for number, one in enumerate(asks):
        queue.add(one, f"{number:03}", "")
    return queue


def taken(queue: PlacementQueue) -> list[str]:
    order = []
    while (one := queue.oldest()) is not None:
        order.append(one.instance)
        queue.discard(one.instance)
    return order


def test_the_eldest_is_first_whatever_it_asks_for() -> None:
    assert taken(waiting(ask("a", 1), ask("b", 2), ask("c", 1), ask("d", 3))) == ["a", "b", "c", "d"]


def test_one_that_comes_late_but_is_older_goes_before() -> None:
    queue = waiting(ask("b"), ask("c"))
    queue.add(ask("a"), "", "")
    assert taken(queue) == ["a", "b", "c"]


def test_a_refused_shape_waits_and_others_go_on() -> None:
    queue = waiting(ask("a", 9), ask("b", 1), ask("c", 9))
    queue.park(ask("a", 9), "too big", now=0.0)
    assert taken(queue) == ["b"]
    assert dict(queue.take_reports(10)) == {"a": "too big", "c": "too big"}
    queue.add(ask("d", 9), "9", "")
    assert dict(queue.take_reports(10)) == {"d": "too big"}
    queue.wake(lambda free: free.cpu <= 5)
    assert queue.oldest() is None
    queue.wake(lambda free: free.cpu <= 9)
    assert taken(queue) == ["a", "c", "d"]


def test_a_reason_that_changes_is_told_again_to_the_eldest_and_not_too_often() -> None:
    queue = waiting(ask("a"), ask("b"))

    def refuse(reason: str, now: float) -> dict[str, str]:
        queue.wake(lambda free: True)
        eldest = queue.oldest()
        assert eldest is not None
        queue.park(eldest, reason, now)
        return dict(queue.take_reports(10))

    assert refuse("one", 0.0) == {"a": "one", "b": "one"}
    assert refuse("two", REPORT_AGAIN_S / 2) == {}
    assert refuse("three", REPORT_AGAIN_S) == {"a": "three"}


def test_what_was_told_and_did_not_get_through_is_told_again() -> None:
    queue = waiting(ask("a"))
    queue.park(ask("a"), "full", now=0.0)
    assert dict(queue.take_reports(10)) == {"a": "full"}
    queue.add(ask("a"), "000", "full")
    assert not dict(queue.take_reports(10))
    queue.add(ask("a"), "000", "something else")
    assert dict(queue.take_reports(10)) == {"a": "full"}


def test_who_asks_for_something_else_is_tried_for_that() -> None:
    queue = waiting(ask("a", 9))
    queue.park(ask("a", 9), "too big", now=0.0)
    queue.add(ask("a", 1), "000", "too big")
    assert queue.oldest() == ask("a", 1)


def test_those_who_come_and_go_leave_nothing_behind() -> None:
    queue = waiting(ask("first"))
    queue.park(ask("first"), "full", now=0.0)
    for number in range(10_000):
        queue.add(ask(f"i{number}"), f"1{number:05}", "")
        queue.discard(InstanceId(f"i{number}"))
    (shape,) = queue._shapes.values()
    assert len(shape.queue) < 200
    assert len(queue) == 1
    queue.discard(InstanceId("first"))
    assert not queue._shapes


times = st.lists(st.floats(0, 3), max_size=60)


@given(times, st.floats(0.5, 50))
def test_no_stretch_of_time_gives_more_tokens_than_its_length_and_one_second(
    pauses: list[float], per_s: float
) -> None:
    bucket, now = TokenBucket.full(per_s, at=0.0), 0.0
    got: list[float] = []
    for pause in pauses:
        now += pause
        bucket = bucket.filled(now)
        while (left := bucket.take()) is not None:
            bucket = left
            got.append(now)
        assert bucket.next_at() > now
    for first, begin in enumerate(got):
        in_stretch = sum(begin <= at for at in got[first:])
        assert in_stretch <= (now - begin) * per_s + max(1.0, per_s) + 0.01 * len(got) + 1


def test_there_is_a_token_when_it_was_promised() -> None:
    bucket = TokenBucket.full(3.0, at=0.0)
    for _ in range(1000):
        while (left := bucket.take()) is not None:
            bucket = left
        bucket = bucket.filled(bucket.next_at())
        assert bucket.take() is not None


def test_a_clock_that_is_set_back_neither_gives_nor_takes() -> None:
    bucket = TokenBucket.full(1.0, at=100.0)
    left = bucket.take()
    assert left is not None
    assert left.filled(50.0).take() is None
    assert left.filled(50.0).filled(51.0).take() is not None
