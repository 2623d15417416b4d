"""The latest calls of each function are kept with their phases, and no more than that."""

from __future__ import annotations

import pytest

from skerry.functions.invocation.call_history import KEPT_CALLS, CallHistory, FunctionHistory
from skerry.model.ids import FunctionName

HELLO = FunctionName("hello")


def add(history: FunctionHistory, ended: float) -> None:
    history.add((ended, 0.1, 0.0, 0.3, 0.5, None, ""))


def test_the_newest_calls_are_kept_and_come_first() -> None:
    history = FunctionHistory()
    for number in range(KEPT_CALLS * 2):
        add(history, float(number))
    latest = history.latest()
    assert len(latest) == KEPT_CALLS
    assert [one.ended for one in latest[:2]] == [KEPT_CALLS * 2 - 1, KEPT_CALLS * 2 - 2]
    assert sum(history.buckets) == KEPT_CALLS * 2


def test_the_phases_of_a_call_are_its_whole_time() -> None:
    history = FunctionHistory()
    add(history, 1.0)
    (call,) = history.latest()
    assert call.total_s == pytest.approx(0.5)
    assert call.network_s == pytest.approx(0.1)


def test_a_deleted_function_is_forgotten_and_begins_anew() -> None:
    histories = CallHistory()
    first = histories.of(HELLO)
    assert histories.of(HELLO) is first
    histories.forget(HELLO)
    histories.forget(HELLO)
    assert HELLO not in histories.functions
    assert histories.of(HELLO) is not first
