"""`skerry fn`, against the real routes over functions that nobody runs."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from skerry.cli import function_calls
from skerry.functions.asynchronous.runner import AsyncCallResult
from skerry.kit import pki
from skerry.kit.clock import SystemClock
from skerry.model import errors
from skerry.model.calls import CallFailure, CallResult, CallState, CodeLoadError
from skerry.model.containers import NetworkMode
from tests.support.nodes import Command, read_until
from tests.support.server_threads import ServerThread
from tests.support.waiting import PATIENCE_S, eventually_sync
from tests.transport.http.conftest import serving
from tests.wire.serverledge.fakes import DONE, Fakes, echo, failed

HELLO = "def handler(params, context):\n    return {'hello': params['name']}\n"
TRACEBACK = "Traceback (most recent call last):\n  File \"hello.py\", line 2\nKeyError: 'name'"
ERROR = f"KeyError: 'name'\n\n{TRACEBACK}"


class Ledge(ServerThread):
    """A server of functions."""

    group = "fn"

    async def serve(self) -> None:
        self.fakes = Fakes(SystemClock())
        async with serving(self.authority, serverledge=self.fakes.bundle) as site:
            await self.started(site.url)

    def json(self, verb: str, *arguments: str) -> Any:
        return json.loads(self.say(verb, "-o", "json", *arguments))

    def file(self, name: str = "hello.py", text: str = HELLO) -> str:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def becomes(self, id: str, state: CallState, answer: CallResult | None = None) -> None:
        """An async call gets on."""
        report = None if answer is None else replace(DONE, answer=answer)
        self.fakes.asynchronous.calls[id] = AsyncCallResult(state, report)


@pytest.fixture
def ledge(tmp_path: Path, cloud_authority: pki.CertificateAuthority) -> Iterator[Ledge]:
    with Ledge(tmp_path, cloud_authority) as running:
        yield running


def test_a_file_is_deployed_under_its_name_with_what_can_be_guessed(ledge: Ledge) -> None:
    result = ledge.cli("deploy", ledge.file())
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("deployed hello: hello.handler, Python 3.11.2, 128MB; 1 file, ")
    assert "skerry fn invoke hello" in result.stderr
    [asked] = ledge.fakes.functions.asked
    assert (asked.name, asked.runtime, asked.handler, asked.memory) == (
        "hello",
        "python",
        "hello.handler",
        128,
    )
    with tarfile.open(fileobj=io.BytesIO(asked.code), mode="r:") as archive:
        assert archive.getnames() == ["hello.py"]


def test_a_deploy_asks_for_all_that_its_options_say(ledge: Ledge) -> None:
    ledge.file("env", "A=file\nB=2\n")
    resources = (
        "--memory",
        "64",
        "--cpu",
        "500",
        "--concurrency",
        "4",
        "--timeout",
        "2m",
        "--network",
        "none",
    )
    what = ("--name", "greet", "--handler", "hello.other", "--runtime", "python310")
    env = ("-e", "A=1", "--env-file", str(ledge.folder / "env"))
    where = ("--policy", "edgecloud", "--idempotent")
    ledge.say("deploy", *resources, *what, *env, *where, ledge.file())
    [asked] = ledge.fakes.functions.asked
    assert (asked.name, asked.handler, asked.runtime) == ("greet", "hello.other", "python310")
    assert (asked.memory, asked.cpu, asked.max_concurrency, asked.timeout_s) == (64, 500, 4, 120.0)
    assert asked.network is NetworkMode.NONE
    assert asked.environment == ("A=1", "B=2")
    assert (asked.policy, asked.is_idempotent) == ("edgecloud", True)


def test_a_second_deploy_updates_says_so_and_keeps_what_is_not_said(ledge: Ledge) -> None:
    ledge.say(
        "deploy", "--memory", "256", "--cpu", "250", "-e", "A=1", "-e", "B=2", "--idempotent", ledge.file()
    )
    assert ledge.say("deploy", "-e", "B=3", ledge.file()).startswith("updated hello to version 2: ")
    first, second = ledge.fakes.functions.asked
    assert (second.memory, second.cpu, second.environment) == (256, 250, ("A=1", "B=3"))
    assert second.is_idempotent
    told = ledge.json("deploy", "--cpu", "0", ledge.file())
    assert (told["Updated"], told["Version"], told["Created"]) == (True, 3, "hello")
    assert told["Bytes"] == len(first.code)
    assert ledge.fakes.functions.asked[-1].cpu is None


def test_a_deploy_keeps_the_signature_that_was_declared_by_the_api(ledge: Ledge) -> None:
    ledge.say("deploy", ledge.file())
    function = ledge.fakes.functions.known["hello"]
    ledge.fakes.functions.known["hello"] = replace(function, signature='{"Inputs":[]}')
    ledge.say("deploy", ledge.file())
    assert json.loads(ledge.fakes.functions.asked[-1].signature) == {"Inputs": []}


def test_an_update_keeps_its_handler_while_the_code_has_it(ledge: Ledge) -> None:
    two = "def a(params): pass\ndef b(params): pass\n"
    refused = ledge.cli("deploy", ledge.file(text=two))
    assert refused.exit_code == 2
    assert "--handler hello.a" in refused.stderr
    ledge.say("deploy", "--handler", "hello.b", ledge.file(text=two))
    ledge.say("deploy", ledge.file(text=two))
    ledge.say("deploy", "--name", "hello", ledge.file("other.js", "module.exports = () => 1"))
    asked = [(each.runtime, each.handler) for each in ledge.fakes.functions.asked]
    assert asked == [("python", "hello.b")] * 2 + [("nodejs", "other")]


def test_an_image_is_deployed_as_a_custom_function(ledge: Ledge) -> None:
    ledge.say("deploy", "--image", "example.org/team/sums:1.2", "--memory", "64")
    ledge.say("deploy", "--image", "oci-archive:adder.tar")
    one, other = ledge.fakes.functions.asked
    assert (one.name, one.runtime, one.image, one.code) == (
        "sums",
        "custom",
        "example.org/team/sums:1.2",
        b"",
    )
    assert (other.name, other.image) == ("adder", f"oci-archive:{Path('adder.tar').absolute()}")
    for wrong in ((), ("--image", "sums", ledge.file())):
        assert ledge.cli("deploy", *wrong).exit_code == 2


def test_code_that_cannot_be_loaded_is_told_with_what_it_printed(ledge: Ledge) -> None:
    ledge.fakes.functions.failing = CodeLoadError(
        "hello.py cannot be imported: no module 'x'", output="began\n"
    )
    result = ledge.cli("deploy", ledge.file())
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "began\nError: hello.py cannot be imported: no module 'x'\n"


def test_a_runtime_that_is_none_is_told_with_those_there_are(ledge: Ledge) -> None:
    result = ledge.cli("deploy", "--runtime", "cobol", ledge.file())
    assert result.exit_code == 1
    assert "python, nodejs or custom" in result.stderr


def test_list_and_describe_show_functions_and_hide_values(ledge: Ledge) -> None:
    ledge.say("deploy", "-e", "PASSWORD=hunter2", "--cpu", "500", ledge.file())
    ledge.fakes.functions.add("isprime")
    header, hello, prime = ledge.say("list").splitlines()
    assert header.split()[:2] == ["NAME", "RUNTIME"]
    assert hello.split()[0] == "hello"
    assert "500m" in hello
    assert prime.split()[0] == "isprime"
    assert ledge.say("list", "-q") == "hello\nisprime\n"
    assert [one["Name"] for one in ledge.json("list")["functions"]] == ["hello", "isprime"]
    text = ledge.say("describe", "hello")
    facts = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert (facts["environment"], facts["cpu"], facts["timeout"]) == ("PASSWORD", "500m", "300s")
    assert "hunter2" not in text
    assert ledge.json("describe", "isprime")["Warm"] == 1


def test_a_call_prints_the_result_alone_as_it_came(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    number = '{"n": 123456789012345678901234567890, "x": 1.0}'
    ledge.fakes.invoker.report = lambda ask: replace(
        DONE, answer=CallResult(0.0, number.encode(), output="hi\n")
    )
    result = ledge.cli("invoke", "hello")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{number}\n", "")
    assert ledge.cli("invoke", "--printed", "hello").stderr == "hi\n"
    report = ledge.json("invoke", "hello")
    assert report["Result"] == number
    assert report["IsWarmStart"]


def test_parameters_are_texts_unless_they_are_said_to_be_json(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    ledge.fakes.invoker.report = echo
    given = ("-p", "name:world", "-p", "n:=3", "-p", "list:=[1, 2]", "-p", "url:http://x:1/?a=b", "-p", "e:")
    said = json.loads(ledge.say("invoke", "hello", *given))
    assert said == {"name": "world", "n": 3, "list": [1, 2], "url": "http://x:1/?a=b", "e": ""}
    assert ledge.say("invoke", "hello") == "null\n"


def test_json_comes_from_a_text_a_file_or_standard_input_and_is_not_changed(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    ledge.fakes.invoker.report = echo
    exact = '{"n":1.10,"big":123456789012345678901234567890}'
    assert ledge.say("invoke", "hello", "--json", exact) == f"{exact}\n"
    assert ledge.say("invoke", "hello", "--json", ledge.file("p.json", exact)) == f"{exact}\n"
    assert ledge.say("invoke", "hello", "-j", "-", stdin=exact) == f"{exact}\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("-p", "name"), "name:value"),
        (("-p", "n:=x"), "not JSON"),
        (("-p", "n:=NaN"), "NaN is not JSON"),
        (("--json", "[1]"), "begins with"),
        (("--json", '{"a":'), "not JSON"),
        (("--json", "nowhere.json"), "nowhere.json"),
        (("--json", "{}", "-p", "a:b"), "either with -p or with --json"),
        (("--wait",), "--async"),
    ],
)
def test_parameters_that_are_none_are_wrong_usage(ledge: Ledge, given: tuple[str, ...], told: str) -> None:
    result = ledge.cli("invoke", "hello", *given)
    assert result.exit_code == 2
    assert told in result.stderr


def test_a_call_says_its_class_and_how_long_it_may_take(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    ledge.say("invoke", "hello", "-c", "2", "--resptime", "0.5s")
    ledge.say("invoke", "hello")
    asked = [(ask.qos_class, ask.max_response_s, ask.wants_output) for ask in ledge.fakes.invoker.asked]
    assert asked == [(2, 0.5, False), (0, None, False)]


def test_a_call_that_fails_tells_its_traceback_and_what_it_printed(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    ledge.fakes.invoker.report = failed(
        CallResult(0.0, output="looking\n", failure=CallFailure.HANDLER, error=ERROR)
    )
    result = ledge.cli("invoke", "hello")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"looking\n{TRACEBACK}\nError: hello failed (HandlerError): KeyError: 'name'\n"
    for_scripts = ledge.cli("invoke", "-o", "json", "hello")
    assert for_scripts.exit_code == 1
    assert json.loads(for_scripts.stdout)["Error"] == ERROR


@pytest.mark.parametrize("failure", [CallFailure.TIMEOUT, CallFailure.NO_ROOM, CallFailure.MEMORY])
def test_whatever_else_goes_wrong_with_a_call_is_one_line(ledge: Ledge, failure: CallFailure) -> None:
    ledge.fakes.functions.add("hello")
    ledge.fakes.invoker.report = failed(CallResult(0.0, failure=failure, error="it went wrong"))
    result = ledge.cli("invoke", "hello")
    assert result.exit_code == 1
    assert result.stderr == f"Error: hello failed ({failure}): it went wrong\n"


def test_a_call_that_is_not_taken_is_told_to_be_tried_again(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    ledge.fakes.invoker.failing = errors.Overloaded("full")
    result = ledge.cli("invoke", "hello")
    assert result.exit_code == 1
    assert "Try again in a moment" in result.stderr


@pytest.mark.parametrize("verb", ["describe", "invoke", "logs", "prewarm", "delete"])
def test_a_function_that_is_not_there_is_told_with_where_to_look(ledge: Ledge, verb: str) -> None:
    result = ledge.cli(verb, "nope")
    assert result.exit_code == 1
    assert "There is no function 'nope'. 'skerry fn list' lists" in result.stderr


def test_an_async_call_prints_its_id_and_is_polled_by_it(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    assert ledge.say("invoke", "hello", "--async") == "hello-1\n"
    waits = ledge.cli("poll", "hello-1")
    assert (waits.exit_code, waits.stdout) == (1, "")
    assert "hello-1 is queued" in waits.stderr
    assert json.loads(ledge.cli("poll", "hello-1", "-o", "json").stdout)["State"] == "queued"
    ledge.becomes("hello-1", CallState.DONE, CallResult(0.0, b"[1]"))
    assert ledge.say("poll", "hello-1") == "[1]\n"
    ledge.becomes("hello-1", CallState.FAILED, CallResult(0.0, failure=CallFailure.HANDLER, error=ERROR))
    assert "KeyError" in ledge.cli("poll", "hello-1").stderr
    ledge.becomes("hello-1", CallState.EXPIRED)
    assert "kept for" in ledge.cli("poll", "hello-1").stderr
    assert "There is no call 'hello-2'" in ledge.cli("poll", "hello-2").stderr


def test_an_async_call_can_be_waited_for(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    with Command(ledge, "fn", "invoke", "hello", "--async", "--wait") as process:
        read_until(process.stderr, b"hello-1: queued")
        eventually_sync(lambda: ledge.fakes.asynchronous.waits == [0.0, 10.0])
        ledge.becomes("hello-1", CallState.DONE, CallResult(0.0, b"42"))
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, said) == (0, b"42\n")
    assert ledge.fakes.asynchronous.waits == [0.0, 10.0]


def test_ctrl_c_leaves_an_async_call_and_says_how_to_find_it(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    with Command(ledge, "fn", "invoke", "hello", "--async", "--wait") as process:
        read_until(process.stderr, b"hello-1: queued")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130
    assert b"skerry fn poll hello-1" in told


def test_logs_are_shown_and_followed(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    assert ledge.say("logs", "hello") == "one\ntwo\nthree\n"
    assert ledge.say("logs", "-n", "1", "hello") == "three\n"
    with Command(ledge, "fn", "logs", "-f", "hello") as process:
        assert read_until(process.stdout, b"three") == b"one\ntwo\nthree\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_neighbours_are_a_row_each(ledge: Ledge) -> None:
    header, row = ledge.say("neighbours").splitlines()
    assert header.split()[:5] == ["NODE", "AREA", "ADDRESS", "STATUS", "RTT"]
    [one] = ledge.json("neighbours")
    assert row.split()[:3] == [one["Node"], one["Area"], one["Address"]]


def test_prewarm_tells_how_many_are_ready_and_whether_that_is_all(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello")
    assert ledge.say("prewarm", "hello") == "1 warm\n"
    assert ledge.say("prewarm", "--pull", "hello", "0") == "fetched\n"
    short = ledge.cli("prewarm", "hello", "5")
    assert (short.exit_code, short.stdout) == (1, "2 warm\n")
    assert "resources suffice for 2 of 5" in short.stderr
    assert ledge.fakes.invoker.prewarmed == [("hello", 1, False), ("hello", 0, True), ("hello", 5, False)]


def test_delete_goes_on_with_the_others(ledge: Ledge) -> None:
    ledge.fakes.functions.add("hello", "isprime")
    result = ledge.cli("delete", "nope", "hello", "isprime")
    assert result.exit_code == 1
    assert result.stdout == "deleted hello\ndeleted isprime\n"
    assert ledge.fakes.functions.names() == []


def test_what_takes_long_is_told_after_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = threading.Event()
    monkeypatch.setattr(function_calls, "_SLOW_S", 0.0)
    monkeypatch.setattr(function_calls.click, "echo", _then(function_calls.click.echo, said.set))
    with function_calls.print_if_slow("hello: runs"):
        assert said.wait(PATIENCE_S)
    assert capsys.readouterr().err == "hello: runs\n"
    monkeypatch.setattr(function_calls, "_SLOW_S", 1000.0)
    with function_calls.print_if_slow("hello: runs"):
        pass
    assert capsys.readouterr().err == ""


def _then(first: Callable[..., None], second: Callable[[], None]) -> Callable[..., None]:
    def both(*args: Any, **more: Any) -> None:
        first(*args, **more)
        second()

    return both
