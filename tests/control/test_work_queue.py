"""The order in which a controller looks at its records."""

from __future__ import annotations

from skerry.control.work_queue import WorkQueue


def test_each_key_comes_once_in_the_order_in_which_it_was_added() -> None:
    queue = WorkQueue()
    for key in ("b", "a", "b"):
        queue.add(key)
    assert [queue.take(0.0, 1), queue.take(0.0, 1), queue.take(0.0, 1)] == [["b"], ["a"], []]


def test_as_many_come_at_once_as_are_asked_for() -> None:
    queue = WorkQueue()
    for key in ("c", "b", "a"):
        queue.add(key)
    assert [queue.take(0.0, 2), queue.take(0.0, 2)] == [["c", "b"], ["a"]]


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_when_that_is_done() -> None:
    queue = WorkQueue()
    queue.add("a")
    assert queue.take(0.0, 9) == ["a"]
    queue.add("a")
    queue.add("b")
    assert [queue.take(0.0, 9), queue.take(0.0, 9)] == [["b"], []]
    queue.done("a")
    assert queue.take(0.0, 9) == ["a"]


def test_a_key_comes_at_the_last_time_that_was_named_unless_it_comes_before() -> None:
    queue = WorkQueue()
    queue.add_at("a", 10.0)
    queue.add_at("a", 20.0)
    queue.add_at("b", 15.0)
    queue.add_at("c", 5.0)
    queue.add_at("c", None)
    assert (queue.next_at(), queue.take(14.9, 9)) == (15.0, [])
    assert (queue.take(15.0, 9), queue.next_at()) == (["b"], 20.0)
    queue.add("a")
    assert (queue.take(15.0, 9), queue.next_at()) == (["a"], None)
