"""What the demo prints: as lines, the same in a terminal and in a file."""

from __future__ import annotations

import subprocess

import pytest

from skerry.demo.load import LoadSummary
from skerry.demo.narration import Assertion, Narrator, describe_load, wrap_command


def test_commands_can_be_typed_as_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator(pauses=False).command(
        ["skerry", "market", "buyers", "add", "key", "--note", "the demo"], "north"
    )
    assert capsys.readouterr().out == "  north$ skerry market buyers add key --note 'the demo'\n"


@pytest.mark.parametrize("width", [20, 40, 60, 400])
def test_a_command_is_broken_between_arguments_and_can_be_pasted(width: int) -> None:
    words = ["echo", *(["--flag", "a value", "word"] * 8), "a-word-that-is-longer-than-the-first-width"]
    rows = wrap_command("", words, width)
    assert all(len(row) <= width or len(row.split()) <= 2 for row in rows)
    assert (len(rows) == 1) == (width == 400)
    pasted = subprocess.run(["sh", "-c", "\n".join(rows)], capture_output=True, text=True, check=True)
    assert pasted.stdout == " ".join(words[1:]) + "\n"


def test_a_long_command_is_one_line_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator(pauses=False).command(["skerry", *(["word"] * 100)])
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_an_assertion_that_does_not_hold_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    narrator = Narrator(pauses=False)
    narrator.assertion(Assertion("nothing is lost", holds=True))
    narrator.assertion(Assertion("nothing is lost", holds=False))
    assert capsys.readouterr().out == "  ✓ nothing is lost\n  ✗ NOT SO: nothing is lost\n"


def test_markup_and_control_characters_in_outputs_are_text(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator(pauses=False).output("[red]web[/red] \x1b[2J :smile:")
    printed = capsys.readouterr().out
    assert "[red]web[/red]" in printed
    assert ":smile:" in printed
    assert "\x1b" not in printed


def test_of_long_outputs_the_end_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Narrator(pauses=False).output("one\ntwo\nthree\n", most=2)
    assert capsys.readouterr().out == "    two\n    three\n"


def test_figures_of_a_load_are_one_line() -> None:
    summary = LoadSummary(50, 1, 2, 0.21, 0.4, {"turin": 9, "oslo": 40}, {})
    assert describe_load(summary, "calls", 5.0) == (
        "50 calls, 10/s, p50 210 ms, p95 400 ms, 2 retried, 1 lost: oslo 40, turin 9"
    )
    assert describe_load(LoadSummary(0, 0, 0, 0, 0, {}, {}), "pages", 0.0).endswith(": none")
