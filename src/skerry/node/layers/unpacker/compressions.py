"""Detects the compression of a layer by its first bytes, and decompresses in steps of bounded size.

A stream may consist of several members (gzip) or frames (zstd); nothing else may follow. The decompressor is
imported when it is chosen, before the process is confined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeVar

from skerry.node.layers.unpacker import errors, zstd_blocks
from skerry.node.layers.unpacker.errors import UnpackError

Decompress = Callable[[Iterator[bytes]], Iterator[bytes]]

MAGIC_BYTES: Final = 6
_GZIP: Final = (b"\x1f\x8b",)
_ZSTD: Final = (zstd_blocks.FRAME, *zstd_blocks.SKIPPED)
_UNSUPPORTED: Final = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x5d\x00\x00": "lzma",
    b"\x04\x22\x4d\x18": "lz4",
    b"LZIP": "lzip",
    b"PK\x03\x04": "zip",
}
_GZIP_STEP_BYTES: Final = 1 << 20  # of output per step
_ZSTD_WINDOW: Final = 1 << 27  # the default limit of the `zstd` program


class _Member(Protocol):
    """One member of a stream."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...


CompressedMember = TypeVar("CompressedMember", bound=_Member)


def choose(first: bytes) -> Decompress:
    """The decompressor for a stream that begins with `first`. Raises UnpackError for compressions that layers
    do not have."""
    if first.startswith(_GZIP):
        return _gzip()
    if first.startswith(_ZSTD):
        return _zstd()
    for magic, name in _UNSUPPORTED.items():
        if first.startswith(magic):
            raise UnpackError(
                errors.REFUSED, f"the layer is compressed with {name}; it may be gzip, zstd or a plain tar"
            )
    return iter


def _gzip() -> Decompress:
    from isal import igzip_lib

    def begin() -> igzip_lib.IgzipDecompressor:
        return igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)

    def feed(member: igzip_lib.IgzipDecompressor, data: bytes) -> Iterator[bytes]:
        try:
            yield member.decompress(data, _GZIP_STEP_BYTES)
            while not member.eof and not member.needs_input:
                yield member.decompress(b"", _GZIP_STEP_BYTES)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # its stub says an instance where a class is
            raise _damaged("gzip", error) from error

    return lambda chunks: _members("gzip", _GZIP, begin, feed, chunks)


def _zstd() -> Decompress:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)

    def feed(member: zstandard.ZstdDecompressionObj, data: bytes) -> Iterator[bytes]:
        try:
            yield member.decompress(data)
        except zstandard.ZstdError as error:
            raise _damaged("zstd", error) from error

    return lambda chunks: _members("zstd", _ZSTD, decompressor.decompressobj, feed, zstd_blocks.steps(chunks))


def _members(
    name: str,
    magics: tuple[bytes, ...],
    begin: Callable[[], CompressedMember],
    feed: Callable[[CompressedMember, bytes], Iterator[bytes]],
    chunks: Iterator[bytes],
) -> Iterator[bytes]:
    member: CompressedMember | None = None
    for chunk in chunks:
        remaining = chunk
        while remaining:
            if member is None:
                if not any(remaining.startswith(magic[: len(remaining)]) for magic in magics):
                    raise UnpackError(errors.MALFORMED, f"there is trailing data after the {name} data")
                member = begin()
            yield from feed(member, remaining)
            if not member.eof:
                break
            remaining, member = member.unused_data, None
    if member is not None:
        raise UnpackError(errors.MALFORMED, f"the {name} data is truncated")


def _damaged(name: str, error: Exception) -> UnpackError:
    return UnpackError(errors.MALFORMED, f"the {name} data is damaged: {error}")
