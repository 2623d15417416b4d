"""Calls through grpclib's client: who may call, what errors become, deadlines, request ids."""

from __future__ import annotations

import asyncio

import pytest
from grpclib.client import StreamStreamMethod
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from grpclib.health.v1.health_grpc import HealthStub
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from skerry.model import errors
from skerry.model.callers import Role
from skerry.transport.error_codes import GRPC_STATUS
from skerry.transport.grpc import channels as channels
from skerry.transport.grpc.connections import ConnectionLimits
from skerry.transport.grpc.dispatcher import methods_of
from skerry.transport.proto.identity_grpc import IdentityServiceStub
from skerry.transport.proto.identity_pb2 import RenewReply, RenewRequest
from tests.transport.grpc.fakes import RENEW, Echo, Mute


async def test_a_node_renews_its_certificate_over_tcp(serve):
    served = await serve()
    reply = await channels.renew_certificate(served.channel(served.tls("node")), b"csr")
    assert reply == b"renewed csr"
    [(caller, csr)] = served.identity.renewed
    assert (caller.role, caller.node, csr) == (Role.NODE, "some-node", b"csr")


async def test_a_node_renews_its_certificate_over_the_unix_socket(serve):
    served = await serve(unix=True)
    assert (
        await channels.renew_certificate(served.channel(served.tls("node"), unix=True), b"csr")
        == b"renewed csr"
    )


@pytest.mark.parametrize("role", ["admin", "deployer", "invoker", "viewer"])
async def test_only_a_node_may_renew(serve, role):
    served = await serve()
    stub = IdentityServiceStub(served.channel(served.tls(role)))
    with pytest.raises(GRPCError, match="needs node") as caught:
        await stub.Renew(RenewRequest())
    assert caught.value.status is Status.PERMISSION_DENIED
    assert not served.identity.renewed


async def test_the_local_user_without_a_certificate_is_an_admin_and_no_node(serve):
    served = await serve()
    with pytest.raises(GRPCError, match="the role admin") as caught:
        await IdentityServiceStub(served.channel()).Renew(RenewRequest())
    assert caught.value.status is Status.PERMISSION_DENIED


async def test_a_token_comes_before_a_certificate(serve):
    served = await serve()
    stub = IdentityServiceStub(served.channel(served.tls("viewer")))
    reply = await stub.Renew(RenewRequest(csr=b"x"), metadata={"authorization": "Bearer node"})
    assert reply.certificate == b"renewed x"


async def test_a_bad_token_is_refused_even_where_nobody_needs_one(serve):
    served = await serve()
    with pytest.raises(GRPCError, match="token is unknown") as caught:
        await HealthStub(served.channel()).Check(
            HealthCheckRequest(), metadata={"authorization": "Bearer rubbish"}
        )
    assert caught.value.status is Status.UNAUTHENTICATED


@pytest.mark.parametrize("kind", sorted(set(GRPC_STATUS) - {errors.Internal}, key=lambda kind: kind.__name__))
async def test_every_error_reaches_the_client_with_its_status_and_its_message(serve, kind):
    served = await serve()
    served.identity.raises = kind("wrong: do this instead", detail="only for the log")
    with pytest.raises(GRPCError) as caught:
        await _renew_as_node(served)
    assert (caught.value.status, caught.value.message) == (GRPC_STATUS[kind], "wrong: do this instead")


@pytest.mark.parametrize(
    "error", [RuntimeError("secret 42"), errors.Internal("secret 42"), TimeoutError("secret 42")]
)
async def test_a_fault_of_ours_gives_the_client_a_request_id_and_the_log_the_reason(
    serve, error, logged, caplog
):
    served = await serve()
    served.identity.raises = error
    with pytest.raises(GRPCError, match="request id req-1") as caught:
        await _renew_as_node(served, metadata={"x-request-id": "req-1"})
    assert caught.value.status is Status.INTERNAL
    assert "secret" not in str(caught.value)
    [line] = [line for line in logged if line["log_level"] == "error"]
    assert line["request_id"] == "req-1"
    assert "secret 42" in str(line)
    assert not caplog.records, "grpclib and asyncio have nothing to say"


async def test_a_handler_that_forgets_its_reply_is_a_fault_of_ours(serve, logged):
    served = await serve(services=[Mute()])
    with pytest.raises(GRPCError, match="fault of the server") as caught:
        await _renew_as_node(served)
    assert caught.value.status is Status.INTERNAL
    assert any("without a reply" in str(line.get("exc_info")) for line in logged)


@pytest.mark.parametrize("offered", ["abc-1.2_X", "a" * 64])
async def test_a_safe_request_id_comes_back(serve, offered):
    assert await _request_id_for(await serve(), {"x-request-id": offered}) == offered


@pytest.mark.parametrize("offered", ["", "two words", "a" * 65, 'quote"', "semi;colon"])
async def test_an_unsafe_request_id_is_replaced(serve, offered):
    got = await _request_id_for(await serve(), {"x-request-id": offered} if offered else {})
    assert got != offered
    assert len(got) == 26


async def test_a_refused_call_carries_its_request_id_too(serve):
    served = await serve()
    stub = IdentityServiceStub(served.channel())
    async with stub.Renew.open(metadata={"x-request-id": "req-2"}) as stream:
        await stream.send_message(RenewRequest(), end=True)
        with pytest.raises(GRPCError):
            await stream.recv_message()
        assert stream.trailing_metadata["x-request-id"] == "req-2"


async def test_a_hundred_calls_at_once_are_all_answered(serve):
    served = await serve()
    channel = served.channel(served.tls("node"))
    replies = await asyncio.gather(*(channels.renew_certificate(channel, b"%d" % n) for n in range(100)))
    assert replies == [b"renewed %d" % n for n in range(100)]


async def test_more_calls_than_the_limit_wait_for_their_turn(serve):
    served = await serve(limits=ConnectionLimits(concurrent_calls=4))
    channel = served.channel(served.tls("node"))
    replies = await asyncio.gather(*(channels.renew_certificate(channel, b"%d" % n) for n in range(20)))
    assert len(set(replies)) == 20


async def test_a_stream_carries_messages_both_ways(serve):
    served = await serve(services=[Echo()])
    channel = served.channel(served.tls("node"))
    method = StreamStreamMethod(channel, RENEW, RenewRequest, RenewReply)
    async with method.open() as stream:
        for n in range(3):
            await stream.send_message(RenewRequest(csr=b" %d" % n))
            assert (await stream.recv_message()).certificate == b"some-node %d" % n
        await stream.end()
        assert await stream.recv_message() is None


def test_an_rpc_without_a_row_in_the_access_table_is_not_served():
    class Stray:
        def __mapping__(self):
            return {"/stray.Service/Do": None}

    with pytest.raises(ValueError, match="no row"):
        methods_of([Stray()])


def test_an_rpc_is_not_served_twice():
    with pytest.raises(ValueError, match="served twice"):
        methods_of([Mute(), Echo()])


async def test_what_a_server_refuses_arrives_as_the_same_error(serve):
    served = await serve()
    served.identity.raises = errors.FailedPrecondition("the node is gone; join again")
    with pytest.raises(errors.FailedPrecondition, match="join again"):
        await channels.renew_certificate(served.channel(served.tls("node")), b"csr")


async def test_a_server_that_is_not_there_is_unavailable(serve):
    served = await serve()
    channel = served.channel(served.tls("node"))
    await served.server.stop(1)
    with pytest.raises(errors.Unavailable, match="is it running"):
        await channels.renew_certificate(channel, b"csr")


@pytest.mark.parametrize("target", ["nowhere", ":80", "host:", "host:x"])
async def test_a_target_without_host_or_port_is_invalid(target):
    with pytest.raises(errors.Invalid, match="HOST:PORT"):
        channels.dial(target, None)


async def test_tls_over_a_unix_socket_needs_a_name(authority):
    with pytest.raises(ValueError, match="name in the server's certificate"):
        channels.dial("/run/some.sock", authority.client_context(None))


async def _renew_as_node(served, metadata=None) -> RenewReply:
    stub = IdentityServiceStub(served.channel(served.tls("node")))
    return await stub.Renew(RenewRequest(csr=b"csr"), metadata=metadata)


async def _request_id_for(served, metadata) -> str:
    async with HealthStub(served.channel()).Check.open(metadata=metadata) as stream:
        await stream.send_message(HealthCheckRequest(), end=True)
        reply = await stream.recv_message()
        assert reply.status == HealthCheckResponse.SERVING
        return stream.initial_metadata["x-request-id"]
