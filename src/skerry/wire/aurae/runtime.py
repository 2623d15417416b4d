"""`runtime.CellService`: cells and executables, for clients of Aurae as of late 2022.

Translation only, over the node's cells. The layout is pinned in `skerry/transport/proto/runtime.proto`; the
error codes are those that Aurae uses, so an invalid field is FAILED_PRECONDITION, with Aurae's text. Aurae's
present API is `skerry.wire.aurae.cells_v0`.
"""

from __future__ import annotations

from typing import Final

from grpclib.server import Stream

from skerry.model.cells import Cell, CellLimits, Executable, parse_name
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.ports import CellRuntime
from skerry.transport.grpc.call_streams import request_of
from skerry.transport.proto.runtime_grpc import CellServiceBase
from skerry.transport.proto.runtime_pb2 import (
    AllocateCellRequest,
    AllocateCellResponse,
    FreeCellRequest,
    FreeCellResponse,
    StartCellRequest,
    StartCellResponse,
    StopCellRequest,
    StopCellResponse,
)
from skerry.wire.aurae.requests import aurae_errors, require, stop

# Services of the contract that have no methods; reflection names them.
EMPTY_SERVICES: Final = ("runtime.Pods", "runtime.Instances", "runtime.Spawn")


class AuraeCellService(CellServiceBase):
    """Serves `runtime.CellService`."""

    def __init__(self, runtime: CellRuntime) -> None:
        self._cells = runtime

    async def Allocate(self, stream: Stream[AllocateCellRequest, AllocateCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors("cell", cell_name="name"):
            require(request.HasField("cell"), "cell")
            requested = request.cell
            # In proto3 a number that was left out is 0.
            cell = Cell(
                name=CellName(requested.name), limits=CellLimits(cpu_shares=requested.cpu_shares or None)
            )
            await self._cells.allocate(cell)
        await stream.send_message(
            AllocateCellResponse(cell_name=cell.name, cgroup_v2=self._cells.limits_in_v2)
        )

    async def Free(self, stream: Stream[FreeCellRequest, FreeCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors():
            await self._cells.free(parse_name(request.cell_name))
        await stream.send_message(FreeCellResponse())

    async def Start(self, stream: Stream[StartCellRequest, StartCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors("executable"):
            require(request.HasField("executable"), "executable")
            requested = request.executable
            executable = Executable(
                name=ExecutableName(requested.name),
                cell=CellName(requested.cell_name),
                command=requested.command,
                description=requested.description,
            )
            await self._cells.start(executable)
        await stream.send_message(StartCellResponse())

    async def Stop(self, stream: Stream[StopCellRequest, StopCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors():
            await stop(self._cells, parse_name(request.cell_name), request.executable_name)
        await stream.send_message(StopCellResponse())
