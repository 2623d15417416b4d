"""`aurae.cells.v0.CellService`: cells and executables, for clients of Aurae as it is today.

Translation only, over the node's cells, with the error codes and texts of `skerry.wire.aurae.runtime`. Where
the contract leaves a choice, the safe one is taken: every cell isolates its processes, nothing runs outside
of a cell, and only an admin chooses a user.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grpclib.server import Stream

from skerry.model import cells, errors
from skerry.model.cells import parse_name
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.ports import CellDescription, CellRuntime
from skerry.transport.access.cell_users import check_user
from skerry.transport.grpc.call_streams import caller_of, request_of
from skerry.transport.proto.aurae_cells_grpc import CellServiceBase
from skerry.transport.proto.aurae_cells_pb2 import (
    Cell,
    CellGraphNode,
    CellServiceAllocateRequest,
    CellServiceAllocateResponse,
    CellServiceFreeRequest,
    CellServiceFreeResponse,
    CellServiceListRequest,
    CellServiceListResponse,
    CellServiceStartRequest,
    CellServiceStartResponse,
    CellServiceStopRequest,
    CellServiceStopResponse,
)
from skerry.wire.aurae import limits_v0
from skerry.wire.aurae.requests import aurae_errors, require, stop

# Protobuf decoders reject messages that are nested more than a hundred levels deep.
_DEEPEST: Final = 64


class CellServiceV0(CellServiceBase):
    """Serves `aurae.cells.v0.CellService`."""

    def __init__(self, runtime: CellRuntime) -> None:
        self._cells = runtime

    async def Allocate(  # noqa: N802 - gRPC's name
        self, stream: Stream[CellServiceAllocateRequest, CellServiceAllocateResponse]
    ) -> None:
        request = await request_of(stream)
        with aurae_errors("cell", **limits_v0.FIELDS):
            require(request.HasField("cell"), "cell")
            requested = request.cell
            cell = cells.Cell(
                name=CellName(requested.name),
                limits=limits_v0.limits_of(requested),
                isolates_network=requested.isolate_network,
            )
            await self._cells.allocate(cell)
        await stream.send_message(
            CellServiceAllocateResponse(cell_name=cell.name, cgroup_v2=self._cells.limits_in_v2)
        )

    async def Free(self, stream: Stream[CellServiceFreeRequest, CellServiceFreeResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors():
            await self._cells.free(parse_name(request.cell_name))
        await stream.send_message(CellServiceFreeResponse())

    async def Start(self, stream: Stream[CellServiceStartRequest, CellServiceStartResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        uid = request.uid if request.HasField("uid") else None
        gid = request.gid if request.HasField("gid") else None
        if uid is not None or gid is not None:
            check_user(caller_of(stream))
        with aurae_errors():
            cell = _cell(request)
            require(request.HasField("executable"), "executable")
            sandbox = cells.Sandbox(uid=uid, gid=gid)
        with aurae_errors("executable"):
            requested = request.executable
            executable = cells.Executable(
                name=ExecutableName(requested.name),
                cell=cell,
                command=requested.command,
                description=requested.description,
            )
            own = self._cells.get(cell).uid
            state = await self._cells.start(executable, sandbox)
        await stream.send_message(
            CellServiceStartResponse(
                pid=state.pid, uid=own if uid is None else uid, gid=own if gid is None else gid
            )
        )

    async def Stop(self, stream: Stream[CellServiceStopRequest, CellServiceStopResponse]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        with aurae_errors():
            await stop(self._cells, _cell(request), request.executable_name)
        await stream.send_message(CellServiceStopResponse())

    async def List(self, stream: Stream[CellServiceListRequest, CellServiceListResponse]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        await stream.send_message(CellServiceListResponse(cells=graph(self._cells.list())))


def graph(views: Iterable[CellDescription]) -> list[CellGraphNode]:
    """The cells of clients as a tree, each with its full name. Cells below the deepest level that decoders
    accept are listed at that level."""
    nested = sorted(
        (view.cell for view in views if view.cell.owner is None), key=lambda cell: cell.name.split("/")
    )
    top = CellGraphNode()
    nodes: dict[str, CellGraphNode] = {}
    for cell in nested:  # parents come before their children
        above = "/".join(cell.name.split("/")[:-1][:_DEEPEST])
        node = nodes.get(above, top).children.add()
        node.cell.CopyFrom(_encode_cell(cell))
        nodes[cell.name] = node
    return list(top.children)


def _encode_cell(cell: cells.Cell) -> Cell:
    return Cell(
        name=cell.name,
        isolate_process=cell.isolates_processes,
        isolate_network=cell.isolates_network,
        **limits_v0.controllers_of(cell.limits),  # type: ignore[arg-type]
    )


def _cell(request: CellServiceStartRequest | CellServiceStopRequest) -> CellName:
    if not request.HasField("cell_name"):
        raise errors.Invalid(
            "it is required: Skerry runs nothing outside of cells; allocate one and name it",
            field="cell_name",
        )
    return parse_name(request.cell_name)
