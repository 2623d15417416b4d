"""Dialling a Skerry server over gRPC: TCP or unix socket, mTLS, and errors in our own words.

The daemon uses it for the node role: to renew certificates, and for the node's session; the verbs for cells
use it to reach the node. It keeps no state and does not retry; who calls decides when to try again.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from grpclib.client import Channel
from grpclib.config import Configuration
from grpclib.const import Status
from grpclib.exceptions import GRPCError, ProtocolError, StreamTerminatedError

from skerry.model import errors
from skerry.transport.proto.identity_grpc import IdentityServiceStub
from skerry.transport.proto.identity_pb2 import EdgeRequest, RenewRequest

_SILENCE_S: Final = 20.0
_TIMEOUT_S: Final = 30.0

_ERROR_OF: Final[dict[Status, type[errors.SkerryError]]] = {
    Status.INVALID_ARGUMENT: errors.Invalid,
    Status.UNAUTHENTICATED: errors.Unauthenticated,
    Status.PERMISSION_DENIED: errors.Forbidden,
    Status.NOT_FOUND: errors.NotFound,
    Status.ALREADY_EXISTS: errors.AlreadyExists,
    Status.ABORTED: errors.Conflict,
    Status.FAILED_PRECONDITION: errors.FailedPrecondition,
    Status.OUT_OF_RANGE: errors.Compacted,
    Status.RESOURCE_EXHAUSTED: errors.Overloaded,
    Status.DEADLINE_EXCEEDED: errors.TimedOut,
    Status.INTERNAL: errors.Internal,
}


def dial(
    target: str, tls: ssl.SSLContext | None, *, server_name: str | None = None, pings: bool = True
) -> Channel:
    """A channel to `target`: HOST:PORT, [IPV6]:PORT, or the path of a unix socket.

    It connects at its first call. `server_name` is the name the server's certificate must carry; without it,
    that is the host. A unix socket has no host, so with TLS the name must be given.
    """
    settings = Configuration(
        # A peer that vanished without a word is noticed also while we only wait for its messages.
        _keepalive_time=_SILENCE_S if pings else None,
        _keepalive_timeout=_SILENCE_S,
        _http2_max_pings_without_data=0,
        _http2_min_sent_ping_interval_without_data=1.0,
        ssl_target_name_override=server_name,
    )
    if target.startswith("/"):
        if tls is not None and server_name is None:
            raise ValueError("TLS over a unix socket needs the name in the server's certificate")
        return Channel(path=target, ssl=tls, config=settings)
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal():
        raise errors.Invalid(f"{target!r} is no HOST:PORT and no path of a unix socket", field="target")
    return Channel(host.removeprefix("[").removesuffix("]"), int(port), ssl=tls, config=settings)


def close_now(channel: Channel) -> None:
    """Close `channel` at once, for a loop that is about to end: `close` leaves TLS's goodbye to the loop."""
    protocol = channel._protocol
    transport = getattr(getattr(protocol, "connection", None), "_transport", None)
    if transport is not None:
        transport.abort()
    channel.close()


async def renew_certificate(channel: Channel, csr_pem: bytes) -> bytes:
    """A fresh certificate for the node whose certificate the channel shows."""
    with map_errors("renew the certificate"):
        reply = await IdentityServiceStub(channel).Renew(RenewRequest(csr=csr_pem), timeout=_TIMEOUT_S)
    return reply.certificate


async def issue_edge_certificate(
    channel: Channel, csr_pem: bytes, hosts: Sequence[str]
) -> tuple[bytes, tuple[str, ...]]:
    """A certificate for the HTTPS listener of the node whose certificate the channel shows, and sentences
    about `hosts` that it does not have."""
    with map_errors("get a certificate for the HTTPS listener"):
        request = EdgeRequest(csr=csr_pem, hosts=hosts)
        reply = await IdentityServiceStub(channel).IssueEdge(request, timeout=_TIMEOUT_S)
    return reply.certificate, tuple(reply.refused)


@contextmanager
def map_errors(aim: str) -> Iterator[None]:
    """What goes wrong inside leaves as a `SkerryError` that says what could not be done."""
    try:
        yield
    except GRPCError as error:
        kind = _ERROR_OF.get(error.status, errors.Unavailable)
        raise kind(error.message or f"could not {aim}", detail=error.status.name) from error
    except ssl.SSLCertVerificationError as error:
        raise errors.Unavailable(
            f"could not {aim}: the server's certificate is not to be trusted ({error.verify_message}); "
            "join again if the server was set up anew"
        ) from error
    except TimeoutError as error:
        raise errors.TimedOut(f"could not {aim}: the server did not answer in time") from error
    except (OSError, StreamTerminatedError, ProtocolError) as error:
        raise errors.Unavailable(
            f"could not {aim}: the server is not to be reached; is it running?", detail=repr(error)
        ) from error
