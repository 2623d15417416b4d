"""Functions of a whole Skerry: as Serverledge's client uses them, as people do, and what they can see."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.functions.registry import tarballs
from tests.support import imagery
from tests.support.functions import (
    ECHO,
    begin,
    create,
    delete,
    encoded,
    failure,
    groups,
    invoke,
    outcome,
    processes,
    result,
)
from tests.support.remains import left_of
from tests.support.skerry import COMMAND, PREPARED_WORKERS, Skerry, environment, running
from tests.support.waiting import PATIENCE_S, eventually_sync

pytestmark = pytest.mark.root

# What serverledge-cli sends with every request.
GO = {"User-Agent": "Go-http-client/1.1", "Content-Type": "application/json", "Accept-Encoding": "gzip"}
NO_SIGNATURE = {"Inputs": [], "Outputs": []}
# Evaluates an expression, or tells the error that it raised.
PROBE = """
import os, socket
def handler(params, context):
    try:
        return repr(eval(params["see"]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


@pytest.fixture(scope="module")
def skerry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Skerry]:
    with running(
        tmp_path_factory.mktemp("functions"), *PREPARED_WORKERS, "--set", "functions.memory_mb=1024"
    ) as one:
        yield one
    assert left_of(one) == []


# As an unmodified serverledge-cli asks, and what it can make of the answers


def go(skerry: Skerry, verb: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    """A request as Go's client writes it; the bytes of an answer that serverledge-cli takes for success."""
    connection = http.client.HTTPConnection(urlsplit(skerry.ready["http"]).netloc, timeout=PATIENCE_S)
    try:
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        connection.request(verb, path, data, GO if body is not None else {"User-Agent": GO["User-Agent"]})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status == 200, said
        assert answer.headers["Content-Encoding"] is None
        assert answer.headers["Content-Type"] == "application/json; charset=UTF-8"
    finally:
        connection.close()
    json.loads(said)  # it indents it, and fails if that cannot be done
    return said


def cli_function(name: str, **fields: Any) -> dict[str, Any]:
    """Go's Function, all of it, as the client fills it in."""
    nothing = {
        "Name": name,
        "Runtime": "",
        "MemoryMB": 0,
        "CPUDemand": 0,
        "MaxConcurrency": 0,
        "Handler": "",
        "TarFunctionCode": "",
        "CustomImage": "",
        "SupportedArchs": None,
        "Signature": None,
    }
    return {**nothing, **fields}


def cli_call(params: dict[str, Any], **fields: Any) -> dict[str, Any]:
    wish = {"QoSClass": 0, "QoSMaxRespT": -1, "CanDoOffloading": True, "Async": False, "ReturnOutput": False}
    return {"Params": params, **wish, **fields}


@pytest.mark.parametrize(
    ("path", "handler"), [("hello.py", "hello.handler"), ("mydir/hello.py", "mydir.hello.handler")]
)
def test_every_command_of_serverledge_cli_is_answered_with_what_it_can_read(
    skerry: Skerry, path: str, handler: str
) -> None:
    code = "def handler(params, context):\n    print('seen <&>')\n    return {'got': params}\n"
    archive = tarballs.tar(tarballs.member(path, code))
    made = cli_function(
        "cli",
        Runtime="python38",
        MemoryMB=128,
        MaxConcurrency=1,
        Handler=handler,
        TarFunctionCode=encoded(archive),
        Signature=NO_SIGNATURE,
    )
    created = go(skerry, "POST", "/create", made)
    assert re.fullmatch(
        rb'{"Created":"cli","Runtime":"Python 3\.\d+\.\d+","Version":1,"Copies":1,"CopiesWanted":1}\n',
        created,
    )
    updated = go(skerry, "POST", "/update", made)
    assert updated == created.replace(b'"Version":1', b'"Version":2')
    assert b'"cli"' in go(skerry, "GET", "/function")
    assert go(skerry, "GET", "/function") == go(skerry, "GET", "/functions")
    prewarm = {"Function": "cli", "Instances": 1, "ForceImagePull": False}
    assert go(skerry, "POST", "/prewarm", prewarm) == b'{"Prewarmed":1}\n'

    said = go(skerry, "POST", "/invoke/cli", cli_call({"n": "1"}, ReturnOutput=True))
    assert re.fullmatch(
        rb'{"Success":true,"Result":"{\\"got\\": {\\"n\\": \\"1\\"}}","ResponseTime":[\d.e-]+,'
        rb'"IsWarmStart":true,"InitTime":0.0,"QueueingTime":[\d.e-]+,"OffloadLatency":0.0,'
        rb'"Duration":[\d.e-]+,"SchedAction":"","Output":"seen \\u003c\\u0026\\u003e\\n",'
        rb'"ExecutionArea":"local","ExecutionNode":"[^"]+","Error":"","ErrorType":"","State":"done",'
        rb'"TimedOut":false}\n',
        said,
    )
    accepted = go(skerry, "POST", "/invoke/cli", cli_call({"n": "2"}, Async=True))
    assert re.fullmatch(rb'{"ReqId":"cli-[0-9a-z]{26}-[0-9a-z]{6}"}\n', accepted)
    id = json.loads(accepted)["ReqId"]
    assert json.loads(outcome(skerry, id)["Result"]) == {"got": {"n": "2"}}
    assert b'"State":"done"' in go(skerry, "GET", f"/poll/{id}")

    status = json.loads(go(skerry, "GET", "/status"))
    assert status["AvailableWarmContainers"]["cli"] >= 1
    assert (status["TotalMemory"], status["QueueLength"]) == (1024, 0)
    assert go(skerry, "POST", "/delete", cli_function("cli")) == b'{"Deleted":"cli"}\n'
    assert invoke(skerry, "cli", {}) == (404, "Function unknown.")


def test_numbers_go_through_unchanged_and_names_keep_their_case(skerry: Skerry) -> None:
    create(skerry, "Numbers", ECHO)
    text = '{"params":{"n":9007199254740993,"f":1.0,"big":123456789012345678901234567890}}'
    connection = skerry.connect()
    try:
        connection.request("POST", "/invoke/Numbers", text)
        report = json.loads(connection.getresponse().read())
        connection.request("POST", "/invoke/numbers", text)
        assert connection.getresponse().read() == b"Function unknown."
    finally:
        connection.close()
    assert report["Result"] == '{"n": 9007199254740993, "f": 1.0, "big": 123456789012345678901234567890}'
    delete(skerry, "Numbers")


def test_functions_of_node_js_wait_for_promises_and_tell_their_errors(skerry: Skerry) -> None:
    code = (
        "exports.handler = async (params) => {\n"
        "  console.log('asked for', params.name);\n"
        "  if (params.fails) throw new Error('no ' + params.name);\n"
        "  return { hello: await Promise.resolve(params.name) };\n"
        "};\n"
    )
    archive = tarballs.tar(tarballs.member("hello.js", code))
    create(skerry, "js", archive, Runtime="nodejs17ng", Handler="hello", MemoryMB=128)
    status, report = invoke(skerry, "js", {"name": "you"}, ReturnOutput=True)
    assert (status, report["Result"], report["Output"]) == (200, '{"hello":"you"}', "asked for you\n")
    broken = failure(skerry, "js", {"name": "way", "fails": True})
    assert (broken["ErrorType"], broken["Output"]) == ("HandlerError", "asked for way\n")
    assert broken["Error"].startswith("Error: no way")
    assert "hello.js:3" in broken["Error"]
    delete(skerry, "js")


# What functions can see of each other and of the node


def test_a_function_sees_nothing_of_another_nor_of_the_node(skerry: Skerry) -> None:
    (skerry.data / "secret").write_text("of the node")
    hidden = tarballs.of(main=PROBE, private="KEY = 1\n")
    create(skerry, "other", hidden, Environment={"PASSWORD": "hers"})
    create(skerry, "mine", PROBE, Environment={"PASSWORD": "his"})

    def see(name: str, expression: str) -> str:
        return str(result(skerry, name, {"see": expression}))

    assert see("other", "open('/tmp/kept', 'w').write('hers')") == "4"
    assert see("other", "sorted(os.listdir('/home/function'))") == "['main.py', 'private.py']"
    assert see("mine", "sorted(os.listdir('/home/function'))") == "['main.py']"
    assert see("mine", "os.listdir('/tmp')") == "[]"
    assert "ModuleNotFoundError" in see("mine", "__import__('private')")
    assert (see("other", "os.environ['PASSWORD']"), see("mine", "os.environ['PASSWORD']")) == (
        "'hers'",
        "'his'",
    )
    assert see("mine", "sorted(os.environ)") == "['HOME', 'LANG', 'PASSWORD', 'PATH']"
    assert see("mine", "[n for n in os.listdir('/proc') if n.isdigit()]") == "['1', '2']"
    assert see("mine", "os.getuid()") != see("other", "os.getuid()")
    assert "Error" in see("mine", f"open({str(skerry.data / 'secret')!r}).read()")
    assert "Error" in see("mine", f"open({str(skerry.data / 'pki' / 'ca.key')!r}).read()")
    delete(skerry, "other", "mine")


def test_a_function_reaches_out_through_the_node_unless_it_may_reach_nobody(skerry: Skerry) -> None:
    create(skerry, "out", PROBE)
    create(skerry, "alone", PROBE, Network="none")
    gateway = skerry.subnet.replace("0/24", "1")
    # Nobody listens there, which only somebody who reaches it can know.
    reach = {"see": f"socket.create_connection(({gateway!r}, 9), timeout=20)"}
    assert "ConnectionRefusedError" in result(skerry, "out", reach)
    assert "Network is unreachable" in result(skerry, "alone", reach)
    node = urlsplit(skerry.ready["http"]).port
    for name in ("out", "alone"):  # the node's own loopback is not the worker's
        inside = {"see": f"socket.create_connection(('127.0.0.1', {node}), timeout=20)"}
        assert "ConnectionRefusedError" in result(skerry, name, inside)
    delete(skerry, "out", "alone")


# Images

ANSWER = r"""#!/bin/sh
while read -r line; do
  line=${line%$(printf '\r')}
  [ -z "$line" ] && break
  case "$line" in Content-Length:*) length=${line#*: } ;; esac
done
[ -n "$length" ] || exit 0  # somebody only looked whether this listens
params=$(head -c "$length" | sed 's/.*"n": *\([0-9]*\).*/\1/')
echo "asked for $params" >&2
said='{"Success":true,"Result":"'$((params * params))'","Output":"squared"}'
printf 'HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s' ${#said} "$said"
"""


def test_an_image_from_a_file_is_a_function_like_any_other(skerry: Skerry, tmp_path: Path) -> None:
    layer = imagery.layer(imagery.file("bin/answer", ANSWER, mode=0o755))
    made = imagery.busybox(layer, command=("nc", "-ll", "-p", "8080", "-e", "/bin/answer"))
    file = imagery.write_oci_archive(made, tmp_path / "square.tar")
    done = skerry.cli("fn", "deploy", "--name", "square", "--image", f"oci-archive:{file}", "--memory", "32")
    assert done.returncode == 0, done.stderr
    file.unlink()  # no registry has it, and it is here
    status, report = invoke(skerry, "square", {"n": 12}, ReturnOutput=True)
    assert (status, report["Result"], report["Output"]) == (200, "144", "squared"), report["Error"]
    assert skerry.cli("fn", "invoke", "square", "-p", "n:=3").stdout == "9\n"
    assert outcome(skerry, begin(skerry, "square", {"n": 5}))["Result"] == "25"
    eventually_sync(lambda: "asked for 5" in skerry.cli("fn", "logs", "square").stdout)
    assert containers(skerry), "its container runs"
    delete(skerry, "square")
    eventually_sync(lambda: containers(skerry) == [])


def containers(skerry: Skerry) -> list[Any]:
    return list(json.loads(skerry.cli("container", "list", "-o", "json").stdout)["containers"])


# As people use them

HELLO = """
def handler(params, context):
    print("asked for", params["name"])
    if params["name"] == "nobody":
        raise ValueError("nobody is not greeted")
    return {"hello": params["name"]}
"""


def fn(skerry: Skerry, *arguments: str) -> str:
    """What a verb prints, which must go well."""
    done = skerry.cli("fn", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_file_is_deployed_called_followed_and_deleted_by_the_command_line(
    skerry: Skerry, tmp_path: Path
) -> None:
    (tmp_path / "hello.py").write_text(HELLO)
    deployed = fn(skerry, "deploy", str(tmp_path / "hello.py"), "--memory", "32", "-e", "WHO=me")
    assert re.match(r"deployed hello: hello\.handler, Python 3\.\d+\.\d+, 32MB; 1 file", deployed)
    assert fn(skerry, "deploy", str(tmp_path / "hello.py"), "--timeout", "20s").startswith("updated hello")
    assert "hello" in fn(skerry, "list", "-q").split()
    described = json.loads(fn(skerry, "describe", "hello", "-o", "json"))
    assert (described["Version"], described["MemoryMB"], described["TimeoutS"]) == (2, 32, 20)
    assert described["Environment"] == ["WHO=me"]
    assert "WHO" in (shown := fn(skerry, "describe", "hello"))
    assert "WHO=me" not in shown
    with subprocess.Popen(
        [*COMMAND, "fn", "logs", "-f", "hello"],
        env=environment(SKERRY_DATA=str(skerry.data)),
        stdout=subprocess.PIPE,
    ) as follower:
        assert fn(skerry, "prewarm", "hello", "2") == "2 warm\n"
        assert fn(skerry, "invoke", "hello", "-p", "name:world") == '{"hello": "world"}\n'
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"asked for world\n"
        waited = fn(skerry, "invoke", "hello", "--async", "--wait", "--json", '{"name": "later"}')
        assert waited == '{"hello": "later"}\n'
        id = fn(skerry, "invoke", "hello", "--async", "-p", "name:last").strip()
        assert fn(skerry, "poll", "--wait", id) == '{"hello": "last"}\n'
        failed = skerry.cli("fn", "invoke", "hello", "-p", "name:nobody")
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "nobody is not greeted" in failed.stderr
        assert 'File "/home/function/hello.py", line 5' in failed.stderr
        assert failed.stderr.startswith("asked for nobody\n")
        for name in (b"later", b"last", b"nobody"):  # now, as they are gone with the function
            assert follower.stdout.readline() == b"asked for %s\n" % name
        assert fn(skerry, "delete", "hello") == "deleted hello\n"
        output, _ = follower.communicate(timeout=PATIENCE_S)  # it ends with the function
    assert (follower.returncode, output) == (0, b"")
    gone = skerry.cli("fn", "invoke", "hello")
    assert gone.returncode == 1
    assert "There is no function 'hello'" in gone.stderr


def test_more_workers_than_fit_are_not_made_and_that_is_said(skerry: Skerry) -> None:
    create(skerry, "wide", ECHO, MemoryMB=300)
    done = skerry.cli("fn", "prewarm", "wide", "9")
    assert (done.returncode, done.stdout) == (1, "3 warm\n")
    assert "resources suffice for 3 of 9" in done.stderr
    delete(skerry, "wide")


def test_workers_go_with_their_function_and_only_blank_ones_stay(skerry: Skerry) -> None:
    create(skerry, "brief", "import os\ndef handler(params): return os.getuid()\n")
    uid = result(skerry, "brief")
    own = {pid for group in groups(skerry) for pid in processes(group) if owner_of(pid) == uid}
    assert own
    delete(skerry, "brief")
    eventually_sync(lambda: not any(Path(f"/proc/{pid}").exists() for pid in own))
    eventually_sync(lambda: skerry.call("GET", "/status")[1]["Workers"] == 0)


def owner_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return -1  # it has ended meanwhile
