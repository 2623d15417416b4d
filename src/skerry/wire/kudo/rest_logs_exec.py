"""`/instance/{id}/logs` and `/instance/{id}/exec`: output of an instance, and programs run in it.

Both go by a tunnel to the node that has the instance. Output is sent as it was written. A program is spoken
to over a WebSocket, whose messages are the tunnel's frames as they are (`skerry.model.streams`): input, two
outputs, window sizes and an exit code need both directions and whole messages, and this is what browsers and
proxies know. A client that goes away ends the program.
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
from skerry.transport.access.spec_rules import check_userns
from skerry.transport.http.endpoints import RequestContext, StreamResponse, WebSocketResponse, endpoint
from skerry.transport.http.streaming import StreamFormat
from skerry.transport.http.websocket import WebSocket
from skerry.wire.kudo.context import KudoContext
from skerry.wire.kudo.rest_instances import InstancePath
from skerry.wire.namespaces import NamespaceQuery

TEXT = "text/plain"
_MAX_TAIL = 1_000_000
_MAX_CELLS = 65535  # of a terminal in one direction, as the kernel counts them
# What a node refuses it refuses at once, and then the answer is an error. Output that is followed may not
# come for a long time, and who waits for it should be told before that it is being followed.
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

    follow: Annotated[bool, Meta(description="Go on with what is written from now on")] = False
    tail: (
        Annotated[int, Meta(ge=0, le=_MAX_TAIL, description="Only that many lines of what is there")] | None
    ) = None
    stream: Annotated[OutputChannel, Meta(description="`stdout` or `stderr`; without it both")] | None = None


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
    terminal: Annotated[bool, Meta(description="Give it a terminal; then all output is one")] = False
    input: Annotated[bool, Meta(description="Pass it what is sent")] = False
    rows: Annotated[int, Meta(ge=0, le=_MAX_CELLS)] = 0
    columns: Annotated[int, Meta(ge=0, le=_MAX_CELLS)] = 0


@endpoint(
    "GET",
    "/instance/{id}/logs",
    summary="What an instance wrote",
    media=TEXT,
    raises=_RAISES,
    streams=True,
)
async def logs(
    kudo: KudoContext, call: RequestContext, path: InstancePath, query: InstanceLogsQuery
) -> StreamResponse:
    """The bytes as they were written, of its last run, both streams in the order in which they came.

    Where output is no longer kept, a line of its own says so. With `follow` it goes on over restarts until
    the instance is over; an answer that breaks off is not complete.
    """
    await kudo.check_in_namespace(path.id, query)
    request = LogStreamRequest(follow=query.follow, tail=query.tail, stream=query.stream)
    async with AsyncExitStack() as undo:
        tunnel = await _opened(kudo, path.id, request, undo)
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
    of input, 6 rows and columns of the terminal (`24 80`), 7 a signal by its number. If it goes wrong the
    close has the code 1008 or 1011, and its reason is the error's code and sentence. Hanging up kills the
    program.
    """
    await kudo.check_in_namespace(path.id, query)
    _check_may_execute(kudo.instances.get(path.id), call.caller)
    request = copy_fields(ExecStreamRequest, query, arguments=query.command, takes_input=query.input)
    async with AsyncExitStack() as undo:
        tunnel = await _opened(kudo, path.id, request, undo)
        return WebSocketResponse(lambda socket: _converse(socket, tunnel), undo.pop_all())


def _check_may_execute(instance: Instance, caller: Caller) -> None:
    """Also for the copy that its node still has, when the spec has changed."""
    for spec in (instance.spec, instance.leaving):
        if spec is not None:
            check_userns(spec.userns, caller)


async def _opened(kudo: KudoContext, id: str, request: StreamRequest, undo: AsyncExitStack) -> TunnelStream:
    """A tunnel to the instance, and the slot it takes; both are given back by `undo`."""
    node, instance = _whereabouts(kudo, id)
    undo.enter_context(kudo.slots.take())
    return await undo.enter_async_context(kudo.tunnels.open_tunnel(node, instance, request))


def _whereabouts(kudo: KudoContext, id: str) -> tuple[NodeId, InstanceId]:
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


async def _converse(socket: WebSocket, tunnel: TunnelStream) -> None:
    """Carry frames both ways, until the program has ended or the client is gone."""
    await race(_down(socket, tunnel), _up(socket, tunnel))  # an exit code that has come is the last word


async def _down(socket: WebSocket, tunnel: TunnelStream) -> None:
    while (packed := await tunnel.receive()) is not None:
        await socket.send(packed)
        if TunnelFrame.unpack(packed).channel is TunnelChannel.EXIT:
            return
    raise errors.Unavailable("the node ended this without an exit code; try again")


async def _up(socket: WebSocket, tunnel: TunnelStream) -> None:
    while (message := await socket.receive()) is not None:
        channel = TunnelFrame.unpack(message).channel
        if channel not in _FOR_PROGRAMS:
            raise errors.Invalid(f"channel {channel:d} does not go this way; it is 4, 5, 6 or 7")
        await tunnel.send(message)
