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
P = TypeVar("P", pb.Orders, pb.Members, pb.Functions, pb.Revocations, pb.Volumes, pb.Network)


def split_into_parts(
    items: Sequence[T], encode: Callable[[T], M], *, beside: int = 0
) -> Iterator[tuple[list[M], bool]]:
    """`items` as messages, in at least one part, each with whether more follow. The first has `beside` bytes
    more."""
    part: list[M] = []
    size = beside
    for item in items:
        message = encode(item)
        size += message.ByteSize()
        if size > PART_BYTES and part:
            yield part, True
            part, size = [], message.ByteSize()
        part.append(message)
    yield part, False


class PartAssembler(Generic[P]):
    """The parts of a set that have come so far, which may have `most_bytes` and `max_items` in them."""

    def __init__(self, most_bytes: float, max_items: float) -> None:
        self._most_bytes = most_bytes
        self._max_items = max_items
        self._parts: list[P] = []
        self._bytes = 0
        self._items = 0

    def add(self, part: P, items: int) -> list[P] | None:
        """All of them if this is the last, else None. A part is one of the things, beside those in it."""
        self._parts.append(part)
        self._bytes += part.ByteSize()
        self._items += 1 + items
        if self._bytes > self._most_bytes or self._items > self._max_items:
            raise errors.TooLarge(
                f"what comes in parts has at most {self._most_bytes} bytes and {self._max_items} in it"
            )
        if part.more:
            return None
        parts, self._parts, self._bytes, self._items = self._parts, [], 0, 0
        return parts
