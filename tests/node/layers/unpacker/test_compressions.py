"""Layers come as gzip, as zstd or plain, whole or in several parts, and in steps of any size."""

from __future__ import annotations

import gzip
import zlib
from itertools import accumulate, pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from skerry.node.layers.unpacker import compressions, zstd_blocks
from skerry.node.layers.unpacker.errors import UnpackError

SKIPPED = b"\x5a\x2a\x4d\x18\x04\0\0\0skip"


def compress(data: bytes, how: str) -> bytes:
    return {"gzip": gzip.compress, "zstd": zstandard.compress}[how](data)


def decompress(data: bytes) -> bytes:
    return b"".join(compressions.choose(data[: compressions.MAGIC_BYTES])(iter([data])))


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@given(parts=st.lists(st.binary(max_size=2000), min_size=1, max_size=4), cuts=st.lists(st.integers(0, 8000)))
def test_what_was_compressed_in_parts_comes_out_whole(how: str, parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(compress(part, how) for part in parts)
    paths = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[start:end] for start, end in pairwise(paths)]
    read = compressions.choose(data[: compressions.MAGIC_BYTES])
    assert b"".join(read(iter(chunks))) == b"".join(parts)


@pytest.mark.parametrize("how", ["gzip", "zstd"])
@given(data=st.binary(min_size=1, max_size=300), leftovers=st.integers(7, 400))
def test_what_was_cut_off_is_a_fault(how: str, data: bytes, leftovers: int) -> None:
    whole = compress(data, how)
    cut = whole[: min(leftovers, len(whole) - 1)]
    with pytest.raises(UnpackError, match=f"{how} data"):
        decompress(cut)


def test_what_was_not_compressed_is_taken_as_it_is() -> None:
    assert decompress(b"a/\0plain tar") == b"a/\0plain tar"
    assert decompress(b"") == b""


def test_frames_that_are_to_be_skipped_are() -> None:
    assert decompress(SKIPPED + zstandard.compress(b"a") + SKIPPED + zstandard.compress(b"b")) == b"ab"


@pytest.mark.parametrize("how", ["gzip", "zstd"])
def test_steps_are_small_however_well_it_was_compressed(how: str) -> None:
    """So a limit on the size of a layer is seen before much more than that is in memory."""
    data = compress(bytes(64 << 20), how)
    read = compressions.choose(data[: compressions.MAGIC_BYTES])
    steps = [len(step) for step in read(iter([data]))]
    assert sum(steps) == 64 << 20
    assert max(steps) <= 1 << 20


@given(
    parts=st.lists(st.binary(max_size=600), max_size=4),
    level=st.integers(1, 19),
    has_checksum=st.booleans(),
    has_size=st.booleans(),
    size=st.integers(1, 300),
    garbage=st.binary(max_size=30),
)
def test_the_steps_of_zstd_data_are_all_of_it_and_end_where_frames_do(
    parts: list[bytes], level: int, has_checksum: bool, has_size: bool, size: int, garbage: bytes
) -> None:
    compressor = zstandard.ZstdCompressor(
        level=level, write_checksum=has_checksum, write_content_size=has_size
    )
    frames = [compressor.compress(part * 500) for part in parts]
    data = b"".join(frames)
    steps = list(zstd_blocks.steps(data[at : at + size] for at in range(0, len(data), size)))
    ends = set(accumulate(map(len, steps)))
    assert b"".join(steps) == data
    assert set(accumulate(map(len, frames))) <= ends
    with_garbage = list(zstd_blocks.steps(iter([data + garbage])))
    assert b"".join(with_garbage) == data + garbage


def test_gzip_with_a_name_and_a_comment_is_gzip() -> None:
    deflater = zlib.compressobj(wbits=-15)
    body = deflater.compress(b"data") + deflater.flush()
    header = b"\x1f\x8b\x08\x18" + bytes(6) + b"layer.tar\0" + b"comment\0"
    assert decompress(header + body + zlib.crc32(b"data").to_bytes(4, "little") + b"\4\0\0\0") == b"data"


@pytest.mark.parametrize(
    ("magic", "name"),
    [(b"BZh9", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x04\x22\x4d\x18", "lz4"), (b"PK\x03\x04", "zip")],
)
def test_other_compressions_are_refused_by_name(magic: bytes, name: str) -> None:
    with pytest.raises(UnpackError, match=f"compressed with {name}; it may be gzip, zstd or a plain tar"):
        compressions.choose(magic)
