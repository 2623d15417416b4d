"""Transfer of the code of functions from a server to members: an archive by its digest, in parts.

Members may fetch any of it, and so may other servers. The receiver verifies the digest
(`skerry.functions.continuum.code_fetcher`).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from grpclib.server import Stream

from skerry.model import errors, ids
from skerry.model.callers import Role
from skerry.model.ids import Digest, NodeId
from skerry.transport.grpc.call_streams import caller_of, request_of
from skerry.transport.grpc.channels import dial, map_errors
from skerry.transport.proto import nodes_pb2 as pb
from skerry.transport.proto.nodes_grpc import CodeServiceBase, CodeServiceStub

_PART_BYTES: Final = 256 * 1024
_SILENCE_S: Final = 20.0

ArchiveLookup = Callable[[Digest], Awaitable[bytes]]


class CodeService(CodeServiceBase):
    """Serves `skerry.nodes.v1.CodeService` from what `archive` has, which raises `NotFound` for the rest."""

    def __init__(self, archive: ArchiveLookup, *, is_member: Callable[[NodeId], bool]) -> None:
        self._archive = archive
        self._is_member = is_member

    async def Fetch(self, stream: Stream[pb.CodeAsk, pb.CodePart]) -> None:  # noqa: N802 - gRPC's name
        caller = caller_of(stream)
        request = await request_of(stream)
        if caller.role is Role.NODE and not self._is_member(NodeId(caller.node)):
            raise errors.Forbidden(f"node {caller.node} takes no calls of functions, and so gets no code")
        archive = await self._archive(Digest(ids.check_digest(request.digest, "digest")))
        for at in range(0, len(archive), _PART_BYTES):
            await stream.send_message(pb.CodePart(data=archive[at : at + _PART_BYTES]))


async def fetch_archive(target: str, tls: ssl.SSLContext, digest: Digest, *, most_bytes: int) -> bytes:
    """The archive, of the server at `target`. Raises `NotFound` if it has it not, `Unavailable`, ..."""
    parts: list[bytes] = []
    size = 0
    channel = dial(target, tls)
    try:
        with map_errors("fetch the code of a function"):
            async with CodeServiceStub(channel).Fetch.open() as stream:
                await stream.send_message(pb.CodeAsk(digest=digest), end=True)
                while (part := await asyncio.wait_for(stream.recv_message(), _SILENCE_S)) is not None:
                    parts.append(part.data)
                    size += len(part.data)
                    if size > most_bytes:
                        raise errors.TooLarge(
                            f"the code has more than {most_bytes} bytes, and no more are taken here; raise "
                            "functions.max_code_bytes"
                        )
    finally:
        channel.close()
    return b"".join(parts)
