"""Tunnels over real gRPC: somebody at the server and a node, through the node's own connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from skerry.model import errors
from skerry.model.cells import OutputChannel
from skerry.model.ids import InstanceId, NodeId
from skerry.model.node_messages import NodeHello, TunnelRequest
from skerry.model.streams import (
    MAX_FRAME,
    CellListRequest,
    ExecStreamRequest,
    LogStreamRequest,
    MetricsRequest,
    StreamRequest,
)
from skerry.transport.tunnels import tunnel_codec
from tests.support.fleets import FACTS, ROOM
from tests.transport.links.nodes.test_session import next_of

N1, I1, LOGS = NodeId("n1"), InstanceId("i1"), LogStreamRequest()


@asynccontextmanager
async def joined(served, ask: StreamRequest = LOGS) -> AsyncIterator[tuple]:
    """Our end, the node's end, and what the node was asked."""
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    messages = node.messages()
    await next_of(messages)
    opening = served.sessions.open_tunnel(N1, I1, ask)
    entering = asyncio.ensure_future(opening.__aenter__())
    asked = await next_of(messages)
    async with node.tunnel(asked.id) as theirs:
        ours = await entering
        try:
            yield ours, theirs, asked
        finally:
            await opening.__aexit__(None, None, None)


@pytest.mark.parametrize(
    "ask",
    [
        LogStreamRequest(),
        LogStreamRequest(follow=True, tail=0, stream=OutputChannel.STDERR),
        ExecStreamRequest(("sh", "-c", "echo ü"), ("A=b",), "root", "/tmp", True, True, 24, 80),
        CellListRequest(),
    ],
)
async def test_a_node_is_asked_for_exactly_what_somebody_wants(served, ask):
    async with joined(served, ask) as (_, _, asked):
        assert asked == TunnelRequest(asked.id, I1, ask)


async def test_frames_pass_both_ways(served):
    async with joined(served) as (ours, theirs, _):
        await ours.send(b"\x00\xff")
        assert await theirs.receive() == b"\x00\xff"
        await theirs.send(b"x" * MAX_FRAME)
        assert await ours.receive() == b"x" * MAX_FRAME


async def test_either_end_may_be_done_first(served):
    async with joined(served) as (ours, theirs, _):
        await ours.end()
        assert await theirs.receive() is None
        assert await theirs.receive() is None
        await theirs.send(b"and this")
        await theirs.end()
        assert await ours.receive() == b"and this"
        assert await ours.receive() is None


@pytest.mark.parametrize(
    "error",
    [
        errors.NotFound("no such container"),
        errors.FailedPrecondition("it does not run"),
        errors.ResourcesExhausted("full"),
    ],
)
async def test_what_goes_wrong_at_the_node_is_the_same_error_here(served, error):
    async with joined(served) as (ours, theirs, _):
        await theirs.fail(error)
        with pytest.raises(type(error), match=error.message):
            await ours.receive()


async def test_what_goes_wrong_here_is_the_same_error_at_the_node(served):
    async with joined(served) as (ours, theirs, _):
        await ours.fail(errors.TimedOut("too slow"))
        with pytest.raises(errors.TimedOut, match="too slow"):
            await theirs.receive()


async def test_the_node_hears_when_we_hang_up(served):
    async with joined(served) as (ours, theirs, _):
        reading = asyncio.ensure_future(theirs.receive())
        await ours.close()
        with pytest.raises(errors.Unavailable):
            await reading


async def test_we_hear_when_the_node_hangs_up(served):
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    messages = node.messages()
    await next_of(messages)
    opening = served.sessions.open_tunnel(N1, I1, LogStreamRequest())
    entering = asyncio.ensure_future(opening.__aenter__())
    async with node.tunnel((await next_of(messages)).id) as theirs:
        ours = await entering
        await theirs.send(b"last")
        assert await ours.receive() == b"last"
    with pytest.raises(errors.Unavailable):
        await ours.receive()
    await opening.__aexit__(None, None, None)


async def test_a_node_whose_reader_is_slow_is_held_up_and_loses_nothing(served):
    sent = 0
    async with joined(served) as (ours, theirs, _):

        async def write() -> None:
            nonlocal sent
            for number in range(200):
                await theirs.send(number.to_bytes(2, "big") + bytes(MAX_FRAME - 2))
                sent += 1
            await theirs.end()

        writing = asyncio.ensure_future(write())
        assert await ours.receive() == bytes(MAX_FRAME)
        for number in range(1, 200):
            frame = await ours.receive()
            assert frame is not None
            assert int.from_bytes(frame[:2], "big") == number
        assert await ours.receive() is None
        await writing


async def test_a_frame_that_is_too_large_ends_the_tunnel(served):
    async with joined(served) as (ours, theirs, _):
        await theirs.send(b"x" * (MAX_FRAME + 1))
        with pytest.raises(errors.Unavailable):
            await ours.receive()


async def test_somebody_who_does_not_wait_leaves_a_tunnel_that_nobody_can_dial(served):
    node = await served.connect("n1")
    await node.hello(NodeHello("edge", FACTS, ROOM))
    messages = node.messages()
    await next_of(messages)
    entering = asyncio.ensure_future(served.sessions.open_tunnel(N1, I1, LogStreamRequest()).__aenter__())
    asked = await next_of(messages)
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    with pytest.raises(errors.NotFound):
        async with node.tunnel(asked.id):
            pass


def test_every_kind_of_error_passes_through_a_tunnel_and_takes_no_detail_along():
    for slug, kind in tunnel_codec._KIND_OF.items():
        told = tunnel_codec.encode_failure(kind("what", detail="secret"))
        assert b"secret" not in told.SerializeToString()
        back = tunnel_codec.decode_failure(told.failure)
        assert (type(back), back.slug, back.message) == (kind, slug, "what")
    told.failure.code = "unheard-of"
    assert type(tunnel_codec.decode_failure(told.failure)) is errors.Internal


@pytest.mark.parametrize("is_open_metrics", [False, True])
def test_a_request_for_metrics_is_the_same_at_both_ends(is_open_metrics: bool) -> None:
    request = TunnelRequest("t", I1, MetricsRequest(is_open_metrics))
    assert tunnel_codec.decode_tunnel(tunnel_codec.encode_tunnel(request)) == request
