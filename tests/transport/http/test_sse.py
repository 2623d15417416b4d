"""Writing server-sent events, with the network played by the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.transport.http import sse, streaming
from skerry.transport.http.asgi import Message, Scope
from skerry.transport.http.responses import ClientDisconnected


@given(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1), st.binary())
def test_a_frame_gives_its_data_back_line_by_line(kind: str, data: bytes) -> None:
    frame = sse.frame(data, event=kind, event_id="7")
    assert frame.startswith(b"id: 7\nevent: " + kind.encode() + b"\ndata: ")
    assert frame.endswith(b"\n\n")
    lines = frame.removesuffix(b"\n\n").split(b"\n")[2:]
    assert b"\n".join(line.removeprefix(b"data: ") for line in lines) == data


class Network:
    """A client that reads `room` messages and then no more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.sent: list[Message] = []
        self.scope: Scope = {"type": "http", "method": "GET", "state": {}}

    async def send(self, message: Message) -> None:
        if len(self.sent) >= self.room:
            await asyncio.Event().wait()
        self.sent.append(message)

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("never")


async def counting(made: list[int], closed: list[bool]) -> AsyncGenerator[bytes, None]:
    try:
        number = 0
        while True:
            made.append(number)
            yield sse.frame(str(number).encode())
            number += 1
            await asyncio.sleep(0)
    finally:
        closed.append(True)


async def test_a_reader_that_stalls_stops_its_source_and_is_let_go() -> None:
    network, made, closed = Network(room=5), [], []
    with pytest.raises(ClientDisconnected):
        await streaming.write(
            counting(made, closed),
            network.scope,
            network.receive,
            network.send,
            format=sse.SSE_FORMAT,
            heartbeat_s=10,
            stall_s=0.05,
        )
    assert len(network.sent) == 5  # the head and four frames
    assert len(made) <= 6  # one on its way and one ahead
    assert closed == [True]


async def test_a_source_that_fails_is_closed_and_its_error_told() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield sse.frame(b"x")
        raise ZeroDivisionError

    network = Network(room=100)
    with pytest.raises(ZeroDivisionError):
        await streaming.write(
            failing(), network.scope, network.receive, network.send, format=sse.SSE_FORMAT, heartbeat_s=10
        )
    assert network.sent[-1]["more_body"] is True


async def test_a_source_that_ends_completes_the_answer() -> None:
    async def one() -> AsyncGenerator[bytes, None]:
        yield sse.frame(b"x")

    network = Network(room=100)
    await streaming.write(
        one(), network.scope, network.receive, network.send, format=sse.SSE_FORMAT, heartbeat_s=10
    )
    assert [message.get("more_body") for message in network.sent] == [None, True, False]
