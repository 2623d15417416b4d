"""One call as its handler sees it: grpclib's stream, with limits, a caller and a request id.

`skerry.transport.grpc.dispatcher` makes one per call and fills in the caller before the handler runs. A
handler asks `caller_of(stream)` who is calling. What a client sends wrong (too large, cut off, compressed, no
protobuf) is answered here with a clear status, before the handler sees anything of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from google.protobuf.message import DecodeError
from grpclib import const, protocol, server
from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.exceptions import GRPCError
from grpclib.metadata import Deadline, _MetadataLike
from multidict import MultiDict

from skerry.kit.networks import plain_address
from skerry.model.callers import ANONYMOUS, Caller
from skerry.model.ids import Namespace
from skerry.transport.access import environment_redaction
from skerry.transport.grpc.inline_replies import AnswerInline, InlineReply

REQUEST_ID = "x-request-id"

Request = TypeVar("Request")

_PREFIX = struct.Struct(">?I")  # compressed or not, length
_CODEC = ProtoCodec()
_DISPATCH = _DispatchServerEvents()  # grpclib's hooks; none are used


class CallStream(server.Stream[Any, Any]):
    """A call under way. `status` is what the client got at the end, None until then."""

    def __init__(
        self,
        wire: protocol.Stream,
        path: str,
        method: const.Handler,
        *,
        request_id: str,
        max_message_bytes: int,
        user_agent: str | None = None,
    ) -> None:
        super().__init__(
            wire,
            path,
            method.cardinality,
            method.request_type,
            method.reply_type,
            codec=_CODEC,
            status_details_codec=None,
            dispatch=_DISPATCH,
            user_agent=user_agent,
        )
        self.path = path
        self.caller: Caller = ANONYMOUS
        self.address = ""  # that the connection comes from
        self.namespace: Namespace | None = (
            None  # of an RPC of a namespace; None: an unbound caller names none
        )
        self.request_id = request_id
        self.status: const.Status | None = None
        self.deadline: Deadline | None = None
        # Of its connection, which has one for all calls; None: there are none.
        self.set_inline_reply: Callable[[InlineReply | None], None] | None = None
        self._is_between_messages = True
        self._max_message_bytes = max_message_bytes

    @property
    def lacks_reply(self) -> bool:
        """True if the method owes exactly one message and none was sent."""
        return not self._cardinality.server_streaming and not self._send_message_done and self.status is None

    async def recv_message(self) -> Any | None:
        """The next message; None at the end of a client's stream, never where one message is owed."""
        prefix = await self._read(_PREFIX.size)
        if not prefix:
            if self._cardinality.client_streaming:
                return None
            raise GRPCError(const.Status.INVALID_ARGUMENT, "the call ended without a message; send one")
        is_compressed, size = _PREFIX.unpack(prefix)
        if is_compressed:
            raise GRPCError(
                const.Status.UNIMPLEMENTED,
                "compressed messages are not supported; send them without grpc-encoding",
            )
        if size > self._max_message_bytes:
            raise GRPCError(
                const.Status.RESOURCE_EXHAUSTED,
                f"the message has {size} bytes; at most {self._max_message_bytes} are taken "
                "(grpc.max_message_bytes)",
            )
        self._is_between_messages = False
        body = await self._read(size)
        self._is_between_messages = True
        if len(body) != size:
            raise _cut_off()
        try:
            return self._codec.decode(body, self._recv_type)
        except DecodeError:
            raise GRPCError(
                const.Status.INVALID_ARGUMENT,
                f"the message is no valid {self._recv_type.DESCRIPTOR.full_name}; "
                "check that client and server use the same .proto",
            ) from None

    async def send_message(self, message: Any) -> None:
        await super().send_message(environment_redaction.redact_message(self.caller, message))

    @contextmanager
    def answering(self, request: bytes, answer: AnswerInline) -> Iterator[None]:
        """Answer messages of these bytes where they are read, after the first message was sent; those that
        `answer` does not take are received as all others."""
        if self.set_inline_reply is None:
            yield
            return
        self.set_inline_reply(InlineReply(self._stream, request, answer, lambda: self._is_between_messages))
        try:
            yield
        finally:
            self.set_inline_reply(None)

    async def send_initial_metadata(self, *, metadata: _MetadataLike | None = None) -> None:
        await super().send_initial_metadata(metadata=self._with_request_id(metadata))

    async def send_trailing_metadata(
        self,
        *,
        status: const.Status = const.Status.OK,
        status_message: str | None = None,
        status_details: Any = None,
        metadata: _MetadataLike | None = None,
    ) -> None:
        if not self._send_initial_metadata_done:
            metadata = self._with_request_id(metadata)
        self.status = status
        await super().send_trailing_metadata(
            status=status, status_message=status_message, status_details=status_details, metadata=metadata
        )

    def _with_request_id(self, metadata: _MetadataLike | None) -> _MetadataLike:
        echoed: MultiDict[str | bytes] = MultiDict(metadata or ())
        echoed[REQUEST_ID] = self.request_id
        return echoed

    async def _read(self, size: int) -> bytes:
        try:
            return await self._stream.recv_data(size)
        except AssertionError:
            # grpclib's word for a client that ended its side in the middle of a message.
            raise _cut_off() from None


async def request_of(stream: server.Stream[Request, Any]) -> Request:
    """The message of a call that has exactly one; without it the call fails before its handler runs."""
    request = await stream.recv_message()
    assert request is not None
    return request


def caller_of(stream: server.Stream[Any, Any]) -> Caller:
    """Who makes this call; the access table has let it pass already."""
    assert isinstance(stream, CallStream), "the call did not come through skerry.transport.grpc.server"
    return stream.caller


def answering_of(
    stream: server.Stream[Any, Any],
) -> Callable[[bytes, AnswerInline], AbstractContextManager[None]]:
    """`CallStream.answering` of this call."""
    assert isinstance(stream, CallStream), "the call did not come through skerry.transport.grpc.server"
    return stream.answering


def namespace_of(stream: server.Stream[Any, Any]) -> Namespace | None:
    """The namespace of this call, of those that its caller may see; None: any, of an unbound caller."""
    assert isinstance(stream, CallStream), "the call did not come through skerry.transport.grpc.server"
    return stream.namespace


def peer_address(stream: server.Stream[Any, Any]) -> str:
    """The address that the connection of this call comes from; empty if it has none."""
    assert isinstance(stream, CallStream), "the call did not come through skerry.transport.grpc.server"
    return plain_address(stream.address)


def connection_of(stream: server.Stream[Any, Any]) -> object:
    """What all calls of one connection have in common."""
    return stream._stream.connection


def _cut_off() -> GRPCError:
    return GRPCError(const.Status.INVALID_ARGUMENT, "the message was cut off before its end; send it again")
