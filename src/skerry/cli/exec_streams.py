"""The two ways to a program that runs elsewhere: gRPC for containers, a WebSocket for instances.

Both kill the program when this command goes away, whichever way. What is carried is `exec_session`'s matter.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from skerry.cli import client, exec_session, node_socket, signal_handler
from skerry.cli.exec_session import ExecCommand, OutputChunk

if TYPE_CHECKING:
    from grpclib.client import Stream
    from websockets.asyncio.client import ClientConnection

    from skerry.transport.proto.containers_pb2 import ExecReply, ExecRequest

_MAX_MESSAGE: Final = 128 * 1024
_PING_S: Final = 20.0
_PATIENCE_S: Final = 30.0  # with a server that is slow to answer


class ExecChannel(enum.IntEnum):
    """What a message of the WebSocket holds: its first byte."""

    OUTPUT = 1
    ERRORS = 2
    EXIT = 3  # the code in digits; the last
    INPUT = 4
    END_OF_INPUT = 5
    SIZE = 6  # rows and columns in digits
    SIGNAL = 7  # its number in digits


async def execute_in_container(door: node_socket.NodeSocket, name: str, program: ExecCommand) -> int:
    """The exit code of a program in a container of this machine's node."""
    from skerry.transport.proto.containers_pb2 import ExecRequest, ExecStart

    start = ExecStart(container=name, **program._asdict())
    if program.terminal:
        start.size.rows, start.size.columns = program.size()
    code = None
    async with node_socket.reached(door, node_socket.containers) as stub:
        with signal_handler.SignalHandler() as signals, node_socket.explain_node_errors(door):
            try:
                async with stub.Exec.open() as stream:
                    line = ContainerExecStream(stream)
                    await line.send(ExecRequest(start=start))
                    code = await exec_session.run_exec_session(line, program, signals)
                    await stream.cancel()  # nobody listens to us any more
            except Exception:
                if code is None:
                    raise
    assert code is not None
    return code


async def execute_in_instance(server: client.ApiClient, id: str, program: ExecCommand) -> int:
    """The exit code of a program in an instance, wherever that is."""
    from websockets.asyncio.client import connect

    rows, columns = program.size()
    call = server.websocket(
        "instance",
        id,
        "exec",
        command=program.arguments,
        environment=program.environment,
        user=program.user,
        folder=program.folder,
        terminal=str(program.terminal).lower(),
        input=str(program.takes_input).lower(),
        rows=rows,
        columns=columns,
    )
    with signal_handler.SignalHandler() as signals, _plain_words(server):
        async with connect(
            call.url,
            ssl=call.tls,
            sock=call.socket,
            additional_headers=call.headers,
            compression=None,
            proxy=None,
            max_size=_MAX_MESSAGE,
            open_timeout=_PATIENCE_S,
            # Who holds our output up also keeps us from hearing the answer, and is not gone.
            ping_interval=_PING_S,
            ping_timeout=None,
        ) as socket:
            return await exec_session.run_exec_session(InstanceExecStream(socket), program, signals)


class ContainerExecStream:
    """To a program in a container of this machine's node."""

    def __init__(self, stream: Stream[ExecRequest, ExecReply]) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()  # a message goes out whole

    async def send(self, request: ExecRequest) -> None:
        async with self._sending:
            await self._stream.send_message(request)

    async def receive(self) -> OutputChunk | int:
        reply = await self._stream.recv_message()
        if reply is None:
            raise node_socket.NodeError("The node ended the call without an exit code; try again.", "UNKNOWN")
        match reply.WhichOneof("message"):
            case "output":
                return OutputChunk(exec_session.OUTPUT, reply.output)
            case "errors":
                return OutputChunk(exec_session.ERRORS, reply.errors)
            case _:
                return reply.exit_code

    async def put_in(self, data: bytes) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest

        await self.send(ExecRequest(input=data))

    async def end_input(self) -> None:
        from skerry.transport.proto.containers_pb2 import EndOfInput, ExecRequest

        await self.send(ExecRequest(end_of_input=EndOfInput()))

    async def resize(self, rows: int, columns: int) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest, TerminalSize

        await self.send(ExecRequest(resize=TerminalSize(rows=rows, columns=columns)))

    async def signal(self, number: int) -> None:
        from skerry.transport.proto.containers_pb2 import ExecRequest

        await self.send(ExecRequest(signal=number))


class InstanceExecStream:
    """To a program in an instance, through the server."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> OutputChunk | int:
        while True:
            message = await self._socket.recv(decode=False)
            match message[0] if message else None:
                case ExecChannel.OUTPUT:
                    return OutputChunk(exec_session.OUTPUT, message[1:])
                case ExecChannel.ERRORS:
                    return OutputChunk(exec_session.ERRORS, message[1:])
                case ExecChannel.EXIT:
                    return int(message[1:])
            # Other channels are of a newer server, and not for us.

    async def put_in(self, data: bytes) -> None:
        await self._send(ExecChannel.INPUT, data)

    async def end_input(self) -> None:
        await self._send(ExecChannel.END_OF_INPUT)

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(ExecChannel.SIZE, b"%d %d" % (rows, columns))

    async def signal(self, number: int) -> None:
        await self._send(ExecChannel.SIGNAL, b"%d" % number)

    async def _send(self, channel: ExecChannel, data: bytes = b"") -> None:
        await self._socket.send(bytes([channel]) + data)


@contextmanager
def _plain_words(server: client.ApiClient) -> Iterator[None]:
    """Errors of a call leave as what a person is told."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

    try:
        yield
    except InvalidStatus as error:
        response = error.response
        raise client.error_from_reply(
            response.status_code, response.reason_phrase, bytes(response.body or b"")
        ) from None
    except ConnectionClosed as error:
        raise _last_words(error.rcvd.reason if error.rcvd else "") from None
    except ssl.SSLCertVerificationError as error:
        raise server.not_trusted(error) from None
    except (OSError, TimeoutError, UnicodeError, InvalidHandshake, InvalidURI) as error:
        raise server.not_reached(error) from None


def _last_words(reason: str) -> client.ApiError:
    """A reason is an error's code and its sentence, or only a sentence."""
    code, colon, message = reason.partition(": ")
    if colon and " " not in code:
        return client.ApiError(0, message, code)
    return client.ApiError(0, reason or "The connection to the instance broke off; try again.", "")
