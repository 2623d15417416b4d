"""What is written down of a call reads back as it was."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as some

from skerry.functions.asynchronous import results
from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.functions.asynchronous.round_robin import RoundRobinQueue
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, CallState

ASKS = some.builds(
    CallRequest,
    some.text(min_size=1, max_size=20),
    some.binary(max_size=200),
    qos_class=some.integers(0, 255),
    max_response_s=some.none() | some.floats(0.001, 1e6),
    can_offload=some.booleans(),
    wants_output=some.booleans(),
)
SECONDS = some.floats(0, 1e6)
REPORTS = some.builds(
    CallReport,
    some.builds(
        CallResult,
        SECONDS,
        some.binary(max_size=300),
        some.text(max_size=50),
        some.none() | some.sampled_from(CallFailure),
        some.text(max_size=50),
    ),
    SECONDS,
    some.booleans(),
    SECONDS,
)


@hypothesis.given(ASKS)
def test_an_ask_reads_back(ask: CallRequest) -> None:
    assert results.unpack_request(results.pack_request(ask)) == ask


@hypothesis.given(REPORTS, some.integers(0, 600))
def test_a_report_reads_back_or_says_that_it_was_too_large(report: CallReport, most: int) -> None:
    state, body = results.fit(report, most)
    told = results.unpack(state, body)
    if len(results.pack_report(report)) <= most:
        assert told == AsyncCallResult(CallState.FAILED if report.answer.failure else CallState.DONE, report)
    else:
        assert told.report is not None
        assert (told.state, told.report.answer.failure) == (CallState.FAILED, CallFailure.RESULT)
        assert told.report.answer.result == b""


@hypothesis.given(ASKS, SECONDS)
def test_waiting_shortens_the_time_that_is_left(ask: CallRequest, waited_s: float) -> None:
    left = results.with_remaining_time(ask, waited_s)
    if ask.max_response_s is None:
        assert left == ask
    elif ask.max_response_s <= waited_s:
        assert left is None
    else:
        assert left is not None
        assert left.max_response_s == ask.max_response_s - waited_s


@hypothesis.given(some.lists(some.tuples(some.sampled_from("abc"), some.integers())))
def test_lines_take_turns_and_keep_their_order(items: list[tuple[str, int]]) -> None:
    turns: RoundRobinQueue[tuple[str, int]] = RoundRobinQueue()
    for line, number in items:
        turns.add(line, (line, number))
    taken = []
    while turns:
        taken.append(turns.take())
    for name in "abc":
        assert [one for one in taken if one[0] == name] == [one for one in items if one[0] == name]
    lines = {line for line, _ in items}
    assert {line for line, _ in taken[: len(lines)]} == lines  # each has had one before any has two
