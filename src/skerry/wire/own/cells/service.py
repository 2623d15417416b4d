"""`skerry.cells.v1.CellService`: the cells of a node, with all features of Skerry.

Translation only, over the node's cells. One decision is made here: only an admin may choose the user of an
executable, because a cell can see the host's files, and the user decides which of them it can read.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import aclosing
from functools import partial

from grpclib.server import Stream

from skerry.model import errors
from skerry.model.cells import is_within, parse_any_name, parse_name
from skerry.model.ids import CellName, ExecutableName
from skerry.node.cells.ports import CellRuntime
from skerry.node.host import HostInfo, HostUsage
from skerry.transport.access.cell_users import check_user
from skerry.transport.grpc.call_streams import caller_of, request_of
from skerry.transport.proto.cells_grpc import CellServiceBase
from skerry.transport.proto.cells_pb2 import (
    AllocateReply,
    AllocateRequest,
    CellStatus,
    FreeReply,
    FreeRequest,
    ListRequest,
    LogItem,
    LogsRequest,
    NodeReply,
    NodeRequest,
    StartReply,
    StartRequest,
    StopReply,
    StopRequest,
    UsageReply,
    UsageRequest,
    WaitReply,
    WaitRequest,
)
from skerry.wire.field_names import contract_fields
from skerry.wire.own import grpc_logs
from skerry.wire.own.cells import messages


class CellService(CellServiceBase):
    """Serves `skerry.cells.v1.CellService`."""

    def __init__(self, runtime: CellRuntime, node: Callable[[], tuple[HostInfo, HostUsage]]) -> None:
        self._cells = runtime
        self._node = node

    async def Allocate(self, stream: Stream[AllocateRequest, AllocateReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await self._cells.allocate(messages.decode_cell(request))
        await stream.send_message(AllocateReply(cgroup_v2=self._cells.limits_in_v2))

    async def Free(self, stream: Stream[FreeRequest, FreeReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        await self._cells.free(_clients_cell(request))
        await stream.send_message(FreeReply())

    async def Start(self, stream: Stream[StartRequest, StartReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        requested = request.sandbox
        if requested.HasField("uid") or requested.HasField("gid") or requested.root_capabilities:
            check_user(caller_of(stream))
        executable, sandbox = messages.decode_executable(request), messages.decode_sandbox(request)
        state = await self._cells.start(executable, sandbox)
        await stream.send_message(StartReply(pid=state.pid, started_at=state.started_at))

    async def Stop(self, stream: Stream[StopRequest, StopReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        grace_s = request.grace_s if request.HasField("grace_s") else None
        if grace_s is not None and not 0 <= grace_s < math.inf:
            raise errors.Invalid(f"grace_s must be 0 or more seconds, not {grace_s}", field="grace_s")
        how = await self._cells.stop(_clients_cell(request), _executable(request), grace_s=grace_s)
        await stream.send_message(StopReply(exit=messages.encode_exit(how)))

    async def List(self, stream: Stream[ListRequest, CellStatus]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        top = _cell(request) if request.cell else None
        views = [view for view in self._cells.list() if top is None or is_within(view.cell.name, top)]
        if top is not None and not views:
            raise errors.NotFound(f"there is no cell {top!r}; `skerry cell list` shows which there are")
        for view in sorted(views, key=lambda view: view.cell.name.split("/")):
            usage = None
            if request.usage:
                try:
                    usage = self._cells.usage(view.cell.name)
                except errors.NotFound:
                    continue  # freed since the list was read
            await stream.send_message(messages.encode_status(view, usage))
            await asyncio.sleep(0)  # a node may have thousands, and other calls must go on

    async def Wait(self, stream: Stream[WaitRequest, WaitReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        how = await self._cells.wait(_cell(request), _executable(request))
        await stream.send_message(WaitReply(exit=messages.encode_exit(how)))

    async def Logs(self, stream: Stream[LogsRequest, LogItem]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        logs = partial(self._cells.logs, _cell(request), _executable(request))
        sources = grpc_logs.log_sources(request, logs)
        async with aclosing(grpc_logs.log_items(sources, request)) as items:
            async for item in items:
                await stream.send_message(item)

    async def Usage(self, stream: Stream[UsageRequest, UsageReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        usage = self._cells.usage(_cell(request))
        await stream.send_message(UsageReply(usage=messages.encode_usage(usage)))

    async def Node(self, stream: Stream[NodeRequest, NodeReply]) -> None:  # noqa: N802 - gRPC's name
        await stream.recv_message()
        await stream.send_message(messages.encode_node(*self._node()))


def _cell(request: ListRequest | WaitRequest | LogsRequest | UsageRequest) -> CellName:
    """The name of a cell, also of one of Skerry's own."""
    with contract_fields(messages.FIELDS):
        return parse_any_name(request.cell)


def _clients_cell(request: FreeRequest | StopRequest) -> CellName:
    """The name of a cell of clients."""
    with contract_fields(messages.FIELDS):
        return parse_name(request.cell)


def _executable(request: StopRequest | WaitRequest | LogsRequest) -> ExecutableName:
    if not request.executable:
        raise errors.Invalid("executable must name one in the cell", field="executable")
    return ExecutableName(request.executable)
