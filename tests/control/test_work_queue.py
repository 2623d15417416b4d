"""The order in which a controller looks at its records."""

from __future__ import annotations

from skerry.control.work_queue import WorkQueue


def test_each_key_comes_once_in_the_order_in_which_it_was_added() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_all(["b", "a"])
    queue.add("b")
    assert [queue.take(0.0), queue.take(0.0), queue.take(0.0)] == ["b", "a", None]


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_when_that_is_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.take(0.0) == "a"
    queue.add("a")
    queue.add("b")
    assert [queue.take(0.0), queue.take(0.0)] == ["b", None]
    queue.done("a")
    assert queue.take(0.0) == "a"


def test_a_key_comes_at_the_last_time_that_was_named_unless_it_comes_before() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_at("a", 10.0)
    queue.add_at("a", 20.0)
    queue.add_at("b", 15.0)
    queue.add_at("c", 5.0)
    queue.add_at("c", None)
    assert (queue.next_at(), queue.take(14.9)) == (15.0, None)
    assert (queue.take(15.0), queue.next_at()) == ("b", 20.0)
    queue.add("a")
    assert (queue.take(15.0), queue.next_at()) == ("a", None)


def test_what_is_discarded_does_not_come() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add_at("b", 1.0)
    queue.discard("a")
    queue.discard("b")
    assert (queue.take(2.0), queue.next_at()) == (None, None)
