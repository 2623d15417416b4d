"""The recording of the demo: real lines at a shortened time, as an SVG that loads nothing."""

from __future__ import annotations

import re
import sys

import pytest
from lxml import etree
from scripts import record_demo
from scripts.record_demo import COLUMNS, ROWS, Line


def texts(svg: str) -> list[str]:
    root = etree.fromstring(svg.encode())
    return ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]


def test_pauses_are_shortened_and_lines_do_not_come_at_once() -> None:
    times = record_demo.shorten([0.0, 0.0, 60.0, 60.5])
    assert times == pytest.approx([0.12, 0.24, 1.44, 1.94])


def test_a_long_line_takes_several_rows() -> None:
    rows = record_demo.wrap([Line(1.0, "x" * (COLUMNS + 5)), Line(2.0, "")])
    assert [(at_s, len(text)) for at_s, text in rows] == [(1.0, COLUMNS), (1.0, 5), (2.0, 0)]


def test_lines_keep_their_text_and_their_style() -> None:
    svg = record_demo.draw(
        [Line(0.0, "\x1b[32m✓ a < b & c\x1b[0m"), Line(1.0, "\x1b[1m$ skerry\x1b[0m node")]
    )
    assert texts(svg) == ["✓ a < b & c", "$ skerry node"]
    assert 'class="c2">✓ a &lt; b &amp; c<' in svg
    assert 'class="b">$ skerry<' in svg


def test_the_window_moves_up_by_one_row_for_each_line_below_it() -> None:
    svg = record_demo.draw([Line(float(number), f"line {number}") for number in range(ROWS + 2)])
    moves = re.findall(r"translateY\((-?\d+)(?:px)?\)", svg)
    assert moves == ["-36", "0", "-18", "-36"]  # at rest, and then as lines come


def test_a_recording_loads_nothing() -> None:
    svg = record_demo.draw([Line(0.0, "<script>alert(1)</script> https://example.org/x.png")])
    assert "<script" not in svg
    assert re.findall(r"(?:href|src|url)\s*[=(]\s*[\"']?([^\"')]+)", svg) == ["#window"]


def test_what_a_command_prints_in_a_terminal_is_recorded_with_its_exit_code() -> None:
    script = "import sys; print(sys.stdout.isatty()); print('two'); sys.exit(3)"
    lines, code = record_demo.record([sys.executable, "-c", script])
    assert ([line.text for line in lines], code) == (["True", "two"], 3)
    assert 0.0 <= lines[0].at_s <= lines[1].at_s


def test_the_recording_in_the_docs_is_of_a_demo_whose_assertions_held() -> None:
    shown = texts(record_demo.TARGET.read_text())
    assert any(re.fullmatch(r"\s*✓ All \d+ assertions held\.", line) for line in shown)
    assert not any("✗" in line for line in shown)
