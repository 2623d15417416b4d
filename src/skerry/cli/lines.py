"""The two ways to a program that runs elsewhere: gRPC for containers, a WebSocket for instances.

Both kill the program when this command goes away, whichever way. What is carried is `attaching`'s matter.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from skerry.cli import attaching, client, dialling, interrupts
from skerry.cli.attaching import Piece, Program

if TYPE_CHECKING:
    from grpclib.client import Stream
    from websockets.asyncio.client import ClientConnection

    from skerry.wire.proto.containers_pb2 import ExecReply, ExecRequest

_MAX_MESSAGE: Final = 128 * 1024
_PING_S: Final = 20.0
_PATIENCE_S: Final = 30.0  # with a server that is slow to answer


class Channel(enum.IntEnum):
    """What a message of the WebSocket holds: its first byte."""

    OUTPUT = 1
    ERRORS = 2
    EXIT = 3  # the code in digits; the last
    INPUT = 4
    END_OF_INPUT = 5
    SIZE = 6  # rows and columns in digits
    SIGNAL = 7  # its number in digits


async def execute_in_container(door: dialling.Door, name: str, program: Program) -> int:
    """The exit code of a program in a container of this machine's node."""
    from skerry.wire.proto.containers_pb2 import ExecRequest, ExecStart

    start = ExecStart(container=name, **program._asdict())
    if program.terminal:
        start.size.rows, start.size.columns = program.size()
    code = None
    async with dialling.reached(door, dialling.containers) as stub:
        with interrupts.Signals() as signals, dialling.plain_words(door):
            try:
                async with stub.Exec.open() as stream:
                    line = ContainerLine(stream)
                    await line.send(ExecRequest(start=start))
                    code = await attaching.attend(line, program, signals)
                    await stream.cancel()  # nobody listens to us any more
            except Exception:
                if code is None:
                    raise
    assert code is not None
    return code


async def execute_in_instance(server: client.Server, id: str, program: Program) -> int:
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
    with interrupts.Signals() as signals, _plain_words(server):
        async with connect(
            call.url,
            ssl=call.tls,
            additional_headers=call.headers,
            compression=None,
            proxy=None,
            max_size=_MAX_MESSAGE,
            open_timeout=_PATIENCE_S,
            # Who holds our output up also keeps us from hearing the answer, and is not gone.
            ping_interval=_PING_S,
            ping_timeout=None,
        ) as socket:
            return await attaching.attend(InstanceLine(socket), program, signals)


class ContainerLine:
    """To a program in a container of this machine's node."""

    def __init__(self, stream: Stream[ExecRequest, ExecReply]) -> None:
        self._stream = stream
        self._sending = asyncio.Lock()  # a message goes out whole

    async def send(self, request: ExecRequest) -> None:
        async with self._sending:
            await self._stream.send_message(request)

    async def receive(self) -> Piece | int:
        reply = await self._stream.recv_message()
        if reply is None:
            raise dialling.NodeSaidNo("The node ended the call without an exit code; try again.", "UNKNOWN")
        match reply.WhichOneof("message"):
            case "output":
                return Piece(attaching.OUTPUT, reply.output)
            case "errors":
                return Piece(attaching.ERRORS, reply.errors)
            case _:
                return reply.exit_code

    async def put_in(self, data: bytes) -> None:
        from skerry.wire.proto.containers_pb2 import ExecRequest

        await self.send(ExecRequest(input=data))

    async def end_input(self) -> None:
        from skerry.wire.proto.containers_pb2 import EndOfInput, ExecRequest

        await self.send(ExecRequest(end_of_input=EndOfInput()))

    async def resize(self, rows: int, columns: int) -> None:
        from skerry.wire.proto.containers_pb2 import ExecRequest, TerminalSize

        await self.send(ExecRequest(resize=TerminalSize(rows=rows, columns=columns)))

    async def signal(self, number: int) -> None:
        from skerry.wire.proto.containers_pb2 import ExecRequest

        await self.send(ExecRequest(signal=number))


class InstanceLine:
    """To a program in an instance, through the server."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def receive(self) -> Piece | int:
        while True:
            message = await self._socket.recv(decode=False)
            match message[0] if message else None:
                case Channel.OUTPUT:
                    return Piece(attaching.OUTPUT, message[1:])
                case Channel.ERRORS:
                    return Piece(attaching.ERRORS, message[1:])
                case Channel.EXIT:
                    return int(message[1:])
            # Other channels are of a newer server, and not for us.

    async def put_in(self, data: bytes) -> None:
        await self._send(Channel.INPUT, data)

    async def end_input(self) -> None:
        await self._send(Channel.END_OF_INPUT)

    async def resize(self, rows: int, columns: int) -> None:
        await self._send(Channel.SIZE, b"%d %d" % (rows, columns))

    async def signal(self, number: int) -> None:
        await self._send(Channel.SIGNAL, b"%d" % number)

    async def _send(self, channel: Channel, data: bytes = b"") -> None:
        await self._socket.send(bytes([channel]) + data)


@contextmanager
def _plain_words(server: client.Server) -> Iterator[None]:
    """Errors of a call leave as what a person is told."""
    from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

    try:
        yield
    except InvalidStatus as error:
        response = error.response
        raise client.refusal(
            response.status_code, response.reason_phrase, bytes(response.body or b"")
        ) from None
    except ConnectionClosed as error:
        raise _last_words(error.rcvd.reason if error.rcvd else "") from None
    except ssl.SSLCertVerificationError as error:
        raise server.not_trusted(error) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise server.not_reached(error) from None


def _last_words(reason: str) -> client.ServerSaidNo:
    """A reason is an error's code and its sentence, or only a sentence."""
    code, colon, message = reason.partition(": ")
    if colon and " " not in code:
        return client.ServerSaidNo(0, message, code)
    return client.ServerSaidNo(0, reason or "The connection to the instance broke off; try again.", "")
