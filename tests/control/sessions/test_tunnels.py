"""Tunnels: how two ends find each other, how frames pass, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from skerry.control.sessions import tunnels
from skerry.control.sessions.tunnels import TunnelBroker, TunnelEndpoint
from skerry.model import errors
from skerry.model.ids import NodeId
from skerry.model.streams import MAX_FRAME, TunnelChannel, TunnelFrame

N1, N2 = NodeId("n1"), NodeId("n2")


@asynccontextmanager
async def joined(
    served: TunnelBroker, node: NodeId = N1
) -> AsyncIterator[tuple[TunnelEndpoint, TunnelEndpoint]]:
    """Our end and the node's."""
    asked = asyncio.get_running_loop().create_future()
    opening = served.open(node, asked.set_result)
    entering = asyncio.ensure_future(opening.__aenter__())
    async with served.dialled(node, await asked) as theirs:
        yield await entering, theirs
        await opening.__aexit__(None, None, None)


async def test_frames_pass_both_ways_whole_and_in_order():
    async with joined(TunnelBroker()) as (ours, theirs):
        for number in range(5):
            await ours.send(b"down %d" % number)
            await theirs.send(b"up %d" % number)
        assert [await theirs.receive() for _ in range(5)] == [b"down %d" % n for n in range(5)]
        assert [await ours.receive() for _ in range(5)] == [b"up %d" % n for n in range(5)]


async def test_whoever_does_not_read_holds_up_whoever_writes():
    async with joined(TunnelBroker()) as (ours, theirs):
        sent = 0

        async def flood() -> None:
            nonlocal sent
            for _ in range(1000):
                await theirs.send(b"x" * MAX_FRAME)
                sent += 1

        flooding = asyncio.ensure_future(flood())
        for _ in range(100):
            await asyncio.sleep(0)
        assert sent == tunnels._DEPTH
        for _ in range(1000):
            assert await ours.receive() == b"x" * MAX_FRAME
        await flooding


async def test_one_end_may_be_done_while_the_other_goes_on():
    async with joined(TunnelBroker()) as (ours, theirs):
        await ours.end()
        assert await theirs.receive() is None
        await theirs.send(b"still here")
        assert await ours.receive() == b"still here"
        await theirs.end()
        assert await ours.receive() is None


async def test_what_went_wrong_at_one_end_is_raised_at_the_other_after_all_that_came_before():
    async with joined(TunnelBroker()) as (ours, theirs):
        await theirs.send(b"so far")
        await theirs.fail(errors.NotFound("there is no such container"))
        assert await ours.receive() == b"so far"
        with pytest.raises(errors.NotFound, match="no such container"):
            await ours.receive()


async def test_when_our_end_goes_the_node_hears_of_it_in_whatever_it_does():
    served = TunnelBroker()
    async with joined(served) as (ours, theirs):
        reading = asyncio.ensure_future(theirs.receive())
        await asyncio.sleep(0)
        await ours.close()
        with pytest.raises(errors.Unavailable, match="closed"):
            await reading
        with pytest.raises(errors.Unavailable, match="gone"):
            await theirs.send(b"x")


async def test_a_writer_that_waits_is_let_go_when_the_reader_goes():
    async with joined(TunnelBroker()) as (ours, theirs):
        for _ in range(tunnels._DEPTH):
            await theirs.send(b"x")
        writing = asyncio.ensure_future(theirs.send(b"x"))
        await asyncio.sleep(0)
        await ours.close()
        with pytest.raises(errors.Unavailable):
            await writing


async def test_when_the_node_goes_we_hear_of_it():
    async with joined(TunnelBroker()) as (ours, theirs):
        await theirs.send(b"last")
        await theirs.close()
        assert await ours.receive() == b"last"
        with pytest.raises(errors.Unavailable):
            await ours.receive()


async def test_a_node_that_said_all_it_had_and_goes_is_no_failure():
    async with joined(TunnelBroker()) as (ours, theirs):
        await theirs.end()
        await theirs.close()
        assert await ours.receive() is None


async def test_leaving_after_the_other_end_was_done_is_no_failure():
    async with joined(TunnelBroker()) as (ours, theirs):
        await theirs.end()
        await ours.close()
        assert await theirs.receive() is None


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1])
async def test_frames_are_neither_empty_nor_too_large(size):
    async with joined(TunnelBroker()) as (ours, _):
        with pytest.raises(errors.Invalid):
            await ours.send(b"x" * size)


async def test_nobody_joins_a_tunnel_by_guessing_or_for_another():
    served = TunnelBroker()
    asked = asyncio.get_running_loop().create_future()
    opening = served.open(N1, asked.set_result)
    entering = asyncio.ensure_future(opening.__aenter__())
    id = await asked
    assert len(id) == 32
    for node, wrong in [(N1, "0" * 32), (N1, ""), (N2, id)]:
        with pytest.raises(errors.NotFound):
            async with served.dialled(node, wrong):
                pass
    async with served.dialled(N1, id) as theirs:
        ours = await entering
        with pytest.raises(errors.NotFound):
            async with served.dialled(N1, id):
                pass
        await ours.send(b"x")
        assert await theirs.receive() == b"x"
        await opening.__aexit__(None, None, None)


async def test_a_node_that_does_not_dial_is_given_up_and_is_too_late_then():
    served = TunnelBroker(patience_s=0.01)
    asked = list[str]()
    with pytest.raises(errors.TimedOut, match=r"did not answer within 0\.01 s"):
        async with served.open(N1, asked.append):
            pass
    with pytest.raises(errors.NotFound):
        async with served.dialled(N1, asked[0]):
            pass


async def test_who_stops_waiting_leaves_nothing():
    served = TunnelBroker()
    asked = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(served.open(N1, asked.set_result).__aenter__())
    id = await asked
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    with pytest.raises(errors.NotFound):
        async with served.dialled(N1, id):
            pass
    assert not served._open


async def test_a_node_has_a_bounded_number_of_tunnels_and_others_are_not_held_up():
    served = TunnelBroker()
    async with AsyncExitStack() as stack:
        for _ in range(tunnels._PER_NODE):
            await stack.enter_async_context(joined(served))
        with pytest.raises(errors.Overloaded):
            async with served.open(N1, lambda _: None):
                pass
        await stack.enter_async_context(joined(served, N2))
    async with joined(served):
        pass


def test_a_frame_is_packed_with_its_channel():
    for channel in TunnelChannel:
        frame = TunnelFrame(channel, b"\x00data")
        assert TunnelFrame.unpack(frame.pack()) == frame
    for rubbish in (b"", b"\x00", b"\xff..."):
        with pytest.raises(errors.Invalid):
            TunnelFrame.unpack(rubbish)
