"""gRPC calls of the node on this machine, over its unix socket and with its client certificate.

gRPC and asyncio are imported only when a call is made, so that other commands start quickly. Callers choose
the service.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from skerry.client import discovery
from skerry.client.errors import NodeError, ServerUnreachable

if TYPE_CHECKING:
    from grpclib.client import Channel

    from skerry.transport.proto.cells_grpc import CellServiceStub
    from skerry.transport.proto.containers_grpc import ContainerServiceStub, ImageServiceStub

S = TypeVar("S")
T = TypeVar("T")

CALL_S: Final = 60.0  # timeout of a call that does little


class NodeSocket(NamedTuple):
    """Socket of the node, and the files of our credentials."""

    socket: str
    ca: str
    certificate: str
    key: str


def find(data: str | None, socket: str | None) -> NodeSocket:
    """The socket of the Skerry that runs with this data folder."""
    folder = discovery.data_folder(data)
    ready = discovery.read_ready(folder)
    path = str(discovery.absolute(socket)) if socket else ready.socket
    if not (path and ready.ca and ready.client_cert and ready.client_key):
        raise ServerUnreachable(
            f"The Skerry of {folder} has no node socket; use 'skerry up' or 'skerry node'."
        )
    return NodeSocket(path, ready.ca, ready.client_cert, ready.client_key)


def cells(channel: Channel) -> CellServiceStub:
    """The service for cells."""
    from skerry.transport.proto.cells_grpc import CellServiceStub

    return CellServiceStub(channel)


def images(channel: Channel) -> ImageServiceStub:
    """The service for images."""
    from skerry.transport.proto.containers_grpc import ImageServiceStub

    return ImageServiceStub(channel)


def containers(channel: Channel) -> ContainerServiceStub:
    """The service for containers."""
    from skerry.transport.proto.containers_grpc import ContainerServiceStub

    return ContainerServiceStub(channel)


def call_node(node: NodeSocket, service: Callable[[Channel], S], work: Callable[[S], Awaitable[T]]) -> T:
    """Do `work` with a service of the node."""
    import asyncio

    async def call() -> T:
        async with connected(node, service) as stub:
            with explain_node_errors(node):
                return await work(stub)

    return asyncio.run(call())


@asynccontextmanager
async def connected(node: NodeSocket, service: Callable[[Channel], S]) -> AsyncIterator[S]:
    """A service of the node; after a broken connection the next call connects again."""
    from skerry.model.callers import NODE_TLS_NAME
    from skerry.transport.grpc import channels

    channel = channels.dial(node.socket, _tls(node), server_name=NODE_TLS_NAME)
    try:
        yield service(channel)
    finally:
        channels.close_now(channel)


@contextmanager
def explain_node_errors(node: NodeSocket) -> Iterator[None]:
    """Turn errors of gRPC and of the connection into errors of this package."""
    from grpclib.const import Status
    from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

    try:
        yield
    except GRPCError as error:
        if error.status is Status.UNIMPLEMENTED:
            raise NodeError(
                "This Skerry cannot do that; 'skerry status' shows what is unavailable.", error.status.name
            ) from None
        raise NodeError(error.message or error.status.name, error.status.name) from None
    except ssl.SSLError as error:
        raise ServerUnreachable(
            f"The TLS handshake with the node at {node.socket} failed "
            f"({getattr(error, 'verify_message', None) or error.reason}). Give its data folder with --data."
        ) from None
    except (OSError, StreamTerminatedError, ProtocolError) as error:
        raise ServerUnreachable(
            f"Nothing answers at {node.socket}: {error or type(error).__name__}. Is Skerry running there?"
        ) from None


def _tls(node: NodeSocket) -> ssl.SSLContext:
    # Not by `skerry.kit.tls`, which imports structlog.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(node.ca)
        context.load_cert_chain(node.certificate, node.key, password="")
    except PermissionError:
        raise ServerUnreachable(
            f"{node.key} belongs to another user; run this as the user who runs Skerry, or with sudo."
        ) from None
    except (OSError, ssl.SSLError) as error:
        raise ServerUnreachable(f"The certificate {node.certificate} cannot be used: {error}") from None
    return context
