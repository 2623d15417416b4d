"""What the demo prints: steps, commands, figures and assertions, one line after the other.

Lines are only appended, so that the output can be read in a file as well, and recorded
(`scripts/record_demo.py`). `rich` is imported when a narrator is created.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from skerry.demo.load import LoadSummary
from skerry.kit import terminal_text

_INDENT: Final = 2
_FILE_WIDTH: Final = 120
_FIGURES: Final = 9  # columns of the time before figures


class Assertion(NamedTuple):
    """A sentence that the demo asserts, and whether it was so."""

    text: str
    holds: bool


class Narrator:
    """Prints to the terminal; `pauses` waits for Enter before each step."""

    def __init__(self, *, pauses: bool) -> None:
        from rich.console import Console

        output = terminal_text.unfiltered(sys.stdout)
        width = None if sys.stdout.isatty() else _FILE_WIDTH
        self._console = Console(file=output, width=width, highlight=False, emoji=False)
        self._pauses = pauses
        self._began = time.monotonic()

    def step(self, number: int, of: int, title: str, reason: str) -> None:
        from rich.rule import Rule
        from rich.text import Text

        self._console.print()
        if self._pauses:
            self._console.input(Text(f"Enter for step {number} of {of}: {title} ", style="dim"))
        self._console.print(
            Rule(Text(f"{number} of {of}: {title}", style="bold cyan"), align="left", style="cyan")
        )
        self.say(reason)

    def say(self, text: str) -> None:
        """A sentence about what happens, and why."""
        self._print(text, "")

    def note(self, text: str) -> None:
        """A detail."""
        self._print(text, "dim")

    def command(self, arguments: Sequence[str], site: str = "") -> None:
        """A command that is run now, as one can type it."""
        from rich.text import Text

        start = f"{' ' * _INDENT}{site}$ "
        # A file has it in one line, for those who search it.
        width = self._console.width if self._console.is_terminal else sys.maxsize
        for row in wrap_command(start, arguments, width):
            self._console.print(Text(row, style="bold"), soft_wrap=True)

    def output(self, text: str, *, most: int = 12) -> None:
        """The output of a command, or its last lines, each cut off at the edge of the terminal."""
        from rich.text import Text

        for line in terminal_text.visible(text).strip().splitlines()[-most:]:
            shown = Text(f"{' ' * 2 * _INDENT}{line}", style="dim")
            self._console.print(shown, no_wrap=True, overflow="ellipsis")

    def message(self, text: str) -> None:
        """The message of a command that failed."""
        self._print(text, "dim", indent=2 * _INDENT)

    def figures(self, text: str) -> None:
        """Figures as they change, with the time of the demo."""
        self._print(f"{time.monotonic() - self._began:5.0f} s  {text}", "", hanging=_FIGURES)

    def assertion(self, assertion: Assertion) -> None:
        if assertion.holds:
            self._print(f"✓ {assertion.text}", "green")
        else:
            self._print(f"✗ NOT SO: {assertion.text}", "bold red")

    def problem(self, text: str) -> None:
        self._print(text, "bold red")

    def _print(self, text: str, style: str, *, indent: int = _INDENT, hanging: int = 0) -> None:
        from rich.text import Text

        for paragraph in terminal_text.visible(text).splitlines() or [""]:
            start = " " * indent
            rows = textwrap.wrap(
                paragraph,
                self._console.width,
                initial_indent=start,
                subsequent_indent=start + " " * hanging,
                break_long_words=False,
                break_on_hyphens=False,
            )
            for row in rows or [""]:
                self._console.print(Text(row, style=style), soft_wrap=True)


def wrap_command(start: str, arguments: Sequence[str], width: int) -> list[str]:
    """A command in rows of at most `width` that a shell joins again: broken between its arguments alone."""
    indent = " " * (2 * _INDENT)
    rows = [start + shlex.quote(arguments[0])]
    for argument in map(shlex.quote, arguments[1:]):
        if len(rows[-1]) + len(argument) + len("  \\") <= width:
            rows[-1] += f" {argument}"
        else:
            rows[-1] += " \\"
            rows.append(indent + argument)
    return rows


def describe_load(summary: LoadSummary, unit: str, seconds: float) -> str:
    """One line of figures of a load."""
    nodes = ", ".join(f"{name} {count}" for name, count in sorted(summary.by_node.items()))
    rate, median_ms, p95_ms = summary.total / max(seconds, 1e-9), summary.median_s * 1e3, summary.p95_s * 1e3
    return (
        f"{summary.total} {unit}, {rate:.0f}/s, p50 {median_ms:.0f} ms, p95 {p95_ms:.0f} ms, "
        f"{summary.retried} retried, {summary.lost} lost: {nodes or 'none'}"
    )
