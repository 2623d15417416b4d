"""`runtime.CellService`: cells and executables, for clients of Aurae as it was in late 2022.

Translation only, over the node's cells. The layout is pinned in `skerry/transport/proto/runtime.proto`; the
codes are those that Aurae came to use, so a bad field is FAILED_PRECONDITION here, in Aurae's words. Aurae's
present API is in `skerry.wire.aurae.cells_v0`.
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
from skerry.wire.aurae.requests import aurae_words, require, stop

# Services of the contract that have no methods; reflection names them.
EMPTY_SERVICES: Final = ("runtime.Pods", "runtime.Instances", "runtime.Spawn")


class AuraeCellService(CellServiceBase):
    """Serves `runtime.CellService`."""

    def __init__(self, keeper: CellRuntime) -> None:
        self._keeper = keeper

    async def Allocate(self, stream: Stream[AllocateCellRequest, AllocateCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_words("cell", cell_name="name"):
            require(request.HasField("cell"), "cell")
            asked = request.cell
            # In proto3 a number that was left out is 0.
            cell = Cell(name=CellName(asked.name), limits=CellLimits(cpu_shares=asked.cpu_shares or None))
            await self._keeper.allocate(cell)
        await stream.send_message(
            AllocateCellResponse(cell_name=cell.name, cgroup_v2=self._keeper.limits_in_v2)
        )

    async def Free(self, stream: Stream[FreeCellRequest, FreeCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_words():
            await self._keeper.free(parse_name(request.cell_name))
        await stream.send_message(FreeCellResponse())

    async def Start(self, stream: Stream[StartCellRequest, StartCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_words("executable"):
            require(request.HasField("executable"), "executable")
            asked = request.executable
            executable = Executable(
                name=ExecutableName(asked.name),
                cell=CellName(asked.cell_name),
                command=asked.command,
                description=asked.description,
            )
            await self._keeper.start(executable)
        await stream.send_message(StartCellResponse())

    async def Stop(self, stream: Stream[StopCellRequest, StopCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_words():
            await stop(self._keeper, parse_name(request.cell_name), request.executable_name)
        await stream.send_message(StopCellResponse())
