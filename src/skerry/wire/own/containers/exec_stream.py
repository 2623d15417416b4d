"""`Exec`: one program in a container, with its streams in a bidirectional call.

`skerry.node.containers.exec_relay` connects the two; here are the messages. A call that ends early, because
the client disconnected or made an error or this process stops, kills the program.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Final

from grpclib.server import Stream as Call

from skerry.model import errors, workloads
from skerry.model.cells import OutputChannel
from skerry.model.containers import MAX_ARGUMENTS
from skerry.node.containers.exec_relay import relay_stdio
from skerry.node.containers.ports import ContainerRuntime, ExecHandle
from skerry.node.containers.stdio import StdioStreams
from skerry.transport.access.spec_rules import check_host_mounts, check_userns
from skerry.transport.grpc.call_streams import caller_of
from skerry.transport.proto.containers_pb2 import ExecReply, ExecRequest, ExecStart, TerminalSize

_MOST_CELLS: Final = 65535  # of a terminal in one direction, as the kernel counts them


async def serve_exec(call: Call[ExecRequest, ExecReply], containers: ContainerRuntime) -> None:
    """Start the program of the first message, and relay its streams to its end."""
    first = await call.recv_message()
    if first is None or first.WhichOneof("message") != "start":
        raise errors.Invalid("the first message must say what to start", field="start")
    start = first.start
    _check(start)
    spec = containers.get(start.container).spec
    check_userns(spec.userns, caller_of(call))
    check_host_mounts(spec.mounts, caller_of(call))
    with _streams_for(start) as streams:
        session = await containers.exec(
            start.container,
            tuple(start.arguments),
            environment=tuple(start.environment),
            user=start.user,
            folder=start.folder,
            tty=start.terminal,
            stdio=streams.program_fds,
        )
        streams.close_program_fds()
        client = _Client(call, session, streams)
        code = await relay_stdio(session, streams, send=client.send, listen=client.listen)
    await call.send_message(ExecReply(exit_code=code))


def _check(start: ExecStart) -> None:
    if not start.container:
        raise errors.Invalid("container must name one that runs", field="container")
    if not 0 < len(start.arguments) <= MAX_ARGUMENTS or not start.arguments[0]:
        raise errors.Invalid(
            f"arguments must be a program and what it is given, at most {MAX_ARGUMENTS} words",
            field="arguments",
        )
    if any("\0" in word for word in start.arguments):
        raise errors.Invalid("arguments cannot hold a NUL byte", field="arguments")
    workloads.check_environment(tuple(start.environment))
    if start.folder and (not start.folder.startswith("/") or "\0" in start.folder):
        raise errors.Invalid("folder must be an absolute path", field="folder")
    _check_size(start.size)


def _check_size(size: TerminalSize) -> None:
    if size.rows > _MOST_CELLS or size.columns > _MOST_CELLS:
        raise errors.Invalid(f"a terminal has at most {_MOST_CELLS} rows and columns", field="size")


def _signal(number: int) -> int:
    if not 0 < number < signal.NSIG:
        raise errors.Invalid(f"{number} is no signal; they are 1 to {signal.NSIG - 1}", field="signal")
    return number


def _streams_for(start: ExecStart) -> StdioStreams:
    if start.terminal:
        return StdioStreams.terminal(start.size.rows, start.size.columns)
    return StdioStreams.pipes(takes_input=start.takes_input)


class _Client:
    """The client's end of the call."""

    def __init__(
        self, call: Call[ExecRequest, ExecReply], session: ExecHandle, streams: StdioStreams
    ) -> None:
        self._call = call
        self._session = session
        self._streams = streams
        self._sending = asyncio.Lock()  # one message at a time

    async def send(self, stream: OutputChannel, data: bytes) -> None:
        reply = ExecReply(errors=data) if stream is OutputChannel.STDERR else ExecReply(output=data)
        async with self._sending:
            await self._call.send_message(reply)

    async def listen(self) -> None:
        """Handle messages of the client until there are no more."""
        while (request := await self._call.recv_message()) is not None:
            match request.WhichOneof("message"):
                case "input":
                    await self._streams.write(request.input)
                case "end_of_input":
                    await self._streams.end_input()
                case "resize":
                    _check_size(request.resize)
                    self._session.resize(request.resize.rows, request.resize.columns)
                case "signal":
                    self._session.signal(_signal(request.signal))
                case "start":
                    raise errors.Invalid("only the first message can start something", field="start")
                case _:
                    raise errors.Invalid("a message must hold input, its end, a size or a signal")
        await self._streams.end_input()
