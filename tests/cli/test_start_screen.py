"""What a person sees who starts Skerry at a terminal, and what a program gets that starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest

from skerry.cli import main, start_screen
from skerry.cli.start_screen import StartScreen
from skerry.daemon.process import ReadyDocument
from tests.support.screens import Screen
from tests.support.skerry import COMMAND, environment
from tests.support.waiting import PATIENCE_S, eventually_sync


def flags(folder: Path) -> list[str]:
    listen = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--socket", str(folder / "s.sock")]
    return ["server", "--data", str(folder / "data"), *listen]


def test_a_person_sees_the_steps_the_addresses_and_what_to_try(tmp_path: Path) -> None:
    running = SimpleNamespace(data=tmp_path)
    with Screen(40, 120) as screen, screen.command(running, *flags(tmp_path)) as process:
        shown = screen.wait_for("Ctrl-C stops Skerry", "skerry doctor")
        ready = json.loads((tmp_path / "data" / "ready.json").read_text())
        screen.type(b"\x03")  # typed at a terminal that is not its controlling one
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        shown = screen.wait_for("process.stopped")
    for part in ("is starting", "first start", "opening the store", "Skerry is up", ready["http"]):
        assert part in shown
    for part in ("skerry token create --role node", f"export SKERRY_DATA={tmp_path / 'data'}"):
        assert part in shown
    before_ready = shown.partition("Skerry is up")[0]
    assert "[info" not in before_ready
    assert '{"' not in shown


def test_a_program_gets_json_and_nothing_on_standard_output(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, *flags(tmp_path)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ready = tmp_path / "data" / "ready.json"
    try:
        eventually_sync(lambda: ready.exists() or process.poll() is not None, what="ready")
    finally:
        process.terminate()
        output, log = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert output == b""
    events = [json.loads(line)["event"] for line in log.decode().splitlines()]
    assert "process.ready" in events
    assert "process.stopped" in events


def test_logs_are_json_on_a_terminal_when_that_is_chosen(tmp_path: Path) -> None:
    running = SimpleNamespace(data=tmp_path)
    with Screen(60, 200) as screen, screen.command(running, *flags(tmp_path), "--log", "json") as process:
        screen.read_until(b"Ctrl-C stops Skerry")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    lines = [line for line in screen.seen.decode().splitlines() if line.startswith("{")]
    assert "process.ready" in [json.loads(line)["event"] for line in lines]


def ready(**more: object) -> ReadyDocument:
    fields = {"pid": 1, "role": "up", "version": "1", "data": "/d", "http": "http://x"}
    return ReadyDocument(**{**fields, **more})  # type: ignore[arg-type]


def shown_at_terminal(screen_role: str, *, has_console: bool = False, **more: object) -> str:
    """What is printed when Skerry is ready, to something that seems to be a terminal."""
    printed = StringIO()
    printed.isatty = lambda: True  # type: ignore[method-assign]
    with redirect_stdout(printed):
        screen = StartScreen(screen_role, Path("/var/lib/skerry"), "json", has_console=has_console)
        screen.ready(ready(**more))
    return printed.getvalue()


@pytest.mark.parametrize(
    ("role", "lacking", "tried"),
    [
        ("up", (), ["skerry run --name web", "skerry top", "skerry doctor"]),
        ("up", ("root: no cells",), ["skerry status", "skerry top", "skerry doctor"]),
        ("server", (), ["skerry token create --role node", "skerry get nodes", "skerry doctor"]),
        ("node", (), ["skerry container list", "skerry doctor"]),
    ],
)
def test_what_to_try_is_what_works_there(role: str, lacking: tuple[str, ...], tried: list[str]) -> None:
    printed = shown_at_terminal(role, lacking=lacking)
    assert [example for example in tried if example not in printed] == []
    assert [sentence for sentence in lacking if f"unavailable: {sentence}" not in printed] == []


def test_the_console_is_named_where_there_is_one() -> None:
    assert "skerry console" in shown_at_terminal("up", has_console=True)
    assert "skerry console" not in shown_at_terminal("up")
    assert "skerry console" not in shown_at_terminal("node", has_console=True)


def test_every_example_is_a_command_that_exists() -> None:
    examples = [value for value in vars(start_screen).values() if isinstance(value, start_screen.Example)]
    assert len(examples) > 5
    assert [each.arguments for each in examples if each.arguments.split()[0] not in main.VERBS] == []


@pytest.mark.parametrize(
    ("level", "event", "at_start", "later"),
    [
        ("info", "process.ready", False, True),
        ("info", "cell.allocated", False, False),
        ("debug", "cell.allocated", False, True),
        ("warning", "cell.broken", True, True),
        ("warning", "containers.weakened", False, True),
        ("error", "process.failed", True, True),
    ],
)
def test_which_lines_a_person_is_shown(level: str, event: str, at_start: bool, later: bool) -> None:
    assert start_screen.is_shown_at_start(level, event) is at_start
    assert start_screen.is_shown_later(level, event) is later


def test_the_program_is_named_as_it_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my bin" / "skerry"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["my bin/skerry"])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert f"  alias skerry='{program}'\n" in shown_at_terminal("up")
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{tmp_path}")
    assert "alias" not in shown_at_terminal("up")
