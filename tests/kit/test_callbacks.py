"""Callbacks: called in order, removable, also while they are called."""

from __future__ import annotations

from skerry.kit.callbacks import CallbackList


def test_callbacks_are_called_in_the_order_in_which_they_were_added_until_they_are_removed() -> None:
    callbacks: CallbackList[[str]] = CallbackList()
    heard: list[tuple[int, str]] = []
    remove = callbacks.add(lambda what: heard.append((1, what)))
    callbacks.add(lambda what: heard.append((2, what)))
    callbacks.notify("a")
    remove()
    callbacks.notify("b")
    assert heard == [(1, "a"), (2, "a"), (2, "b")]


def test_one_that_removes_itself_while_it_is_called_keeps_nobody_from_being_called() -> None:
    callbacks: CallbackList[[]] = CallbackList()
    heard: list[int] = []

    def once() -> None:
        heard.append(1)
        remove()

    remove = callbacks.add(once)
    callbacks.add(lambda: heard.append(2))
    callbacks.notify()
    callbacks.notify()
    assert heard == [1, 2, 2]
