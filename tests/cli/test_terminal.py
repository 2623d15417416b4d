"""What others wrote, on a person's terminal: no verb lets control characters through unless it is told to."""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import skerry.cli
from skerry.control.sessions.tunnels import TunnelEndpoint
from skerry.kit import pki
from tests.support.screens import Screen
from tests.support.sites import CloudServer
from tests.support.skerry import COMMAND, environment
from tests.support.waiting import PATIENCE_S

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e\x9b31m"
SHOWN = "^[]0;owned^G^[[2J\\u202e\\u009b31m"


async def says_something_hostile(end: TunnelEndpoint) -> None:
    await end.send(b"\1" + HOSTILE.encode() + b"\n")


@pytest.fixture
def cloud(tmp_path: Path, cloud_authority: pki.CertificateAuthority) -> Iterator[CloudServer]:
    with CloudServer(tmp_path, cloud_authority, says_something_hostile) as running:
        running.say("run", "--name", "web", "example.org/web:1", "--", "serve", HOSTILE)
        yield running


def on_terminal(cloud: CloudServer, *arguments: str) -> str:
    """All that a verb prints to a terminal."""
    with Screen() as screen:
        subprocess.run(
            [*COMMAND, *arguments],
            env=environment(SKERRY_DATA=str(cloud.data), TERM="xterm-256color"),
            stdin=subprocess.DEVNULL,
            stdout=screen.theirs,
            stderr=screen.theirs,
            timeout=PATIENCE_S,
        )
        os.write(screen.theirs, b"the end")
        screen.read_until(b"the end")
        return screen.seen.removesuffix(b"the end").decode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("logs", "web"),
        ("describe", "instance", "web"),
        ("get", "instances", HOSTILE),
        ("describe", "instance", HOSTILE),
        ("explain", HOSTILE),
        ("fn", "invoke", HOSTILE),
        (HOSTILE,),
        ("run", HOSTILE),
        ("events", "--url", f"http://{HOSTILE}"),
    ],
    ids=lambda arguments: " ".join(arguments[:-1]) or "verb",
)
def test_no_verb_lets_what_others_wrote_control_the_terminal(
    cloud: CloudServer, arguments: tuple[str, ...]
) -> None:
    shown = on_terminal(cloud, *arguments)
    for control in ("\x1b]", "\x1b[2J", "\x07", "\x9b", "\u202e"):
        assert control not in shown
    assert shown.strip(), "it said something"


def test_logs_show_control_characters_and_let_them_through_when_asked(cloud: CloudServer) -> None:
    assert on_terminal(cloud, "logs", "web") == f"{SHOWN}\r\n"
    assert on_terminal(cloud, "logs", "--raw", "web") == f"{HOSTILE}\r\n"
    assert on_terminal(cloud, "--raw", "logs", "web") == f"{HOSTILE}\r\n"


def test_a_program_controls_the_terminal_only_if_it_was_given_it(cloud: CloudServer) -> None:
    assert f"{SHOWN}\r\n" in on_terminal(cloud, "exec", "web", "--", "cat", "notes")
    assert f"{HOSTILE}\r\n" in on_terminal(cloud, "--raw", "exec", "web", "--", "cat", "notes")


def test_a_pipe_gets_every_byte_as_it_is(cloud: CloudServer) -> None:
    done = subprocess.run(
        [*COMMAND, "logs", "web"],
        env=environment(SKERRY_DATA=str(cloud.data)),
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout == HOSTILE.encode() + b"\n"


def test_tables_keep_their_colours_and_show_what_is_in_them(cloud: CloudServer) -> None:
    shown = on_terminal(cloud, "get", "instances")
    assert "\x1b[1m" in shown, "the heading is bold"
    assert "web" in shown


def test_nothing_in_the_command_line_prints_past_the_filter() -> None:
    """`click.echo` and errors go through `sys.stdout` and `sys.stderr`; whoever goes elsewhere is listed."""
    folder = Path(skerry.cli.__file__).parent
    found = {
        (path.name, ast.unparse(node))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if _goes_elsewhere(node)
    }
    assert found == {
        ("secrets.py", "sys.stdout.buffer"),  # a config as it is, where that is no terminal
        ("log_output.py", "os.write"),  # behind a filter of its own
        ("output.py", "terminal_text.unfiltered"),
        ("output.py", "click.style"),
        ("pull_progress.py", "terminal_text.unfiltered"),
        ("service_progress.py", "terminal_text.unfiltered"),
        ("screen.py", "os.write"),  # to a pipe of its own
        ("screen.py", "terminal_text.unfiltered"),  # draws lines that are made visible
        ("exec_session.py", "log_output.DescriptorWriter(each, is_raw=has_terminal)"),
    }


_ELSEWHERE = {"os.write", "click.secho", "click.style", "terminal_text.unfiltered", "sys.stdout.buffer"}
_ELSEWHERE |= {
    "sys.__stdout__",
    "sys.__stderr__",
    "sys.stderr.buffer",
    "os.fdopen",
    "click.get_binary_stream",
}


def _goes_elsewhere(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        if any(each.arg == "is_raw" for each in node.keywords):
            return True
        return ast.unparse(node.func).endswith("Console") and not any(
            each.arg == "file" and ast.unparse(each.value).startswith("terminal_text.unfiltered")
            for each in node.keywords
        )
    return isinstance(node, ast.Attribute) and ast.unparse(node) in _ELSEWHERE
