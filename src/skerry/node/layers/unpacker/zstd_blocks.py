"""Splits zstd data so that the output of each part is bounded, whatever the compression ratio.

The decompressor returns all output of its input, and four bytes can become 128 kB. So it gets a few blocks at
a time, of at most 128 kB each. Only headers of frames and blocks are parsed for that (RFC 8878, sections
3.1.1 and 3.1.2); invalid data is passed on as it is, for the decompressor to reject.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from skerry.kit.tar.byte_feed import ByteFeed

FRAME: Final = b"\x28\xb5\x2f\xfd"
SKIPPED: Final = tuple(bytes((kind,)) + b"\x2a\x4d\x18" for kind in range(0x50, 0x60))
_BLOCKS: Final = 8  # per step
_SMALL: Final = 512  # of invalid data
_RLE: Final = 1
_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_DICTIONARY_BYTES: Final = (0, 1, 2, 4)


def steps(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """All of `chunks`, in parts whose output is at most a megabyte."""
    feed = ByteFeed(chunks, 1 << 63)
    while magic := _take(feed, 4):
        if magic == FRAME:
            yield from _frame(feed)
        elif magic in SKIPPED:
            length = _take(feed, 4)
            yield magic + length
            yield from map(bytes, feed.pieces(int.from_bytes(length, "little"), may_be_short=True))
        else:
            yield magic
            while small := _take(feed, _SMALL):
                yield small


def _frame(feed: ByteFeed) -> Iterator[bytes]:
    descriptor = _take(feed, 1)
    if not descriptor:
        yield FRAME
        return
    flags = descriptor[0]
    is_single = flags >> 5 & 1
    size_bytes = _CONTENT_SIZE_BYTES[flags >> 6] or is_single
    window_bytes = 1 - is_single
    step = [FRAME, descriptor, _take(feed, window_bytes + _DICTIONARY_BYTES[flags & 3] + size_bytes)]
    is_last, blocks = False, 0
    while not is_last and (head := _take(feed, 3)):
        fields = int.from_bytes(head, "little")
        is_last = bool(fields & 1)
        step += (head, _take(feed, 1 if fields >> 1 & 3 == _RLE else fields >> 3))
        blocks += 1
        if blocks == _BLOCKS:
            yield b"".join(step)
            step, blocks = [], 0
    step.append(_take(feed, 4 if flags & 4 else 0))
    yield b"".join(step)


def _take(feed: ByteFeed, length: int) -> bytes:
    """So many bytes, or the rest."""
    return b"".join(feed.pieces(length, may_be_short=True))
