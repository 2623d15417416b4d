"""Streams to a remote program: gRPC for containers of this machine, a WebSocket for instances.

The program is killed when its stream closes, however that happens.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from skerry.client import api, node_socket
from skerry.client.errors import ApiError, NodeError

if TYPE_CHECKING:
    from grpclib.client import Stream
    from websockets.asyncio.client import ClientConnection

    from skerry.model.streams import TunnelChannel
    from skerry.transport.proto.containers_pb2 import ExecReply, ExecRequest

_MAX_MESSAGE: Final = 128 * 1024
_PING_S: Final = 20.0
_PATIENCE_S: Final = 30.0  # with a server that is slow to answer

OUTPUT: Final = 1
ERRORS: Final = 2


class ExecCommand(NamedTuple):
    """The command to run, and how it is attached."""

    arguments: tuple[str, ...]
    environment: list[str]
    user: str
    folder: str
    terminal: bool
    takes_input: bool
    rows: int = 0  # of its terminal
    columns: int = 0


class OutputChunk(NamedTuple):
    """A piece of stdout or stderr of the program."""

    descriptor: int
    data: bytes


class ExecStream(Protocol):
    """A stream to a program. Several tasks may send, one may receive."""

    async def receive(self) -> OutputChunk | int:
        """The next output, or last the exit code."""

    async def send_input(self, data: bytes) -> None: ...

    async def end_input(self) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...

    async def signal(self, number: int) -> None: ...


@asynccontextmanager
async def exec_in_container(
    node: node_socket.NodeSocket, name: str, command: ExecCommand
) -> AsyncIterator[ExecStream]:
    """A stream to `command` in a container of this machine."""
    from skerry.transport.proto.containers_pb2 import ExecRequest, ExecStart, TerminalSize

    fields = command._asdict()
    size = TerminalSize(rows=fields.pop("rows"), columns=fields.pop("columns"))
    start = ExecStart(container=name, **fields, size=size if command.terminal else None)
    async with node_socket.connected(node, node_socket.containers) as stub:
        with node_socket.explain_node_errors(node):
            async with stub.Exec.open() as stream:
                await stream.send_message(ExecRequest(start=start))
                yield ContainerExecStream(stream)
                await stream.cancel()


@asynccontextmanager
async def exec_in_instance(server: api.ApiClient, id: str, command: ExecCommand) -> AsyncIterator[ExecStream]:
    """A stream to `command` in an instance, through the server."""
    from websockets.asyncio.client import connect

    target = server.websocket(
        "instance",
        id,
        "exec",
        command=command.arguments,
        environment=command.environment,
        user=command.user,
        folder=command.folder,
        terminal=str(command.terminal).lower(),
        input=str(command.takes_input).lower(),
        rows=command.rows,
        columns=command.columns,
    )
    with _explain_websocket_errors(server):
        async with connect(
            target.url,
            ssl=target.tls,
            sock=target.socket,
            additional_headers=target.headers,
            compression=None,
            proxy=None,
            max_size=_MAX_MESSAGE,
            open_timeout=_PATIENCE_S,
            # No timeout: a reader that blocks our output also keeps us from reading the pong.
            ping_interval=_PING_S,
            ping_timeout=None,
        ) as socket:
            from skerry.model.streams import TunnelChannel

            yield InstanceExecStream(socket, TunnelChannel)


class ContainerExecStream:
    """To a program in a container of this machine."""

    def __init__(self, stream: Stream[ExecRequest, ExecReply]) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()  # a message goes out whole

    async def receive(self) -> OutputChunk | int:
        reply = await self._stream.recv_message()
        if reply is None:
            raise NodeError("The node ended the call without an exit code; try again.", "UNKNOWN")
        match reply.WhichOneof("message"):
            case "output":
                return OutputChunk(OUTPUT, reply.output)
            case "errors":
                return OutputChunk(ERRORS, reply.errors)
            case _:
                return reply.exit_code

    async def send_input(self, data: bytes) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest

        await self._send(ExecRequest(input=data))

    async def end_input(self) -> None:
        from skerry.transport.proto.containers_pb2 import EndOfInput, ExecRequest

        await self._send(ExecRequest(end_of_input=EndOfInput()))

    async def resize(self, rows: int, columns: int) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest, TerminalSize

        await self._send(ExecRequest(resize=TerminalSize(rows=rows, columns=columns)))

    async def signal(self, number: int) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest

        await self._send(ExecRequest(signal=number))

    async def _send(self, request: ExecRequest) -> None:
        async with self._sending:
            await self._stream.send_message(request)


class InstanceExecStream:
    """To a program in an instance, through the server. The channels are handed in: they load msgspec."""

    def __init__(self, socket: ClientConnection, channels: type[TunnelChannel]) -> None:
        self._socket = socket
        self._channels = channels

    async def receive(self) -> OutputChunk | int:
        while True:
            message = await self._socket.recv(decode=False)
            match message[0] if message else None:
                case self._channels.OUTPUT:
                    return OutputChunk(OUTPUT, message[1:])
                case self._channels.ERRORS:
                    return OutputChunk(ERRORS, message[1:])
                case self._channels.EXIT:
                    return int(message[1:])
            # Other channels are those of newer servers.

    async def send_input(self, data: bytes) -> None:
        await self._send(self._channels.INPUT, data)

    async def end_input(self) -> None:
        await self._send(self._channels.END_OF_INPUT)

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(self._channels.SIZE, b"%d %d" % (rows, columns))

    async def signal(self, number: int) -> None:
        await self._send(self._channels.SIGNAL, b"%d" % number)

    async def _send(self, channel: TunnelChannel, data: bytes = b"") -> None:
        await self._socket.send(bytes([channel]) + data)


@contextmanager
def _explain_websocket_errors(server: api.ApiClient) -> Iterator[None]:
    """Turn errors of the WebSocket into errors of this package."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

    try:
        yield
    except InvalidStatus as error:
        response = error.response
        raise api.error_from_reply(
            response.status_code, response.reason_phrase, bytes(response.body or b"")
        ) from None
    except ConnectionClosed as error:
        raise _close_error(error.rcvd.reason if error.rcvd else "") from None
    except ssl.SSLCertVerificationError as error:
        raise server.not_trusted(error) from None
    except (OSError, TimeoutError, UnicodeError, InvalidHandshake, InvalidURI) as error:
        raise server.not_reached(error) from None


def _close_error(reason: str) -> ApiError:
    """The reason of a close frame is the code and message of an error, or only a message."""
    code, colon, message = reason.partition(": ")
    if colon and " " not in code:
        return ApiError(0, message, code)
    return ApiError(0, reason or "The connection to the instance broke off; try again.", "")
