"""How a verb reaches the node on this machine: over its unix socket, with the certificates that it keeps.

gRPC is loaded only when a call is made, so that `--help` stays quick. What goes wrong is told in plain words,
with the exit codes of `skerry.cli.main`. Nothing here knows what the services do; the verbs choose which one
is asked.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from skerry.cli import client, discovery, paths
from skerry.cli.options import option_object

if TYPE_CHECKING:
    from grpclib.client import Channel

    from skerry.transport.proto.cells_grpc import CellServiceStub
    from skerry.transport.proto.containers_grpc import ContainerServiceStub, ImageServiceStub

S = TypeVar("S")
T = TypeVar("T")

CALL_S: Final = 60.0  # for a call that has little to do


class NodeError(click.ClickException):
    """The node answered with an error; its own sentence is the message."""

    exit_code = 1

    def __init__(self, message: str, status: str) -> None:
        super().__init__(message)
        self.status = status


class NodeSocket(NamedTuple):
    """Where the node listens, and what proves to it who we are: files."""

    socket: str
    ca: str
    certificate: str
    key: str


def find(data: str | None, socket: str | None) -> NodeSocket:
    """The door of the Skerry that runs with this data folder."""
    folder = paths.data_folder(data)
    ready = discovery.read_ready(folder)
    path = str(paths.absolute(socket)) if socket else ready.socket
    if not (path and ready.ca and ready.client_cert and ready.client_key):
        raise client.ServerUnreachable(f"The Skerry of {folder} serves no socket; 'skerry up' does.")
    return NodeSocket(path, ready.ca, ready.client_cert, ready.client_key)


# Of every verb that talks to the node; they arrive together as `door`.
options = option_object(
    "door",
    find,
    click.option(
        "--data",
        metavar="DIR",
        envvar="SKERRY_DATA",
        help="Data folder of the Skerry on this machine. [env: SKERRY_DATA]",
    ),
    click.option(
        "--socket",
        metavar="PATH",
        envvar="SKERRY_GRPC_SOCKET",
        help="Its unix socket, if it is elsewhere. [env: SKERRY_GRPC_SOCKET]",
    ),
)


def cells(line: Channel) -> CellServiceStub:
    """The node's cells, to be asked."""
    from skerry.transport.proto.cells_grpc import CellServiceStub

    return CellServiceStub(line)


def images(line: Channel) -> ImageServiceStub:
    """The node's images, to be asked."""
    from skerry.transport.proto.containers_grpc import ImageServiceStub

    return ImageServiceStub(line)


def containers(line: Channel) -> ContainerServiceStub:
    """The node's containers, to be asked."""
    from skerry.transport.proto.containers_grpc import ContainerServiceStub

    return ContainerServiceStub(line)


def call_node(door: NodeSocket, service: Callable[[Channel], S], work: Callable[[S], Awaitable[T]]) -> T:
    """Do `work` with a service of the node, and say plainly what went wrong."""

    async def asking() -> T:
        async with reached(door, service) as stub:
            with explain_node_errors(door):
                return await work(stub)

    return asyncio.run(asking())


def call_node_each(
    door: NodeSocket,
    service: Callable[[Channel], S],
    names: Sequence[str],
    work: Callable[[S, str], Awaitable[str]],
) -> None:
    """Do `work` for each of `names` at once, and say of each what came of it; exits with 1 if one failed."""

    async def one(stub: S, name: str) -> str | NodeError:
        try:
            with explain_node_errors(door):
                return await work(stub, name)
        except NodeError as error:
            return error

    async def all_of_them(stub: S) -> list[str | NodeError]:
        return await asyncio.gather(*(one(stub, name) for name in names))

    answers = call_node(door, service, all_of_them)
    for answer in answers:
        if isinstance(answer, NodeError):
            answer.show()
        else:
            click.echo(answer)
    if any(isinstance(answer, NodeError) for answer in answers):
        raise SystemExit(1)


@asynccontextmanager
async def reached(door: NodeSocket, service: Callable[[Channel], S]) -> AsyncIterator[S]:
    """A service of the node, to be called; a broken connection is made anew by the next call."""
    from skerry.model.callers import NODE_TLS_NAME
    from skerry.transport.grpc import channels

    line = channels.dial(door.socket, _tls(door), server_name=NODE_TLS_NAME)
    try:
        yield service(line)
    finally:
        channels.close_now(line)


@contextmanager
def explain_node_errors(door: NodeSocket) -> Iterator[None]:
    """Errors of a call leave as what a person is told."""
    from grpclib.const import Status
    from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

    try:
        yield
    except GRPCError as error:
        if error.status is Status.UNIMPLEMENTED:
            raise NodeError(
                "This Skerry cannot do that; 'skerry status' says what it lacks.", error.status.name
            ) from None
        raise NodeError(error.message or error.status.name, error.status.name) from None
    except ssl.SSLError as error:
        raise client.ServerUnreachable(
            f"The node at {door.socket} and this command do not trust each other "
            f"({getattr(error, 'verify_message', None) or error.reason}). Name its data folder with --data."
        ) from None
    except (OSError, StreamTerminatedError, ProtocolError) as error:
        raise client.ServerUnreachable(
            f"Nothing answers at {door.socket}: {error or type(error).__name__}. Is Skerry running there?"
        ) from None


def _tls(door: NodeSocket) -> ssl.SSLContext:
    # Not by `skerry.kit.tls`: that loads what a server logs with.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(door.ca)
        context.load_cert_chain(door.certificate, door.key, password="")
    except PermissionError:
        raise client.ServerUnreachable(
            f"{door.key} belongs to another user; run this as the user who runs Skerry, or with sudo."
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise client.ServerUnreachable(
            f"The certificate {door.certificate} cannot be used: {error}"
        ) from None
    return context
