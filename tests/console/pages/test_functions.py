"""The pages of functions: what is in the list, what the caller may do, and how a call went."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skerry.console.components import Tone
from skerry.console.pages import function_calls, functions
from skerry.console.statistics import CallRates
from skerry.console.tables import ListQuery, TableContext
from skerry.control.events.log import StoredEvent
from skerry.functions.invocation.call_history import FinishedCall
from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.calls import CallFailure, CallReport, CallResult
from skerry.model.events import Event
from skerry.model.functions import Function
from skerry.model.ids import Digest, FunctionName
from skerry.model.resources import Megabytes

NOW = 1_000_000.0
DIGEST = Digest("sha256:" + "a" * 64)
BUSY = CallRates(per_second=12.0, failed_per_second=0.4, cold=3, p50_s=0.004, p99_s=0.25, course=(1.0, 2.0))


def function(name: str = "hello", **fields: object) -> Function:
    made = {"runtime": "python310", "memory": Megabytes(64), "handler": "main.handler", "code": DIGEST}
    return Function(name=FunctionName(name), created_at=NOW - 60, updated_at=NOW - 60, **(made | fields))  # type: ignore[arg-type]


def caller(role: Role) -> Caller:
    return Caller(origin=AuthMethod.TOKEN, name="somebody", role=role)


def no_calls(name: str) -> CallRates:
    return CallRates()


def table(
    found: list[Function], query: ListQuery, rates: Callable[[str], CallRates] = no_calls
) -> list[list[str]]:
    made = functions.function_table(found, rates, lambda name: rates(name).per_second, query, NOW)
    return [[cell.text for cell in row.cells] for row in made.rows]


def test_the_list_has_rates_latency_cold_starts_memory_runtime_and_version() -> None:
    (row,) = table([function(version=3)], ListQuery(), lambda name: BUSY)
    assert row[:8] == ["hello", "12", "4.0 / 250 ms", "3", "64 MB", "python310", "3", "default"]


def test_the_list_is_sorted_by_calls_and_asks_for_the_rates_of_the_rows_it_shows() -> None:
    asked: list[str] = []

    def rates(name: str) -> CallRates:
        asked.append(name)
        return CallRates(per_second=float(name[1:]))

    found = [function(f"f{number}") for number in range(1000)]
    made = functions.function_table(found, rates, lambda name: float(name[1:]), ListQuery(sort="-calls"), NOW)
    assert made.rows[0].cells[0].text == "f999"
    assert made.total == 1000
    assert len(asked) == len(made.rows) == 50


def test_a_function_of_another_namespace_is_linked_with_it() -> None:
    made = functions.function_table([function("shop:pay")], no_calls, lambda name: 0.0, ListQuery(), NOW)
    assert made.rows[0].cells[0].href == "/console/functions/pay?namespace=shop"


def view(role: Role, **fields: object) -> functions.FunctionView:
    return functions.function_view(function(**fields), BUSY, 2, "calls", caller(role), NOW)


def test_a_viewer_sees_neither_code_nor_the_form_nor_actions() -> None:
    shown = view(Role.VIEWER)
    assert [one.text for one in shown.tabs] == ["Calls", "Logs", "Versions"]
    assert not shown.can_call
    assert shown.actions == ()


def test_a_deployer_sees_code_calls_it_and_deletes_it_by_the_same_command() -> None:
    shown = view(Role.DEPLOYER)
    assert [one.text for one in shown.tabs] == ["Calls", "Code", "Logs", "Versions"]
    assert shown.can_call
    (delete,) = shown.actions
    assert delete.is_destructive
    assert delete.command == "skerry fn delete hello"


def test_values_of_the_environment_are_not_shown() -> None:
    shown = view(Role.ADMIN, environment=("KEY=very-secret",))
    texts = [fact.value.text for fact in shown.facts]
    assert "KEY" in texts
    assert not any("very-secret" in text for text in texts)


def test_recent_calls_say_when_how_and_where() -> None:
    calls = [
        FinishedCall(95.0, 0.0, 0.0, 0.01, 0.0, None, ""),
        FinishedCall(90.0, 1.0, 0.0, 0.0, 0.0, CallFailure.TIMEOUT, "edge-2"),
    ]
    first, second = functions.call_rows(calls, NOW, NOW - 100.0)
    assert (first.age, first.outcome.text, first.where) == ("5s", "ok", "here")
    assert (second.age, second.outcome.tone, second.where) == ("10s", Tone.BAD, "edge-2")


def event(kind: str, version: str, at: float) -> StoredEvent:
    return StoredEvent(
        f"{at}", Event(at=at, kind=kind, subject="function/hello", actor="ann", data={"version": version})
    )


def test_versions_come_from_events_since_the_function_was_made() -> None:
    events = [
        event("function.created", "1", NOW - 500),
        event("function.created", "1", NOW - 60),
        event("function.updated", "2", NOW - 30),
    ]
    within = TableContext(1, lambda page: "")
    made = functions.version_table(events, function(version=2), within, NOW)
    assert [row.cells[0].text for row in made.rows] == ["2", "1"]
    assert made.rows[0].cells[0].note == "serves calls"
    assert made.rows[1].cells[3].time == NOW - 60


@pytest.mark.parametrize("text", ["", "[1]", "null", "{", '"x"', "1"])
def test_parameters_are_a_json_object(text: str) -> None:
    with pytest.raises(errors.Invalid, match="JSON object"):
        function_calls.read_parameters(text)


def test_parameters_are_passed_on_as_they_were_written() -> None:
    assert function_calls.read_parameters(' {"n": 1.10, "big": 123456789012345678901} ') == (
        b'{"n": 1.10, "big": 123456789012345678901}'
    )


def test_a_result_is_indented_and_its_phases_add_up_to_the_response() -> None:
    report = CallReport(CallResult(0.2, b'{"a":[1]}', "printed"), 0.5, True, 0.0, 0.1, node="edge")
    shown = function_calls.result_view(report, "skerry fn invoke hello")
    assert shown.result == '{\n  "a": [\n    1\n  ]\n}'
    assert (shown.outcome.text, shown.where, shown.output) == ("ok", "on edge, warm", "printed")
    assert shown.bar is not None
    assert shown.bar.label == "queue 100 ms, start 0.0 ms, run 200 ms, network 200 ms"


def test_a_failure_has_its_error_and_no_result() -> None:
    report = CallReport(CallResult(0.1, b"", "", CallFailure.HANDLER, "Traceback: <b>"), 0.1)
    shown = function_calls.result_view(report, "x")
    assert (shown.outcome.text, shown.result, shown.error) == ("HandlerError", "", "Traceback: <b>")


def test_a_very_long_result_is_cut_and_says_by_how_much() -> None:
    report = CallReport(CallResult(0.1, b'"' + b"x" * 100_000 + b'"'), 0.1)
    assert function_calls.result_view(report, "x").result.endswith("more characters")
