"""A stop: running calls end, endless ones are told, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from grpclib.client import StreamUnaryMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError, StreamTerminatedError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest

from skerry.transport.proto.identity_grpc import IdentityServiceStub
from skerry.transport.proto.identity_pb2 import RenewReply, RenewRequest
from tests.support.waiting import PATIENCE_S, eventually
from tests.transport.grpc.fakes import CHECK, RENEW, Collector
from tests.transport.grpc.raw import RawClient, framed


async def test_a_running_call_ends_before_the_server_does(serve):
    served = await serve(unix=True)
    served.identity.go_on.clear()
    stub = IdentityServiceStub(served.channel(served.tls("node"), unix=True))
    call = asyncio.create_task(stub.Renew(RenewRequest(csr=b"x")))
    await served.identity.started.wait()
    stop = asyncio.create_task(served.server.stop(30))
    await eventually(lambda: not served.path.exists())
    assert not stop.done()
    served.identity.go_on.set()
    assert (await call).certificate == b"renewed x"
    await stop


async def test_a_call_that_does_not_end_in_time_is_cancelled_and_its_client_told(serve):
    served = await serve()
    served.identity.go_on.clear()
    stub = IdentityServiceStub(served.channel(served.tls("node")))
    call = asyncio.create_task(stub.Renew(RenewRequest()))
    await served.identity.started.wait()
    await served.server.stop(0.05)
    with pytest.raises(GRPCError, match="server is stopping") as caught:
        await call
    assert caught.value.status is Status.UNAVAILABLE
    assert served.identity.cancelled == 1


async def test_a_call_that_streams_requests_is_told_at_once(serve):
    collector = Collector()
    served = await serve(services=[collector])
    method = StreamUnaryMethod(served.channel(served.tls("node")), RENEW, RenewRequest, RenewReply)

    async def send() -> None:
        async with method.open() as stream:
            await stream.send_message(RenewRequest(csr=b"x"))
            await stream.recv_message()

    call = asyncio.create_task(send())
    await eventually(lambda: collector.taken == [b"x"])
    await served.server.stop(3600)
    with pytest.raises(GRPCError, match="server is stopping") as caught:
        await call
    assert caught.value.status is Status.UNAVAILABLE


async def test_a_call_that_streams_replies_is_told_at_once(serve):
    served = await serve()
    async with HealthStub(served.channel()).Watch.open() as stream:
        await stream.send_message(HealthCheckRequest(), end=True)
        assert (await stream.recv_message()).status == 1
        stop = asyncio.create_task(served.server.stop(3600))
        assert await stream.recv_message() is None
        with pytest.raises(GRPCError, match="server is stopping") as caught:
            await stream.recv_trailing_metadata()
    assert caught.value.status is Status.UNAVAILABLE
    await stop


async def test_an_idle_connection_gets_a_goodbye(serve):
    served = await serve()
    async with RawClient(served.port, served.tls("viewer")) as raw:
        assert await raw.call(CHECK, framed(b"")) == (0, "")
        stop = asyncio.create_task(served.server.stop(3600))
        assert await raw.ended()
        raw.writer.close()
        await stop


async def test_a_new_call_during_the_stop_is_refused(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        running = await raw.start(RENEW)
        await raw.write(running, framed(b""))
        await served.identity.started.wait()
        stop = asyncio.create_task(served.server.stop(30))
        await eventually(lambda: all(connection.is_stopping for connection in served.server._open()))
        late = await raw.start(CHECK)
        assert await raw.answer(late) == {"reset": "7"}, "REFUSED_STREAM: safe to send again elsewhere"
        served.identity.go_on.set()
        assert (await raw.answer(running))["grpc-status"] == "0"
        raw.writer.close()
        await stop


async def test_a_client_in_its_handshake_does_not_hold_up_the_stop(serve):
    served = await serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"\x16\x03\x01")
    [listener] = served.server._listeners
    await eventually(lambda: len(listener._serving) == 1)
    await served.server.stop(3600)
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()


async def test_a_client_that_never_reads_does_not_hold_up_the_stop(serve):
    served = await serve()
    async with RawClient(served.port, served.tls("viewer")) as raw:
        assert await raw.call(CHECK, framed(b"")) == (0, "")
        raw.writer.transport.pause_reading()
        await served.server.stop(0.05)
        raw.writer.transport.abort()


async def test_stopping_twice_or_before_the_start_is_fine(serve):
    served = await serve()
    await served.server.stop(1)
    await served.server.stop(1)


async def test_after_a_stop_no_task_is_left(serve):
    before = asyncio.all_tasks()
    served = await serve()
    stub = HealthStub(served.channel())
    await asyncio.gather(*(stub.Check(HealthCheckRequest()) for _ in range(10)))
    await served.stop()
    assert asyncio.all_tasks() - before == set()


async def test_a_client_that_leaves_as_the_server_stops_does_not_hold_it_up(serve):
    served = await serve()
    served.identity.go_on.clear()
    async with RawClient(served.port, served.tls("node")) as raw:
        await raw.write(await raw.start(RENEW), framed(b""))
        await served.identity.started.wait()
        [connection] = served.server._open()
        raw.writer.transport.abort()
        while not connection._is_over:  # noqa: ASYNC110 - the very moment: lost, and its call not yet ended
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            await served.server.stop(3600)
    assert served.identity.cancelled == 1


async def test_a_call_ends_as_soon_as_the_certificate_of_its_connection_is_revoked(serve):
    served = await serve(unix=True)
    served.identity.go_on.clear()
    other = IdentityServiceStub(served.channel(served.tls("admin")))
    stub = IdentityServiceStub(served.channel(served.tls("node"), unix=True))
    call = asyncio.create_task(stub.Renew(RenewRequest(csr=b"x")))
    await served.identity.started.wait()
    served.identity.revoke("some-node")
    with pytest.raises(StreamTerminatedError):
        await call
    await eventually(lambda: served.identity.cancelled == 1)
    with pytest.raises(GRPCError, match="was revoked") as caught:
        await stub.Renew(RenewRequest(csr=b"y"))
    assert caught.value.status is Status.UNAUTHENTICATED
    with pytest.raises(GRPCError) as caught:
        await other.Renew(RenewRequest(csr=b"z"))
    assert caught.value.status is Status.PERMISSION_DENIED, "others are served as before"
