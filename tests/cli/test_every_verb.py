"""Every verb there is, wherever it may be called: what goes wrong is told in words, never as a traceback.

The verbs are taken from the command line itself, so a new one is tested as soon as it is there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import click
import pytest
from click.testing import Result

from skerry.cli import main
from tests.support import fake_servers
from tests.support.certificates import TestAuthority
from tests.support.skerry import COMMAND, NOBODY, environment
from tests.support.waiting import PATIENCE_S

NO_SERVER, REFUSED, USAGE = 3, 1, 2
# They do all by themselves, for which there is a test of its own, or simulate.
ALONE = {
    *(("up",), ("server",), ("node",), ("node", "leave"), ("doctor",)),
    *(("install", "up"), ("install", "server"), ("install", "node"), ("uninstall",)),
}
SIMULATES = "sim"
WRITES_CONTEXTS = "context"
# They look at what they were given before they call, and ours is not good enough.
LOOK_FIRST = {"apply", "fn deploy", "cell start", "schedule add", "service autoscale", "service plan"} | {
    "namespace quota"
}
LOOK_FIRST |= {"secret set", "config set", "tls import"}
# What arguments must be to be looked at further.
WORDS = {"kind": "instance", "currency": "EUR", "changes": "a=b", "duration_s": "1h", "size": "1"}
NO_PID = 2**22 + 1


def _verbs(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _verbs(found, (*path, name))
    if command.invoke_without_command:
        yield path, command


VERBS = {
    " ".join(path): command
    for path, command in _verbs(main.cli)
    if path not in ALONE and path[0] not in (SIMULATES, WRITES_CONTEXTS)
}
OPTIONS = {verb: {name for each in command.params for name in each.opts} for verb, command in VERBS.items()}
ASK_SERVER = [verb for verb in VERBS if "--url" in OPTIONS[verb]]
ASK_NODE = [verb for verb in VERBS if "--socket" in OPTIONS[verb]]


def call(verb: str, file: Path, *more: str, data: Path) -> Result:
    """The verb with all that it needs, so that it gets as far as it can."""
    given = [word for each in VERBS[verb].params if each.required for word in _given(each, file)]
    if verb == "explain":  # an instance, or two ends of a connection
        given.append("web")
    return fake_servers.skerry(*verb.split(), *more, *given, SKERRY_DATA=str(data))


def _given(parameter: click.Parameter, file: Path) -> list[str]:
    word = WORDS.get(parameter.name or "", "x")
    match parameter.type:
        case click.Choice():
            word = str(parameter.type.choices[0])
        case click.Path() | click.File():
            word = str(file)
        case click.types.IntParamType() | click.types.FloatParamType():
            word = "1"
        case click.Tuple():
            return [parameter.opts[-1], "webhook", "https://hooks.example.org/x"]  # of `alert add`
    return [parameter.opts[-1], word] if isinstance(parameter, click.Option) else [word]


def assert_told(result: Result, *codes: int) -> None:
    """It ended by itself with one of `codes`, and said why."""
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in codes, result.stderr
    assert "Error: " in result.stderr
    assert "Traceback" not in result.output


def assert_each(check: Callable[[str], None], verbs: Iterable[str]) -> None:
    """All verbs in one test, because there are many: each that fails is told."""
    failed = {}
    for verb in sorted(verbs):
        try:
            check(verb)
        except AssertionError as error:
            failed[verb] = str(error)
    assert failed == {}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file.json"
    path.write_text("{}")
    return path


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)  # some commands write files there
    path = tmp_path / "data"
    path.mkdir()
    return path


def no_skerry(data: Path, authority: TestAuthority) -> None:
    pass


def a_dead_one(data: Path, authority: TestAuthority) -> None:
    _write(data, pid=NO_PID, role="up", http="http://127.0.0.1:9")


def one_that_says_nothing(data: Path, authority: TestAuthority) -> None:
    _write(data)


def half_a_file(data: Path, authority: TestAuthority) -> None:
    (data / "ready.json").write_text('{"pid": 1, "http"')


def a_node(data: Path, authority: TestAuthority) -> None:
    pair = authority.issue("n1", "node")
    _write(
        data,
        role="node",
        node="n1",
        server="https://server.example:1323",
        socket=str(data / "gone.sock"),
        ca=str(authority.ca),
        client_cert=str(pair.certificate),
        client_key=str(pair.key),
    )


def a_tls_server_elsewhere(data: Path, authority: TestAuthority) -> None:
    _write(
        data,
        role="server",
        http="https://127.0.0.1:9",
        http_socket=str(data / "gone.sock"),
        ca=str(authority.ca),
    )


def _write(data: Path, pid: int | None = None, **ready: str) -> None:
    (data / "ready.json").write_text(json.dumps({"pid": pid or os.getpid(), **ready}))


Situation = Callable[[Path, TestAuthority], None]


@pytest.mark.parametrize(
    "situation",
    [no_skerry, a_dead_one, one_that_says_nothing, half_a_file, a_node, a_tls_server_elsewhere],
)
def test_without_a_server_to_talk_to_it_is_told_and_the_exit_code_is_3(
    situation: Situation, data: Path, file: Path, authority: TestAuthority
) -> None:
    situation(data, authority)
    verbs = {*ASK_SERVER, *ASK_NODE}
    if situation is a_node:
        verbs.remove("aurae config")  # the files of the node are all it needs

    def check(verb: str) -> None:
        codes = (NO_SERVER,) if verb not in LOOK_FIRST else (NO_SERVER, REFUSED, USAGE)
        assert_told(call(verb, file, data=data), *codes)

    assert_each(check, verbs)


@pytest.mark.parametrize("reply", [b"{}", b"[]", b"null", b"5", b"<html>", b"", b'{"half": '])
def test_what_answers_and_is_no_skerry_is_told(reply: bytes, data: Path, file: Path) -> None:
    def check(verb: str) -> None:
        result = call(verb, file, "--url", server.url, data=data)
        if result.exit_code == 0 and result.exception is None:
            return  # it needs no more than that the server agrees
        assert isinstance(result.exception, SystemExit), result.exception
        assert "Error: " in result.stderr

    with fake_servers.on_tcp() as server:
        server.otherwise = (200, reply)
        assert_each(check, ASK_SERVER)


@pytest.mark.parametrize(
    "arguments",
    [
        ("up", "--http", "nowhere:nothing"),
        ("server", "--http", "nowhere:nothing"),
        ("node", "--join", "nowhere", "--token", "x"),
        ("node", "leave", "--yes"),
    ],
)
def test_what_is_done_by_this_process_itself_tells_why_it_cannot(
    arguments: tuple[str, ...], data: Path
) -> None:
    ended = subprocess.run(
        [*COMMAND, *arguments, "--data", str(data)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode in (REFUSED, USAGE)
    assert "Error: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.root
def test_another_user_is_told_whose_data_folder_it_is(data: Path, authority: TestAuthority) -> None:
    a_tls_server_elsewhere(data, authority)
    data.chmod(0o700)
    verbs = sorted({*ASK_SERVER, *ASK_NODE})
    script = "import sys; from tests.cli.test_every_verb import as_nobody; as_nobody(*sys.argv[1:])"
    ended = subprocess.run(
        [sys.executable, "-c", script, str(data), os.devnull, *verbs],
        env=environment(PYTHONPATH=os.pathsep.join(sys.path)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == verbs


def as_nobody(data: str, file: str, *verbs: str) -> None:
    """Call each of `verbs` as a user who may not look into `data`, and tell which were called."""
    for verb in verbs:  # as root first: others may not be able to read what is imported for them
        assert_told(call(verb, Path(file), data=Path(data, "none")), NO_SERVER)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    for verb in verbs:
        result = call(verb, Path(file), data=Path(data))
        assert_told(result, NO_SERVER)
        assert "belongs to another user" in result.stderr
        sys.stdout.write(f"{verb}\n")


def test_every_verb_that_asks_somebody_is_among_these() -> None:
    others: Sequence[str] = [verb for verb in VERBS if verb not in ASK_SERVER and verb not in ASK_NODE]
    alone = [
        "backup key",
        "backup verify",
        "completion",
        "contract verify",
        "demo clean",
        "demo exec",
        "demo run",
        "dns lookup",
        "image sample",
        "restore",
        "version",
    ]
    assert sorted(others) == alone
