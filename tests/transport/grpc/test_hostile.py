"""What no proper client sends: every one of them gets a clear end, and the server goes on."""

from __future__ import annotations

import asyncio
import socket

import pytest
from grpclib.client import StreamStreamMethod
from grpclib.const import Status
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest
from hyperframe.frame import DataFrame, PingFrame

from skerry.model.settings import GrpcSettings
from skerry.transport.grpc.connections import ConnectionLimits
from skerry.transport.proto.identity_pb2 import RenewReply, RenewRequest
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import CHECK, RENEW, WATCH, Echo
from tests.transport.grpc.raw import RawClient, framed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
OK = (Status.OK.value, "")


async def test_the_scheme_of_early_aurae_clients_is_taken(serve):
    served = await serve()
    async with RawClient(served.port, served.tls("node")) as raw:
        assert await raw.call(CHECK, framed(b""), scheme="hxxp", authority="null") == OK


async def test_bytes_that_are_no_protobuf_are_an_invalid_argument(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, text = await raw.call(CHECK, framed(b"\xff\xff\xff"))
    assert status == Status.INVALID_ARGUMENT.value
    assert "no valid grpc.health.v1.HealthCheckRequest" in text


async def test_a_message_above_the_limit_is_refused_by_its_announcement(serve):
    served = await serve(settings=GrpcSettings(max_message_bytes=1024))
    async with RawClient(served.port) as raw:
        stream = await raw.start(CHECK)
        await raw.write(stream, framed(b"", size=1025), end=False)
        answer = await raw.answer(stream)
        assert int(answer["grpc-status"]) == Status.RESOURCE_EXHAUSTED.value
        assert "at most 1024" in answer["grpc-message"]
        assert await raw.call(CHECK, framed(b"")) == OK, "the connection goes on"


async def test_a_message_at_the_limit_is_taken(serve):
    served = await serve(settings=GrpcSettings(max_message_bytes=1024))
    service = b"\x0a\xfd\x07" + b"x" * 1021
    async with RawClient(served.port) as raw:
        status, text = await raw.call(CHECK, framed(service))
    assert (status, text[:12]) == (Status.NOT_FOUND.value, "no service '")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "without a message"),
        (b"\0\0", "cut off"),
        (framed(b"abc", size=10), "cut off"),
        (framed(b"", size=10), "cut off"),
    ],
)
async def test_a_message_that_is_cut_off_is_an_invalid_argument(serve, data, text):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, told = await raw.call(CHECK, data)
    assert status == Status.INVALID_ARGUMENT.value
    assert text in told


async def test_a_compressed_message_is_not_supported_and_says_so(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, text = await raw.call(CHECK, framed(b"", compressed=True), ("grpc-encoding", "gzip"))
    assert status == Status.UNIMPLEMENTED.value
    assert "without grpc-encoding" in text


@pytest.mark.parametrize(
    "path", ["/grpc.health.v1.Health/Nothing", "/no.such.Service/Do", "/", "x", "/%00/ü"]
)
async def test_an_unknown_path_is_unimplemented(serve, path):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, text = await raw.call(path, framed(b""))
    assert status == Status.UNIMPLEMENTED.value
    assert "is not served here" in text


@pytest.mark.parametrize(
    ("headers", "replaced", "http"),
    [
        ([], {"method": "GET"}, "405"),
        ([("content-type", "application/json")], {}, "415"),
        ([("content-type", "application/grpc-web")], {}, "415"),
        ([("content-type", "application/grpc+json")], {}, "415"),
    ],
)
async def test_a_request_that_is_no_grpc_call_is_refused_in_http(serve, headers, replaced, http):
    served = await serve()
    async with RawClient(served.port) as raw:
        stream = await raw.start(CHECK, *headers, **replaced)
        await raw.write(stream, b"")
        answer = await raw.answer(stream)
    assert answer[":status"] == http


@pytest.mark.parametrize("content_type", ["application/grpc+proto", "application/grpc;charset=utf-8"])
async def test_the_other_spellings_of_the_content_type_are_taken(serve, content_type):
    served = await serve()
    async with RawClient(served.port) as raw:
        assert await raw.call(CHECK, framed(b""), ("content-type", content_type)) == OK


@pytest.mark.parametrize("timeout", ["", "1", "S", "-1S", "1.5S", "123456789S", "9" * 5000 + "H", "1x"])
async def test_a_malformed_timeout_is_an_invalid_argument(serve, timeout):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, text = await raw.call(CHECK, framed(b""), ("grpc-timeout", timeout))
    assert status == Status.INVALID_ARGUMENT.value
    assert "grpc-timeout" in text


async def test_the_longest_timeout_is_taken(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        assert await raw.call(CHECK, framed(b""), ("grpc-timeout", "99999999H")) == OK


async def test_a_passed_deadline_cancels_the_handler(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        status, text = await raw.call(RENEW, framed(b""), ("grpc-timeout", "50m"))
    assert (status, text) == (Status.DEADLINE_EXCEEDED.value, "the deadline of the call has passed")
    assert not served.identity.renewed


async def test_binary_metadata_that_is_no_base64_is_an_invalid_argument(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, text = await raw.call(CHECK, framed(b""), ("trace-bin", "a"))
        assert (status, "base64" in text) == (Status.INVALID_ARGUMENT.value, True)
        status, _ = await raw.call(CHECK, framed(b""), ("trace-bin", "ü"))
        assert status == Status.INVALID_ARGUMENT.value


@pytest.mark.parametrize("authorization", ["", "Bearer", "Basic eDp5", "Bearer ü", "Bearer \x01"])
async def test_an_authorization_that_is_no_bearer_token_is_unauthenticated(serve, authorization):
    served = await serve()
    async with RawClient(served.port) as raw:
        status, _ = await raw.call(CHECK, framed(b""), ("authorization", authorization))
    assert status == Status.UNAUTHENTICATED.value


@pytest.mark.parametrize("missing", ["method", "scheme", "path"])
async def test_a_request_without_a_pseudo_header_ends_the_connection(serve, missing, logged):
    served = await serve()
    async with RawClient(served.port) as raw:
        await raw.start(CHECK, **{missing: ""})
        assert await raw.ended(), "a GOAWAY says why"
    [line] = [line for line in logged if line["event"] == "connection.broken"]
    assert f":{missing}" in line["reason"]
    assert await _is_serving(served)


async def test_headers_above_the_limit_end_the_connection(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        await raw.start(CHECK, ("x-large", "x" * 20000))
        assert await raw.ended()
    assert await _is_serving(served)


async def test_a_frame_of_an_unknown_type_is_ignored(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        await raw.send(b"\0\0\x06\xfa\0\0\0\0\0grease")
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_an_empty_frame_inside_a_message_is_ignored(serve):
    served = await serve()
    async with RawClient(served.port) as raw:
        stream = await raw.start(CHECK)
        await raw.write(stream, b"\0\0", end=False)
        await raw.send(DataFrame(stream, b"").serialize())
        await raw.write(stream, b"\0\0\0", end=True)
        assert (await raw.answer(stream))["grpc-status"] == "0"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        bytes(64),
        PREFACE + b"\0\0\x08\0\0\0\0\0\0datadata",
        PREFACE + b"\xff" * 20_000,
    ],
    ids=["http1", "zeros", "data-without-a-stream", "endless-frame"],
)
async def test_garbage_ends_the_connection_and_nothing_else(serve, garbage, logged, caplog):
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(garbage)
    await _read_to_the_end(reader)
    writer.close()
    assert any(line["event"] == "connection.broken" for line in logged)
    assert await _is_serving(served)
    assert not caplog.records, "no traceback by asyncio"


async def test_a_client_that_resets_its_call_cancels_the_handler(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        stream = await raw.start(RENEW)
        await raw.write(stream, framed(b""))
        await served.identity.started.wait()
        raw.http2.reset_stream(stream)
        await raw.flush()
        await eventually(lambda: served.identity.cancelled == 1)
        assert await raw.call(CHECK, framed(b"")) == OK, "the connection goes on"


async def test_a_client_that_vanishes_in_a_call_cancels_the_handler(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        await raw.write(await raw.start(RENEW), framed(b""))
        await served.identity.started.wait()
        raw.writer.transport.abort()
        await eventually(lambda: served.identity.cancelled == 1)


async def test_a_client_that_says_goodbye_in_a_call_cancels_the_handler(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        await raw.write(await raw.start(RENEW), framed(b""))
        await served.identity.started.wait()
        raw.http2.close_connection()
        await raw.flush()
        await eventually(lambda: served.identity.cancelled == 1)
        await _read_to_the_end(raw.reader)
    assert await _is_serving(served)


async def test_calls_that_are_opened_and_reset_at_once_leave_nothing_behind(serve):
    served = await serve(limits=ConnectionLimits(concurrent_calls=8))
    async with RawClient(served.port) as raw:
        for _ in range(200):
            stream = raw.http2.get_next_available_stream_id()
            raw.http2.send_headers(
                stream,
                [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":authority", "x"),
                    (":path", CHECK),
                    ("content-type", "application/grpc"),
                ],
            )
            raw.http2.reset_stream(stream)
        await raw.flush()
        [connection] = await eventually(served.server._open)
        await eventually(lambda: connection.connection.streams_started == 200 and not connection._running)
        assert not connection.processor.streams
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_more_calls_than_the_limit_at_once_end_the_connection_of_who_ignores_it(serve):
    served = await serve(limits=ConnectionLimits(concurrent_calls=2))
    async with RawClient(served.port) as raw:
        await raw.call(CHECK, framed(b""))
        raw.http2.remote_settings.max_concurrent_streams = 100
        raw.http2.remote_settings.acknowledge()
        for _ in range(3):
            await raw.start(WATCH)
        assert await raw.ended()
    assert await _is_serving(served)


async def test_a_flood_of_pings_that_are_never_read_is_cut_off(serve, logged):
    served = await serve(limits=ConnectionLimits(unsent_bytes=64 * 1024))
    [listener] = served.server._listeners
    listener._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # what is accepted inherits it
    sock = socket.create_connection(("127.0.0.1", served.port))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    flood = PingFrame(0, b"flooding").serialize() * 4096
    try:
        await loop.sock_sendall(sock, PREFACE + b"\0\0\0\x04\0\0\0\0\0")

        async def pour() -> None:
            while True:
                await loop.sock_sendall(sock, flood)

        with pytest.raises(OSError, match=r"reset|Broken"):
            async with asyncio.timeout(PATIENCE_S):
                await pour()
    finally:
        sock.close()
    assert any(line["event"] == "connection.flooded" for line in logged)


async def test_a_client_that_falls_silent_is_dropped(serve, logged):
    served = await serve(limits=ConnectionLimits(silence_s=0.05))
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        await raw.write(await raw.start(RENEW), framed(b""))
        await served.identity.started.wait()
        # From here on nobody reads, so that the server's ping has no answer.
        await eventually(lambda: served.identity.cancelled == 1)
    assert any(line["event"] == "connection.silent" and line["calls"] == 1 for line in logged)


async def test_a_client_that_answers_pings_is_kept(serve):
    served = await serve(limits=ConnectionLimits(silence_s=0.05))
    async with RawClient(served.port) as raw:
        pings = 0
        while pings < 3:
            await raw._read()
            pings += sum(type(event).__name__ == "PingReceived" for event in raw._events)
            raw._events.clear()
        assert await raw.call(CHECK, framed(b"")) == OK


async def test_messages_of_a_stream_larger_than_the_window_flow(serve):
    served = await serve(services=[Echo()], limits=ConnectionLimits(stream_window_bytes=65535))
    method = StreamStreamMethod(served.channel(served.tls("node")), RENEW, RenewRequest, RenewReply)
    async with method.open() as stream:
        for _ in range(3):
            await stream.send_message(RenewRequest(csr=b"x" * 300_000))
            assert len((await stream.recv_message()).certificate) == 300_000 + len("some-node")
        await stream.end()


async def _is_serving(served) -> bool:
    return (await HealthStub(served.channel()).Check(HealthCheckRequest())).status == 1


async def _read_to_the_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except OSError:
            return b""
