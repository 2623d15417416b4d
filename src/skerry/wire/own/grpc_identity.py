"""IdentityService: a node renews its certificate before the old one expires.

Translation only; `skerry.control.identity.authenticator` decides, by the certificate of the connection.
"""

from __future__ import annotations

from typing import Protocol

from grpclib.server import Stream

from skerry.model.callers import Caller
from skerry.transport.grpc.call_streams import caller_of, request_of
from skerry.transport.proto.identity_grpc import IdentityServiceBase
from skerry.transport.proto.identity_pb2 import RenewReply, RenewRequest


class CertificateRenewer(Protocol):
    """The part of `skerry.control.identity.authenticator.Authenticator` that is needed here."""

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes: ...


class IdentityService(IdentityServiceBase):
    """Serves `skerry.identity.v1.IdentityService`."""

    def __init__(self, identity: CertificateRenewer) -> None:
        self._identity = identity

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        certificate = await self._identity.renew(caller_of(stream), request.csr)
        await stream.send_message(RenewReply(certificate=certificate))
