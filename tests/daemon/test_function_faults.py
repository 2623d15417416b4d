"""What Serverledge does wrong and Skerry must not, one test each; and whatever else a function may do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.functions.registry import tarballs
from tests.support.functions import (
    ECHO,
    begin,
    body,
    create,
    delete,
    encoded,
    failure,
    invoke,
    outcome,
    poll,
    result,
    update,
)
from tests.support.gates import WAIT, gate_of
from tests.support.remains import left_of
from tests.support.skerry import PREPARED_WORKERS, Skerry, ask, running
from tests.support.waiting import eventually_sync

pytestmark = pytest.mark.root

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    flags = (
        "functions.memory_mb=1024",
        f"functions.max_params_bytes={MEGABYTE}",
        f"functions.max_result_bytes={4 * MEGABYTE}",
        f"functions.max_code_bytes={MEGABYTE}",
        "functions.max_output_bytes=65536",
        "functions.worker_pids=64",
    )
    folder = tmp_path_factory.mktemp("faults")
    with running(folder, *PREPARED_WORKERS, *(part for flag in flags for part in ("--set", flag))) as one:
        create(one, "bystander", ECHO)
        result(one, "bystander", {})
        yield one
    assert left_of(one) == []


@pytest.fixture
def goes_on(skerry: Skerry) -> Iterator[None]:
    """Whatever a test does, a worker that has nothing to do with it is still there and answers."""
    yield
    status, report = invoke(skerry, "bystander", {"n": 1})
    assert (status, report["Result"], report["IsWarmStart"]) == (200, '{"n": 1}', True), report


# 1. The document and the program differ, and clients of both must work.


def test_1_runtimes_routes_and_fields_of_the_document_and_of_the_program(skerry: Skerry) -> None:
    for runtime in ("python310", "python314", "python38", "python312ml"):
        create(skerry, f"on-{runtime}", ECHO, Runtime=runtime)
    names = skerry.call("GET", "/function")
    assert names == skerry.call("GET", "/functions")
    assert names[1] == sorted(names[1])
    assert {"bystander", "on-python310", "on-python38"} <= set(names[1])
    for runtime in ("java21", "", "python"[:3]):
        status, said = skerry.call("POST", "/create", body("never", ECHO, Runtime=runtime))
        assert (status, said) == (404, "Invalid runtime.")
    status, said = skerry.call("POST", "/create", body("never", ECHO, Runtime="go125"))
    assert (status, said["code"]) == (422, "unprocessable")
    assert "the code must hold handler_" in said["message"]
    status, said = skerry.call("GET", "/status")
    assert status == 200
    assert said.keys() >= {
        *("Url", "AvailableWarmContainers", "AvailableMemMB", "AvailableCPUs", "Coordinates", "LoadAvg"),
        *("TotalMemory", "AvailableMemory", "FreeMemory", "TotalCPU", "UsedCPU", "LastUpdateTime"),
    }
    described = skerry.call("GET", "/function/on-python38")[1]
    assert (described["Runtime"], described["Runs"][:8]) == ("python38", "Python 3")
    assert skerry.call("POST", "/create", body("bystander", ECHO)) == (409, "")
    delete(skerry, *(f"on-{runtime}" for runtime in ("python310", "python314", "python38", "python312ml")))


# 2. Async calls are lost, or get the result of another one, as soon as there are two.


def test_2_every_async_call_can_be_polled_at_once_and_gets_its_own_result(skerry: Skerry) -> None:
    count, at_once = 200, 8

    def call(first: int) -> list[tuple[int, str]]:
        connection = skerry.connect()
        try:
            begun = []
            for number in range(first, count, at_once):
                wish = {"Params": {"n": number}, "Async": True}
                status, said = ask(connection, "POST", "/invoke/bystander", wish)
                assert status == 200, said
                assert ask(connection, "GET", f"/poll/{said['ReqId']}")[1]["State"] != "unknown"
                begun.append((number, said["ReqId"]))
            return begun
        finally:
            connection.close()

    with ThreadPoolExecutor(at_once) as callers:
        begun = [pair for pairs in callers.map(call, range(at_once)) for pair in pairs]
    assert len({id for _, id in begun}) == count
    for number, id in begun:
        report = outcome(skerry, id)
        assert (report["State"], json.loads(report["Result"])) == ("done", {"n": number})
    assert skerry.call("GET", "/poll/bystander-never")[1]["State"] == "unknown"


# 3. An async result of more than 2 MB ends the node.


def test_3_a_large_async_result_comes_back_whole(skerry: Skerry, goes_on: None) -> None:
    create(skerry, "large", "def handler(params): return 'x' * params['size']\n", MemoryMB=64)
    size = 3 * MEGABYTE
    report = outcome(skerry, begin(skerry, "large", {"size": size}))
    assert report["Result"] == f'"{"x" * size}"'
    delete(skerry, "large")


# 4. A function whose process dies poisons its container: later calls hang, fail, or go to somebody else.


def test_4_after_a_worker_has_died_the_next_call_gets_another(skerry: Skerry, goes_on: None) -> None:
    create(skerry, "mortal", "import os\ndef handler(params): return params['die'] and os._exit(7)\n")
    for _ in range(3):
        assert result(skerry, "mortal", {"die": False}) is False
        report = failure(skerry, "mortal", {"die": True})
        assert report["ErrorType"] == "WorkerDied"
        assert report["Error"] == "its worker exited with 7 in the middle of it"
    delete(skerry, "mortal")


# 5. Every failure reads `Node has not enough resources`, and what it printed is thrown away.


def test_5_a_failure_tells_its_cause_with_traceback_and_output(skerry: Skerry, goes_on: None) -> None:
    code = "import sys\ndef handler(params):\n  print('out')\n  print('err', file=sys.stderr)\n  1 / 0\n"
    create(skerry, "wrong", code)
    report = failure(skerry, "wrong")
    assert report["ErrorType"] == "HandlerError"
    assert report["Error"].startswith("ZeroDivisionError: division by zero\n")
    assert 'File "/home/function/main.py", line 5, in handler' in report["Error"]
    assert report["Output"] == "out\nerr\n"
    later = outcome(skerry, begin(skerry, "wrong"))
    assert (later["State"], later["Error"], later["Output"]) == (
        "failed",
        report["Error"],
        report["Output"],
    )
    delete(skerry, "wrong")


# 6. Prewarmed containers are ended at once, and asking for more than fits never returns.


def test_6_prewarming_keeps_what_it_made_and_tells_the_true_number(skerry: Skerry) -> None:
    create(skerry, "ready", ECHO, MemoryMB=100)
    wish = {"Function": "ready", "Instances": 1000}
    status, said = skerry.call("POST", "/prewarm", wish)
    warm = skerry.call("GET", "/status")[1]["AvailableWarmContainers"]
    assert (status, said) == (200, {"Prewarmed": warm["ready"]})
    assert 0 < warm["ready"] <= 10
    assert invoke(skerry, "ready", {})[1]["IsWarmStart"] is True
    assert skerry.call("POST", "/prewarm", {"Function": "ready", "Instances": 0}) == (200, {"Prewarmed": 0})
    assert skerry.call("POST", "/prewarm", {"Function": "none", "Instances": 1}) == (
        404,
        "Unknown function.",
    )
    delete(skerry, "ready")
    result(skerry, "bystander", {})  # which may have had to make room


# 7. An update while a worker is busy: it goes on with the old code for ever.


def test_7_after_an_update_no_call_runs_old_code_and_what_runs_is_finished(skerry: Skerry) -> None:
    code = WAIT + "def handler(params):\n  if 'gate' in params: wait_at(params)\n  return VERSION\n"
    with gate_of(skerry) as gate:
        create(skerry, "changing", code + "VERSION = 1\n")
        busy = begin(skerry, "changing", gate.params("old"))
        gate.wait_for("old")
        update(skerry, "changing", code + "VERSION = 2\n")
        assert [result(skerry, "changing", {}) for _ in range(5)] == [2] * 5
        gate.open("old")
        assert outcome(skerry, busy)["Result"] == "1"
        assert result(skerry, "changing", {}) == 2
    delete(skerry, "changing")


# 8. A container gets a second call while it runs the first.


def test_8_a_worker_runs_one_call_at_a_time_unless_it_may_run_more(skerry: Skerry) -> None:
    code = """
import threading, time
lock, inside, most = threading.Lock(), 0, 0
def handler(params):
    global inside, most
    with lock:
        inside += 1
        most = max(most, inside)
    time.sleep(0.002)
    with lock:
        inside -= 1
    return most
"""
    create(skerry, "narrow", code)
    create(skerry, "wide", code, MaxConcurrency=4)

    def call(name: str) -> int:
        connection = skerry.connect()
        try:
            reports = [ask(connection, "POST", f"/invoke/{name}", {})[1] for _ in range(25)]
        finally:
            connection.close()
        return max(int(report["Result"]) for report in reports)

    with ThreadPoolExecutor(16) as callers:
        assert max(callers.map(call, ["narrow"] * 16)) == 1
        assert 1 < max(callers.map(call, ["wide"] * 16)) <= 4
    delete(skerry, "narrow", "wide")


# 10. No deadline, no logs, no environment, no limits of a function's own.


def test_10_a_call_is_ended_when_its_time_is_over_and_says_so(skerry: Skerry, goes_on: None) -> None:
    code = "import time\ndef handler(params):\n  print('waiting', flush=True)\n  time.sleep(60)\n"
    create(skerry, "slow", code, TimeoutS=45)
    report = failure(skerry, "slow", QoSMaxRespT=0.5)
    assert (report["ErrorType"], report["TimedOut"]) == ("Timeout", True)
    assert "its function may run 45 s, its caller waits 0.5 s" in report["Error"]
    assert report["ResponseTime"] < 45
    update(skerry, "slow", code, TimeoutS=0.5)
    report = failure(skerry, "slow", QoSMaxRespT=45, QoSClass=1)
    assert (report["ErrorType"], report["TimedOut"]) == ("Timeout", True)
    eventually_sync(lambda: skerry.call("GET", "/function/slow/logs?tail=1") == (200, "waiting\n"))
    later = outcome(skerry, begin(skerry, "slow", QoSMaxRespT=0.1))
    assert (later["State"], later["TimedOut"]) == ("failed", True)
    delete(skerry, "slow")


def test_10_a_call_that_is_ended_gets_what_it_printed_and_not_what_others_did(
    skerry: Skerry, goes_on: None
) -> None:
    code = "import os, time\ndef handler(params):\n  print(params['say'], flush=True)\n  eval(params['do'])\n"
    create(skerry, "talks", code)

    def is_logged(text: str) -> bool:
        return text in skerry.call("GET", "/function/talks/logs")[1]

    for do, kind in (("time.sleep(60)", "Timeout"), ("os._exit(1)", "WorkerDied")):
        result(skerry, "talks", {"say": f"before {kind}", "do": "0"})
        eventually_sync(lambda kind=kind: is_logged(f"before {kind}\n"))
        report = failure(skerry, "talks", {"say": "mine", "do": do}, QoSMaxRespT=3.0)
        assert (report["ErrorType"], report["Output"]) == (kind, "mine\n")
    delete(skerry, "talks")


# Whatever is wrong with what is sent


@pytest.mark.parametrize(
    ("path", "data", "status", "reason"),
    [
        ("/invoke/bystander", '{"Params": ', 400, "not valid JSON"),
        ("/invoke/bystander", '{"Params": {}} more', 400, "not valid JSON"),
        ("/invoke/bystander", '{"Params": [1]}', 400, "`Params` must be an object"),
        ("/invoke/bystander", '{"Params": "text"}', 400, "`Params` must be an object"),
        ("/invoke/bystander", '{"Async": "yes"}', 400, "Async"),
        ("/invoke/bystander", '{"QoSMaxRespT": "1"}', 400, "QoSMaxRespT"),
        ("/invoke/bystander", '{"Params": {}, "params": {}}', 400, "given twice"),
        ("/invoke/bystander", b'{"Params": {"a": "\xff"}}', 400, "UTF-8"),
        ("/invoke/bystander", "[" * 100_000, 400, "got `array`"),
        ("/invoke/bystander", '{"Params": {"a": %s' % ("[" * 100_000), 400, "not valid JSON"),
        ("/invoke/bystander", '{"Params": {"a": "%s"}}' % ("x" * MEGABYTE), 413, "at most 1048576 bytes"),
        ("/invoke/nobody", "{}", 404, "Function unknown."),
        ("/invoke/a/b/c", "{}", 404, "Function unknown."),
        ("/delete", '{"Name": "nobody"}', 404, "Unknown function."),
        ("/delete", '{"Name": 5}', 400, "Name"),
        ("/prewarm", '{"Function": "bystander", "Instances": 1.5}', 400, "Instances"),
        ("/create", "{", 400, "not valid JSON"),
        ("/create", "", 404, "Invalid runtime."),
    ],
)
def test_bad_requests_are_refused_with_what_is_wrong(
    skerry: Skerry, goes_on: None, path: str, data: str | bytes, status: int, reason: str
) -> None:
    connection = skerry.connect()
    try:
        connection.request("POST", path, data)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == status, text
    if status in (400, 413):
        assert reason in json.loads(text)["message"]
    else:
        assert text == reason


ELSEWHERE = tarballs.tar(
    tarballs.member("main.py", ECHO), tarballs.symlink("out", "/etc"), tarballs.member("out/x", "x")
)


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"TarFunctionCode": "%%%"}, 400, "not base64"),
        ({"TarFunctionCode": encoded(b"no archive at all")}, 400, "tar"),
        ({"TarFunctionCode": encoded(b"http://example.org/code.tar")}, 400, "URL"),
        ({"TarFunctionCode": encoded(tarballs.tar(tarballs.member("../main.py", ECHO)))}, 400, "../main.py"),
        ({"TarFunctionCode": encoded(tarballs.tar(tarballs.member("/main.py", ECHO)))}, 400, "/main.py"),
        ({"TarFunctionCode": encoded(ELSEWHERE)}, 400, "out"),
        ({"TarFunctionCode": encoded(bytes(2 * MEGABYTE))}, 413, "1048576"),
        ({"Handler": "main.nothing"}, 422, "nothing"),
        ({"Handler": "nowhere.handler"}, 422, "nowhere"),
        ({"Handler": ""}, 400, "handler"),
        ({"Name": ""}, 400, "name"),
        ({"Name": "a/b"}, 400, "name"),
        ({"Name": "n" * 300}, 400, "name"),
        ({"MemoryMB": "many"}, 400, "MemoryMB"),
        ({"MemoryMB": 1}, 422, "memory"),
        ({"MemoryMB": 99_999}, 422, "can never be had"),
        ({"CPUDemand": 9_999.0}, 422, "can never be had"),
        ({"Network": "everything"}, 400, "Network"),
        ({"Environment": {"A=B": "c"}}, 400, "Environment"),
        ({"Runtime": "custom"}, 400, "image"),
    ],
)
def test_what_can_never_work_is_not_created_and_the_reason_is_told(
    skerry: Skerry, goes_on: None, change: dict[str, Any], status: int, reason: str
) -> None:
    told, said = skerry.call("POST", "/create", {**body("never", ECHO), **change})
    assert (told, reason in said["message"]) == (status, True), said
    assert "never" not in skerry.call("GET", "/function")[1]


def test_a_memory_limit_below_1_is_refused_in_the_contracts_words(skerry: Skerry) -> None:
    assert skerry.call("POST", "/create", body("never", ECHO, MemoryMB=0)) == (422, "Invalid memory limit")


def test_code_that_cannot_be_loaded_is_told_with_traceback_and_output(skerry: Skerry, goes_on: None) -> None:
    for line, reason in (
        ("raise KeyError('setting')", "KeyError: 'setting'"),
        ("def handler(:", "SyntaxError"),
        ("import os; os._exit(4)", "exited with 4"),
        ("x = bytearray(1 << 30)", "memory"),
    ):
        status, said = skerry.call(
            "POST", "/create", body("never", f"print('loading', flush=True)\n{line}\n")
        )
        assert (status, reason in said["message"]) == (422, True), said
        assert said.get("Output", "") == ("" if "Syntax" in reason else "loading\n")
    status, said = skerry.call(
        "POST", "/create", body("never", "import time\ntime.sleep(60)\n", TimeoutS=0.5)
    )
    assert (status, "not loaded within 0.5 s" in said["message"]) == (422, True), said


# Whatever a function does

MISCHIEF = """
import os, socket, sys, time

def prints_without_end():
    piece = 'x' * 1023
    for _ in range(200 * 1024):
        print(piece)

def forks_without_end():
    while True:
        if os.fork() == 0:
            time.sleep(60)

def eats_memory():
    kept = []
    while True:
        kept.append(bytearray(1 << 20))

def writes_to_its_socket():
    for number in os.listdir('/proc/self/fd'):
        if os.readlink('/proc/self/fd/' + number).startswith('socket:'):
            os.write(int(number), b'\\xff' * 64)
    time.sleep(60)

def closes_everything():
    os.closerange(0, 1000)

def is_no_json():
    return {1: object()}

def is_not_finite():
    return float('nan')

def is_too_long():
    return 'x' * (5 << 20)

def does(what):
    return eval(what)

def handler(params):
    print('begins', flush=True)
    return eval(params['do'])
"""


@pytest.fixture(scope="module")
def mischief(skerry: Skerry) -> str:
    create(skerry, "mischief", MISCHIEF, MemoryMB=64)
    return "mischief"


@pytest.mark.parametrize(
    ("do", "kind", "reason"),
    [
        ("forks_without_end()", "HandlerError", "BlockingIOError"),
        ("os._exit(3)", "WorkerDied", "exited with 3"),
        ("sys.exit('enough')", "HandlerError", "sys.exit('enough')"),
        ("os.kill(os.getpid(), 11)", "WorkerDied", "SIGSEGV"),
        ("os.execv('/bin/true', ['true'])", "WorkerDied", "exited with 0"),
        ("time.sleep(60)", "Timeout", "its caller waits 2 s"),
        ("eats_memory()", "OutOfMemory", "more than its 64 MB"),
        ("writes_to_its_socket()", "WorkerDied", "do not use the platform's socket"),
        ("closes_everything()", "WorkerDied", "its worker"),
        ("is_no_json()", "ResultError", "an object is no JSON"),
        ("is_not_finite()", "ResultError", "Out of range float values"),
        ("is_too_long()", "ResultError", "4194304"),
        ("does('1 +')", "HandlerError", "SyntaxError"),
        ("does('does(' * 3000)", "HandlerError", "Error"),
    ],
)
def test_whatever_a_function_does_its_caller_is_told_and_the_node_goes_on(
    skerry: Skerry, goes_on: None, mischief: str, do: str, kind: str, reason: str
) -> None:
    wait = 2.0 if kind == "Timeout" else 60.0
    report = failure(skerry, mischief, {"do": do}, QoSMaxRespT=wait)
    assert (report["ErrorType"], reason in report["Error"]) == (kind, True), report
    assert report["Output"].startswith("begins\n")
    if kind == "HandlerError":
        assert "Traceback (most recent call last)" in report["Error"]
    assert result(skerry, mischief, {"do": "2 + 2"}) == 4


def test_output_without_end_is_cut_with_a_note_and_holds_up_nobody(
    skerry: Skerry, goes_on: None, mischief: str
) -> None:
    status, report = invoke(skerry, mischief, {"do": "prints_without_end()"}, ReturnOutput=True)
    assert status == 200, report
    assert len(report["Output"]) < 70_000
    assert "output cut after 65536 bytes" in report["Output"]
    logs = skerry.call("GET", f"/function/{mischief}/logs")[1]
    assert len(logs) < 5 * MEGABYTE


def test_a_full_node_says_429_with_when_to_come_back_and_serves_who_waits(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    flags = ("--set", "functions.memory_mb=32", "--set", "functions.queue_length=1")
    with (
        running(tmp_path_factory.mktemp("full"), *PREPARED_WORKERS, *flags) as skerry,
        gate_of(skerry) as gate,
    ):
        create(skerry, "slow", WAIT + "def handler(params): return wait_at(params)\n")
        busy = in_background(lambda: invoke(skerry, "slow", gate.params("first")))
        gate.wait_for("first")
        waiting = in_background(lambda: invoke(skerry, "slow", gate.params("second")))
        eventually_sync(lambda: skerry.call("GET", "/status")[1]["QueueLength"] == 1)
        connection = skerry.connect()
        try:
            connection.request("POST", "/invoke/slow", "{}")
            refused = connection.getresponse()
            assert (refused.status, refused.read()) == (429, b"")
            assert int(refused.headers["Retry-After"]) >= 1
        finally:
            connection.close()
        gate.open("first")
        gate.wait_for("second")
        gate.open("second")
        assert [each()[0] for each in (busy, waiting)] == [200, 200]
    assert left_of(skerry) == []


def in_background(call: Callable[[], tuple[int, Any]]) -> Callable[[], tuple[int, Any]]:
    """`call` in a thread of its own; what is returned waits for its answer."""
    answers: list[tuple[int, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()

    def answer() -> tuple[int, Any]:
        thread.join()
        return answers[0]

    return answer


def test_a_poll_tells_queued_running_and_done(skerry: Skerry) -> None:
    code = WAIT + "def handler(params): return wait_at(params)\n"
    with gate_of(skerry) as gate:
        create(skerry, "states", code, MemoryMB=600)
        first = begin(skerry, "states", gate.params("first"))
        gate.wait_for("first")
        second = begin(skerry, "states", gate.params("second"))
        assert (poll(skerry, first)["State"], poll(skerry, second)["State"]) == ("running", "queued")
        gate.open("first")
        gate.wait_for("second")
        assert (outcome(skerry, first)["State"], poll(skerry, second)["State"]) == ("done", "running")
        gate.open("second")
        assert outcome(skerry, second)["State"] == "done"
    delete(skerry, "states")
