"""Frames between the server and its fronts, in whatever pieces they are read; heads and their keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.transport.http import front_frames as frames
from skerry.transport.http.front_pool import front_count

FRAMES = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=60)))


@given(sent=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1))
def test_frames_are_read_as_they_were_sent_in_whatever_pieces(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    read: list[tuple[int, int, bytes]] = []
    reader = frames.FrameReader(lambda *frame: read.append(frame))
    data, turn = b"".join(frames.encode_frame(*frame) for frame in sent), 0
    while data:
        size = cuts[turn % len(cuts)]
        reader.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert read == sent


@given(
    st.integers(100, 599),
    st.booleans(),
    st.binary(max_size=99),
    st.binary(max_size=64),
    st.binary(max_size=99),
)
def test_a_response_is_decoded_as_it_was_encoded(
    status: int, closes: bool, lines: bytes, request_id: bytes, body: bytes
) -> None:
    read: list[tuple[int, int, bytes]] = []
    sent = frames.ResponseFrame(status, closes, lines, request_id, body)
    frames.FrameReader(lambda *frame: read.append(frame)).feed(frames.encode_response(7, sent))
    assert [(kind, number) for kind, number, _ in read] == [(frames.RESPONSE, 7)]
    assert frames.decode_response(read[0][2]) == sent


@given(st.integers(0, 2**32 - 1), st.lists(st.binary(max_size=40), max_size=16))
def test_a_assigned_connection_has_its_number_and_its_heads(number: int, heads: list[bytes]) -> None:
    assert frames.decode_assignment(frames.encode_assignment(number, heads)) == (number, heads)


def key(*lines: str) -> frames.HeadKey | None:
    head = "\r\n".join(["POST /invoke/f HTTP/1.1", *lines, "", ""]).encode()
    return frames.head_key(head, len(head))


def test_heads_that_differ_by_their_length_alone_have_one_key() -> None:
    short, long = key("Host: a", "Content-Length: 7", "X: y"), key("Host: a", "Content-Length: 1234", "X: y")
    assert short is not None
    assert long is not None
    assert short.key == long.key
    assert (short.length, long.length) == (7, 1234)


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: b", "Content-Length: 7", "X: y"),
        ("Host: a", "content-length: 7", "X: y"),
        ("Host: a", "Content-Length: 7", "X: z"),
        ("Content-Length: 7", "Host: a", "X: y"),
        ("Host: a", "Content-Length: 7", "X: y", "Content-Length: 8"),
        ("Host: a", "Content-Length: 7", "X: y", "Transfer-Encoding: chunked"),
    ],
)
def test_heads_that_differ_by_anything_else_have_other_keys(lines: tuple[str, ...]) -> None:
    known, other = key("Host: a", "Content-Length: 7", "X: y"), key(*lines)
    assert known is not None
    assert other is not None
    assert known.key != other.key


@pytest.mark.parametrize(
    "line", ["X: content-length: 7", "Content-Length: +7", "Content-Length: 7 7", "X: y"]
)
def test_a_head_without_one_plain_length_has_no_key(line: str) -> None:
    assert key("Host: a", line) is None


@pytest.mark.parametrize(
    ("configured", "cores", "fronts"),
    [(-1, 1, 0), (-1, 2, 0), (-1, 3, 1), (-1, 7, 1), (-1, 8, 1), (-1, 64, 1), (0, 64, 0), (3, 2, 3)],
)
def test_there_is_no_front_on_two_cores_and_one_on_more_unless_it_is_configured(
    configured: int, cores: int, fronts: int
) -> None:
    assert front_count(configured, cores) == fronts
