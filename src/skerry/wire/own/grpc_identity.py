"""IdentityService: a node renews its certificate before the old one expires, and gets one for its HTTPS
listener.

Translation only; `skerry.control.identity.authenticator` decides, by the certificate of the connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from grpclib.server import Stream

from skerry.control.identity.authenticator import EdgeCertificate
from skerry.model.callers import Caller
from skerry.transport.grpc.call_streams import caller_of, peer_address, request_of
from skerry.transport.proto.identity_grpc import IdentityServiceBase
from skerry.transport.proto.identity_pb2 import EdgeReply, EdgeRequest, RenewReply, RenewRequest


class CertificateRenewer(Protocol):
    """The part of `skerry.control.identity.authenticator.Authenticator` that is needed here."""

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes: ...

    async def issue_edge(
        self, caller: Caller, csr_pem: bytes, hosts: Sequence[str], address: str
    ) -> EdgeCertificate: ...


class IdentityService(IdentityServiceBase):
    """Serves `skerry.identity.v1.IdentityService`."""

    def __init__(self, identity: CertificateRenewer) -> None:
        self._identity = identity

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        certificate = await self._identity.renew(caller_of(stream), request.csr)
        await stream.send_message(RenewReply(certificate=certificate))

    async def IssueEdge(self, stream: Stream[EdgeRequest, EdgeReply]) -> None:  # noqa: N802 - gRPC's name
        request = await request_of(stream)
        issued = await self._identity.issue_edge(
            caller_of(stream), request.csr, list(request.hosts), peer_address(stream)
        )
        await stream.send_message(EdgeReply(certificate=issued.pem, refused=issued.refused))
