"""Sets that are too long for one message: cut into parts on one side, put together on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from google.protobuf.message import Message

from skerry.model import errors
from skerry.transport.proto import nodes_pb2 as pb

PART_BYTES = 1024 * 1024  # of a part, about

T = TypeVar("T")
M = TypeVar("M", bound=Message)
P = TypeVar("P", pb.Orders, pb.Members, pb.Functions, pb.Revocations)


def split_into_parts(
    things: Sequence[T], encode: Callable[[T], M], *, beside: int = 0
) -> Iterator[tuple[list[M], bool]]:
    """`things` as messages, in parts of which there is at least one, each with whether more follow. In the
    first there are `beside` bytes more."""
    part: list[M] = []
    size = beside
    for thing in things:
        message = encode(thing)
        size += message.ByteSize()
        if size > PART_BYTES and part:
            yield part, True
            part, size = [], message.ByteSize()
        part.append(message)
    yield part, False


class PartAssembler(Generic[P]):
    """The parts of a set that have come so far, which may have `most_bytes` and `most_things` in them."""

    def __init__(self, most_bytes: float, most_things: float) -> None:
        self._most_bytes = most_bytes
        self._most_things = most_things
        self._parts: list[P] = []
        self._bytes = 0
        self._things = 0

    def add(self, part: P, things: int) -> list[P] | None:
        """All of them if this is the last, else None. A part is one of the things, beside those in it."""
        self._parts.append(part)
        self._bytes += part.ByteSize()
        self._things += 1 + things
        if self._bytes > self._most_bytes or self._things > self._most_things:
            raise errors.TooLarge(
                f"what comes in parts has at most {self._most_bytes} bytes and {self._most_things} in it"
            )
        if part.more:
            return None
        parts, self._parts, self._bytes, self._things = self._parts, [], 0, 0
        return parts
