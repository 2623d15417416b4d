"""Lines of the daemon's log and of executables: history, then what comes, gaps said aloud, a clean end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model.cells import Cell, Executable, ExitStatus, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.transport.grpc.channels import dial
from skerry.transport.proto.observe_grpc import ObserveStub
from skerry.transport.proto.observe_pb2 import (
    CHANNEL_STDERR,
    CHANNEL_STDOUT,
    GetAuraeDaemonLogStreamRequest,
    GetSubProcessStreamRequest,
)
from tests.support.cells import FakeKeeper, Started, cell_server
from tests.support.certificates import SERVER_NAME

SECOND = 1_000_000_000


async def started(keeper: FakeKeeper, cell: str = "a", name: str = "x") -> Started:
    await keeper.allocate(Cell(name=CellName(cell)))
    await keeper.start(Executable(name=ExecutableName(name), cell=CellName(cell), command="true"))
    return keeper.started_one(cell, name)


def output_of(one: Started, channel: int = CHANNEL_STDOUT) -> GetSubProcessStreamRequest:
    return GetSubProcessStreamRequest(channel_type=channel, process_id=one.state.pid)


async def test_output_has_history_and_then_what_comes_and_ends_with_the_process(served, channel):
    one = await started(served.keeper)
    one.write(b"hello\naur", at_ns=5 * SECOND + 999)
    async with ObserveStub(channel).GetSubProcessStream.open() as stream:
        await stream.send_message(output_of(one), end=True)
        first = await stream.recv_message()
        assert (first.channel, first.line, first.timestamp) == ("stdout", "hello", 5)
        one.write(b"ae\n", at_ns=7 * SECOND)
        second = await stream.recv_message()
        assert (second.line, second.timestamp) == ("aurae", 5)
        one.write(b"bye", at_ns=8 * SECOND)
        one.end(ExitStatus(at=9.0, code=0))
        assert [item.line async for item in stream] == ["bye"]


async def test_of_an_executable_in_any_cell_and_after_it_has_exited(served, channel):
    await served.keeper.allocate(Cell(name=CellName("a")))
    one = await started(served.keeper, "a/b")
    one.write(b"deep\n")
    one.end(ExitStatus(at=1.0, code=0))
    items = await ObserveStub(channel).GetSubProcessStream(output_of(one))
    assert [item.line for item in items] == ["deep"]


async def test_the_two_channels_are_apart(served, channel):
    one = await started(served.keeper)
    one.write(b"out\n")
    one.write(b"err\n", OutputChannel.STDERR)
    one.end(ExitStatus(at=1.0, code=0))
    items = await ObserveStub(channel).GetSubProcessStream(output_of(one, CHANNEL_STDERR))
    assert [(item.channel, item.line) for item in items] == [("stderr", "err")]


async def test_output_that_is_no_utf8_does_not_end_the_stream(served, channel):
    one = await started(served.keeper)
    one.write(b"\xff\xfe\nafter\n")
    one.end(ExitStatus(at=1.0, code=0))
    items = await ObserveStub(channel).GetSubProcessStream(output_of(one))
    assert [item.line for item in items] == ["��", "after"]


async def test_what_was_overwritten_is_a_gap_that_says_how_much(tmp_path, authority):
    async with AsyncExitStack() as stack:
        keeper = stack.enter_context(closing(FakeKeeper(tmp_path / "small", log_bytes=4096)))
        served = await stack.enter_async_context(cell_server(tmp_path, authority, keeper))
        one = await started(keeper)
        for number in range(1000):
            one.write(b"%d\n" % number)
        one.end(ExitStatus(at=1.0, code=0))
        channel = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
        try:
            gap, *rest = await ObserveStub(channel).GetSubProcessStream(output_of(one))
        finally:
            channel.close()
    assert (gap.channel, gap.line) == ("gap", f"{1000 - len(rest)} pieces of output are lost here")
    assert [item.line for item in rest] == [str(number) for number in range(1000 - len(rest), 1000)]


@pytest.mark.parametrize("pid", [1, 0, -1, 2**62])
async def test_a_process_that_is_no_executable_is_not_found(channel, pid):
    with pytest.raises(GRPCError) as caught:
        await ObserveStub(channel).GetSubProcessStream(GetSubProcessStreamRequest(process_id=pid))
    assert caught.value.status is Status.NOT_FOUND


@pytest.mark.parametrize("number", [2, -1])
async def test_a_number_that_is_no_channel_is_an_invalid_argument(served, channel, number):
    one = await started(served.keeper)
    request = GetSubProcessStreamRequest(channel_type=number, process_id=one.state.pid)
    with pytest.raises(GRPCError) as caught:
        await ObserveStub(channel).GetSubProcessStream(request)
    assert caught.value.status is Status.INVALID_ARGUMENT


async def test_many_readers_each_get_everything(served, channel):
    one = await started(served.keeper)
    stub = ObserveStub(channel)
    reading = [asyncio.ensure_future(stub.GetSubProcessStream(output_of(one))) for _ in range(20)]
    for number in range(50):
        one.write(b"%d\n" % number)
        await asyncio.sleep(0)
    one.end(ExitStatus(at=1.0, code=0))
    for items in await asyncio.gather(*reading):
        assert [item.line for item in items] == [str(number) for number in range(50)]


async def test_the_daemons_log_has_history_and_then_what_comes(served, channel):
    served.recent.add("info", "server.started version=1")
    async with ObserveStub(channel).GetAuraeDaemonLogStream.open() as stream:
        await stream.send_message(GetAuraeDaemonLogStreamRequest(), end=True)
        first = await stream.recv_message()
        assert (first.channel, first.line) == ("skerry", "INFO server.started version=1")
        assert first.timestamp > 1_600_000_000
        served.recent.add("error", "call.failed\nTraceback:\n  here")
        lines = [(await stream.recv_message()).line for _ in range(3)]
        assert lines == ["ERROR call.failed", "ERROR Traceback:", "ERROR   here"]
        await stream.cancel()


async def test_lines_of_the_log_that_a_slow_reader_missed_are_a_gap(served, channel):
    served.recent.add("info", "first")
    async with ObserveStub(channel).GetAuraeDaemonLogStream.open() as stream:
        await stream.send_message(GetAuraeDaemonLogStreamRequest(), end=True)
        await stream.recv_message()
        for number in range(1500):
            served.recent.add("info", str(number))
        item = await stream.recv_message()
        assert (item.channel, item.line) == ("gap", "500 lines of the log are lost here")
        assert (await stream.recv_message()).line == "INFO 500"
        await stream.cancel()
