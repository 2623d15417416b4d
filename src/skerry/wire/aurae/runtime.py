"""`runtime.CellService`: cells and executables, for clients of Aurae as it was in late 2022.

Translation only, over the node's cells. The layout is pinned in `skerry/wire/proto/runtime.proto`; the codes
are those that Aurae came to use, so a bad field is FAILED_PRECONDITION here, in Aurae's words. Later packages
(`aurae.cells.v0`) would stand beside this one, each a module of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from grpclib.server import Stream

from skerry.model import errors
from skerry.model.cells import Cell, Executable, Limits, parse_name
from skerry.model.ids import CellName, ExecutableName
from skerry.wire.cells.keeper import CellKeeper
from skerry.wire.proto.runtime_grpc import CellServiceBase
from skerry.wire.proto.runtime_pb2 import (
    AllocateCellRequest,
    AllocateCellResponse,
    FreeCellRequest,
    FreeCellResponse,
    StartCellRequest,
    StartCellResponse,
    StopCellRequest,
    StopCellResponse,
)

# Services of the contract that have no methods; reflection names them.
EMPTY_SERVICES: Final = ("runtime.Pods", "runtime.Instances", "runtime.Spawn")


class RuntimeService(CellServiceBase):
    """Serves `runtime.CellService`."""

    def __init__(self, keeper: CellKeeper) -> None:
        self._keeper = keeper

    async def Allocate(self, stream: Stream[AllocateCellRequest, AllocateCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        with _aurae_words("cell", cell_name="name"):
            _require(request.HasField("cell"), "cell")
            asked = request.cell
            # In proto3 a number that was left out is 0.
            cell = Cell(name=CellName(asked.name), limits=Limits(cpu_shares=asked.cpu_shares or None))
            await self._keeper.allocate(cell)
        await stream.send_message(
            AllocateCellResponse(cell_name=cell.name, cgroup_v2=self._keeper.limits_in_v2)
        )

    async def Free(self, stream: Stream[FreeCellRequest, FreeCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        with _aurae_words():
            await self._keeper.free(parse_name(request.cell_name))
        await stream.send_message(FreeCellResponse())

    async def Start(self, stream: Stream[StartCellRequest, StartCellResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        with _aurae_words("executable"):
            _require(request.HasField("executable"), "executable")
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
        request = await stream.recv_message()
        assert request is not None
        with _aurae_words():
            cell = parse_name(request.cell_name)
            _require(bool(request.executable_name), "executable_name")
            await self._keeper.stop(cell, ExecutableName(request.executable_name))
        await stream.send_message(StopCellResponse())


def _require(is_there: bool, field: str) -> None:
    if not is_there:
        raise errors.Invalid("it is required", field=field)


@contextmanager
def _aurae_words(within: str = "", **names: str) -> Iterator[None]:
    """A bad field is told as Aurae tells it: a failed precondition that begins with the field's path.

    Fields are those of the message `within` the request; `names` has those that the model calls otherwise.
    """
    try:
        yield
    except errors.Invalid as error:
        field = names.get(error.field, error.field)
        path = field if field == within else ".".join(filter(None, (within, field)))
        raise errors.Refused(f"Field = {path}; {error.message}", detail=error.detail) from None
