"""`observe.Observe`: the daemon's log and the output of executables, line by line.

Translation only; `skerry.wire.aurae.lines` has the lines.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from grpclib.server import Stream

from skerry.kit import logs
from skerry.kit.log_buffer import LogBuffer
from skerry.model import cells, errors
from skerry.node.cells.ports import CellRuntime
from skerry.transport.grpc.call_streams import request_of

# The package is empty; it is imported so that reflection can describe its file.
from skerry.transport.proto import schedule_pb2  # noqa: F401
from skerry.transport.proto.observe_grpc import ObserveBase
from skerry.transport.proto.observe_pb2 import (
    CHANNEL_STDERR,
    CHANNEL_STDOUT,
    GetAuraeDaemonLogStreamRequest,
    GetSubProcessStreamRequest,
    LogItem,
)
from skerry.wire.aurae.lines import daemon_lines, output_lines

_STREAM: Final = {CHANNEL_STDOUT: cells.OutputChannel.STDOUT, CHANNEL_STDERR: cells.OutputChannel.STDERR}


class ObserveService(ObserveBase):
    """Serves `observe.Observe`."""

    def __init__(self, runtime: CellRuntime, log: LogBuffer = logs.recent) -> None:
        self._cells = runtime
        self._log = log

    async def GetAuraeDaemonLogStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetAuraeDaemonLogStreamRequest, LogItem]
    ) -> None:
        await stream.recv_message()
        async with aclosing(daemon_lines(self._log)) as lines:
            async for line in lines:
                await stream.send_message(LogItem(**line._asdict()))

    async def GetSubProcessStream(  # noqa: N802 - gRPC's name
        self, stream: Stream[GetSubProcessStreamRequest, LogItem]
    ) -> None:
        request = await request_of(stream)
        channel = _STREAM.get(request.channel_type)
        if channel is None:
            raise errors.Invalid(
                f"channel_type must be 0 (stdout) or 1 (stderr), not {request.channel_type}",
                field="channel_type",
            )
        async with aclosing(output_lines(self._cells, request.process_id, channel)) as lines:
            async for line in lines:
                await stream.send_message(LogItem(**line._asdict()))
