"""Frames without content: a flood of them ends its connection with ENHANCE_YOUR_CALM, and no other's."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

import pytest
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from skerry.kit.tls import READS_PER_TURN
from skerry.transport.access import peers
from skerry.transport.admission import FAULTS
from skerry.transport.grpc import connections
from skerry.transport.grpc.connections import ConnectionLimits, GrpcServerConnection
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import CHECK, WATCH
from tests.transport.grpc.raw import RawClient, framed
from tests.transport.grpc.test_hostile import OK

FRAMES: dict[str, Frame] = {
    "ping": PingFrame(0, opaque_data=bytes(8)),
    "settings": SettingsFrame(0),
    "priority": PriorityFrame(5, depends_on=3),
    "window update": WindowUpdateFrame(0, window_increment=1),
    "empty data": DataFrame(1),
    "unknown": ExtensionFrame(type=0xB0, stream_id=0, flag_byte=0, body=b""),
}


@pytest.fixture(autouse=True)
def flooders_are_dropped_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of tests it takes 2 s, which `test_hostile` waits for."""
    monkeypatch.setattr(connections, "_FLOODER_S", 0.3)


async def goaway_of(raw: RawClient) -> int:
    """The error code of the goodbye that the server says."""
    async with asyncio.timeout(PATIENCE_S):
        while data := await raw.reader.read(65536):
            for event in raw.http2.receive_data(data):
                if isinstance(event, ConnectionTerminated):
                    assert event.error_code is not None
                    return event.error_code
    raise AssertionError("it ended without a goodbye")


def many_calls(raw: RawClient, path: str, count: int, *, are_reset: bool = False) -> bytes:
    """So many calls that send nothing yet, each taken back at once if `are_reset`."""
    headers = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", path)]
    for _ in range(count):
        stream = raw.http2.get_next_available_stream_id()
        raw.http2.send_headers(stream, [*headers, ("content-type", "application/grpc")])
        if are_reset:
            raw.http2.reset_stream(stream)
    return raw.http2.data_to_send()


async def flood(raw: RawClient, frame: bytes, first: bytes = b"") -> None:
    """More of it than anybody may send, and than fits into the kernel's buffers."""
    with contextlib.suppress(OSError):
        await raw.send(first + frame * 100_000)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "tls"])
@pytest.mark.parametrize("name", FRAMES)
async def test_a_flood_of_frames_without_content_is_told_to_calm_down(serve, name: str, is_tls: bool):
    served = await serve()
    context: ssl.SSLContext | None = served.tls("viewer") if is_tls else None
    async with RawClient(served.port, context) as quiet, RawClient(served.port, context) as raw:
        assert await quiet.call(CHECK, framed(b"")) == OK
        await raw.start(WATCH)  # a stream that stays open, for what needs one
        flooding = asyncio.ensure_future(flood(raw, FRAMES[name].serialize()))
        assert await goaway_of(raw) == ErrorCodes.ENHANCE_YOUR_CALM
        assert await quiet.call(CHECK, framed(b"")) == OK
        raw.writer.transport.abort()
        await flooding
    [listener] = served.server._listeners
    await eventually(lambda: not listener.connections)


async def test_of_tls_records_of_one_byte_a_few_are_handled_in_each_turn(
    serve, monkeypatch: pytest.MonkeyPatch
):
    pieces: list[int] = []
    received = GrpcServerConnection.data_received

    def data_received(connection: GrpcServerConnection, data: bytes) -> None:
        pieces.append(len(data))
        received(connection, data)

    served = await serve()
    async with RawClient(served.port, served.tls("viewer")) as raw:
        stream = await raw.start(WATCH)
        assert await raw.call(CHECK, framed(b"")) == OK
        monkeypatch.setattr(GrpcServerConnection, "data_received", data_received)
        for byte in DataFrame(stream, bytes(4000)).serialize():
            raw.writer.write(bytes((byte,)))
        assert await raw.call(CHECK, framed(b"")) == OK
    assert max(pieces[:-1]) <= READS_PER_TURN


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "tls"])
async def test_headers_that_never_end_are_no_way_to_flood(serve, is_tls: bool):
    served = await serve()
    context: ssl.SSLContext | None = served.tls("viewer") if is_tls else None
    async with RawClient(served.port, context) as quiet, RawClient(served.port, context) as raw:
        assert await quiet.call(CHECK, framed(b"")) == OK
        begun = HeadersFrame(1, raw.http2.encoder.encode([(":method", "POST")])).serialize()
        flooding = asyncio.ensure_future(flood(raw, ContinuationFrame(1).serialize(), begun))
        assert await goaway_of(raw) == ErrorCodes.PROTOCOL_ERROR  # h2 allows 64
        assert await quiet.call(CHECK, framed(b"")) == OK
        raw.writer.transport.abort()
        await flooding
    [listener] = served.server._listeners
    await eventually(lambda: not listener.connections)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plaintext", "tls"])
async def test_calls_that_are_taken_back_over_and_over_end_the_connection(serve, is_tls: bool):
    served = await serve(limits=ConnectionLimits(control_frames=100, control_frames_per_s=1))
    async with RawClient(served.port, served.tls("viewer") if is_tls else None) as raw:
        for _ in range(110):
            stream = await raw.start(WATCH)
            raw.http2.reset_stream(stream)
            await raw.flush()
        assert await goaway_of(raw) == ErrorCodes.ENHANCE_YOUR_CALM
        raw.writer.transport.abort()


async def test_a_reset_of_a_stream_that_is_gone_counts_too(serve):
    served = await serve(limits=ConnectionLimits(control_frames=100, control_frames_per_s=1))
    async with RawClient(served.port) as raw:
        stream = await raw.start(WATCH)
        raw.http2.reset_stream(stream)
        await raw.flush()
        await raw.send(RstStreamFrame(stream, error_code=8).serialize() * 110)
        assert await goaway_of(raw) == ErrorCodes.ENHANCE_YOUR_CALM
        raw.writer.transport.abort()


@pytest.mark.parametrize("data", [b"x", b""], ids=["one byte", "padding only"])
async def test_a_strangers_flood_of_next_to_nothing_is_told_to_calm_down(serve, data: bytes):
    served = await serve(limits=ConnectionLimits(control_frames=100, control_frames_per_s=1))
    async with RawClient(served.port) as raw:
        stream = await raw.start(WATCH)
        assert await raw.call(CHECK, framed(b"")) == OK
        [connection] = served.server._listeners[0].connections
        connection.place.is_known = False  # whoever runs the tests is the server's own user
        frame = DataFrame(stream, data, flags=[] if data else ["PADDED"])
        await raw.send(frame.serialize() * 110)
        assert await goaway_of(raw) == ErrorCodes.ENHANCE_YOUR_CALM
        raw.writer.transport.abort()


async def test_a_strangers_calls_of_what_is_not_there_end_the_connection(serve):
    served = await serve(limits=ConnectionLimits(control_frames=100, control_frames_per_s=1))
    async with RawClient(served.port) as raw:
        assert await raw.call(CHECK, framed(b"")) == OK
        [connection] = served.server._listeners[0].connections
        connection.place.is_known = False  # whoever runs the tests is the server's own user
        for _ in range(40):
            await raw.start("/nothing/There")
        assert await goaway_of(raw) == ErrorCodes.ENHANCE_YOUR_CALM
        raw.writer.transport.abort()


async def test_a_stranger_who_sends_floods_and_hangs_up_is_kept_out(serve, monkeypatch: pytest.MonkeyPatch):
    """None of its connections lasts until its frames are counted."""
    monkeypatch.setattr(peers, "trusted_uids", lambda _: frozenset[int]())  # who runs the tests is one
    served = await serve()
    [listener] = served.server._listeners
    async with RawClient(served.port):  # one that stays, as a flooder has many
        await eventually(lambda: len(listener.connections) == 1)
        [stays] = listener.connections
        for _ in range(FAULTS):
            async with RawClient(served.port) as raw:
                await eventually(lambda: len(listener.connections) == 2)
                [connection] = listener.connections - {stays}
                connection.data_received(many_calls(raw, "/nothing/There", 200))
                connection._transport.abort()  # as when its other end is gone
                await eventually(lambda: not listener.connections - {stays})
        await eventually(lambda: not listener.connections)  # the one that stayed went with the others
        with pytest.raises((OSError, EOFError)):
            async with RawClient(served.port) as raw:
                await raw.call(CHECK, framed(b""))


async def test_calls_that_wait_for_their_turn_have_no_tasks_yet(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        assert await raw.call(CHECK, framed(b"")) == OK
        [connection] = served.server._listeners[0].connections
        before = len(asyncio.all_tasks())
        connection.data_received(many_calls(raw, WATCH, 4))
        assert len(connection._running) == 4
        assert len(asyncio.all_tasks()) == before + 1


async def test_who_is_known_may_stream_small_messages(serve):
    served = await serve(limits=ConnectionLimits(control_frames=100, control_frames_per_s=1))
    async with RawClient(served.port) as raw:
        stream = await raw.start(WATCH)
        await raw.send(DataFrame(stream, b"x").serialize() * 300)
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_a_thousand_calls_that_are_cancelled_at_once_are_no_flood(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        await raw.send(many_calls(raw, WATCH, 1000, are_reset=True))
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_a_client_that_answers_what_it_is_sent_is_no_flooder(serve):
    served = await serve(limits=ConnectionLimits(control_frames=20, control_frames_per_s=1))
    answer = WindowUpdateFrame(0, window_increment=1).serialize() * 2 + FRAMES["ping"].serialize()
    async with RawClient(served.port) as raw:
        for _ in range(200):
            assert await raw.call(CHECK, framed(b"")) == OK
            await raw.send(answer)
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_many_calls_at_once_on_one_connection_are_all_answered(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        streams = []
        for _ in range(200):
            stream = raw.http2.get_next_available_stream_id()
            headers = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", CHECK)]
            raw.http2.send_headers(stream, [*headers, ("content-type", "application/grpc")])
            raw.http2.send_data(stream, framed(b""), end_stream=True)
            streams.append(stream)
        await raw.flush()
        for stream in streams:
            assert (await raw.answer(stream))["grpc-status"] == "0"
