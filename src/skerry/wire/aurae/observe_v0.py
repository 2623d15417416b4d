"""`aurae.observe.v0.ObserveService`: the daemon's log, output of executables, and signals.

Translation only; `skerry.wire.aurae.lines` has the lines, `skerry.node.signals` the signals. Each stream
sends its headers once it listens, so that a client that has the headers misses nothing.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from grpclib.server import Stream

from skerry.kit import logs
from skerry.kit.log_buffer import LogBuffer
from skerry.model import cells, errors
from skerry.model.cells import parse_name
from skerry.model.ids import CellName
from skerry.node.cells.ports import CellRuntime
from skerry.node.signals.following import SignalSource
from skerry.transport.grpc.call_streams import request_of
from skerry.transport.proto.aurae_observe_grpc import ObserveServiceBase
from skerry.transport.proto.aurae_observe_pb2 import (
    LOG_CHANNEL_TYPE_STDERR,
    LOG_CHANNEL_TYPE_STDOUT,
    WORKLOAD_TYPE_CELL,
    WORKLOAD_TYPE_UNSPECIFIED,
    GetAuraeDaemonLogStreamRequest,
    GetAuraeDaemonLogStreamResponse,
    GetPosixSignalsStreamRequest,
    GetPosixSignalsStreamResponse,
    GetSubProcessStreamRequest,
    GetSubProcessStreamResponse,
    LogItem,
    Signal,
    Workload,
)
from skerry.wire.aurae.lines import daemon_lines, output_lines
from skerry.wire.aurae.requests import aurae_errors

_STREAM: Final = {
    LOG_CHANNEL_TYPE_STDOUT: cells.OutputChannel.STDOUT,
    LOG_CHANNEL_TYPE_STDERR: cells.OutputChannel.STDERR,
}


class ObserveServiceV0(ObserveServiceBase):
    """Serves `aurae.observe.v0.ObserveService`."""

    def __init__(self, runtime: CellRuntime, signals: SignalSource, log: LogBuffer = logs.recent) -> None:
        self._cells = runtime
        self._signals = signals
        self._log = log

    async def GetAuraeDaemonLogStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetAuraeDaemonLogStreamRequest, GetAuraeDaemonLogStreamResponse]
    ) -> None:
        await stream.recv_message()
        await stream.send_initial_metadata()
        async with aclosing(daemon_lines(self._log)) as lines:
            async for line in lines:
                await stream.send_message(GetAuraeDaemonLogStreamResponse(item=LogItem(**line._asdict())))

    async def GetSubProcessStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetSubProcessStreamRequest, GetSubProcessStreamResponse]
    ) -> None:
        request = await request_of(stream)
        channel = _STREAM.get(request.channel_type)
        if channel is None:
            raise errors.Invalid(
                f"channel_type must be 1 (stdout) or 2 (stderr), not {request.channel_type}",
                field="channel_type",
            )
        async with aclosing(output_lines(self._cells, request.process_id, channel)) as lines:
            await stream.send_initial_metadata()
            async for line in lines:
                await stream.send_message(GetSubProcessStreamResponse(item=LogItem(**line._asdict())))

    async def GetPosixSignalsStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetPosixSignalsStreamRequest, GetPosixSignalsStreamResponse]
    ) -> None:
        request = await request_of(stream)
        with self._signals.follow(_cell_of(request.workload)) as signals:
            await stream.send_initial_metadata()
            async for sent in signals:
                await stream.send_message(
                    GetPosixSignalsStreamResponse(signal=Signal(signal=sent.number, process_id=sent.pid))
                )


def _cell_of(workload: Workload) -> CellName | None:
    """The requested cell; None for the whole machine. Raises `Invalid`, `FailedPrecondition`."""
    if workload.workload_type == WORKLOAD_TYPE_CELL:
        with aurae_errors("workload", cell_name="id"):
            return parse_name(workload.id)
    if workload.workload_type == WORKLOAD_TYPE_UNSPECIFIED and not workload.id:
        return None
    raise errors.Invalid(
        "workload_type must be 1 (cell), or no workload given for the whole machine; Skerry has no pod "
        "sandboxes and no virtual machines",
        field="workload.workload_type",
    )
