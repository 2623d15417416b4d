"""IdentityService: a node asks for a fresh certificate before its old one ends.

Translation only; `skerry.control.identity` decides, by the certificate that made the connection.
"""

from __future__ import annotations

from typing import Protocol

from grpclib.server import Stream

from skerry.model.identity import Caller
from skerry.wire.grpc.streams import caller_of
from skerry.wire.proto.identity_grpc import IdentityServiceBase
from skerry.wire.proto.identity_pb2 import RenewReply, RenewRequest


class Renewer(Protocol):
    """The part of `skerry.control.identity.Identity` that is needed here."""

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes: ...


class IdentityService(IdentityServiceBase):
    """Serves `skerry.identity.v1.IdentityService`."""

    def __init__(self, identity: Renewer) -> None:
        self._identity = identity

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:  # noqa: N802 - gRPC's name
        request = await stream.recv_message()
        assert request is not None
        certificate = await self._identity.renew(caller_of(stream), request.csr)
        await stream.send_message(RenewReply(certificate=certificate))
