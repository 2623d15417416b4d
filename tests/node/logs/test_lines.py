"""Lines are joined across records, cut where they are too long, and readable whatever the bytes were."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from hypothesis import given
from hypothesis import strategies as st

from skerry.kit.sequence_gap import SequenceGap
from skerry.node.logs.lines import LogLine, follow_lines, lines
from skerry.node.logs.readers import LogRecord, RingItem


def records(*pieces: bytes) -> list[RingItem]:
    """A record for each piece, its time ten times its number."""
    return [LogRecord(number, number * 10, piece) for number, piece in enumerate(pieces, 1)]


def test_a_line_is_joined_across_records_and_has_the_time_of_its_first_byte() -> None:
    assert list(lines(records(b"one\ntw", b"o, still tw", b"o\nthree\n"))) == [
        LogLine(10, "one"),
        LogLine(10, "two, still two"),
        LogLine(30, "three"),
    ]


def test_empty_lines_are_lines() -> None:
    assert list(lines(records(b"\n\na\n"))) == [LogLine(10, ""), LogLine(10, ""), LogLine(10, "a")]


def test_the_last_line_comes_also_without_a_newline() -> None:
    assert list(lines(records(b"one\n", b"prompt> "))) == [LogLine(10, "one"), LogLine(20, "prompt> ", True)]


def test_a_return_before_the_newline_is_not_part_of_the_line() -> None:
    assert list(lines(records(b"dos\r", b"\nup\rdate\n"))) == [LogLine(10, "dos"), LogLine(20, "up\rdate")]


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert list(lines(records(b"a\xffb\x00c\n"))) == [LogLine(10, "a\ufffdb\x00c")]


def test_a_character_across_two_records_is_whole() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert list(lines(records(first, second + b"\n"))) == [LogLine(10, "é")]


def test_a_long_line_is_cut_between_characters() -> None:
    assert list(lines(records("abc€def\n".encode()), max_line=5)) == [
        LogLine(10, "abc", True),
        LogLine(10, "€de", True),  # five bytes
        LogLine(10, "f"),
    ]


def test_a_line_of_exactly_the_longest_length_is_whole() -> None:
    assert list(lines(records(b"12345", b"\n"), max_line=5)) == [LogLine(10, "12345")]


def test_a_gap_cuts_the_line_and_stays_in_its_place() -> None:
    items = [LogRecord(1, 10, b"one\nbeg"), SequenceGap(2, 5), LogRecord(6, 60, b"end\n")]
    assert list(lines(items)) == [
        LogLine(10, "one"),
        LogLine(10, "beg", True),
        SequenceGap(2, 5),
        LogLine(60, "end"),
    ]


@given(st.lists(st.binary(min_size=1, max_size=60)), st.integers(8, 40))
def test_no_line_is_longer_than_the_bound_and_together_they_are_the_output(
    pieces: list[bytes], bound: int
) -> None:
    pieces = [piece.replace(b"\r", b"") for piece in pieces]
    output = b"".join(pieces)
    given_lines = [line for line in lines(records(*pieces), max_line=bound) if isinstance(line, LogLine)]
    text = "".join(line.text if line.is_partial else line.text + "\n" for line in given_lines)
    is_text = output.decode("utf-8", "replace").encode() == output
    if is_text:
        assert text == output.decode()
        assert all(len(line.text.encode()) <= bound for line in given_lines)
    assert text.count("\n") == output.count(b"\n")


@given(st.text(alphabet="aé€😀\n"), st.integers(1, 7), st.integers(8, 40))
def test_text_comes_out_as_it_went_in_however_it_was_divided(text: str, size: int, bound: int) -> None:
    output = text.encode()
    pieces = [output[at : at + size] for at in range(0, len(output), size)]
    found = [line for line in lines(records(*pieces), max_line=bound) if isinstance(line, LogLine)]
    assert "".join(line.text if line.is_partial else line.text + "\n" for line in found) == text
    assert all(len(line.text.encode()) <= bound for line in found)


async def test_a_followed_stream_gives_each_line_as_soon_as_it_is_ended() -> None:
    seen: list[str] = []

    async def source() -> AsyncGenerator[RingItem, None]:
        yield LogRecord(1, 10, b"one\ntw")
        assert seen == ["one"]
        yield LogRecord(2, 20, b"o\n")
        assert seen == ["one", "two"]
        yield SequenceGap(3, 3)
        yield LogRecord(4, 40, b"rest")

    async for line in follow_lines(source()):
        seen += [line.text if isinstance(line, LogLine) else "gap"]
    assert seen == ["one", "two", "gap", "rest"]
