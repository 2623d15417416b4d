"""`/invoke/` and `/poll/` to the byte, over an invoker that answers what the test says."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from skerry.functions.asynchronous.results import AsyncCallResult
from skerry.model import errors
from skerry.model.calls import CallFailure, CallReport, CallRequest, CallResult, CallState
from tests.support.waiting import eventually
from tests.wire.serverledge.conftest import Serverledge
from tests.wire.serverledge.fakes import DONE, echo, failed

JSON = "application/json; charset=UTF-8"
TEXT = "text/plain; charset=UTF-8"

GOOD = (
    rb'{"Success":true,"Result":"{\"IsPrime\": false}","ResponseTime":0.75,"IsWarmStart":true,"InitTime":0.0,'
    rb'"QueueingTime":0.25,"OffloadLatency":0.0,"Duration":0.003,"SchedAction":"","Output":"",'
    rb'"ExecutionArea":"local","ExecutionNode":"n1","Error":"","ErrorType":"","State":"done",'
    rb'"TimedOut":false}' + b"\n"
)
# What serverledge-cli sends.
CLI = (
    b'{"Params":{"n":"17"},"QoSClass":0,"QoSMaxRespT":-1,"CanDoOffloading":true,"Async":false,'
    b'"ReturnOutput":false}'
)


@pytest.fixture(params=[False, True], ids=["task", "direct"])
def is_direct(request: pytest.FixtureRequest) -> bool:
    """Everything here holds for calls with a task and for those without."""
    return bool(request.param)


async def test_a_call_is_answered_with_its_report(ledge: Serverledge, is_direct: bool) -> None:
    answer = await ledge.post("/invoke/isprime", CLI)
    assert ledge.fakes.invoker.begun == is_direct
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, JSON, GOOD)
    assert ledge.fakes.invoker.asked == [CallRequest("isprime", b'{"n":"17"}')]


async def test_the_node_tells_of_itself_in_headers_which_are_measured_now_and_then(
    ledge: Serverledge,
) -> None:
    first = await ledge.post("/invoke/isprime", CLI, headers={"Serverledge-MAB-Request-ID": "r7"})
    told = {name: value for name, value in first.headers.items() if name.startswith("serverledge-")}
    assert told.pop("serverledge-node-arch")
    assert told == {
        "serverledge-node-name": "n1",
        "serverledge-free-mem": "3072",  # of 4096, with 1024 of busy workers, whatever idle ones hold
        "serverledge-free-cpu": "6.500000",
        "serverledge-timestamp": "1700000000",
        "serverledge-mab-request-id": "r7",
    }
    ledge.fakes.invoker.pool = msgspec.structs.replace(ledge.fakes.invoker.pool, available_memory_mb=1)
    soon = await ledge.post("/invoke/isprime", CLI)
    ledge.clock.advance(2)
    later = await ledge.post("/invoke/isprime", CLI)
    assert [soon.headers["serverledge-free-mem"], later.headers["serverledge-free-mem"]] == ["3072", "1"]
    assert later.headers["serverledge-timestamp"] == "1700000002"
    assert "serverledge-mab-request-id" not in later.headers
    odd = await ledge.post("/invoke/isprime", CLI, headers={"Serverledge-MAB-Request-ID": "r" * 257})
    assert "serverledge-mab-request-id" not in odd.headers


@pytest.mark.parametrize("body", [b"", b"  \n", b"{}", b"null".join([b'{"Params":', b"}"]), b'{"Other":1}'])
async def test_what_is_not_given_has_its_default_and_a_body_may_be_empty(
    ledge: Serverledge, body: bytes
) -> None:
    assert (await ledge.post("/invoke/isprime", body)).status == 200
    assert ledge.fakes.invoker.asked == [CallRequest("isprime", b"null", can_offload=True)]


async def test_every_field_reaches_the_call_in_any_case(ledge: Serverledge) -> None:
    spelt = (
        b'{"params": {"a": [1]}, "QOSCLASS": 2, "qosmaxrespt": 0.5, "candooffloading": false, '
        b'"returnOutput": true}'
    )
    assert (await ledge.post("/invoke/isprime", spelt)).status == 200
    assert ledge.fakes.invoker.asked == [
        CallRequest(
            "isprime", b'{"a": [1]}', qos_class=2, max_response_s=0.5, can_offload=False, wants_output=True
        )
    ]


@pytest.mark.parametrize(("sent", "taken"), [(-1, 0), (255, 255), (256, 255), (9_000_000_000, 255)])
async def test_a_class_out_of_range_is_the_nearest_one(ledge: Serverledge, sent: int, taken: int) -> None:
    assert (await ledge.post("/invoke/isprime", b'{"QoSClass":%d}' % sent)).status == 200
    assert ledge.fakes.invoker.asked == [CallRequest("isprime", qos_class=taken)]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "nonsense", "application/json"]
)
async def test_the_content_type_is_never_looked_at(ledge: Serverledge, content_type: str) -> None:
    answer = await ledge.post("/invoke/isprime", CLI, headers={"Content-Type": content_type})
    assert answer.status == 200


@pytest.mark.parametrize(
    "number", ["9007199254740993", "1.0", "1e400", "-0.0", "123456789012345678901234567890"]
)
async def test_numbers_come_back_as_they_were_written(ledge: Serverledge, number: str) -> None:
    ledge.fakes.invoker.report = echo
    answer = await ledge.post("/invoke/isprime", f'{{"Params":{{"n":{number}}}}}'.encode())
    assert answer.json["Result"] == f'{{"n":{number}}}'


async def test_markup_is_escaped_and_other_text_is_not(ledge: Serverledge) -> None:
    ledge.fakes.invoker.report = failed(CallResult(0.0, '"<é>&\u2028"'.encode()))
    answer = await ledge.post("/invoke/isprime")
    assert rb'"Result":"\"\u003c' + "é".encode() + rb'\u003e\u0026\u2028\""' in answer.body
    assert answer.json["Result"] == '"<é>&\u2028"'


@pytest.mark.parametrize("query", ["pretty", "pretty=", "a=b&pretty=1"])
async def test_pretty_indents_by_two_spaces(ledge: Serverledge, query: str) -> None:
    answer = await ledge.post(f"/invoke/isprime?{query}", CLI)
    assert answer.body == json.dumps(json.loads(GOOD), indent=2).encode() + b"\n"


@pytest.mark.parametrize("query", ["", "prettyish", "a=pretty"])
async def test_nothing_else_indents(ledge: Serverledge, query: str) -> None:
    assert (await ledge.post(f"/invoke/isprime?{query}", CLI)).body == GOOD


@pytest.mark.parametrize("path", ["/invoke/nobody", "/invoke/isprime/x/y", "/invoke/a%2Fb", "/invoke/%20"])
@pytest.mark.parametrize("body", [CLI, b'{"Async":true}'])
async def test_an_unknown_function_is_404_whatever_its_name_holds(
    ledge: Serverledge, path: str, body: bytes
) -> None:
    answer = await ledge.post(path, body)
    assert (answer.status, answer.headers["content-type"], answer.body) == (404, TEXT, b"Function unknown.")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not valid JSON"),
        (b"{} {}", "trailing characters"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"Params":[1]}', "`Params` must be an object"),
        (b'{"Params":"x"}', "`Params` must be an object"),
        (b'{"Async":"true"}', "`Async`: Expected `bool`, got `str`"),
        (b'{"QoSClass":"1"}', "`QoSClass`: Expected `int`, got `str`"),
        (b'{"QoSClass":1.5}', "`QoSClass`: Expected `int`, got `float`"),
        (b'{"QoSMaxRespT":"soon"}', "`QoSMaxRespT`: Expected `float`, got `str`"),
        (b'{"QoSMaxRespT":1e999}', "QoSMaxRespT"),
        (b'{"Params":{},"params":{}}', "`Params` is given twice"),
        (b'{"Params":{"a":"\xff"}}', "byte 16 is not UTF-8"),
        (b'{"Params":' + b"[" * 3000 + b"}", "nested too deeply"),
    ],
)
async def test_what_is_wrong_with_a_body_is_said(ledge: Serverledge, body: bytes, said: str) -> None:
    answer = await ledge.post("/invoke/isprime", body)
    assert (answer.status, answer.headers["content-type"]) == (400, JSON)
    assert said in answer.json["message"]
    assert answer.json["code"] == "invalid"
    assert answer.body.endswith(b"}\n")
    assert ledge.fakes.invoker.asked == []


async def test_parameters_above_the_limit_are_413(ledge: Serverledge) -> None:
    answer = await ledge.post("/invoke/isprime", b'{"Params":{"a":"%s"}}' % (b"x" * 4096))
    assert answer.status == 413
    assert "at most 4096 bytes" in answer.json["message"]


async def test_a_full_queue_is_429_without_a_text_and_says_when_to_come_back(ledge: Serverledge) -> None:
    ledge.fakes.invoker.failing = errors.Overloaded("full", retry_after_s=2.5)
    answer = await ledge.post("/invoke/isprime", CLI)
    assert (answer.status, answer.headers["content-type"], answer.body) == (429, TEXT, b"")
    assert answer.headers["retry-after"] == "3"


async def test_a_failed_call_is_500_with_the_cause_the_output_and_the_traceback(ledge: Serverledge) -> None:
    trace = 'Traceback (most recent call last):\n  File "m.py", line 2\nValueError: <no>'
    ledge.fakes.invoker.report = failed(
        CallResult(0.5, output="before\n", failure=CallFailure.HANDLER, error=trace)
    )
    answer = await ledge.post("/invoke/isprime", CLI)
    assert (answer.status, answer.headers["content-type"]) == (500, JSON)
    report = answer.json
    assert (report["Success"], report["Result"], report["State"]) == (False, "", "failed")
    assert (report["Error"], report["ErrorType"]) == (trace, "HandlerError")
    assert (report["Output"], report["TimedOut"]) == ("before\n", False)


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (CallFailure.TIMEOUT, 500),
        (CallFailure.MEMORY, 500),
        (CallFailure.DIED, 500),
        (CallFailure.LOAD, 500),
        (CallFailure.RESULT, 500),
        (CallFailure.INTERNAL, 500),
        (CallFailure.NO_ROOM, 429),
    ],
)
async def test_every_failure_is_told_with_its_report(
    ledge: Serverledge, failure: CallFailure, status: int
) -> None:
    ledge.fakes.invoker.report = failed(CallResult(0.5, failure=failure, error="because"))
    answer = await ledge.post("/invoke/isprime", CLI)
    assert answer.status == status
    assert (answer.json["ErrorType"], answer.json["Error"]) == (failure, "because")
    assert answer.json["TimedOut"] is (failure is CallFailure.TIMEOUT)
    assert ("retry-after" in answer.headers) is (status == 429)


async def test_a_response_time_that_runs_out_in_the_queue_is_429_with_the_report(ledge: Serverledge) -> None:
    ledge.fakes.invoker.report = lambda ask: CallReport(
        CallResult(0.0, failure=CallFailure.TIMEOUT, error="all of it in the queue"), 0.5, queueing_s=0.5
    )
    answer = await ledge.post("/invoke/isprime", b'{"QoSMaxRespT":0.5}')
    assert (answer.status, answer.headers["retry-after"]) == (429, "1")
    assert (answer.json["ErrorType"], answer.json["TimedOut"]) == ("Timeout", True)


async def test_a_function_that_is_deleted_while_a_call_waits_is_unknown(ledge: Serverledge) -> None:
    ledge.fakes.invoker.report = failed(CallResult(0.0, failure=CallFailure.GONE, error="gone"))
    answer = await ledge.post("/invoke/isprime", CLI)
    assert (answer.status, answer.body) == (404, b"Function unknown.")


async def test_an_async_call_is_accepted_with_an_id_that_can_be_polled_at_once(ledge: Serverledge) -> None:
    accepted = await ledge.post("/invoke/isprime", b'{"Params":{"n":1},"Async":true,"ReturnOutput":true}')
    assert (accepted.status, accepted.body) == (200, b'{"ReqId":"isprime-1"}\n')
    assert ledge.fakes.asynchronous.asked == [CallRequest("isprime", b'{"n":1}', wants_output=True)]
    assert ledge.fakes.invoker.asked == []
    polled = await ledge.get("/poll/isprime-1")
    assert (polled.status, polled.headers["content-type"]) == (404, JSON)
    assert (polled.json["Success"], polled.json["State"], polled.json["Result"]) == (False, "queued", "")


async def test_too_many_async_calls_are_429(ledge: Serverledge) -> None:
    ledge.fakes.asynchronous.failing = errors.Overloaded("full")
    answer = await ledge.post("/invoke/isprime", b'{"Async":true}')
    assert (answer.status, answer.body, answer.headers["retry-after"]) == (429, b"", "1")


async def test_a_done_call_polls_as_the_report_of_a_synchronous_one(ledge: Serverledge) -> None:
    ledge.fakes.asynchronous.calls["x-1"] = AsyncCallResult(CallState.DONE, DONE)
    answer = await ledge.get("/poll/x-1")
    assert (answer.status, answer.body) == (200, GOOD)


async def test_a_failed_call_polls_as_200_without_success(ledge: Serverledge) -> None:
    report = msgspec.structs.replace(
        DONE, answer=CallResult(0.0, failure=CallFailure.TIMEOUT, error="too long")
    )
    ledge.fakes.asynchronous.calls["x-1"] = AsyncCallResult(CallState.FAILED, report)
    answer = await ledge.get("/poll/x-1")
    expected: dict[str, Any] = {"Success": False, "Error": "too long", "State": "failed", "TimedOut": True}
    assert answer.status == 200
    assert answer.json.items() >= expected.items()


async def test_a_client_that_polls_until_200_gets_the_report(ledge: Serverledge) -> None:
    """As the public program's own tests and examples do: anything but 200 is not the end."""
    calls = ledge.fakes.asynchronous.calls
    progress = [
        AsyncCallResult(CallState.QUEUED),
        AsyncCallResult(CallState.RUNNING),
        AsyncCallResult(CallState.DONE, DONE),
    ]
    seen = []
    for calls["x-1"] in progress:
        answer = await ledge.get("/poll/x-1")
        seen.append((answer.status, answer.json["State"], answer.headers.get("retry-after")))
    assert seen == [(404, "queued", "1"), (404, "running", "1"), (200, "done", None)]


async def test_a_poll_that_finds_no_result_is_indented_if_that_is_asked_for(ledge: Serverledge) -> None:
    ledge.fakes.asynchronous.calls["x-1"] = AsyncCallResult(CallState.RUNNING)
    answer = await ledge.get("/poll/x-1?pretty")
    assert answer.status == 404
    assert b'\n  "State": "running",\n' in answer.body


@pytest.mark.parametrize("id", ["nobody", "a/b", "x)1"])
async def test_an_unknown_id_is_404_and_says_so(ledge: Serverledge, id: str) -> None:
    answer = await ledge.get(f"/poll/{id}")
    assert (answer.status, answer.headers["content-type"], answer.json["State"]) == (404, JSON, "unknown")
    assert "retry-after" not in answer.headers


async def test_a_long_poll_answers_when_the_call_has_ended(ledge: Serverledge) -> None:
    calls = ledge.fakes.asynchronous
    calls.calls["x-1"] = AsyncCallResult(CallState.RUNNING)
    polling = asyncio.ensure_future(ledge.get("/poll/x-1?wait=10s"))
    await eventually(lambda: calls.waits == [10.0])
    calls.calls["x-1"] = AsyncCallResult(CallState.DONE, DONE)
    answer = await polling
    assert (answer.status, answer.body) == (200, GOOD)


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [("250ms", 0.25), ("1.5s", 1.5), ("2", 2.0), ("1m", 60.0), ("999999m", 60.0), ("", 0.0)],
)
async def test_a_long_poll_waits_as_long_as_it_says_and_never_too_long(
    ledge: Serverledge, wait: str, seconds: float
) -> None:
    assert (await ledge.get(f"/poll/nobody?wait={wait}")).status == 404
    assert ledge.fakes.asynchronous.waits == [seconds]


@pytest.mark.parametrize("wait", ["soon", "-1s", "1h", "1e9", "nan", "s", "1" * 400])
async def test_a_wait_that_is_no_time_is_400(ledge: Serverledge, wait: str) -> None:
    answer = await ledge.get(f"/poll/x-1?wait={wait}")
    assert (answer.status, answer.json["code"]) == (400, "invalid")


async def test_an_expired_call_is_404_and_says_so(ledge: Serverledge) -> None:
    ledge.fakes.asynchronous.calls["x-1"] = AsyncCallResult(CallState.EXPIRED)
    answer = await ledge.get("/poll/x-1")
    assert (answer.status, answer.json["State"], answer.json["Success"]) == (404, "expired", False)
    assert "1800 s" in answer.json["Error"]


async def test_requests_sent_ahead_are_answered_in_order_and_the_last_one_closes(ledge: Serverledge) -> None:
    """An answer that is one write, another behind it, and one that cannot be because the connection ends."""
    url = urlsplit(ledge.site.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        for close in ("", "", "Connection: close\r\n"):
            head = f"POST /invoke/isprime HTTP/1.1\r\nHost: {url.netloc}\r\n{close}"
            head += f"Content-Length: {len(CLI)}\r\n\r\n"
            writer.write(head.encode() + CLI)
        said = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    assert said.count(b"HTTP/1.1 200 OK\r\n") == 3
    answers = [part.partition(b"\r\n\r\n") for part in said.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [b"connection: close" in head for head, _, _ in answers] == [False, False, True]
    assert [body for _, _, body in answers] == [GOOD] * 3
