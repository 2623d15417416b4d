"""Control characters on a terminal: all of them shown, whatever they come in, and nothing else changed."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.terminal_text import TerminalStream, VisibleBytes, visible

BIDI = [*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))]


@given(st.text())
def test_no_text_holds_a_control_character_afterwards(text: str) -> None:
    shown = visible(text)
    assert [c for c in shown if unicodedata.category(c) == "Cc" and c not in "\n\t"] == []
    assert [c for c in shown if c in BIDI] == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("grün 漢字 🙂", "grün 漢字 🙂"),
        ("\x1b[2J", "^[[2J"),
        ("\x1b]0;title\x07", "^[]0;title^G"),
        ("over\rwritten", "over^Mwritten"),
        ("\x7f\x9b1m", "\\u007f\\u009b1m"),
        ("gpj.\u202eexe", "gpj.\\u202eexe"),
        ("\0", "^@"),
    ],
)
def test_each_is_spelled_as_people_know_it(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(), st.integers(1, 4))
def test_bytes_come_out_alike_however_they_are_cut(text: str, size: int) -> None:
    data = text.encode("utf-8", "replace")
    pieces, whole = VisibleBytes("utf-8"), VisibleBytes("utf-8")
    cut = b"".join(pieces(data[at : at + size]) for at in range(0, len(data), size))
    assert cut == whole(data) == visible(data.decode()).encode()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bytes_that_are_no_text_are_spelled_out(encoding: str) -> None:
    assert VisibleBytes(encoding)(b"\x9b31m\xff") == b"\\x9b31m\\xff"


class FakeTerminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_text_and_bytes_go_through_the_same_filter_in_order() -> None:
    kept = io.BytesIO()
    terminal = FakeTerminal(kept, encoding="utf-8")
    stream = TerminalStream(terminal)
    stream.write("text \x1b\n")
    stream.buffer.write(b"bytes \x1b\n")
    print("more \x1b", file=stream)
    terminal.flush()
    assert kept.getvalue() == b"text ^[\nbytes ^[\nmore ^[\n"
    assert stream.isatty()
    assert stream.unfiltered is terminal
