"""Records `skerry demo` as docs/demo.svg: an animation of its real terminal output, with pauses shortened.

    sudo .venv/bin/python scripts/record_demo.py            # runs the demo, about five minutes
    .venv/bin/python scripts/record_demo.py --from FILE     # draws a recording, saved with --save FILE

The demo only appends lines, so the animation is one column of text that moves up behind a window. It has no
scripts and loads nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from rich.ansi import AnsiDecoder
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parent.parent
TARGET: Final = ROOT / "docs" / "demo.svg"
COLUMNS: Final = 120
ROWS: Final = 30
_LONGEST_PAUSE_S: Final = 1.2
_SHORTEST_S: Final = 0.12  # for each line, so that it can be read
_BEGIN_S: Final = 3.0
_END_S: Final = 6.0
_FONT_PX: Final = 13
_LINE_PX: Final = 18
_CHARACTER_PX: Final = 7.83
_PADDING_PX: Final = 14
# Colours of terminals by number, as rich names them.
_COLORS: Final = {"color(1)": "#f85149", "color(2)": "#3fb950", "color(3)": "#d29922", "color(6)": "#39c5cf"}
_STYLE: Final = """
    text { font: %(font)dpx ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #c9d1d9;
           white-space: pre; }
    .b { font-weight: 700; fill: #f0f6fc } .d { fill: #8b949e }
    %(colors)s
    #lines { animation: scroll %(seconds).1fs step-end infinite; transform: translateY(%(last).0fpx) }
    @media (prefers-reduced-motion: reduce) { #lines { animation: none } }
    @keyframes scroll { %(frames)s }
"""


class Line(NamedTuple):
    """A line of the terminal, and when it was printed."""

    at_s: float
    text: str  # with escape sequences


def record(command: Sequence[str]) -> tuple[list[Line], int]:
    """Run a command in a terminal of its own; its lines and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    began, rest, lines = time.monotonic(), b"", []
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the command has ended
            break
        if not data:
            break
        *whole, rest = (rest + data).split(b"\n")
        at_s = time.monotonic() - began
        lines += [Line(at_s, line.decode("utf-8", "replace").rstrip("\r")) for line in whole]
        for line in whole:
            sys.stdout.write(line.decode("utf-8", "replace").rstrip("\r") + "\n")
    os.close(terminal)
    return lines, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def shorten(times: Iterable[float]) -> list[float]:
    """When each line appears in the animation: pauses are shortened, and no line comes too soon after the one
    before."""
    shown, before, now = [], 0.0, 0.0
    for at_s in times:
        now += min(max(at_s - before, _SHORTEST_S), _LONGEST_PAUSE_S)
        before = at_s
        shown.append(now)
    return shown


def wrap(lines: Iterable[Line]) -> list[tuple[float, Text]]:
    """Lines as the terminal shows them: long ones take several rows."""
    decoder = AnsiDecoder()
    rows: list[tuple[float, Text]] = []
    for line in lines:
        text = decoder.decode_line(line.text)
        text.rstrip()
        cuts = range(COLUMNS, max(len(text), 1), COLUMNS)
        rows += ((line.at_s, part) for part in text.divide(cuts))
    return rows


def draw(lines: Sequence[Line]) -> str:
    """The animation as an SVG."""
    rows = wrap(lines)
    times = shorten(at_s for at_s, _ in rows[ROWS:])  # the first rows are there at once
    seconds = _BEGIN_S + (times[-1] if times else 0.0) + _END_S
    frames = ["0% { transform: translateY(0) }"]
    for number, at_s in enumerate(times, 1):
        part = (_BEGIN_S + at_s) / seconds
        frames.append(f"{part:.3%} {{ transform: translateY({-number * _LINE_PX}px) }}")
    window_px = ROWS * _LINE_PX
    style = _STYLE % {
        "font": _FONT_PX,
        "colors": " ".join(f".c{name[6]} {{ fill: {color} }}" for name, color in _COLORS.items()),
        "seconds": seconds,
        "last": min(0, ROWS - len(rows)) * _LINE_PX,
        "frames": " ".join(frames),
    }
    width, height = COLUMNS * _CHARACTER_PX + 2 * _PADDING_PX, window_px + 2 * _PADDING_PX
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            "<title>skerry demo: a cloud and three edge sites on one machine</title>",
            f"<style>{style}</style>",
            f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#0d1117"/>',
            f'<clipPath id="window"><rect width="{width:.0f}" height="{window_px}"/></clipPath>',
            f'<g transform="translate({_PADDING_PX} {_PADDING_PX})" clip-path="url(#window)"><g id="lines">',
            *(_row(number, text) for number, (_, text) in enumerate(rows, 1) if text.plain),
            "</g></g></svg>\n",
        ]
    )


def _row(number: int, text: Text) -> str:
    """A row of text; parts of one style are one element."""
    parts = []
    for part in text.divide(sorted({edge for span in text.spans for edge in (span.start, span.end)})):
        classes = sorted({name for span in part.spans for name in _classes(str(span.style))})
        escaped = escape(part.plain)
        parts.append(f'<tspan class="{" ".join(classes)}">{escaped}</tspan>' if classes else escaped)
    y = number * _LINE_PX - (_LINE_PX - _FONT_PX)
    return f'<text y="{y}" xml:space="preserve">{"".join(parts)}</text>'


def _classes(style: str) -> set[str]:
    words = set(style.split())
    return {f"c{word[6]}" for word in words & set(_COLORS)} | {word[0] for word in words & {"bold", "dim"}}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="source", type=Path, help="draw this saved recording")
    parser.add_argument("--save", type=Path, help="save the recording")
    parser.add_argument("options", nargs="*", help="options of skerry demo, after --")
    given = parser.parse_args()
    if given.source:
        lines = [Line(at_s, text) for at_s, text in json.loads(given.source.read_text())]
    else:
        lines, code = record([sys.executable, "-m", "skerry", "demo", *given.options])
        if code:
            sys.stderr.write(f"the demo ended with {code}; {TARGET.name} stays as it was\n")
            return code
    if given.save:
        given.save.write_text(json.dumps(lines))
    TARGET.write_text(draw(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
