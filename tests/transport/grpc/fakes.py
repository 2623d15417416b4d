"""An identity with a few tokens, and a service that does whatever a test needs a handler to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cryptography import x509
from cryptography.x509.oid import NameOID
from grpclib import const
from grpclib.server import Stream

from skerry.model import errors
from skerry.model.callers import AuthMethod, Caller, Role
from skerry.model.ids import Namespace
from skerry.transport.grpc.call_streams import caller_of
from skerry.transport.proto.identity_pb2 import RenewReply, RenewRequest

RENEW = "/skerry.identity.v1.IdentityService/Renew"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"


class FakeIdentity:
    """Certificates say their role, tokens are named after theirs (`deployer`, or `deployer@shop` if bound),
    and renewing returns what came in."""

    def __init__(self) -> None:
        self.renewed: list[tuple[Caller, bytes]] = []
        self.raises: Exception | None = None
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.cancelled = 0
        self._revoked: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def revoke(self, name: str) -> None:
        """Refuse all certificates, and the token, of this name from now on."""
        self._revoked.add(name)
        for changed in self._listeners:
            changed()

    def caller_from_token(self, text: str) -> Caller:
        role, _, bound = text.partition("@")
        if role not in set(Role) or text in self._revoked:
            raise errors.Unauthenticated("this token is unknown; make a new one")
        namespaces = tuple(map(Namespace, bound.split(","))) if bound else None
        return Caller(
            origin=AuthMethod.TOKEN, name=f"token:{text}", role=Role(role), token=text, namespaces=namespaces
        )

    def caller_from_certificate(self, der: bytes) -> Caller:
        subject = x509.load_der_x509_certificate(der).subject
        role = Role(str(subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)[0].value))
        name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        if name in self._revoked:
            raise errors.Unauthenticated("the certificate was revoked")
        return Caller(origin=AuthMethod.CERTIFICATE, name=name, role=role, node=name)

    async def renew(self, caller: Caller, csr_pem: bytes) -> bytes:
        self.started.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.raises is not None:
            raise self.raises
        self.renewed.append((caller, csr_pem))
        return b"renewed " + csr_pem


class Mute:
    """Ends without a reply, though it owes one."""

    def __mapping__(self) -> dict[str, const.Handler]:
        return {RENEW: const.Handler(self.Renew, const.Cardinality.UNARY_UNARY, RenewRequest, RenewReply)}

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:
        await stream.recv_message()


class Echo:
    """Streams back what comes in, until the client ends."""

    def __mapping__(self) -> dict[str, const.Handler]:
        return {RENEW: const.Handler(self.Renew, const.Cardinality.STREAM_STREAM, RenewRequest, RenewReply)}

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:
        async for request in stream:
            await stream.send_message(RenewReply(certificate=caller_of(stream).name.encode() + request.csr))


class Collector:
    """Takes whatever comes, until the client ends."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []

    def __mapping__(self) -> dict[str, const.Handler]:
        return {RENEW: const.Handler(self.Renew, const.Cardinality.STREAM_UNARY, RenewRequest, RenewReply)}

    async def Renew(self, stream: Stream[RenewRequest, RenewReply]) -> None:
        async for request in stream:
            self.taken.append(request.csr)
        await stream.send_message(RenewReply())
