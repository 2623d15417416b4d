"""A response in parts: in order, at most a window ahead, and over when either end says so."""

from __future__ import annotations

import asyncio

import pytest

from skerry.kit.response_stream import WINDOW, ResponseStream, StreamOverrun


def attached() -> tuple[ResponseStream[str], list[int], list[str]]:
    """A stream, what its producer heard was read, and that the consumer left."""
    stream: ResponseStream[str] = ResponseStream()
    read: list[int] = []
    left: list[str] = []
    stream.attach(read.append, lambda: left.append("left"))
    return stream, read, left


async def test_a_head_and_parts_come_in_order_and_then_nothing() -> None:
    stream, _, _ = attached()
    waiting = asyncio.ensure_future(stream.wait_head())
    await asyncio.sleep(0)
    stream.begin("head")
    assert await waiting == "head"
    stream.write(b"a")
    stream.write(b"")
    stream.write(b"b")
    assert await stream.read() == b"ab"
    reading = asyncio.ensure_future(stream.read())
    await asyncio.sleep(0)
    stream.write(b"c")
    assert await reading == b"c"
    stream.write(b"d")
    stream.end()
    assert [await stream.read(), await stream.read()] == [b"d", b""]


async def test_an_end_without_a_head_is_told_to_who_waits_for_it() -> None:
    stream, _, _ = attached()
    waiting = asyncio.ensure_future(stream.wait_head())
    await asyncio.sleep(0)
    stream.end()
    assert await waiting is None
    assert not stream.has_begun


async def test_a_producer_hears_what_was_read_and_may_not_be_further_ahead() -> None:
    stream, read, _ = attached()
    stream.begin("head")
    stream.write(bytes(WINDOW))
    assert read == []
    await stream.read()
    assert read == [WINDOW]
    stream.write(b"x")
    await stream.read()
    assert read == [WINDOW], "a little is not worth a message"
    stream.write(bytes(2 * WINDOW))
    with pytest.raises(StreamOverrun):
        stream.write(b"x")


@pytest.mark.parametrize("act", [lambda s: s.write(b"x"), lambda s: (s.begin("a"), s.begin("b"))])
async def test_parts_out_of_turn_are_refused(act: object) -> None:
    stream, _, _ = attached()
    with pytest.raises(StreamOverrun):
        act(stream)  # type: ignore[operator]  # either of the two


async def test_a_consumer_that_leaves_is_reported_once_and_the_rest_is_dropped() -> None:
    stream, read, left = attached()
    stream.begin("head")
    stream.write(bytes(WINDOW))
    stream.abandon()
    stream.abandon()
    assert (left, stream.unread) == (["left"], 0)
    stream.write(bytes(WINDOW))
    assert read == [WINDOW, WINDOW], "its producer may go on until it ends"
    stream.end()
    assert await stream.read() == b""


async def test_a_producer_that_takes_over_hears_that_the_consumer_has_left() -> None:
    stream: ResponseStream[str] = ResponseStream()
    stream.abandon()
    left: list[bool] = []
    stream.attach(lambda count: None, lambda: left.append(True))
    assert left == [True]
