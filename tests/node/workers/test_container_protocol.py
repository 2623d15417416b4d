"""What is said to the worker of an image, and what its answers mean."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.model.calls import CallFailure, CallResult
from skerry.model.settings import FunctionSettings
from skerry.node.workers import container_protocol

SETTINGS = FunctionSettings(max_result_bytes=1024, max_output_bytes=1024)


def meant(body: bytes, status: int = 200, *, wants_output: bool = True) -> CallResult:
    return container_protocol.parse_reply(
        status, body, duration_s=0.5, wants_output=wants_output, settings=SETTINGS
    )


def reply(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_parameters_are_passed_on_as_they_are() -> None:
    exact = b'{"n": 123456789012345678901234567890, "x": 1.0}'
    body = container_protocol.request(exact, wants_output=True)
    assert exact in body
    assert json.loads(body) == {
        "Command": None,
        "Params": json.loads(exact),
        "Handler": "",
        "HandlerDir": "",
        "ReturnOutput": True,
    }
    assert json.loads(container_protocol.request(b"null", wants_output=False))["Params"] is None


def test_a_result_is_passed_on_as_it_is() -> None:
    exact = '{"n": 123456789012345678901234567890, "x": 1.0}'
    answer = meant(reply(Success=True, Result=exact, Output="hi"))
    assert answer == CallResult(0.5, result=exact.encode(), output="hi")
    assert meant(reply(Success=True, Result=exact, Output="hi"), wants_output=False).output == ""


@pytest.mark.parametrize(
    ("text", "result"), [("", b"null"), (" ", b"null"), ("hello", b'"hello"'), ("NaN", b'"NaN"'), ("7", b"7")]
)
def test_a_result_that_is_no_json_is_a_text(text: str, result: bytes) -> None:
    assert meant(reply(Success=True, Result=text)).result == result


@given(st.text())
def test_every_result_is_json(text: str) -> None:
    answer = meant(reply(Success=True, Result=text))
    if answer.failure is None:
        json.loads(answer.result)
    else:
        assert answer.failure is CallFailure.RESULT


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b'{"Success": 1}',
        b'{"Success": true, "Result": {"a": 1}}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_what_is_no_answer_is_told_with_what_came(body: bytes) -> None:
    answer = meant(body)
    assert answer.failure is CallFailure.RESULT
    assert "must return JSON" in answer.error
    assert len(answer.error) < 10_000


def test_a_call_that_did_not_succeed_carries_why_and_what_was_printed() -> None:
    answer = meant(reply(Success=False, Output="trace"), wants_output=False)
    assert (answer.failure, answer.output) == (CallFailure.HANDLER, "trace")
    assert "without a reason" in answer.error
    assert meant(reply(Success=False, Error="no such file")).error == "no such file"
    assert meant(b"{}").failure is CallFailure.HANDLER


@pytest.mark.parametrize("status", [500, 404, 302, 201])
def test_another_status_is_a_failure_with_the_body(status: int) -> None:
    answer = meant(b"went wrong", status)
    assert answer.failure is CallFailure.HANDLER
    assert f"{status}: 'went wrong'" in answer.error


def test_a_result_that_is_too_long_is_refused_and_output_is_cut() -> None:
    answer = meant(reply(Success=True, Result=json.dumps("x" * 1100), Output="y" * 1100))
    assert answer.failure is CallFailure.RESULT
    assert "functions.max_result_bytes" in answer.error
    assert answer.output.startswith("y" * 1024 + "\n[the rest, 76 bytes")
    assert container_protocol.reply_too_large(SETTINGS, 0.5).failure is CallFailure.RESULT


def test_the_longest_result_and_output_fit_into_a_reply() -> None:
    most = reply(Success=True, Result='"' * 1024, Output='"' * 1024)
    assert len(most) <= container_protocol.max_reply(SETTINGS)
