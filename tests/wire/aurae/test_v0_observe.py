"""Lines and signals of Aurae's present API: headers at once, a clean end, and losses that are told."""

from __future__ import annotations

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from skerry.model.cells import Cell, ExitStatus
from skerry.model.ids import CellName
from skerry.transport.proto.aurae_observe_grpc import ObserveServiceStub
from skerry.transport.proto.aurae_observe_pb2 import (
    LOG_CHANNEL_TYPE_STDERR,
    LOG_CHANNEL_TYPE_STDOUT,
    WORKLOAD_TYPE_CELL,
    WORKLOAD_TYPE_POD_SANDBOX,
    WORKLOAD_TYPE_UNSPECIFIED,
    WORKLOAD_TYPE_VM,
    GetAuraeDaemonLogStreamRequest,
    GetPosixSignalsStreamRequest,
    GetSubProcessStreamRequest,
    LogItem,
    Workload,
)
from tests.support.waiting import eventually
from tests.wire.aurae.test_observe import SECOND, started

# No thread of this machine: beyond any id that a kernel gives.
NOBODY = 2_000_000_077


@pytest.fixture
def observe(channel) -> ObserveServiceStub:
    return ObserveServiceStub(channel)


def of_cell(name: str) -> GetPosixSignalsStreamRequest:
    return GetPosixSignalsStreamRequest(workload=Workload(workload_type=WORKLOAD_TYPE_CELL, id=name))


async def refused(call) -> tuple[Status, str]:
    with pytest.raises(GRPCError) as caught:
        await call
    return caught.value.status, caught.value.message or ""


async def test_output_is_streamed_by_the_pid_that_start_told_until_the_process_ends(served, observe):
    one = await started(served.keeper)
    async with observe.GetSubProcessStream.open() as stream:
        await stream.send_message(
            GetSubProcessStreamRequest(channel_type=LOG_CHANNEL_TYPE_STDOUT, process_id=one.state.pid),
            end=True,
        )
        await stream.recv_initial_metadata()  # although nothing is written yet
        one.write(b"hello\n", at_ns=5 * SECOND + 999)
        reply = await stream.recv_message()
        assert reply.item == LogItem(channel="stdout", line="hello", timestamp=5)
        one.end(ExitStatus(at=9.0, code=0))
        assert await stream.recv_message() is None


@pytest.mark.parametrize("channel_type", [0, 3, -1])
async def test_a_channel_must_be_named(served, observe, channel_type):
    one = await started(served.keeper)
    status, text = await refused(
        observe.GetSubProcessStream(
            GetSubProcessStreamRequest(channel_type=channel_type, process_id=one.state.pid)
        )
    )
    assert (status, "1 (stdout) or 2 (stderr)" in text) == (Status.INVALID_ARGUMENT, True)


async def test_a_process_that_is_no_executable_is_not_found(observe):
    status, _ = await refused(
        observe.GetSubProcessStream(
            GetSubProcessStreamRequest(channel_type=LOG_CHANNEL_TYPE_STDERR, process_id=-7)
        )
    )
    assert status is Status.NOT_FOUND


async def test_the_daemons_log_has_history_and_then_what_comes(served, observe):
    served.recent.add("info", "first")
    async with observe.GetAuraeDaemonLogStream.open() as stream:
        await stream.send_message(GetAuraeDaemonLogStreamRequest(), end=True)
        assert (await stream.recv_message()).item.line == "INFO first"
        served.recent.add("warning", "second")
        item = (await stream.recv_message()).item
        assert (item.channel, item.line) == ("skerry", "WARNING second")
        await stream.cancel()


async def test_signals_of_a_cell_are_told_and_not_those_of_others(served, observe):
    one = await started(served.keeper, "a", "x")
    child = await started(served.keeper, "a/b", "x")
    other = await started(served.keeper, "c", "x")
    async with observe.GetPosixSignalsStream.open() as stream:
        await stream.send_message(of_cell("a"), end=True)
        await stream.recv_initial_metadata()  # it listens from now on
        served.kernel.signal(15, other.state.pid)
        served.kernel.signal(15, child.state.pid)
        served.kernel.signal(15, one.state.pid)
        served.kernel.signal(9, one.state.pid)
        told = [(await stream.recv_message()).signal for _ in range(2)]
        assert [(each.signal, each.process_id) for each in told] == [(15, one.state.pid), (9, one.state.pid)]
        await stream.cancel()


async def test_without_a_workload_the_signals_of_the_whole_machine_are_told(served, observe):
    one = await started(served.keeper)
    for request in (
        GetPosixSignalsStreamRequest(),
        GetPosixSignalsStreamRequest(workload=Workload(workload_type=WORKLOAD_TYPE_UNSPECIFIED)),
    ):
        async with observe.GetPosixSignalsStream.open() as stream:
            await stream.send_message(request, end=True)
            await stream.recv_initial_metadata()
            served.kernel.fork(parent=1, pid=77)
            served.kernel.signal(1, 77)
            served.kernel.signal(15, one.state.pid)
            told = [(await stream.recv_message()).signal for _ in range(2)]
            assert [(each.signal, each.process_id) for each in told] == [(1, 77), (15, one.state.pid)]
            await stream.cancel()


async def test_the_stream_of_a_cell_ends_when_the_cell_is_freed(served, observe):
    await served.keeper.allocate(Cell(name=CellName("a")))
    async with observe.GetPosixSignalsStream.open() as stream:
        await stream.send_message(of_cell("a"), end=True)
        await stream.recv_initial_metadata()
        await served.keeper.free(CellName("a"))
        assert await stream.recv_message() is None
    await eventually(lambda: served.kernel.closed == 1)  # nobody listens any more


@pytest.mark.parametrize(
    ("workload", "status"),
    [
        (Workload(workload_type=WORKLOAD_TYPE_CELL, id="no-such"), Status.NOT_FOUND),
        (Workload(workload_type=WORKLOAD_TYPE_CELL, id=""), Status.FAILED_PRECONDITION),
        (Workload(workload_type=WORKLOAD_TYPE_CELL, id="a_b"), Status.FAILED_PRECONDITION),
        (Workload(workload_type=WORKLOAD_TYPE_UNSPECIFIED, id="a"), Status.INVALID_ARGUMENT),
        (Workload(workload_type=WORKLOAD_TYPE_POD_SANDBOX, id="a"), Status.INVALID_ARGUMENT),
        (Workload(workload_type=WORKLOAD_TYPE_VM, id="a"), Status.INVALID_ARGUMENT),
        (Workload(workload_type=9, id="a"), Status.INVALID_ARGUMENT),
    ],
    ids=str,
)
async def test_a_workload_that_is_not_there_is_refused_and_leaves_nothing_open(
    served, observe, workload, status
):
    call = observe.GetPosixSignalsStream(GetPosixSignalsStreamRequest(workload=workload))
    assert (await refused(call))[0] is status
    assert served.kernel.opened == served.kernel.closed


async def test_where_the_kernel_tells_no_signals_the_call_says_why(served, observe):
    served.kernel.lacks = "signals cannot be observed: this kernel has no tracepoint for them"
    assert await refused(observe.GetPosixSignalsStream(GetPosixSignalsStreamRequest())) == (
        Status.UNAVAILABLE,
        served.kernel.lacks,
    )


async def test_signals_that_are_lost_end_the_stream_with_an_error(served, observe):
    async def listen() -> None:
        async with observe.GetPosixSignalsStream.open() as stream:
            await stream.send_message(GetPosixSignalsStreamRequest(), end=True)
            await stream.recv_initial_metadata()
            served.kernel.signal(1, NOBODY)
            served.kernel.lose(3)
            assert (await stream.recv_message()).signal.process_id == NOBODY
            assert await stream.recv_message() is None

    status, text = await refused(listen())
    assert (status, "some were lost" in text) == (Status.RESOURCE_EXHAUSTED, True)
