"""The input of the tar reader: exact numbers of bytes, or chunks.

It counts bytes, so that an archive is stopped at its limit while it streams, however well it was compressed.
The caller provides the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.kit.tar.errors import MalformedTar, TarTooLarge

_NOTHING: Final = memoryview(b"")


class ByteFeed:
    """Chunks of any size on one side; whole blocks and zero-copy pieces on the other."""

    def __init__(self, chunks: Iterator[bytes], most_bytes: int) -> None:
        self._chunks = chunks
        self._most_bytes = most_bytes
        self._chunk = _NOTHING
        self._at = 0
        self.bytes = 0  # that have come in, read or not

    @property
    def position(self) -> int:
        """How many bytes have been read."""
        return self.bytes - len(self._chunk) + self._at

    def take(self, length: int) -> bytes:
        """Exactly `length` bytes; b"" if there is nothing more at all. Raises `MalformedTar` if there is
        less."""
        at = self._at
        if at + length <= len(self._chunk):
            self._at = at + length
            return bytes(self._chunk[at : self._at])
        taken = b"".join(self.pieces(length, may_be_short=True))
        if taken and len(taken) < length:
            raise _truncated()
        return taken

    def pieces(self, length: int, *, may_be_short: bool = False) -> Iterator[memoryview]:
        """`length` bytes in chunks as they come; each is valid while it is referenced."""
        while length:
            left = len(self._chunk) - self._at
            if not left:
                if not self._turn():
                    if may_be_short:
                        return
                    raise _truncated()
                continue
            step = min(left, length)
            piece = self._chunk[self._at : self._at + step]
            self._at += step
            length -= step
            yield piece

    def skip(self, length: int) -> None:
        if self._at + length <= len(self._chunk):
            self._at += length
            return
        for _ in self.pieces(length):
            pass

    def rest(self) -> Iterator[memoryview]:
        """Everything that is left."""
        while True:
            if self._at < len(self._chunk):
                piece, self._at = self._chunk[self._at :], len(self._chunk)
                yield piece
            if not self._turn():
                return

    def _turn(self) -> bool:
        chunk = next(self._chunks, b"")
        self._chunk, self._at = memoryview(chunk), 0
        self.bytes += len(chunk)
        if self.bytes > self._most_bytes:
            raise TarTooLarge(f"is larger than {self._most_bytes:,} bytes when unpacked")
        return bool(chunk)


def _truncated() -> MalformedTar:
    return MalformedTar("is cut off: it ends in the middle of an entry")
