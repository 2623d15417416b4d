"""Messages as bytes on a stream: four bytes of length, then the message in msgpack.

Pure. A message that is too long is refused by its length alone, before any of it is kept; one that cannot be
decoded is `MalformedFrame`, which ends the stream, because the start of the next message is not known.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from skerry.model import errors
from skerry.model.settings import FunctionSettings
from skerry.transport.links.members.messages import LinkMessage, ReplyMessage, RequestMessage

M = TypeVar("M")

_LENGTH: Final = struct.Struct(">I")
_SLACK_BYTES: Final = 512 * 1024  # what a message has beside parameters, result and output
_encode_into: Final = msgspec.msgpack.Encoder().encode_into
decode_request: Final = msgspec.msgpack.Decoder[RequestMessage](RequestMessage).decode
decode_reply: Final = msgspec.msgpack.Decoder[ReplyMessage](ReplyMessage).decode
_UNREADABLE: Final = (msgspec.MsgspecError, errors.SkerryError, ValueError, RecursionError)


class MalformedFrame(Exception):
    """What came is no message."""


def max_frame_bytes(settings: FunctionSettings) -> int:
    """Bytes of the longest message that a member with these settings has to take."""
    return (
        max(settings.max_params_bytes, settings.max_result_bytes + settings.max_output_bytes) + _SLACK_BYTES
    )


def encode_frame(message: LinkMessage) -> bytearray:
    """The message with its length before it, in a buffer that is the caller's own."""
    frame = bytearray(128)
    _encode_into(message, frame, 4)
    _LENGTH.pack_into(frame, 0, len(frame) - 4)
    return frame


class FrameDecoder(Generic[M]):
    """Takes what arrives, in whatever pieces, and gives out whole messages."""

    __slots__ = ("_decode", "_rest", "max_bytes")

    def __init__(self, decode: Callable[[Any], M], max_bytes: int) -> None:
        self._decode = decode
        self._rest = bytearray()
        self.max_bytes = max_bytes  # of a message

    @property
    def is_in_message(self) -> bool:
        """True if a message has begun and not ended."""
        return bool(self._rest)

    def feed(self, data: bytes, take: Callable[[M], None]) -> None:
        """Call `take` with every message that is complete now. Raises `MalformedFrame`, after those before
        it."""
        rest = self._rest
        if rest:
            rest += data
        whole: bytes | bytearray = rest or data
        at, end = 0, len(whole)
        while end - at >= 4:
            (size,) = _LENGTH.unpack_from(whole, at)
            if size > self.max_bytes:
                raise MalformedFrame(f"a message of {size} bytes, and {self.max_bytes} is the most")
            begin, following = at + 4, at + 4 + size
            if following > end:
                break
            try:
                message = self._decode(memoryview(whole)[begin:following])
            except _UNREADABLE as error:
                raise MalformedFrame(f"no message: {error}") from None
            at = following
            take(message)
        if rest:
            del rest[:at]
        elif at < end:
            rest += data[at:] if at else data
