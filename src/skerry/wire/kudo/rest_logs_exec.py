"""`/instance/{id}/logs` and `/instance/{id}/exec`: logs of an instance, and programs run in it.

Both use a tunnel to the instance's node. Logs are sent as they were written. Exec uses a WebSocket whose
messages are the tunnel's frames (`skerry.model.streams`): input, two outputs, window sizes and an exit code
need both directions and whole messages, and browsers and proxies support WebSockets. When the client
disconnects, the program is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Annotated

from msgspec import Meta

from skerry.kit.field_copy import copy_fields
from skerry.kit.tasks import cancel_and_wait, race
from skerry.model import errors
from skerry.model.callers import Caller
from skerry.model.cells import OutputChannel
from skerry.model.container_options import NodeFeature
from skerry.model.ids import InstanceId, NodeId
from skerry.model.streams import (
    MAX_FRAME,
    ExecStreamRequest,
    LogStreamRequest,
    StreamRequest,
    TunnelChannel,
    TunnelFrame,
    TunnelStream,
)
from skerry.model.workloads import Instance
from skerry.transport.access.spec_rules import check_host_mounts, check_userns
from skerry.transport.http.endpoints import RequestContext, StreamResponse, WebSocketResponse, endpoint
from skerry.transport.http.streaming import StreamFormat
from skerry.transport.http.websocket import WebSocket
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.namespaces import NamespaceQuery

TEXT = "text/plain"
_MAX_TAIL = 1_000_000
_MAX_CELLS = 65535  # of a terminal in one direction, as the kernel counts them
# A node refuses at once, and then the response is an error. Followed output may not come for a long time, and
# its reader should get the headers before.
_REFUSAL_S = 1.0
_FOR_PROGRAMS = frozenset(
    {TunnelChannel.INPUT, TunnelChannel.END_OF_INPUT, TunnelChannel.SIZE, TunnelChannel.SIGNAL}
)

_RAISES = (
    errors.Invalid,
    errors.NotFound,
    errors.FailedPrecondition,
    errors.Overloaded,
    errors.Unavailable,
    errors.TimedOut,
)


class InstanceLogsQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which output."""

    follow: Annotated[bool, Meta(description="Follow the output")] = False
    tail: Annotated[int, Meta(ge=0, le=_MAX_TAIL, description="Only the last so many lines")] | None = None
    stream: Annotated[OutputChannel, Meta(description="`stdout` or `stderr`; without it both")] | None = None
    previous: Annotated[
        bool, Meta(description="Of the run before the last one; `follow` has no effect then")
    ] = False


class ExecQuery(NamespaceQuery, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What to run, and how."""

    command: Annotated[
        tuple[str, ...],
        Meta(min_length=1, max_length=1000, description="The program and its arguments, one each"),
    ]
    environment: Annotated[
        tuple[str, ...], Meta(max_length=100, description="`KEY=VALUE`, over the instance's")
    ] = ()
    user: Annotated[str, Meta(max_length=256)] = ""
    folder: Annotated[str, Meta(max_length=4096)] = ""
    terminal: Annotated[
        bool, Meta(description="Allocate a terminal; stdout and stderr are then one stream")
    ] = False
    input: Annotated[bool, Meta(description="Pass stdin")] = False
    rows: Annotated[int, Meta(ge=0, le=_MAX_CELLS)] = 0
    columns: Annotated[int, Meta(ge=0, le=_MAX_CELLS)] = 0


@endpoint(
    "GET",
    "/instance/{id}/logs",
    summary="Read the logs of an instance",
    media=TEXT,
    raises=_RAISES,
    streams=True,
)
async def logs(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: InstanceLogsQuery
) -> StreamResponse:
    """The bytes of its last run as they were written, both streams in order.

    Where output is no longer stored, a line of its own says so. With `follow` the stream continues across
    restarts until the instance has ended; a response that is cut off is not complete.
    """
    await kudo.check_in_namespace(path.id, query)
    request = LogStreamRequest(
        follow=query.follow and not query.previous,
        tail=query.tail,
        stream=query.stream,
        previous=query.previous,
    )
    if query.previous:
        _check_keeps_previous(kudo, path.id)
    async with AsyncExitStack() as undo:
        tunnel = await _opened(kudo, call.caller, path.id, request, undo)
        first = asyncio.ensure_future(tunnel.receive())
        undo.push_async_callback(cancel_and_wait, [first])
        await asyncio.wait({first}, timeout=_REFUSAL_S if query.follow else None)
        if first.done():
            first.result()
        return StreamResponse(_output(first, tunnel), StreamFormat(TEXT), undo.pop_all())


@endpoint(
    "GET",
    "/instance/{id}/exec",
    summary="Run a program in an instance",
    status=101,
    raises=_RAISES,
    streams=True,
    max_message_bytes=MAX_FRAME,
)
async def execute(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: ExecQuery
) -> WebSocketResponse:
    """A WebSocket of binary messages; the first byte of each is its channel, the rest data.

    To you: 1 output, 2 error output, 3 the exit code in digits, which is the last. From you: 4 input, 5 end
    of input, 6 rows and columns of the terminal (`24 80`), 7 a signal by its number. On an error the close
    code is 1008 or 1011, and the reason has the error's code and message. Disconnecting kills the program.
    """
    await kudo.check_in_namespace(path.id, query)
    _check_may_execute(kudo.instances.get(path.id), call.caller)
    request = copy_fields(ExecStreamRequest, query, arguments=query.command, takes_input=query.input)
    async with AsyncExitStack() as undo:
        tunnel = await _opened(kudo, call.caller, path.id, request, undo)
        return WebSocketResponse(lambda socket: _relay(socket, tunnel), undo.pop_all())


def _check_keeps_previous(kudo: KudoContext, id: str) -> None:
    """A node of an earlier version would send the logs of the last run instead."""
    node, _ = _node_of(kudo, id)
    if NodeFeature.PREVIOUS_LOGS not in kudo.nodes.get(node).facts.features:
        raise errors.FailedPrecondition(
            f"node {node} runs an earlier version of Skerry, which keeps no logs of previous runs; upgrade it"
        )


def _check_may_execute(instance: Instance, caller: Caller) -> None:
    """Also for the old copy on its node, when the spec has changed."""
    for spec in (instance.spec, instance.leaving):
        if spec is not None:
            check_userns(spec.userns, caller)
            check_host_mounts(spec.mounts, caller)


async def _opened(
    kudo: KudoContext, caller: Caller, id: str, request: StreamRequest, undo: AsyncExitStack
) -> TunnelStream:
    """A tunnel to the instance, and the slot it takes; `undo` closes and releases them."""
    node, instance = _node_of(kudo, id)
    undo.enter_context(kudo.slots.take(caller.tenant))
    return await undo.enter_async_context(kudo.tunnels.open_tunnel(node, instance, request))


def _node_of(kudo: KudoContext, id: str) -> tuple[NodeId, InstanceId]:
    instance = kudo.instances.get(id)
    if instance.node is None:
        seen = instance.observed
        raise errors.FailedPrecondition(
            f"instance {instance.id} is {seen.status} and on no node ({seen.reason}); try again when it runs"
        )
    return instance.node, instance.id


async def _output(first: asyncio.Future[bytes | None], tunnel: TunnelStream) -> AsyncGenerator[bytes, None]:
    packed = await first
    while packed is not None:
        frame = TunnelFrame.unpack(packed)
        if frame.channel is TunnelChannel.LOST:
            yield b"\n[skerry: output is missing here: %s]\n" % frame.data
        elif frame.data:
            yield frame.data
        packed = await tunnel.receive()


async def _relay(socket: WebSocket, tunnel: TunnelStream) -> None:
    """Copy frames in both directions until the program has ended or the client has disconnected."""
    await race(_to_client(socket, tunnel), _from_client(socket, tunnel))  # an exit code is the last frame


async def _to_client(socket: WebSocket, tunnel: TunnelStream) -> None:
    while (packed := await tunnel.receive()) is not None:
        await socket.send(packed)
        if TunnelFrame.unpack(packed).channel is TunnelChannel.EXIT:
            return
    raise errors.Unavailable("the node ended this without an exit code; try again")


async def _from_client(socket: WebSocket, tunnel: TunnelStream) -> None:
    while (message := await socket.receive()) is not None:
        channel = TunnelFrame.unpack(message).channel
        if channel not in _FOR_PROGRAMS:
            raise errors.Invalid(f"channel {channel:d} does not go this way; it is 4, 5, 6 or 7")
        await tunnel.send(message)
