"""Output over the wire: byte for byte, both channels in the order of time, from any position, gaps told."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, closing

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model.cells import Cell, Executable, ExitStatus, OutputChannel
from skerry.model.ids import CellName, ExecutableName
from skerry.transport.grpc.channels import dial
from skerry.transport.proto import cells_pb2 as pb
from skerry.transport.proto.cells_grpc import CellServiceStub
from tests.support import leaks
from tests.support.cells import CellServer, FakeKeeper, Started, cell_server
from tests.support.certificates import SERVER_NAME
from tests.support.waiting import eventually

OUT, ERR = pb.CHANNEL_STDOUT, pb.CHANNEL_STDERR


@pytest.fixture
def cells(channel) -> CellServiceStub:
    return CellServiceStub(channel)


@pytest.fixture
async def one(served: CellServer) -> Started:
    return await started(served.keeper)


async def started(keeper: FakeKeeper) -> Started:
    await keeper.allocate(Cell(name=CellName("a")))
    await keeper.start(Executable(name=ExecutableName("x"), cell=CellName("a"), command="true"))
    return keeper.started_one("a", "x")


def logs(**more) -> pb.LogsRequest:
    return pb.LogsRequest(cell="a", executable="x", **more)


async def test_what_is_there_comes_byte_for_byte_with_position_and_time(cells, one):
    one.write(b"\x00\xff\n", at_ns=123)
    one.write(b"half", at_ns=456)
    items = await cells.Logs(logs())
    assert [(item.channel, item.position, item.time_ns, item.data) for item in items] == [
        (OUT, 1, 123, b"\x00\xff\n"),
        (OUT, 2, 456, b"half"),
    ]


async def test_both_channels_are_in_the_order_of_time(cells, one):
    for number in range(20):
        one.write(b"%d" % number, (OutputChannel.STDOUT, OutputChannel.STDERR)[number % 3 == 0], at_ns=number)
    items = await cells.Logs(logs())
    assert [int(item.data) for item in items] == list(range(20))
    assert {int(item.data) for item in items if item.channel == ERR} == set(range(0, 20, 3))


@pytest.mark.parametrize(("channel_", "data"), [(OUT, b"out"), (ERR, b"err")])
async def test_one_channel_can_be_asked_for(cells, one, channel_, data):
    one.write(b"out")
    one.write(b"err", OutputChannel.STDERR)
    [item] = await cells.Logs(logs(channel=channel_))
    assert (item.channel, item.data) == (channel_, data)


async def test_reading_goes_on_from_a_position(cells, one):
    for number in range(1, 6):
        one.write(b"o%d" % number)
        one.write(b"e%d" % number, OutputChannel.STDERR)
    items = await cells.Logs(logs(stdout_after=3, stderr_after=4))
    assert sorted(item.data for item in items) == [b"e5", b"o4", b"o5"]


@pytest.mark.parametrize("form", [pb.FORM_PIECES, pb.FORM_LINES])
async def test_following_gives_what_comes_and_ends_with_the_process(cells, one, form):
    one.write(b"first\n")
    async with cells.Logs.open() as stream:
        await stream.send_message(logs(follow=True, form=form), end=True)
        seen = [(await stream.recv_message()).data]
        one.write(b"second\n", OutputChannel.STDERR)
        seen.append((await stream.recv_message()).data)
        one.write(b"third\n")
        seen.append((await stream.recv_message()).data)
        one.end(ExitStatus(at=1.0, code=0))
        assert await stream.recv_message() is None
    end = b"\n" if form == pb.FORM_PIECES else b""
    assert seen == [word + end for word in (b"first", b"second", b"third")]


async def test_lines_are_joined_per_channel_and_what_is_left_at_the_end_is_a_line(cells, one):
    one.write(b"a", at_ns=1)
    one.write(b"x", OutputChannel.STDERR, at_ns=2)
    one.write(b"b\r\nc\n\xff", at_ns=3)
    one.write(b"y\n", OutputChannel.STDERR, at_ns=4)
    items = await cells.Logs(logs(form=pb.FORM_LINES))
    assert [(item.channel, item.data.decode()) for item in items] == [
        (OUT, "ab"),
        (OUT, "c"),
        (ERR, "xy"),
        (OUT, "�"),
    ]


async def test_history_and_what_comes_meet_without_a_hole_or_a_double(cells, one):
    for number in range(100):
        one.write(b"%d " % number)
    async with cells.Logs.open() as stream:
        await stream.send_message(logs(follow=True), end=True)
        first = await stream.recv_message()
        for number in range(100, 200):
            one.write(b"%d " % number)
            await asyncio.sleep(0)
        one.end(ExitStatus(at=1.0, code=0))
        rest = [item.data async for item in stream]
    assert b"".join([first.data, *rest]).split() == [b"%d" % number for number in range(200)]


async def test_what_was_overwritten_is_told_as_lost_and_the_rest_follows(tmp_path, authority):
    async with AsyncExitStack() as stack:
        keeper = stack.enter_context(closing(FakeKeeper(tmp_path / "small", log_bytes=4096)))
        served = await stack.enter_async_context(cell_server(tmp_path, authority, keeper))
        one = await started(keeper)
        for number in range(1, 1001):
            one.write(b"%d" % number)
        channel = dial(str(served.path), served.tls(), server_name=SERVER_NAME)
        try:
            gap, *rest = await CellServiceStub(channel).Logs(logs(stdout_after=10))
        finally:
            channel.close()
    assert gap.data == b""
    assert (gap.lost, gap.position) == (990 - len(rest), 1000 - len(rest))
    assert [(item.position, int(item.data)) for item in rest] == [
        (number, number) for number in range(gap.position + 1, 1001)
    ]


async def test_a_reader_that_goes_away_leaves_nothing_open(served, cells, one):
    def rings() -> int:
        return sum(str(one.folder) in name for name in leaks.footprint().files)

    one.write(b"x")
    one.write(b"y", OutputChannel.STDERR)
    before = rings()  # those of the writer
    async with cells.Logs.open() as stream:
        await stream.send_message(logs(follow=True), end=True)
        await stream.recv_message()
        await stream.recv_message()
        await eventually(lambda: rings() > before)
        await stream.cancel()
    await eventually(lambda: rings() == before)


@pytest.mark.parametrize("request_", [logs(channel=3), logs(form=2)], ids=["channel", "form"])
async def test_numbers_that_mean_nothing_are_refused(cells, one, request_):
    with pytest.raises(GRPCError) as caught:
        await cells.Logs(request_)
    assert caught.value.status is Status.INVALID_ARGUMENT


async def test_output_of_what_is_not_there_is_not_found(cells, one):
    for request in (pb.LogsRequest(cell="b", executable="x"), pb.LogsRequest(cell="a", executable="y")):
        with pytest.raises(GRPCError) as caught:
            await cells.Logs(request)
        assert caught.value.status is Status.NOT_FOUND
