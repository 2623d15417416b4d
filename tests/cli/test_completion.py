"""Completion in a shell: commands, options and names of the server, and silence whatever goes wrong."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from skerry.cli import completion, main
from tests.support import fake_servers
from tests.support.fake_servers import FakeServer
from tests.support.skerry import environment
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_servers.on_tcp() as fake:
        for kind in ("instance", "service", "volume", "job", "route", "secret"):
            fake.answer(f"GET /{kind}", {f"{kind}s": [{"name": f"{kind}-a"}, {"name": f"{kind}-b"}]})
        fake.answer("GET /node", {"nodes": [{"name": "edge-1"}, {"name": "hub"}]})
        fake.answer("GET /namespace", {"namespaces": [{"name": "shop"}, {"name": "default"}]})
        fake.answer("GET /function", ["hello", "resize"])
        yield fake


def complete(line: str, **variables: str) -> list[str]:
    """The words that follow a line, as bash gets them."""
    words = line.split(" ")
    clean = {name: None for name in os.environ if name.startswith("SKERRY_")}
    asked = {
        "_SKERRY_COMPLETE": "bash_complete",
        "COMP_WORDS": "\n".join(words) if words[-1] else "\n".join(words[:-1]),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(main.cli, [], prog_name="skerry", env={**clean, **asked, **variables})
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return [found.partition(",")[2] for found in result.stdout.split()]


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("skerry logs ", ["instance-a", "instance-b"]),
        ("skerry logs instance-b", ["instance-b"]),
        ("skerry stop instance-a ", ["instance-a", "instance-b"]),
        ("skerry exec -it ", ["instance-a", "instance-b"]),
        ("skerry node drain ", ["edge-1", "hub"]),
        ("skerry node drain e", ["edge-1"]),
        ("skerry service scale ", ["service-a", "service-b"]),
        ("skerry fn invoke ", ["hello", "resize"]),
        ("skerry volume describe ", ["volume-a", "volume-b"]),
        ("skerry secret delete ", ["secret-a", "secret-b"]),
        ("skerry logs --namespace ", ["default", "shop"]),
        ("skerry get ", ["instances", "nodes", "services", "volumes", "workloads"]),
        ("skerry get nodes ", ["edge-1", "hub"]),
        ("skerry describe service ", ["service-a", "service-b"]),
        ("skerry completion ", ["bash", "fish", "zsh"]),
    ],
)
def test_names_come_from_the_server(server: FakeServer, line: str, names: list[str]) -> None:
    assert sorted(complete(line, SKERRY_URL=server.url)) == names


def test_commands_and_options_are_completed_without_a_server() -> None:
    assert complete("skerry serv") == ["server", "service"]
    assert "rollback" in complete("skerry service ")
    assert "--output" in complete("skerry get nodes --out")


def test_the_server_and_the_namespace_of_the_line_are_used(server: FakeServer) -> None:
    assert complete(f"skerry logs -n shop --token t --url {server.url} instance-a") == ["instance-a"]
    _, path, headers, _ = server.asked[0]
    assert "namespace=shop" in path
    assert headers["Authorization"] == "Bearer t"


def test_contexts_are_completed(tmp_path: Path) -> None:
    (tmp_path / "skerry").mkdir()
    (tmp_path / "skerry" / "contexts.json").write_text('{"contexts": {"prod": {"url": "http://x"}}}')
    assert complete("skerry context use ", XDG_CONFIG_HOME=str(tmp_path)) == ["local", "prod"]
    assert complete("skerry logs --context p", XDG_CONFIG_HOME=str(tmp_path)) == ["prod"]


def test_names_that_a_shell_might_expand_are_not_offered(server: FakeServer) -> None:
    hostile = ["$(reboot)", "`id`", "a b", "a;b", "\x1b[2J", "*", "fine"]
    server.answer("GET /function", hostile)
    assert complete("skerry fn invoke ", SKERRY_URL=server.url) == ["fine"]


@pytest.mark.parametrize(
    "answer", [(500, b"{}"), (403, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b'{"x": 1}')]
)
def test_a_server_that_answers_nonsense_completes_nothing_and_says_nothing(
    server: FakeServer, answer: tuple[int, bytes]
) -> None:
    server.answers.clear()
    server.otherwise = answer
    assert complete("skerry logs ", SKERRY_URL=server.url) == []


def test_a_server_that_does_not_answer_is_given_up_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert complete("skerry logs ", SKERRY_URL=url) == []
    assert complete("skerry logs ", SKERRY_URL="http://127.0.0.1:9") == []
    assert complete("skerry logs ", SKERRY_DATA=str(tmp_path / "nothing")) == []


def test_a_word_that_is_no_command_is_no_error_while_somebody_types() -> None:
    assert "service" in complete("skerry nonsense ")


@pytest.mark.parametrize("path", sorted(completion._BY_COMMAND))
def test_every_command_with_names_of_its_own_exists(path: tuple[str, ...]) -> None:
    command: click.Command = main.cli
    for word in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
    assert any((parameter.metavar or "").strip(".[]") == "NAME" for parameter in command.params)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_printed(shell: str) -> None:
    result = fake_servers.skerry("completion", shell)
    assert result.exit_code == 0
    assert f"_SKERRY_COMPLETE={shell}_complete" in result.stdout
    program = shutil.which(shell)
    if program is not None:
        subprocess.run([program, "-n"], input=result.stdout, text=True, check=True)


TYPED = (
    # A line with tabs, and what the command gets of it.
    ("skerry node dr\t --url={url} e\t", "node drain --url={url} edge-1"),
    ("skerry fn inv\t --url {url} --namespace=s\t he\t", "fn invoke --url {url} --namespace=shop hello"),
    ("skerry node list --out\t js\t", "node list --output json"),
)
READY = "ready> "


def start_files(shell: str, home: Path) -> list[str]:
    """How an interactive shell is started that has our script and READY as its prompt, and nothing else."""
    script = fake_servers.skerry("completion", shell).stdout
    if shell == "bash":
        (home / "bashrc").write_text(f"PS1='{READY}'\n{script}")
        return ["bash", "--noprofile", "--rcfile", str(home / "bashrc"), "-i"]
    (home / ".zshrc").write_text(f"PS1='{READY}'\n{script}")
    return ["zsh", "-i"]


def command_in(folder: Path, run: Path) -> None:
    """A `skerry` that completes, and otherwise writes what it was called with to the file `run`."""
    completes = f'[ "$_SKERRY_COMPLETE" ] && exec {sys.executable} -m skerry "$@"'
    command = folder / "skerry"
    command.write_text(f'#!/bin/sh\n{completes}\necho "$*" >> {run}\n')
    command.chmod(0o755)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_commands_options_their_values_and_names(
    server: FakeServer, tmp_path: Path, shell: str
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}, a package of system-packages.txt")
    run = tmp_path / "run"
    command_in(tmp_path, run)
    variables = environment(
        PATH=f"{tmp_path}:{os.environ['PATH']}",
        TERM="dumb",
        **dict.fromkeys(("HOME", "ZDOTDIR"), str(tmp_path)),
    )
    arguments = start_files(shell, tmp_path)
    master, slave = os.openpty()
    shown = b""

    def await_output(is_there: Callable[[], bool]) -> None:
        nonlocal shown
        ends = time.monotonic() + PATIENCE_S
        while not is_there():
            assert time.monotonic() < ends, shown.decode(errors="replace")
            if select.select([master], [], [], 0.05)[0]:
                shown += os.read(master, 65536)

    with subprocess.Popen(
        arguments, stdin=slave, stdout=slave, stderr=slave, env=variables, start_new_session=True
    ) as started:
        try:
            await_output(lambda: READY.encode() in shown)
            for number, (typed, _) in enumerate(TYPED, start=1):
                os.write(master, typed.format(url=server.url).encode() + b"\r")
                await_output(lambda number=number: run.exists() and run.read_text().count("\n") == number)  # type: ignore[misc]
        finally:
            started.kill()
            os.close(slave)
            os.close(master)
    assert [line.split() for line in run.read_text().splitlines()] == [
        expected.format(url=server.url).split() for _, expected in TYPED
    ]


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish, a package of system-packages.txt")
def test_fish_completes_commands_values_and_names_with_whole_descriptions(
    server: FakeServer, tmp_path: Path
) -> None:
    completions = tmp_path / "fish" / "completions"
    completions.mkdir(parents=True)
    (completions / "skerry.fish").write_text(fake_servers.skerry("completion", "fish").stdout)
    command_in(tmp_path, tmp_path / "run")
    lines = ("skerry serv", f"skerry node drain --url={server.url} e", "skerry logs --namespace=s")
    ended = subprocess.run(
        ["fish", "-c", "".join(f"complete -C '{line}'\n" for line in lines)],
        env=environment(
            SKERRY_URL=server.url,
            PATH=f"{tmp_path}:{os.environ['PATH']}",
            **dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(tmp_path)),
        ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.stdout.splitlines() == [
        "server\tStart the control plane alone; machines...",
        "service\tRun an image in several copies, check...",
        "edge-1",
        "--namespace=shop",
    ], ended.stderr


def test_scripts_of_bash_that_earlier_versions_printed_still_work(server: FakeServer) -> None:
    assert complete("skerry fn invoke he", SKERRY_URL=server.url) == ["hello"]
