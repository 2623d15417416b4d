"""A message that repeats on a call and is answered where it is read: the heartbeat of a node.

Through HTTP/2, the buffer of the call and the task of its handler such a message costs several times what
reading and writing it does. A handler gives `skerry.transport.grpc.connections` the bytes of the message and
a function that answers it; input that is one frame with this message, and nothing else, is answered by that.
Anything unusual goes the usual way, which is also that of all other messages: a call that is not open, a
message in parts or behind others, no room in a window, a peer that does not read. Flow control counts these
frames as all others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from grpclib import protocol
from h2.connection import H2Connection
from h2.stream import StreamState

# Of the message to answer, to the one to send: None if it is to go the usual way, empty if nothing is sent.
AnswerInline = Callable[[], bytes | None]

_PREFIX: Final = struct.Struct(">?I")  # compressed or not, length
_MOST: Final = 4096  # bytes of a message


def encode_data_frame(stream: int, message: bytes) -> bytes:
    """A DATA frame with one uncompressed message of a gRPC call."""
    size = _PREFIX.size + len(message)
    if size > _MOST:
        raise ValueError(f"{len(message)} bytes are no small message")
    head = size.to_bytes(3) + b"\0\0" + stream.to_bytes(4)  # of type DATA, without flags
    return head + _PREFIX.pack(False, len(message)) + message


class InlineReply:
    """Answers `request` on one call. `is_between_messages` is whether its handler has read whole messages."""

    def __init__(
        self,
        wire: protocol.Stream,
        request: bytes,
        answer: AnswerInline,
        is_between_messages: Callable[[], bool],
    ) -> None:
        assert wire.id is not None, "it was received"
        self.wire = wire
        self._id = wire.id
        self._frame = encode_data_frame(wire.id, request)
        self._length = _PREFIX.size + len(request)
        self._answer = answer
        self._is_between_messages = is_between_messages
        self._last = (b"", b"")  # the last reply, and its frame

    def take(self, data: bytes, http2: H2Connection) -> bytes | None:
        """What to write in answer to `data`, which is all that there is to read; None if it is something
        else, or must go the usual way."""
        if data != self._frame or http2.incoming_buffer._data or http2.incoming_buffer._headers_buffer:
            return None
        stream = http2.streams.get(self._id)
        buffer = self.wire.buffer
        if (
            stream is None
            or stream.state_machine.state is not StreamState.OPEN
            or stream._expected_content_length is not None
            or buffer._acked_size
            or not buffer._unacked.empty()
            or not self._is_between_messages()
            or not self.wire.connection.write_ready.is_set()
            or min(http2.outbound_flow_control_window, stream.outbound_flow_control_window) < _MOST
        ):
            return None
        reply = self._answer()
        if reply is None:
            return None
        http2._inbound_flow_control_window_manager.window_consumed(self._length)
        stream._inbound_window_manager.window_consumed(self._length)
        http2.acknowledge_received_data(self._length, self._id)
        if not reply:
            return b""
        if reply != self._last[0]:
            self._last = (reply, encode_data_frame(self._id, reply))
        sent = _PREFIX.size + len(reply)
        http2.outbound_flow_control_window -= sent
        stream.outbound_flow_control_window -= sent
        return self._last[1]
